"""The spans that are open where a Slice stands: whose, since when, and how large. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.ids import Producer
from penstock.shuffle.status import SpanStatus, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sequence import ProducerState
    from penstock.shuffle.slice.reads import Read
    from penstock.shuffle.slice.rounds import Round


@dataclass(slots=True)
class _Span:
    read: Read
    offset: int
    """Where it begins."""
    time: int
    """Of its first row; of its last one, if the first was not read here; 0 if neither was."""
    rows: int | None = None
    size_bytes: float = 0.0


class OpenSpans:
    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], _Span] = {}
        """By read and producer."""

    def __len__(self) -> int:
        return len(self._spans)

    def found(self, read: Read) -> None:
        """Those that were open where a read begins."""
        for producer, state in read.states.items():
            if state.max_continue:
                span = _Span(read, state.offset, 0 if read.binding.is_timed else state.max_continue)
                self._spans[read.number, producer] = span

    def ended(self, read: Read) -> None:
        """Nobody waits for the spans of a read whose journal is gone."""
        for number, producer in list(self._spans):
            if number == read.number:
                del self._spans[number, producer]

    def drained(
        self, round_: Round, changes: Sequence[tuple[Read, dict[int, ProducerState]]]
    ) -> None:
        """A round was made, and these producers stand elsewhere now."""
        open_: dict[int, tuple[Read, int, ProducerState]] = {}
        for number, (read, changed) in enumerate(changes):
            for producer, state in changed.items():
                if state.max_continue:
                    mixed = producer | number if len(changes) > 1 else producer
                    open_[mixed] = read, producer, state
                elif self._spans:
                    self._spans.pop((read.number, producer), None)
        if open_:
            self._extend(round_, open_)

    def _extend(self, round_: Round, open_: dict[int, tuple[Read, int, ProducerState]]) -> None:
        """Counts the rows of the round that belong to spans which are open behind it."""
        columns = round_.columns
        producers = np.array(sorted(open_), np.int64)
        begins = np.array([open_[mixed][2].offset for mixed in producers.tolist()], np.int64)
        rows = np.flatnonzero(np.isin(columns.producers, producers))
        owners = np.searchsorted(producers, columns.producers[rows])
        is_within = columns.offsets[rows] >= begins[owners]
        rows, owners = rows[is_within], owners[is_within]
        firsts = np.zeros(len(producers), np.uint64)
        is_first = columns.offsets[rows] == begins[owners]
        firsts[owners[is_first]] = columns.times[rows[is_first]]
        kept = round_.keep[rows]
        rows, owners = rows[kept], owners[kept]
        counts = np.bincount(owners, minlength=len(producers))
        row_bytes = np.array([piece.batch.row_bytes for piece in columns.pieces])
        pieces = np.searchsorted(columns.starts, rows, side="right") - 1
        sizes = np.bincount(owners, row_bytes[pieces], minlength=len(producers))
        found = zip(
            producers.tolist(), firsts.tolist(), counts.tolist(), sizes.tolist(), strict=True
        )
        for mixed, time, count, size_bytes in found:
            read, producer, state = open_[mixed]
            span = self._spans.get((read.number, producer))
            if span is None or span.offset != state.offset:
                if not time and not read.binding.is_timed:
                    time = state.max_continue  # noqa: PLW2901 - the first row was not read here
                span = _Span(read, state.offset, time, 0)
                self._spans[read.number, producer] = span
            if span.rows is not None:
                span.rows += count
                span.size_bytes += size_bytes

    def oldest(self, count_max: int) -> tuple[SpanStatus, ...]:
        found = heapq.nsmallest(count_max, self._spans.items(), key=lambda each: each[1].time)
        return tuple(
            SpanStatus(
                str(Producer.from_int64(producer)),
                span.read.journal,
                span.read.binding.place,
                seconds_of(span.time) if span.time else None,
                span.rows,
                None if span.rows is None else round(span.size_bytes),
            )
            for (_, producer), span in found
        )
