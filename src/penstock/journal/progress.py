"""The frontier of a cut: how far each producer has come in each journal of it.

Given back as `as_of`, it names the same documents whatever is appended meanwhile, as long as
retention keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import RemoteProtocolError
from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    describe_unresolved,
    reduce,
)
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Kind, Producer
from penstock.journal.errors import OffsetDroppedError
from penstock.sequence import UNSEEN, Outcome, ProducerState, sequence_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.journal.cut import JournalCut
    from penstock.journal.store import JournalBatch, ReadableStore, States

Hint = tuple[str, int, int]
"""Journal, producer and clock of a commit that an ACK in another journal tells of."""


def frontier_of(store: ReadableStore, cuts: Sequence[JournalCut], binding: int = 0) -> Frontier:
    """The frontier at which exactly the documents of the cut are visible."""
    read: dict[str, States] = {}
    hints: dict[tuple[str, int], int] = {}
    for cut in cuts:
        read[cut.journal], found = _progress(store, cut)
        for journal, producer, clock in found:
            hints[journal, producer] = max(clock, hints.get((journal, producer), 0))
    frontier = Frontier.of(_journal_frontiers(read, binding))
    told: dict[str, dict[int, int]] = {}
    for (journal, producer), clock in hints.items():
        if journal in read and not _is_gone(read[journal].get(producer, UNSEEN), clock):
            told.setdefault(journal, {})[producer] = clock
    frontier = reduce(frontier, Frontier.of(_hint_frontiers(told, binding)))
    if frontier.unresolved_hints:
        raise RemoteProtocolError(
            "a producer marked a transaction as complete that is not acknowledged everywhere:\n"
            + describe_unresolved(frontier)
        )
    return frontier


def _is_gone(state: ProducerState, clock: int) -> bool:
    """Whether a commit that was hinted at is in no journal any more. Its documents were there when
    the hint was written: if their span is neither closed nor open, the journal was made anew."""
    return state.last_commit < clock and not state.max_continue


def states_of(store: ReadableStore, cut: JournalCut) -> States:
    """Where each producer stands at the end of a journal's cut."""
    return _progress(store, cut)[0]


def first_clock_open(
    store: ReadableStore, journal: str, producer: int, state: ProducerState
) -> int | None:
    """The clock of the first document of the span that a producer has open in a journal; or one
    before it, if retention has dropped that document. None if it has none open."""
    if not state.max_continue:
        return None
    try:
        for batch in store.read(journal, state.offset, columns=()):
            ours = (batch.producers == producer) & (batch.flags & Kind.CONTINUE != 0)
            if ours.any():
                return int(batch.clocks[ours][0])
    except OffsetDroppedError:
        pass
    return state.last_commit + 1


def _progress(store: ReadableStore, cut: JournalCut) -> tuple[States, list[Hint]]:
    """The states at the end of a journal's cut, and the hints of the ACKs on the way there."""
    begin, states = _start(store, cut)
    hints: list[Hint] = []
    stopped: set[int] = set()
    for batch in store.read(cut.journal, begin, cut.end, columns=()):
        rows = _rows_within(batch, cut, stopped)
        found = sequence_batch(
            batch.offsets[rows],
            batch.ends[rows],
            batch.producers[rows],
            batch.clocks[rows],
            batch.flags[rows],
            states,
        )
        found.raise_fault(cut.journal)
        states.update(found.changed)
        for row, journals in batch.hints.items():
            place = int(np.searchsorted(rows, row))
            if place == len(rows) or rows[place] != row:
                continue
            if found.outcomes[place] in (Outcome.ACK_COMMIT, Outcome.ACK_EMPTY):
                producer, clock = int(batch.producers[row]), int(batch.clocks[row])
                hints += [(journal, producer, clock) for journal in journals]
    return states, hints


def _start(store: ReadableStore, cut: JournalCut) -> tuple[int, States]:
    """The latest known states that are not beyond any limit of the cut, also of producers that will
    never write again: a frontier without them would hide what they wrote."""
    departures = [*store.departures(cut.journal, cut.end)][::-1]
    for part in reversed(store.ranges(cut.journal, cut.begin, cut.end)):
        begin, states = _known(store, cut.journal, part.begin, departures)
        if all(state.last_commit <= cut.limit(producer) for producer, state in states.items()):
            return begin, states
    return _known(store, cut.journal, cut.begin, departures)


def _known(
    store: ReadableStore,
    journal: str,
    at: int,
    departures: Sequence[tuple[int, Mapping[int, ProducerState]]],
) -> tuple[int, States]:
    begin, states = store.states(journal, at)
    known: States = {}
    for since, departed in departures:
        if since <= begin:
            known.update(departed)
    known.update(states)
    return begin, known


def _rows_within(
    batch: JournalBatch, cut: JournalCut, stopped: set[int]
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The rows that count: of each producer those before its first commit beyond its limit.
    Producers that reach that point are added to `stopped`."""
    keep = np.ones(batch.rows, dtype=bool)
    closing = (batch.flags & 3) != Kind.CONTINUE
    for producer in np.unique(batch.producers).tolist():
        rows = batch.producers == producer
        if producer in stopped:
            keep[rows] = False
            continue
        beyond = np.flatnonzero(rows & closing & (batch.clocks > cut.limit(producer)))
        if len(beyond):
            stopped.add(producer)
            rows[: beyond[0]] = False
            keep[rows] = False
    return np.flatnonzero(keep)


def _journal_frontiers(read: dict[str, States], binding: int) -> Iterable[JournalFrontier]:
    for journal in sorted(read, key=str.encode):
        entries = [_entry(producer, state) for producer, state in read[journal].items()]
        if entries:
            yield JournalFrontier(journal, binding, _ordered(entries))


def _hint_frontiers(told: dict[str, dict[int, int]], binding: int) -> Iterable[JournalFrontier]:
    for journal in sorted(told, key=str.encode):
        entries = [
            ProducerFrontier(Producer.from_int64(producer), CLOCK_NONE, hinted_commit=clock)
            for producer, clock in told[journal].items()
        ]
        yield JournalFrontier(journal, binding, _ordered(entries))


def _entry(producer: int, state: ProducerState) -> ProducerFrontier:
    last_commit = max(state.last_commit, CLOCK_FLOOR)
    return ProducerFrontier(Producer.from_int64(producer), last_commit, offset=state.offset)


def _ordered(entries: list[ProducerFrontier]) -> tuple[ProducerFrontier, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.producer))
