"""How a pipeline goes, for people: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.cli import terminal
from penstock.cli.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from rich.console import Console, RenderableType

    from penstock.spark.progress import Figures

LINE_SECONDS: Final = 5.0
"""Between plain lines: a log is not a film."""


class RunView:
    """A context in which queries are shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """What happens now. In a terminal it is gone when the next thing happens."""
        if self._live is not None:
            self._live.update(Text(f"{text} ...", "dim"), refresh=True)
        else:
            self._console.print(Text(text))

    def tell(self, text: str) -> None:
        """What stays to be read."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, queries: Sequence[Figures], *, stopping: bool) -> None:
        if self._live is not None:
            self._live.update(_table(queries, stopping=stopping))
        elif time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            for query in queries:
                self._console.print(Text(_line(query)))


def _table(queries: Sequence[Figures], *, stopping: bool) -> RenderableType:
    numbers = ("batch", "documents", "documents/s", "ms/batch", "rows behind", "epoch")
    made = terminal.table("query", *numbers, "", right=numbers)
    for query in queries:
        state = query.stall if query.is_active else "ended"
        if query.batch is None:
            made.add_row(query.name, *("" for _ in numbers), state or _begun(query.doing))
            continue
        made.add_row(
            query.name,
            f"{query.batch:,}",
            f"{query.documents:,}",
            f"{query.documents_per_second:,.0f}",
            f"{query.batch_ms:,}",
            f"{query.rows_behind:,}",
            f"{query.epoch:,}",
            state,
        )
    hint = "stopping; Ctrl-C again stops at once" if stopping else "Ctrl-C stops in order"
    return Group(made, Text(hint, "dim"))


def _line(query: Figures) -> str:
    if query.batch is None:
        return f"{query.name}: {_begun(query.doing)}"
    return (
        f"{query.name}: batch {query.batch:,}, {counted(query.documents, 'document')}, "
        f"{query.documents_per_second:,.0f}/s; epoch {query.epoch:,}, "
        f"{counted(query.rows_behind, 'row')} behind{f'; {query.stall}' if query.stall else ''}"
    )


def _begun(doing: str) -> str:
    """Spark's words, as the middle of a line."""
    return f"{doing[:1].lower()}{doing[1:]}"
