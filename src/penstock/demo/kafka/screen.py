"""What is shown while money moves: the two readers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from penstock.demo.kafka.books import Books
    from penstock.demo.kafka.waits import Opened, Waits


@dataclass(frozen=True, slots=True)
class Column:
    """A reader at a moment."""

    title: str
    books: Books
    waits: Waits
    behind: int
    """Transfers that are committed, and in none of its batches."""


def picture(columns: Sequence[Column], committed: int, opened: Opened | None, now: float) -> Group:
    parts: list[RenderableType] = [Text(f"{committed:,} transfers are committed"), table(columns)]
    if opened is not None and opened.ended is None:
        parts.append(
            Text(
                f"transfer {opened.name} has been open for {now - opened.began:.0f} s",
                style="yellow",
            )
        )
    return Group(*parts)


def table(columns: Sequence[Column]) -> Table:
    made = Table(box=box.SIMPLE, pad_edge=False)
    made.add_column("")
    for column in columns:
        made.add_column(column.title, justify="right")
    rows: list[tuple[str, list[str | Text]]] = [
        ("micro-batches", [f"{one.books.batches:,}" for one in columns]),
        ("  with a part of a transfer", [_bad(one.books.torn_batches) for one in columns]),
        ("  whose books do not balance", [_bad(one.books.unbalanced_batches) for one in columns]),
        ("transfers read", [f"{len(one.books.transfers):,}" for one in columns]),
        ("  committed and not read yet", [f"{one.behind:,}" for one in columns]),
        ("from commit to batch, median", [f"{one.waits.median_seconds:.1f} s" for one in columns]),
        ("  longest", [f"{one.waits.longest_seconds:.1f} s" for one in columns]),
    ]
    for name, cells in rows:
        made.add_row(name, *cells)
    return made


def _bad(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
