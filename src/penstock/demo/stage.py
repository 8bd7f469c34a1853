"""What the demo is told on: headings, sentences, tables and what shows that it is not stuck."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

_FILE_COLUMNS: Final = 100
"""How wide the story is where there is no terminal to say so."""


class Stage:
    """A terminal, or a file that gets the same words without what moves."""

    def __init__(self, console: Console | None = None) -> None:
        if console is None and sys.stdout.isatty():
            console = Console(highlight=False)
        self._console = console or Console(highlight=False, width=_FILE_COLUMNS, no_color=True)

    def heading(self, number: int, title: str) -> None:
        self._console.print()
        self._console.print(Text(f"{number}  {title}", style="bold cyan"))

    def say(self, text: str | Text = "") -> None:
        self._console.print(text, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        """The first column is words, the others are numbers."""
        made = Table(box=box.SIMPLE, pad_edge=False)
        for number, column in enumerate(columns):
            made.add_column(column, justify="right" if number else "left")
        for row in rows:
            made.add_row(*row)
        self._console.print(made)

    def show(self, picture: RenderableType) -> None:
        self._console.print(picture)

    @contextmanager
    def working(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar, moved by calling what this gives with how much is done."""
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.update(task, completed=done)

    @contextmanager
    def showing(self) -> Iterator[Callable[[RenderableType], None]]:
        """A picture that changes whenever what this gives is called with another one."""
        if not self._console.is_terminal:
            yield lambda _: None
            return
        with Live(console=self._console, transient=True, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """A spinner, where nobody can tell how long it takes."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(what):
            yield
