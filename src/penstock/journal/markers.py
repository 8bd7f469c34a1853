"""Transaction markers among the rows of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.ids import Kind
from penstock.journal.offset_identity import ROLLBACK_CLOCK
from penstock.journal.transaction_log import Marker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.journal.store import JournalBatch, ReadableStore


class Rows(Protocol):
    """What a `JournalBatch` has, and what a Slice keeps of one."""

    @property
    def offsets(self) -> Any: ...
    @property
    def producers(self) -> Any: ...
    @property
    def clocks(self) -> Any: ...
    @property
    def epochs(self) -> Mapping[int, int]: ...
    @property
    def behind_lost(self) -> frozenset[int]: ...


def markers_in(  # noqa: PLR0917 - a place in a journal has this many parts
    batch: Rows, begin: int, end: int, known_as: str, binding: int, empty: Collection[int]
) -> Iterator[Marker]:
    """Those among rows [begin, end) of a batch, and where the journal has lost rows before one of
    them. `known_as` is what frontiers call the journal; `empty` are the rows of markers that end a
    transaction without rows."""
    for row in sorted({*batch.epochs, *batch.behind_lost}):
        if not begin <= row < end:
            continue
        offset = int(batch.offsets[row])
        if row in batch.behind_lost:
            yield Marker.lost(known_as, binding, offset)
        if row in batch.epochs:
            yield Marker(
                known_as,
                binding,
                int(batch.producers[row]),
                offset,
                batch.epochs[row],
                is_commit=int(batch.clocks[row]) > ROLLBACK_CLOCK,
                is_empty=row in empty,
            )


def markers_between(  # noqa: PLR0917 - a place in a journal has this many parts
    store: ReadableStore, journal: str, begin: int, end: int, known_as: str, binding: int
) -> Iterator[Marker]:
    """Those at offsets [begin, end). One whose rows may all be before `begin` counts as empty: to
    match a producer anew is always right. Raises what `read` raises."""
    opened: set[int] = set()
    if begin < end:
        for batch in store.read(journal, begin, end, ()):
            empty = _empty_markers(batch, opened)
            yield from markers_in(batch, 0, batch.rows, known_as, binding, empty)


def _empty_markers(batch: JournalBatch, opened: set[int]) -> set[int]:
    """The rows of markers that end a transaction without rows. `opened` are the producers with rows
    before the batch and no marker behind them; it is brought up to date."""
    empty, after = set(), 0
    for row in [*sorted(batch.epochs), batch.rows]:
        between = slice(after, row)
        has_rows = batch.flags[between] & Kind.CONTINUE != 0
        opened.update(np.unique(batch.producers[between][has_rows]).tolist())
        after = row + 1
        if row < batch.rows:
            producer = int(batch.producers[row])
            if producer not in opened:
                empty.add(row)
            opened.discard(producer)
    return empty
