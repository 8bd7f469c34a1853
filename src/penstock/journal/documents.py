"""Committed documents, once each: raw rows in, documents of a cut out.

A range (a segment, say) is read by itself: the store knows the states at its begin, and for spans
that are open at its end the journal is followed until their ACK.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.ids import CLOCK_NONE
from penstock.sequence import Outcome, Sequenced, sequence_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.journal.cut import JournalCut
    from penstock.journal.store import JournalBatch, Range, ReadableStore, States

Clocks = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Documents:
    """Committed documents of one journal in offset order, with their identities. The commit clock
    is that of the ACK, or the document's own outside of transactions."""

    journal: str
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    producers: np.ndarray[Any, np.dtype[np.int64]]
    clocks: Clocks
    times: Clocks
    commit_clocks: Clocks
    documents: pa.RecordBatch


def read_documents(
    store: ReadableStore, cut: JournalCut, columns: Sequence[str] | None = None
) -> Iterator[Documents]:
    """Every document of a journal's cut, in offset order."""
    for part in store.ranges(cut.journal, cut.begin, cut.end):
        yield from read_range(store, part, cut, columns)


def read_range(
    store: ReadableStore, part: Range, cut: JournalCut, columns: Sequence[str] | None = None
) -> Iterator[Documents]:
    """The documents of one range. Which of them count is known when their spans have ended: rows
    are held from the first one on of a span that is open, or at most twice as many."""
    begin, states = store.states(part.journal, part.begin)
    held = _Held(part, cut)
    open_spans = {
        producer: state.offset for producer, state in states.items() if state.max_continue
    }
    for batch in store.read(part.journal, begin, part.end, columns):
        found = _sequence(batch, states)
        states.update(found.changed)
        for producer, state in found.changed.items():
            if state.max_continue:
                open_spans[producer] = state.offset
            else:
                open_spans.pop(producer, None)
        held.take(batch, found.outcomes)
        yield from held.decided(min(open_spans.values(), default=None))
    if held.batches:
        yield from held.all(_fates(store, part, cut.end, open_spans))


class _Held:
    """Rows of a range whose fate is not known, with those behind them."""

    def __init__(self, part: Range, cut: JournalCut) -> None:
        self._part = part
        self._cut = cut
        self.batches: list[JournalBatch] = []
        self._outcomes: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    def take(self, batch: JournalBatch, outcomes: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.batches.append(batch)
        self._outcomes.append(outcomes)

    def decided(self, open_from: int | None) -> Iterator[Documents]:
        """What is before the first row of all open spans. While that is less than half of what is
        held, nothing: each time, all that is held is looked at."""
        count = len(self.batches)
        if open_from is not None:
            ends = (batch.next_offset for batch in self.batches)
            count = sum(1 for end in ends if end <= open_from)
        if 2 * count >= len(self.batches):
            yield from self._show(count, {})

    def all(self, fates: Mapping[int, int]) -> Iterator[Documents]:
        """`fates` tells how the spans end that are open after the last row."""
        yield from self._show(len(self.batches), fates)

    def _show(self, count: int, fates: Mapping[int, int]) -> Iterator[Documents]:
        """The documents of the first batches, which are not held any more."""
        if not count:
            return
        producers = np.concatenate([batch.producers for batch in self.batches])
        clocks = np.concatenate([batch.clocks for batch in self.batches])
        commits = commit_clocks(np.concatenate(self._outcomes), producers, clocks, fates)
        visible = (commits != CLOCK_NONE) & (commits <= _limits(producers, self._cut))
        shown = self.batches[:count]
        del self.batches[:count], self._outcomes[:count]
        row = 0
        for batch in shown:
            rows = slice(row, row + batch.rows)
            row += batch.rows
            keep = np.flatnonzero(visible[rows] & (batch.offsets >= self._part.begin))
            if len(keep):
                yield Documents(
                    self._part.journal,
                    batch.offsets[keep],
                    batch.producers[keep],
                    batch.clocks[keep],
                    batch.times[keep],
                    commits[rows][keep],
                    batch.documents if len(keep) == batch.rows else batch.documents.take(keep),
                )


def commit_clocks(
    outcomes: np.ndarray[Any, np.dtype[np.uint8]],
    producers: np.ndarray[Any, np.dtype[np.int64]],
    clocks: Clocks,
    fates: Mapping[int, int],
) -> Clocks:
    """The clock at which each row was committed; none for what is not a document, repeated or
    rolled back. `fates` tells how the spans end that are open after the last row."""
    commits = np.where(outcomes == Outcome.OUTSIDE_COMMIT, clocks, CLOCK_NONE).astype(np.uint64)
    continues = outcomes <= Outcome.CONTINUE_BEGIN
    if not continues.any():
        return commits
    closes = (outcomes == Outcome.ACK_COMMIT) | (
        (outcomes >= Outcome.ACK_CLEAN_ROLLBACK) & (outcomes <= Outcome.ACK_DEEP_ROLLBACK)
    )
    # Each producer's rows side by side; then, looking back from the end, the next close.
    rows = np.flatnonzero(continues | closes)
    rows = rows[np.argsort(producers[rows], kind="stable")]
    places = np.where(closes[rows], np.arange(len(rows)), len(rows))
    following = np.minimum.accumulate(places[::-1])[::-1]
    found = following < len(rows)
    closing = rows[np.where(found, following, 0)]
    found &= producers[closing] == producers[rows]
    committed = found & (outcomes[closing] == Outcome.ACK_COMMIT)
    span_commits = np.where(committed, clocks[closing], CLOCK_NONE).astype(np.uint64)
    for producer, clock in fates.items():
        span_commits[~found & (producers[rows] == producer)] = clock
    is_document = continues[rows]
    commits[rows[is_document]] = span_commits[is_document]
    return commits


def _fates(
    store: ReadableStore, part: Range, end: int, open_spans: Mapping[int, int]
) -> dict[int, int]:
    """How the spans end that are open at the end of the range: the clock of the ACK that commits
    them below `end`, or none. Ranges in which all of them stay open are not even read."""
    waiting = dict(open_spans)
    fates = dict.fromkeys(open_spans, CLOCK_NONE)
    ranges = store.ranges(part.journal, part.end, end)

    def all_open(at: int) -> bool:
        _, states = store.states(part.journal, at)
        return all(
            producer in states
            and states[producer].max_continue
            and states[producer].offset == offset
            for producer, offset in waiting.items()
        )

    if len(ranges) > 1 and all_open(ranges[-1].begin):
        ranges = ranges[-1:]  # spans that stay open for long cost one look, not one per range
    for following in ranges:
        if not waiting:
            break
        if following.end < end and all_open(following.end):
            continue
        begin, states = store.states(part.journal, following.begin)
        for batch in store.read(part.journal, begin, following.end, columns=()):
            found = _sequence(batch, states)
            states.update(found.changed)
            for row in found.closes.tolist():
                producer = int(batch.producers[row])
                if batch.offsets[row] < part.end or producer not in waiting:
                    continue
                del waiting[producer]
                if found.outcomes[row] == Outcome.ACK_COMMIT:
                    fates[producer] = int(batch.clocks[row])
            if not waiting:
                break
    return fates


def _limits(producers: np.ndarray[Any, np.dtype[np.int64]], cut: JournalCut) -> Clocks:
    limits = np.full(len(producers), cut.commit_max, dtype=np.uint64)
    for producer, limit in cut.limits.items():
        limits[producers == producer] = limit
    return limits


def _sequence(batch: JournalBatch, states: States) -> Sequenced:
    found = sequence_batch(
        batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags, states
    )
    found.raise_fault(batch.journal)
    return found
