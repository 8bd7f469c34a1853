"""What people see: tables, numbers and progress, on a terminal or in a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.progress import ProgressColumn

_FILE_COLUMNS: Final = 1_000
"""Written to a file or a pipe, a table is as wide as it needs to be."""


def output() -> Console:
    """Standard output. Only a terminal gets colours and is wrapped to its width."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_FILE_COLUMNS, no_color=True, soft_wrap=True)


def messages() -> Console:
    """Standard error, for what is said about the data and is not data."""
    if sys.stderr.isatty():
        return Console(stderr=True, highlight=False)
    return Console(stderr=True, highlight=False, width=_FILE_COLUMNS, no_color=True, soft_wrap=True)


def table(*columns: str, right: Iterable[str] = (), title: str | None = None) -> Table:
    """An empty table; the columns named in `right` hold numbers."""
    made = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left")
    return made


def counted(number: int, noun: str) -> str:
    """`1 journal`, `1,204 journals`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def progress(console: Console, *, counting: bool = True) -> Progress:
    """A progress bar that is shown on a terminal only, and gone when it is over."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn()]
    if counting:
        columns.append(MofNCompleteColumn())
    columns.append(TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
