"""What a cohort has settled: of every journal and producer, up to where it was promoted.

It answers two questions about a hint: is the commit there already, and can it still come. And one
about an entry: is a span open where reading would resume.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer
from penstock.journal.names import known_as, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.frontier import Frontier
    from penstock.frontier.table import BoolArray

ReadKey: TypeAlias = tuple[str, int]
"""A journal, and the binding that reads it."""
GONE: Final = "gone"
"""In place of an identity: of journals that are deleted, whose commits nobody will see."""


def gone_key(key: ReadKey) -> ReadKey:
    """What stands for all journals of the name that are gone."""
    return known_as(name_of(key[0]), GONE), key[1]


class Entry(NamedTuple):
    """One row of a frontier's entries, with the journal it belongs to."""

    row: int
    key: ReadKey
    producer: int
    """As `Producer.int64`."""
    last_commit: int
    hinted_commit: int
    offset: int

    @property
    def identity(self) -> Producer:
        return Producer.from_int64(self.producer)


class Settled(NamedTuple):
    commit: int
    is_open: bool
    """A span of the producer is open at the place where reading would resume."""


NOTHING: Final = Settled(CLOCK_NONE, is_open=True)
"""Of a producer that was not read there. Its first row may begin a span at offset 0, and an entry
can say that only as long as it has no commit."""


class Ledger:
    """Begins with what a session resumes from, and grows with all that its cohort promotes."""

    def __init__(self) -> None:
        self._reads: dict[ReadKey, dict[int, Settled]] = {}
        """By read and producer."""
        self._gap_floors: dict[int, int] = {}

    def settle(self, frontier: Frontier) -> None:
        """Takes the commits and open spans of a promoted frontier in. Its hints are no commits."""
        for _, key, producer, last_commit, _, offset in entries_of(frontier):
            read = self._reads.setdefault(key, {})
            if last_commit >= max(CLOCK_FLOOR, read.get(producer, NOTHING).commit):
                read[producer] = Settled(last_commit, is_open(last_commit, offset))

    def raise_gap_floors(self, floors: Mapping[int, int]) -> None:
        for binding, clock in floors.items():
            self._gap_floors[binding] = max(clock, self._gap_floors.get(binding, clock))

    def of(self, key: ReadKey, producer: int) -> Settled:
        read = self._reads.get(key)
        return NOTHING if read is None else read.get(producer, NOTHING)

    def is_moot(self, key: ReadKey, producer: int, hinted_commit: int) -> bool:
        """Whether nobody needs to wait for this commit: it is there, or will not come, because the
        journal lost its rows, or is gone. How old it is does not count: clocks of producers differ
        by any time, and the others of its journal say nothing about its own."""
        return (
            hinted_commit <= self.of(key, producer).commit
            or hinted_commit <= self.of(gone_key(key), producer).commit
            or hinted_commit < self._gap_floors.get(key[1], 0)
        )

    def prune(self, frontier: Frontier) -> Frontier:
        """Without the unresolved hints that are moot, nor the entries that were no more."""
        moot = np.zeros(frontier.entry_count, np.bool_)
        for row, key, producer, _, hinted_commit, _ in entries_of(frontier, frontier.unresolved):
            moot[row] = self.is_moot(key, producer, hinted_commit)
        if not moot.any():
            return frontier
        none = np.uint64(CLOCK_NONE)
        hints = np.where(moot, none, frontier.hinted_commits)
        kept = ~(moot & (frontier.last_commits == none))
        return replace(frontier, hinted_commits=hints).keep_entries(kept)


def is_open(last_commit: int, offset: int) -> bool:
    """Whether an entry says that a span is open. Offset 0 does where nothing was committed yet;
    else it stands for a commit that was resolved before its journal was read."""
    return offset > 0 or (offset == 0 and last_commit == CLOCK_FLOOR)


def entries_of(frontier: Frontier, chosen: BoolArray | None = None) -> Iterator[Entry]:
    """The entries of a frontier, or those chosen of them."""
    rows = np.arange(frontier.entry_count) if chosen is None else np.flatnonzero(chosen)
    if not len(rows):
        return
    journals = frontier.journal_indices()[rows]
    present, places = np.unique(journals, return_inverse=True)
    names = (str(name) for name in frontier.journal_names.take(present))
    keys: list[ReadKey] = list(zip(names, frontier.bindings[present].tolist(), strict=True))
    columns = (
        frontier.producers,
        frontier.last_commits,
        frontier.hinted_commits,
        frontier.offsets,
    )
    for row, place, *values in zip(
        rows.tolist(), places.tolist(), *(column[rows].tolist() for column in columns), strict=True
    ):
        yield Entry(row, keys[place], *values)
