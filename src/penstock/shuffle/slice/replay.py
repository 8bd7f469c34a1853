"""Replay: going back for a span that was open where a read started.

Such a span's documents are before the read's start and were not sent. The first row that extends or
commits it, the trigger, waits until they were: only the span's producer counts in what is read
again. Its rows have the trigger's key, or a greater one if their own times are later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.ids import CLOCK_MAX, Producer
from penstock.sequence import ProducerState
from penstock.shuffle.slice.clocks import believed_until, keys_of
from penstock.shuffle.slice.reads import Buffered, Piece, row_bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.journal.store import JournalBatch
    from penstock.shuffle.slice.reads import Read, Trigger
    from penstock.shuffle.slice.rounds import Round


class ReplayedCommitError(RemoteProtocolError):
    """A span that a frontier has as open was closed where it is read again: the journal or the
    frontier is not what it was. Start the feed anew from a frontier that is known to be good."""

    def __init__(self, journal: str, offset: int, producer: int) -> None:
        super().__init__(journal, offset, producer)
        self.journal = journal
        self.offset = offset
        self.producer = producer

    def __str__(self) -> str:
        return (
            f"journal {self.journal} at offset {self.offset}: producer "
            f"{Producer.from_int64(self.producer)} closes a span that was open when the frontier "
            "was taken. The journal or the frontier was changed; start from another frontier"
        )


@dataclass(slots=True, eq=False)
class SpanReplay:
    read: Read
    producer: int
    begin: int
    """From here on the range is not drained."""
    end: int
    key: int
    """The trigger's at first, then that of the last row that came."""
    buffer: deque[Buffered] = field(default_factory=deque)
    reached: int = 0
    """Up to here the range was fetched."""
    fetching: bool = False

    def __post_init__(self) -> None:
        self.reached = self.begin

    @classmethod
    def of(cls, read: Read, trigger: Trigger) -> SpanReplay:
        """The producer has no span from here on: what is read again opens it."""
        state = read.states[trigger.producer]
        read.states[trigger.producer] = ProducerState(state.last_commit, 0, state.offset)
        read.gapped.discard(trigger.producer)
        return cls(read, trigger.producer, state.offset, trigger.offset, trigger.key)

    def give_up(self) -> None:
        """Its journal is gone. What was sent is let go with the read's other spans; if the journal
        is back, all of it is read again."""
        state = self.read.states[self.producer]
        if not state.max_continue:
            gapped = ProducerState(state.last_commit, state.last_commit, state.offset)
            self.read.states[self.producer] = gapped
            self.read.gapped.add(self.producer)

    @property
    def is_done(self) -> bool:
        return not self.buffer and self.reached >= self.end

    @property
    def wants_more(self) -> bool:
        return not self.fetching and not self.buffer and self.reached < self.end

    def fetched(self, batches: Iterable[JournalBatch], reached: int, now: int = CLOCK_MAX) -> None:
        if not self.fetching:
            raise LocalProtocolError(f"rows of {self.read.journal} came, and no replay waits")
        if not self.reached < reached <= self.end:
            raise LocalProtocolError(
                f"a replay of {self.read.journal} goes on from {self.reached} to {self.end}, "
                f"and cannot have reached {reached}"
            )
        self.fetching = False
        for batch in batches:
            rows = np.flatnonzero(batch.producers == self.producer)
            if len(rows):
                documents = batch.documents.take(rows)
                clocks = batch.clocks[rows]
                times = clocks if batch.times is batch.clocks else batch.times[rows]
                keys = keys_of(times, self.read.binding.delay, self.key, now)
                self.key = int(keys[-1])
                self.buffer.append(
                    Buffered(
                        offsets=batch.offsets[rows],
                        ends=batch.ends[rows],
                        next_offset=min(batch.next_offset, self.end),
                        producers=batch.producers[rows],
                        clocks=clocks,
                        times=times,
                        flags=batch.flags[rows],
                        documents=documents,
                        hints={},
                        keys=keys,
                        row_bytes=row_bytes_of(documents, self.read.binding.row_bytes),
                        is_ahead=int(times.max()) > believed_until(now),
                    )
                )
        self.reached = reached
        if not self.buffer:
            self.begin = reached

    def pieces(self) -> list[Piece]:
        """Of one schema, as in any round."""
        version = self.buffer[0].version if self.buffer else 0
        pieces: list[Piece] = []
        for batch in self.buffer:
            if batch.version != version:
                break
            pieces.append(Piece(self.read, batch, batch.begin, len(batch.keys)))
        return pieces

    def drain(self, round_: Round) -> None:
        """The round's rows are done with, and none of them may have closed the span."""
        closes = round_.sequenced.closes
        if len(closes):
            offset = int(round_.columns.offsets[closes[0]])
            raise ReplayedCommitError(self.read.journal, offset, self.producer)
        for piece in round_.columns.pieces:
            piece.batch.begin = piece.end
            self.begin = int(piece.batch.ends[piece.end - 1])
        while self.buffer and not self.buffer[0].rows:
            self.buffer.popleft()
        if not self.buffer:
            self.begin = self.reached
