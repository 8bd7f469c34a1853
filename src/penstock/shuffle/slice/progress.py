"""What reads and acknowledgements have to tell, as frontiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.frontier import Frontier
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE
from penstock.shuffle.slice.states import NO_STATES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import numpy.typing as npt

    from penstock.sequence import ProducerState
    from penstock.shuffle.slice.reads import Read
    from penstock.shuffle.slice.rounds import HintKey
    from penstock.shuffle.slice.snapshots import SavedRead

_Entry: TypeAlias = tuple[int, int, int, int]
"""Producer, last commit, hinted commit, offset."""
_Journal: TypeAlias = tuple[str, int, int, int, list[_Entry]]
"""Journal, binding, bytes read, bytes behind, entries."""
_UNSIGNED: Final = 2**64 - 1


def report(reads: Collection[Read], gap_floor: Mapping[int, int]) -> Frontier:
    """The news of these reads: producers' entries and bytes. They are news no longer."""
    frontier = _frontier([_news(read) for read in reads], gap_floor)
    for read in reads:
        read.unreported.clear()
        read.reported_offset, read.reported_head = read.offset, read.write_head
    return frontier


def entries(reads: Iterable[SavedRead], gap_floor: Mapping[int, int]) -> Frontier:
    """All that reads know of their producers."""
    ordered = sorted(reads, key=lambda read: (read.journal, read.binding))
    states = [NO_STATES, *(read.states for read in ordered)]

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(each, name) for each in states])

    producers, zeros = column("producers"), np.zeros(len(ordered), np.int64)
    return Frontier(
        journal_names=pa.array([read.journal for read in ordered], pa.string()),
        bindings=np.array([read.binding for read in ordered], np.uint16),
        bytes_read_delta=zeros,
        bytes_behind_delta=zeros,
        producer_starts=np.cumsum([len(each) for each in states], dtype=np.int64),
        producers=producers,
        last_commits=np.maximum(column("last_commits"), np.uint64(CLOCK_FLOOR)),
        hinted_commits=np.zeros(len(producers), np.uint64),
        offsets=column("offsets"),
        flushed_lsn=np.empty(0, np.uint64),
        backfill_begin={},
        backfill_complete={},
        gap_floor=dict(gap_floor),
    )


def hinted(hints: Mapping[HintKey, int]) -> Frontier:
    journals: dict[tuple[str, int], list[_Entry]] = {}
    for (journal, binding, producer), clock in hints.items():
        journals.setdefault((journal, binding), []).append((producer, CLOCK_NONE, clock, 0))
    return _frontier([(*journal, 0, 0, entries) for journal, entries in journals.items()], {})


def hints_in(frontier: Frontier) -> dict[HintKey, int]:
    """The hints that a frontier has."""
    rows = np.flatnonzero(frontier.hinted_commits)
    journals = frontier.journal_indices()[rows]
    names = frontier.journal_names.take(journals).to_pylist()
    columns = (
        frontier.bindings[journals].tolist(),
        frontier.producers[rows].tolist(),
        frontier.hinted_commits[rows].tolist(),
    )
    return {
        (str(name), binding, producer): clock
        for name, binding, producer, clock in zip(names, *columns, strict=True)
    }


def _news(read: Read) -> _Journal:
    behind = read.write_head - read.offset
    return (
        read.known_as,
        read.binding.place,
        read.offset - read.reported_offset,
        behind - (read.reported_head - read.reported_offset),
        _entries({producer: read.states[producer] for producer in read.unreported}),
    )


def _entries(states: Mapping[int, ProducerState]) -> list[_Entry]:
    return [
        (producer, max(state.last_commit, CLOCK_FLOOR), CLOCK_NONE, state.offset)
        for producer, state in states.items()
    ]


def _frontier(journals: list[_Journal], gap_floor: Mapping[int, int]) -> Frontier:
    journals.sort(key=lambda journal: journal[:2])
    rows: list[_Entry] = []
    for journal in journals:
        rows += sorted(journal[4], key=lambda entry: entry[0] & _UNSIGNED)
    starts = np.zeros(len(journals) + 1, np.int64)
    np.cumsum([len(journal[4]) for journal in journals], out=starts[1:])
    return Frontier(
        journal_names=pa.array([journal[0] for journal in journals], pa.string()),
        bindings=np.array([journal[1] for journal in journals], np.uint16),
        bytes_read_delta=np.array([journal[2] for journal in journals], np.int64),
        bytes_behind_delta=np.array([journal[3] for journal in journals], np.int64),
        producer_starts=starts,
        producers=np.array([row[0] for row in rows], np.int64),
        last_commits=np.array([row[1] for row in rows], np.uint64),
        hinted_commits=np.array([row[2] for row in rows], np.uint64),
        offsets=np.array([row[3] for row in rows], np.int64),
        flushed_lsn=np.empty(0, np.uint64),
        backfill_begin={},
        backfill_complete={},
        gap_floor=dict(gap_floor),
    )
