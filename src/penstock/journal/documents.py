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
    from penstock.journal.store import JournalBatch, JournalStore, Range, States

Clocks = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class Documents:
    """Committed documents of one journal in offset order, with their identities. The commit clock
    is that of the ACK, or the document's own outside of transactions."""

    journal: str
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    producers: np.ndarray[Any, np.dtype[np.int64]]
    clocks: Clocks
    commit_clocks: Clocks
    documents: pa.RecordBatch


def read_documents(
    store: JournalStore, cut: JournalCut, columns: Sequence[str] | None = None
) -> Iterator[Documents]:
    """Every document of a journal's cut, in offset order."""
    for part in store.ranges(cut.journal, cut.begin, cut.end):
        yield from read_range(store, part, cut, columns)


def read_range(
    store: JournalStore, part: Range, cut: JournalCut, columns: Sequence[str] | None = None
) -> Iterator[Documents]:
    """The documents of one range. Holds the range in memory: it cannot know which documents count
    before it has seen how their spans end."""
    begin, states = store.states(part.journal, part.begin)
    batches: list[JournalBatch] = []
    outcomes: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    for batch in store.read(part.journal, begin, part.end, columns):
        found = _sequence(batch, states)
        states.update(found.changed)
        batches.append(batch)
        outcomes.append(found.outcomes)
    if not batches:
        return
    open_spans = {
        producer: state.offset for producer, state in states.items() if state.max_continue
    }
    fates = _fates(store, part, cut.end, open_spans)
    producers = np.concatenate([batch.producers for batch in batches])
    clocks = np.concatenate([batch.clocks for batch in batches])
    commits = commit_clocks(np.concatenate(outcomes), producers, clocks, fates)
    visible = (commits != CLOCK_NONE) & (commits <= _limits(producers, cut))
    row = 0
    for batch in batches:
        rows = slice(row, row + batch.rows)
        row += batch.rows
        keep = np.flatnonzero(visible[rows] & (batch.offsets >= part.begin))
        if len(keep):
            yield Documents(
                part.journal,
                batch.offsets[keep],
                batch.producers[keep],
                batch.clocks[keep],
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
    store: JournalStore, part: Range, end: int, open_spans: Mapping[int, int]
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
                if batch.first_offset + row < part.end or producer not in waiting:
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
    found = sequence_batch(batch.offsets, batch.producers, batch.clocks, batch.flags, states)
    found.raise_fault(batch.journal)
    return found
