"""One read: a journal as one binding reads it. Where it stands, and what of it is buffered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.errors import LocalProtocolError
from penstock.frontier import resolve_checkpoint
from penstock.ids import CLOCK_MAX, Kind, clock_delay, clock_duration, kind_of
from penstock.sequence import UNSEEN, ProducerState
from penstock.shuffle.parcels import ROW_BYTES
from penstock.shuffle.slice.clocks import believed_until, keys_of
from penstock.shuffle.slice.states import ReadStates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from penstock.frontier import ProducerFrontier
    from penstock.journal.store import JournalBatch
    from penstock.shuffle.plan import BindingPlan

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

GAP_SLACK: Final = clock_duration(600)
"""Producers' clocks may differ. Commits this long after a gap are not taken for lost with it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The first row of a batch that extends or commits the span of a gapped producer, which has to
    be read again first; unless a rollback closes the span before."""

    row: int
    producer: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows that will never be read: up to, not with, this offset. And where producers stand there,
    as the journal itself says."""

    offset: int
    states: Mapping[int, ProducerState]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Of a producer, the rows of a span that ended among missing rows. How, nobody knows."""

    producer: int
    after: int
    through: int


@dataclass(slots=True, eq=False)
class Buffered:
    """A batch that waits to be drained, from row `begin` on."""

    offsets: Int64s
    ends: Int64s
    next_offset: int
    """Where the read stands once all of it is drained."""
    producers: Int64s
    clocks: Keys
    times: Keys
    flags: np.ndarray[Any, np.dtype[np.uint16]]
    documents: pa.RecordBatch
    hints: Mapping[int, tuple[str, ...]]
    keys: Keys
    row_bytes: float
    epochs: Mapping[int, int] = field(default_factory=dict)
    behind_lost: frozenset[int] = frozenset()
    turns: tuple[Turn, ...] = ()
    begin: int = 0
    version: int = 0
    """Later schemas have more columns, so their number is what tells them apart."""
    is_ahead: bool = False
    """A time in it is ahead of its row's key: it was not believed."""

    def __post_init__(self) -> None:
        self.version = self.documents.num_columns

    @property
    def rows(self) -> int:
        return len(self.keys) - self.begin


