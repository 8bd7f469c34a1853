"""How a pipeline goes, for people: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from penstock.cli import terminal
from penstock.cli.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console, RenderableType

LINE_SECONDS: Final = 5.0
"""Between plain lines: a log is not a film."""


class RunView:
    """A context in which queries are shown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at = time.monotonic()
        self._documents: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                Text("starting ..."), console=console, transient=True, refresh_per_second=4
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def documents(self) -> dict[str, int]:
        """That each query has read, as far as Spark remembers its batches."""
        return dict(self._documents)

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def show(self, queries: Sequence[StreamingQuery], *, stopping: bool) -> None:
        for query in queries:
            self._count(query)
        if self._live is not None:
            self._live.update(self._table(queries, stopping=stopping))
        elif time.monotonic() - self._said_at >= LINE_SECONDS:
            self._said_at = time.monotonic()
            for query in queries:
                self._console.print(self._line(query))

    def _count(self, query: StreamingQuery) -> None:
        """Spark keeps the last hundred batches."""
        for progress in query.recentProgress:
            number = int(progress["batchId"])
            if number > self._seen.get(query.name, -1):
                self._seen[query.name] = number
                before = self._documents.get(query.name, 0)
                self._documents[query.name] = before + int(progress["numInputRows"])

    def _table(self, queries: Sequence[StreamingQuery], *, stopping: bool) -> RenderableType:
        numbers = ("batch", "documents", "documents/s", "ms/batch", "behind", "epoch")
        made = terminal.table("query", *numbers, "", right=numbers)
        for query in queries:
            last = query.lastProgress
            if last is None:
                made.add_row(query.name, *("" for _ in numbers), query.status["message"])
                continue
            source = _newest(last)
            made.add_row(
                query.name,
                f"{int(last['batchId']):,}",
                f"{self._documents.get(query.name, 0):,}",
                f"{float(last['processedRowsPerSecond'] or 0):,.0f}",
                f"{last['durationMs'].get('triggerExecution', 0):,}",
                f"{source.get('rows_behind', 0):,}",
                f"{source.get('epoch', 0):,}",
                "" if query.isActive else "ended",
            )
        hint = "Ctrl-C again stops at once" if stopping else "Ctrl-C stops in order"
        return Group(made, Text(hint, "dim"))

    def _line(self, query: StreamingQuery) -> str:
        last = query.lastProgress
        if last is None:
            return f"{query.name}: {query.status['message']}"
        source = _newest(last)
        return (
            f"{query.name}: batch {last['batchId']}, "
            f"{counted(self._documents.get(query.name, 0), 'document')}, "
            f"{float(last['processedRowsPerSecond'] or 0):,.0f}/s; "
            f"epoch {source.get('epoch', 0)}, {counted(source.get('rows_behind', 0), 'row')} behind"
        )


def _newest(progress: Any) -> dict[str, Any]:
    """What our sources report of themselves, put together: the newest epoch, all rows behind."""
    found: dict[str, Any] = {}
    for source in progress["sources"]:
        try:
            latest = json.loads(source["latestOffset"])
        except (KeyError, TypeError, ValueError):
            continue  # not ours
        if isinstance(latest, dict) and "epoch" in latest:
            found["epoch"] = max(found.get("epoch", 0), latest["epoch"])
            found["rows_behind"] = found.get("rows_behind", 0) + latest.get("rows_behind", 0)
    return found
