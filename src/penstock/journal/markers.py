"""Transaction markers among the rows of a journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.ids import Kind
from penstock.journal.errors import UnknownJournalError
from penstock.journal.names import identity_in, name_of
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


@dataclass(frozen=True, slots=True)
class MarkersSought:
    """Rows [begin, end) of a journal, whose markers are needed once more."""

    begin: int
    matched_to: int
    """Those below it were matched before: they end transactions with rows."""
    end: int
    open_producers: frozenset[int] | None = None
    """They have rows of transactions below `matched_to` that are not over there. None: a look was
    there, so that the first marker of a producer behind it is no repetition."""


def markers_in(
    rows: Rows, begin: int, end: int, key: tuple[str, int], empty: Collection[int]
) -> Iterator[Marker]:
    """Those among rows [begin, end), and where the journal has lost rows before one of them. `key`
    is what frontiers call the journal, and a binding; `empty` are the rows of markers that commit
    no rows."""
    for row in sorted({*rows.epochs, *rows.behind_lost}):
        if not begin <= row < end:
            continue
        offset = int(rows.offsets[row])
        if row in rows.behind_lost:
            yield Marker.lost(*key, offset)
        if row in rows.epochs:
            yield Marker(
                *key,
                int(rows.producers[row]),
                offset,
                rows.epochs[row],
                is_commit=int(rows.clocks[row]) > ROLLBACK_CLOCK,
                is_empty=row in empty,
            )


def markers_again(
    store: ReadableStore, key: tuple[str, int], sought: MarkersSought
) -> Iterator[Marker]:
    """What a Slice has told of a journal. Raises what `read` raises, and `UnknownJournalError` if
    another journal has the name now."""
    name, identity = name_of(key[0]), identity_in(key[0])
    if identity not in {"", store.probe(name).identity}:
        raise UnknownJournalError(name)
    opened = dict.fromkeys(sought.open_producers or (), True)
    for batch in store.read(name, sought.begin, sought.end, ()):
        first = int(np.searchsorted(batch.offsets, sought.matched_to))
        empty = _empty_commits(batch, first, opened, by_default=sought.open_producers is None)
        yield from markers_in(batch, 0, batch.rows, key, empty)


def _empty_commits(
    batch: JournalBatch, first: int, opened: dict[int, bool], *, by_default: bool
) -> set[int]:
    """The rows, from the first on, of markers that commit no rows. `opened` tells which producers
    have rows before it and no marker behind them; it is brought up to date."""
    empty, after = set(), first
    for row in [*sorted(row for row in batch.epochs if row >= first), batch.rows]:
        between = slice(after, row)
        is_part = batch.flags[between] & Kind.CONTINUE != 0
        opened.update(dict.fromkeys(np.unique(batch.producers[between][is_part]).tolist(), True))
        after = row + 1
        if row < batch.rows:
            producer, clock = int(batch.producers[row]), int(batch.clocks[row])
            if not opened.get(producer, by_default) and clock > ROLLBACK_CLOCK:
                empty.add(row)
            opened[producer] = False
    return empty