@dataclass(frozen=True, slots=True, eq=False)
class Trigger:
    """A row of a gapped producer that makes the Slice go back for the span."""

    batch: Buffered
    row: int
    producer: int

    @property
    def key(self) -> int:
        return int(self.batch.keys[self.row])

    @property
    def is_next(self) -> bool:
        return self.row == self.batch.begin

    @property
    def offset(self) -> int:
        return int(self.batch.offsets[self.row])


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows [begin, end) of a batch, to be drained in a round."""

    read: Read
    batch: Buffered
    begin: int
    end: int
    rows: int = field(init=False)
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        # Both are asked for again and again, and there are many pieces.
        object.__setattr__(self, "rows", self.end - self.begin)
        object.__setattr__(self, "keys", self.batch.keys[self.begin : self.end])

    @property
    def parcel_bytes(self) -> int:
        """What its rows take in parcels, if all of them go."""
        documents = self.batch.documents.slice(self.begin, self.rows)
        return self.rows * self.read.binding.row_bytes + documents.nbytes


@dataclass(slots=True, eq=False)
class Read:
    number: int
    binding: BindingPlan
    journal: str
    offset: int
    """Up to here it is drained."""
    states: ReadStates
    key: int = 0
    """Of the last row drained."""
    reported_offset: int = 0
    reported_head: int = 0
    """What the frontier deltas so far amount to: bytes are told as differences to these."""
    missing: int = 0
    """So many rows are missing before its offset, and no gap floor tells it yet."""

    identity: str = ""
    known_as: str = ""
    """What frontiers and queues call the journal."""
    siblings: tuple[int, ...] = ()
    """The other bindings of its cohort that read the same journal."""
    place: int = 0
    """In the levels."""
    buffer: deque[Buffered] = field(default_factory=deque)
    buffered_offset: int = 0
    buffered_key: int = 0
    buffered_bytes: float = 0.0
    write_head: int = 0
    probing: bool = True
    fetching: bool = False
    fetching_bytes: int = 0
    """Set aside for what is being fetched."""
    gap: Gap | None = None
    """What is buffered ends before it. It is crossed when that is drained."""
    vanished: bool = False
    ended: bool = False
    """It vanished, all of it is told, and where it stood is saved for when the journal is back."""
    awaited: dict[int, int] = field(default_factory=dict)
    """The commits that were lost and are fetched, by producer. The read ends with the last of them.
    """
    hinted: frozenset[int] = frozenset()
    """The producers of the commits that were lost."""
    parked: bool = False
    """It has them all."""
    gapped: set[int] = field(default_factory=set)
    unreported: set[int] = field(default_factory=set)
    """Producers whose entries changed since they were put into a delta."""

    def __post_init__(self) -> None:
        self.buffered_offset = self.write_head = self.offset
        self.buffered_key = self.key
        self.known_as = self.known_as or self.journal
        self.gapped = {producer for producer, state in self.states.items() if is_gapped(state)}

    @classmethod
    def begin(
        cls,
        number: int,
        binding: BindingPlan,
        journal: str,
        entries: Iterable[ProducerFrontier],
    ) -> Read:
        """A read that goes on where the entries end."""
        point = resolve_checkpoint(entries)
        offset = point.offset
        states = ReadStates(point.states)
        read = cls(number, binding, journal, offset, states, 0, offset, offset)
        read.awaited = {producer.int64: clock for producer, clock in point.hinted.items()}
        read.hinted = frozenset(read.awaited)
        return read

    @property
    def is_over(self) -> bool:
        """Nothing more is fetched of it."""
        return self.vanished or self.parked

    @property
    def is_behind(self) -> bool:
        """There are rows that are neither buffered nor drained."""
        return self.buffered_offset < self.write_head

    # What comes

    def probed(self, first_kept: int, write_head: int, states: Mapping[int, ProducerState]) -> None:
        if first_kept > self.buffered_offset:
            self.gap = Gap(first_kept, states)
        self.write_head = max(write_head, self.buffered_offset)
        self.probing = self.fetching = False
        self.fetching_bytes = 0

    @property
    def needed_from(self) -> int:
        """The first row that is still to be read for the commits that were lost."""
        spans = [self.states[producer].offset for producer in self.gapped & self.hinted]
        return min([self.buffered_offset, *spans])

    def forgotten(self) -> list[Forgotten]:
        """The open spans that end among the rows of the gap. Whether those were committed or rolled
        back is lost with them, and what was rolled back must never be seen. A span that is open at
        the other end too only lacks some rows. Who is not known there closed it and departed."""
        return [
            Forgotten(producer, state.last_commit, state.max_continue)
            for producer, state in self.states.items()
            if state.max_continue
            and not is_gapped(state)
            and self.gap is not None
            and not _is_same_span(state, self.gap.states.get(producer, UNSEEN))
        ]

    def cross_gap(self) -> None:
        """Everything before the gap is drained. From its end on producers stand where the journal
        says: so what was committed or repeated in it is known, and rows behind it make sense."""
        gap, self.gap = self.gap, None
        if gap is None or self.buffer:
            raise LocalProtocolError(f"{self.journal} has no gap here to be crossed")
        missing = gap.offset - self.offset
        self.missing += missing
        # Not counted as read, nor as behind.
        self.reported_offset += missing
        self.reported_head += missing
        self.offset = self.buffered_offset = gap.offset
        self.write_head = max(self.write_head, gap.offset)
        # Who has a span here and is not known there closed it, and departed.
        changed = {
            producer: ProducerState(state.last_commit, 0, -gap.offset)
            for producer, state in self.states.items()
            if state.max_continue and producer not in gap.states
        }
        for producer, there in gap.states.items():
            here = self.states.get(producer)
            if here is not None and is_gapped(here) and _is_same_span(here, there):
                continue  # what is left of it is read again when it goes on
            if here is None or there.last_commit >= here.last_commit:
                # A span that is not open is closed as far as the gap goes: whoever resumes from
                # here asks for nothing in it.
                offset = there.offset if there.max_continue else -gap.offset
                changed[producer] = ProducerState(there.last_commit, there.max_continue, offset)
        self.advance(changed)

    def vanish(self) -> None:
        """It counts as tailing from here on, and what is buffered still drains."""
        self.write_head = self.buffered_offset
        self.gap = None
        self.vanished = True
        self.probing = self.fetching = False
        self.fetching_bytes = 0

    def drop_buffered(self) -> None:
        """What is fetched and not drained will be fetched again, if the journal is back."""
        self.buffer.clear()
        self.buffered_bytes = 0.0
        self.buffered_offset = self.write_head = self.offset
        self.buffered_key = self.key

    @property
    def has_open_spans(self) -> bool:
        """Whose rows were sent."""
        return any(state.max_continue and not is_gapped(state) for state in self.states.values())

    def let_go(self) -> list[Forgotten]:
        """Its journal is gone, and nothing will close the spans that are open: their rows are
        forgotten. If the journal comes back, they are read again."""
        spans = [
            Forgotten(producer, state.last_commit, state.max_continue)
            for producer, state in self.states.items()
            if state.max_continue and not is_gapped(state)
        ]
        for span in spans:
            begin = self.states[span.producer].offset
            self.states[span.producer] = ProducerState(span.after, span.after, begin)
            self.gapped.add(span.producer)
            self.unreported.add(span.producer)
        return spans

    def fetched(
        self,
        batches: Iterable[JournalBatch],
        write_head: int,
        promised: int,
        now: int = CLOCK_MAX,
    ) -> None:
        """`promised` is the greatest key that no row may come below any more."""
        if not self.fetching:
            raise LocalProtocolError(f"rows of {self.journal} came, and no fetch is under way")
        self.fetching = False
        self.fetching_bytes = 0
        for batch in batches:
            self._check(batch)
            if self.awaited:
                batch = self._up_to_awaited(batch)  # noqa: PLW2901 - the rest is not there
            if batch.rows:
                self._append(batch, promised, now)
            self._reach(batch.next_offset)
            if self.parked:
                write_head = self.buffered_offset
                break
        self.write_head = max(write_head, self.buffered_offset)

    def _check(self, batch: JournalBatch) -> None:
        """A store gives what was asked for, or what follows it, and always goes on."""
        first = int(batch.offsets[0]) if batch.rows else batch.next_offset
        if first < self.buffered_offset or batch.next_offset == self.buffered_offset:
            raise LocalProtocolError(
                f"rows of {self.journal} came from offset {first} up to {batch.next_offset}, and "
                f"those from {self.buffered_offset} on were asked for"
            )
        if batch.times is not batch.clocks and not self.binding.is_timed:
            raise LocalProtocolError(
                f"rows of {self.journal} have times apart from their clocks, and the plan of "
                f"binding {self.binding.place} does not know of them"
            )

    def _append(self, batch: JournalBatch, promised: int, now: int) -> None:
        floor = max(self.buffered_key, promised)
        keys = keys_of(batch.times, self.binding.delay, floor, now)
        row_bytes = row_bytes_of(batch.documents, self.binding.row_bytes)
        self.buffer.append(
            Buffered(
                offsets=batch.offsets,
                ends=batch.ends,
                next_offset=batch.next_offset,
                producers=batch.producers,
                clocks=batch.clocks,
                times=batch.times,
                flags=batch.flags,
                documents=batch.documents,
                hints=batch.hints,
                epochs=batch.epochs,
                behind_lost=batch.behind_lost,
                keys=keys,
                row_bytes=row_bytes,
                turns=self._turns(batch),
                is_ahead=int(batch.times.max()) > believed_until(now),
            )
        )
        self.buffered_key = int(keys[-1])
        self.buffered_bytes += batch.rows * row_bytes

    def _reach(self, offset: int) -> None:
        """Up to here everything is buffered, or the journal holds no row."""
        self.buffered_offset = offset
        if self.buffer:
            self.buffer[-1].next_offset = offset
        else:
            self.offset = offset

    def _up_to_awaited(self, batch: JournalBatch) -> JournalBatch:
        """What of a batch there is to read, if commits are awaited."""
        end = 0
        for producer, clock in list(self.awaited.items()):
            is_commit = (batch.producers == producer) & (batch.flags & 1 == 0)
            rows = np.flatnonzero(is_commit & (batch.clocks >= np.uint64(clock)))
            if len(rows):
                del self.awaited[producer]
                end = max(end, int(rows[0]) + 1)
        if self.awaited:
            return batch
        self.parked = True
        return batch.part(0, end)

    def _turns(self, batch: JournalBatch) -> tuple[Turn, ...]:
        turns = []
        for producer in self.gapped:
            rows = np.flatnonzero(batch.producers == producer)
            is_newer = batch.clocks[rows] > np.uint64(self.states[producer].last_commit)
            rows = rows[is_newer]
            if len(rows) and kind_of(int(batch.flags[rows[0]])) is not Kind.OUTSIDE:
                turns.append(Turn(int(rows[0]), producer))
        return tuple(sorted(turns, key=lambda turn: turn.row))

    # What goes

    def trigger(self) -> Trigger | None:
        """The first row that may not be drained before a span was read again. If a rollback stands
        before it, it is none any more once that is drained."""
        for batch in self.buffer:
            for turn in batch.turns:
                if turn.producer in self.gapped:
                    return Trigger(batch, turn.row, turn.producer)
        return None

    def drain(self, piece: Piece) -> int | None:
        """These rows, the first of its buffer, are done with. Gives the gap floor that follows, if
        bytes are missing before them: a time, below which the clocks of commits are not waited for.
        Where clocks are no times there is none."""
        batch, first = piece.batch, piece.begin
        floor = None
        if self.missing:
            self.missing = 0
            if not self.binding.is_timed:
                # A clock that is not believed would have nobody wait for any commit, for years.
                clock = min(int(batch.clocks[first]), int(batch.keys[first]))
                floor = clock_delay(clock, GAP_SLACK)
        self.offset = int(batch.ends[piece.end - 1])
        self.key = int(batch.keys[piece.end - 1])
        batch.begin = piece.end
        self.buffered_bytes -= piece.rows * batch.row_bytes
        if not batch.rows:
            self.offset = batch.next_offset
            self.buffer.popleft()
        return floor

    def advance(self, changed: Mapping[int, ProducerState]) -> None:
        """Producers stand elsewhere now."""
        for producer, state in changed.items():
            before = self.states.get(producer)
            self.states[producer] = state
            self.gapped.discard(producer)
            if before is None or (before.last_commit, before.offset) != (
                state.last_commit,
                state.offset,
            ):
                self.unreported.add(producer)


def is_gapped(state: ProducerState) -> bool:
    return state.max_continue == state.last_commit != 0


def _is_same_span(here: ProducerState, there: ProducerState) -> bool:
    return there.max_continue != 0 and there.offset == here.offset


def row_bytes_of(documents: pa.RecordBatch, beside: int = ROW_BYTES) -> float:
    """What a row takes in a parcel, on average."""
    return beside + documents.nbytes / max(documents.num_rows, 1)
