"""Which rows of a partition a connector has written before, by where the database's log has them.

Debezium's connector, started again, goes on from the place that it has noted last, and writes once
more what came behind it. A change's place in PostgreSQL's log is `source.sequence`: where the last
transaction before its own was committed, and where the change itself was written. Such pairs rise
with every change that the database commits. So a row is a repetition if its pair is not above all
pairs before it in the partition.

Changes of one record of the log (COPY writes a page of rows at once) have the same pair: they are
told apart by how many of it came before in the partition. A connector that starts again begins a
record anew; that it did is seen by `transaction.total_order`, which rises otherwise. It cannot
identify a row: a connector that starts in the middle of a transaction counts from 1 again.

Pure: decision 036 has what was seen of real connectors, and why offsets and not pairs are clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.debezium import COMMITTED, ORDER, SEQUENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS: Final = frozenset((SEQUENCE, ORDER, COMMITTED))
"""Of a document, that the rule needs."""
_PAIR: Final = r'^\[(?:null|"(?P<commit>[0-9]{1,20})"), ?"(?P<change>[0-9]{1,20})"\]$'
Place: TypeAlias = tuple[int, int, int]
"""The commit before, the change, and its number among those with the same two."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows of one partition in its order: only those that have a place."""

    commits: NDArray[np.uint64]
    changes: NDArray[np.uint64]
    orders: NDArray[np.int64]
    committed_us: NDArray[np.int64]

    def chosen(self, some: NDArray[np.bool_]) -> Changes:
        return Changes(
            self.commits[some], self.changes[some], self.orders[some], self.committed_us[some]
        )


@dataclass(frozen=True, slots=True)
class Known:
    """What rows that follow are compared with."""

    last: Place
    order: int
    """Of the last row."""
    highest: Place
    committed_us: int
    """When the transaction of the highest was committed."""


@dataclass(frozen=True, slots=True)
class Told:
    is_repeated: NDArray[np.bool_]
    known: Known | None
    begun_anew: int | None = None
    """The first row that looks like a repetition, and was committed long after what it would
    repeat: the database's log is another one."""


def changes_in(documents: pa.RecordBatch) -> tuple[Changes, NDArray[np.intp]]:
    """The rows that have a place, and which they are. A snapshot's have none, and nor has any where
    the connector is not told to write transactions."""
    sequences: Any = documents.column(SEQUENCE)
    orders: Any = documents.column(ORDER)
    pairs: Any = pc.extract_regex(sequences, _PAIR)
    is_placed = pc.and_(pairs.is_valid(), orders.is_valid())
    rows = np.flatnonzero(is_placed.to_numpy(zero_copy_only=False))
    placed = pairs.take(pa.array(rows))
    # The first transaction that a connector sees has none before it.
    commits, changes = (
        pc.replace_substring_regex(digits, "^$", "0").cast(pa.uint64()).to_numpy()
        for digits in (placed.field("commit"), placed.field("change"))
    )
    committed: Any = documents.column(COMMITTED)
    moments = committed.take(pa.array(rows)).cast(pa.int64()).fill_null(0)
    return (
        Changes(commits, changes, orders.take(pa.array(rows)).to_numpy(), moments.to_numpy()),
        rows,
    )


def repeated(rows: Changes, known: Known | None, patience_us: int) -> Told:
    """Which of these rows are repetitions, after what is known of those before them. No repetition
    was committed `patience_us` after what it repeats."""
    count = len(rows.commits)
    if count == 0:
        return Told(np.zeros(0, np.bool_), known)
    numbers = _numbers(rows, known)
    ranks = _ranks(rows, numbers, known)
    highest = np.maximum.accumulate(ranks)
    is_new = ranks[1:] > highest[:-1]
    is_repeated = ~is_new
    heights = np.concatenate([[0 if known is None else known.committed_us], rows.committed_us])
    latest = np.maximum.accumulate(np.where(np.append(True, is_new), heights, 0))
    anew = np.flatnonzero(is_repeated & (rows.committed_us > latest[:-1] + patience_us))
    top = int(np.flatnonzero(ranks == highest[-1])[0]) - 1
    after = Known(
        _place(rows, numbers, count - 1),
        int(rows.orders[-1]),
        known.highest if top < 0 and known is not None else _place(rows, numbers, top),
        int(latest[-1]),
    )
    return Told(is_repeated, after, int(anew[0]) if len(anew) else None)


def _numbers(rows: Changes, known: Known | None) -> NDArray[np.int64]:
    """Of each row, how many of the same pair stand right before it, as the connector wrote them
    without a start in between."""
    count = len(rows.commits)
    goes_on = np.zeros(count, np.bool_)
    goes_on[1:] = (
        (rows.commits[1:] == rows.commits[:-1])
        & (rows.changes[1:] == rows.changes[:-1])
        & (rows.orders[1:] > rows.orders[:-1])
    )
    first = 0
    if known is not None:
        pair = (int(rows.commits[0]), int(rows.changes[0]))
        if pair == known.last[:2] and int(rows.orders[0]) > known.order:
            first = known.last[2] + 1
    places = np.arange(count)
    starts = np.maximum.accumulate(np.where(goes_on, 0, places))
    numbers = places - starts
    numbers[starts == 0] += first
    return numbers


def _ranks(rows: Changes, numbers: NDArray[np.int64], known: Known | None) -> NDArray[np.int64]:
    """Numbers that compare as the places do; the first is that of the highest so far."""
    commit, change, number = (0, 0, -1) if known is None else known.highest
    columns = (
        np.append(np.int64(number), numbers),
        np.append(np.uint64(change), rows.changes),
        np.append(np.uint64(commit), rows.commits),
    )
    order = np.lexsort(columns)
    is_next = np.zeros(len(order), np.int64)
    for column in columns:
        is_next[1:] |= column[order][1:] != column[order][:-1]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(is_next)
    return ranks


def _place(rows: Changes, numbers: NDArray[np.int64], row: int) -> Place:
    return int(rows.commits[row]), int(rows.changes[row]), int(numbers[row])
