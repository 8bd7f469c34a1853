"""The Queue as a state machine: what streams deliver goes in, what to write comes out. Pure.

    stream ──> alignment ──> merge ──> Write ──> (Wrote) ──> Sync ──> (Synced) ──> Answer

Alignment holds back what a stream sends behind its barrier; merging puts rows in their order; a
flush is answered when every row that came before it in its stream is durable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np

from penstock.checkpoint import (
    Aborted,
    Alignment,
    BarrierArrived,
    Capture,
    CheckpointCancelled,
    DataArrived,
    Deliver,
    Forward,
    Hold,
    Ignored,
    InputEnded,
    Release,
    Snapshot,
    TimePassed,
)
from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import Mark
from penstock.shuffle.parcels import times_of
from penstock.shuffle.queue.events import (
    Answer,
    Arrived,
    BarrierCame,
    Captured,
    Consumed,
    EpochGivenUp,
    FlushAsked,
    GiveBack,
    Item,
    NotCaptured,
    Part,
    QueueEffect,
    QueueEvent,
    QueueState,
    ReadNames,
    StreamEnded,
    StreamState,
    Sync,
    Synced,
    TimeIs,
    WaitingPart,
    Write,
    Wrote,
)
from penstock.shuffle.queue.merge import Merge
from penstock.watch.causes import Aligning, DiskBudget, DiskOverdrawn, HigherLane, SlowSlice
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from penstock.checkpoint import AlignmentEffect, AlignmentEvent
    from penstock.shuffle.queue.budget import Budget
    from penstock.shuffle.queue.merge import Taken

MERGED_ROWS_MAX: Final = 65_536
MERGED_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(slots=True)
class _Flush:
    stream: int
    cycle: int
    number: int
    """Of the newest part that came before it in its stream."""


@dataclass(slots=True)
class _Syncing:
    """Flushes whose rows are all written: those that the sync under way covers, and the others."""

    under_way: list[_Flush] = field(default_factory=list)
    waiting: list[_Flush] = field(default_factory=list)
    is_under_way: bool = False


class QueueMachine:
    """`handle` takes an event and returns the effects of it, to be carried out in order."""

    def __init__(
        self,
        lanes: Sequence[int],
        delays: Mapping[int, int],
        budget: Budget,
        *,
        aligned_seconds_max: float,
        restored: QueueState | None = None,
        epoch: int = -1,
    ) -> None:
        """`lanes` has the lane of each stream, `delays` the delay of each binding. `epoch` is the
        one that it was restored from."""
        self._delays = delays
        self._budget = budget
        self._alignment: Alignment[Item] = Alignment(len(lanes), aligned_seconds_max, settled=epoch)
        self._merge: Merge[Part] = Merge(lanes)
        self._newest = [0] * len(lanes)
        self._count = 0
        self.names: dict[int, tuple[int, str]] = {}
        """Binding and journal of each read."""
        self.last_lsn = 0
        self._rows_lsn = 0
        """Of the last block that is not one of survivors."""
        self._durable_lsn = 0
        self._is_writing = False
        self._flushes: deque[_Flush] = deque()
        self._unanswered: dict[int, int] = {}
        """By stream, the cycle of its flush."""
        self._syncing = _Syncing()
        self._captured: dict[int, QueueState] = {}
        self._effects: list[QueueEffect] = []
        self._ended: set[int] = set()
        if restored is not None:
            self._restore(restored)

    @property
    def waiting_rows(self) -> int:
        return self._merge.waiting_rows

    @property
    def needs_room(self) -> bool:
        """Rows wait for the consumer to make room: an epoch would let it."""
        return self.waiting_rows > 0 and not self._budget.may_write(self._rows_lsn)

    @property
    def deadline_seconds(self) -> float | None:
        """When to come back with the time, if nothing else happens before."""
        return self._alignment.deadline_seconds

    @property
    def limit_bytes(self) -> int:
        return self._budget.limit_bytes

    @property
    def is_short_of_room(self) -> bool:
        """Above its disk budget, and not yet down to half of it."""
        return self._budget.is_pressed

    @property
    def is_overdrawn(self) -> bool:
        """What it writes goes over the disk budget."""
        return self._budget.is_overdrawn(self._rows_lsn)

    def waits(self, member: int, size_bytes: int, streams: Sequence[str]) -> list[Seen]:
        """What holds it up at this moment, as the Queue of this member with so much on disk.
        `streams` has a name for each."""
        found: list[Seen] = []
        limit = self._budget.limit_bytes
        if self.is_overdrawn:
            over = max(0, size_bytes - limit)
            found.append(Seen(DiskOverdrawn(member, size_bytes, limit, over, None, None)))
        missing = self._alignment.missing
        if missing is not None:
            epoch, inputs = missing
            found.append(Seen(Aligning(member, epoch, tuple(streams[one] for one in inputs))))
        if self.needs_room:
            found.append(Seen(DiskBudget(member, size_bytes, limit), self.last_lsn))
            return found
        turn = self._merge.turn
        if turn is None or self._is_writing:
            return found
        holding = tuple(streams[one] for one in self._merge.held_by())
        for lane, rows in self._merge.waiting_by_lane().items():
            cause = (
                SlowSlice(member, lane, holding, rows)
                if lane == turn
                else HigherLane(member, lane, rows, turn, holding)
            )
            found.append(Seen(cause, self.last_lsn))
        return found

    def handle(self, event: QueueEvent, now_seconds: float) -> list[QueueEffect]:
        self._effects = []
        match event:
            case Arrived(stream=stream, item=item):
                size = item.size_bytes if isinstance(item, Part) else 1
                self._align(DataArrived(stream, item, size), now_seconds)
            case BarrierCame(stream=stream, barrier=barrier):
                self._align(BarrierArrived(stream, barrier), now_seconds)
            case StreamEnded(stream=stream):
                self._align(InputEnded(stream), now_seconds)
                self._ended.add(stream)
                self._merge.end(stream)
            case EpochGivenUp(epoch=epoch):
                self._align(CheckpointCancelled(epoch), now_seconds)
            case Wrote():
                if not self._is_writing:
                    raise LocalProtocolError("something was written that nobody asked for")
                self._is_writing = False
                self.last_lsn = self._rows_lsn = event.lsn
                self._budget.used(event.size_bytes)
            case Synced():
                self._durable_lsn = max(self._durable_lsn, event.lsn)
                self._answer(self._syncing.under_way)
                self._syncing.under_way = []
                self._syncing.is_under_way = False
            case Consumed():
                self.last_lsn = event.last_lsn
                self._budget.consumed(event.lsn)
                self._budget.used(event.size_bytes)
            case TimeIs():
                self._align(TimePassed(), now_seconds)
            case _:
                assert_never(event)
        self._go_on()
        return self._effects

    # Arrivals

    def _align(self, event: AlignmentEvent[Item], now_seconds: float) -> None:
        for effect in self._alignment.handle(event, now_seconds):
            self._obey(effect)

    def _obey(self, effect: AlignmentEffect[Item]) -> None:
        match effect:
            case Deliver(input=stream, item=item):
                self._deliver(stream, item)
            case Capture(barrier=barrier):
                self._captured[barrier.checkpoint] = self._state()
            case Snapshot(barrier=barrier, in_flight=in_flight):
                state = self._captured.pop(barrier.checkpoint)
                streams = tuple(
                    replace(stream, in_flight=items)
                    for stream, items in zip(state.streams, in_flight, strict=True)
                )
                self._effects.append(Captured(barrier, replace(state, streams=streams)))
            case Aborted(checkpoint=checkpoint, reason=reason):
                self._captured.pop(checkpoint, None)
                self._effects.append(NotCaptured(checkpoint, reason.value))
            case Hold() | Release() | Forward() | Ignored():
                pass
            case _:
                assert_never(effect)

    def _deliver(self, stream: int, item: Item) -> None:
        match item:
            case Part():
                self._append(stream, item)
            case ReadNames(names=names):
                self.names.update(names)
            case Mark():
                if stream not in self._ended:
                    self._merge.mark(stream, item)
            case FlushAsked(cycle=cycle):
                if stream in self._unanswered:
                    raise RemoteProtocolError(
                        f"a stream asked for flush {cycle}, and for "
                        f"{self._unanswered[stream]} before, which is not answered"
                    )
                self._unanswered[stream] = cycle
                self._flushes.append(_Flush(stream, cycle, self._newest[stream]))
            case _:
                assert_never(item)

    def _append(self, stream: int, part: Part) -> None:
        self._count += 1
        self._newest[stream] = self._count
        numbered = replace(part, number=self._count)
        binding = part.stage.binding
        if not part.batch.num_rows:
            self._effects.append(GiveBack((numbered,)))
        elif part.stage.is_rollbacks:
            self._merge.append_marking(stream, binding, numbered, part.batch.num_rows)
        else:
            keys = keys_of(part.batch, self._delay(binding))
            self._merge.append(stream, binding, numbered, keys, part.size_bytes)

    def _delay(self, binding: int) -> int:
        try:
            return self._delays[binding]
        except KeyError:
            raise RemoteProtocolError(f"the feed has no binding {binding}") from None

    # What follows

    def _go_on(self) -> None:
        if not self._is_writing and self._budget.may_write(self._rows_lsn):
            merged = self._merge.take(MERGED_ROWS_MAX, MERGED_BYTES_MAX)
            if merged is not None:
                self._is_writing = True
                overdraws = self._budget.is_overdrawn(self._rows_lsn)
                self._effects.append(Write(merged, overdraws))
                finished = tuple(
                    taken.part for taken in merged.parts if taken.end == taken.part.batch.num_rows
                )
                if finished:
                    self._effects.append(GiveBack(finished))
        if not self._is_writing:
            self._release_flushes()

    def _release_flushes(self) -> None:
        """Flushes whose rows are all written wait for them to be durable."""
        kept: deque[_Flush] = deque()
        for flush in self._flushes:
            first = self._merge.first_waiting(flush.stream)
            if first is not None and first.number <= flush.number:
                kept.append(flush)
            elif self._durable_lsn >= self.last_lsn:
                self._answer([flush])
            else:
                self._syncing.waiting.append(flush)
        self._flushes = kept
        if self._syncing.waiting and not self._syncing.is_under_way:
            self._syncing.under_way, self._syncing.waiting = self._syncing.waiting, []
            self._syncing.is_under_way = True
            self._effects.append(Sync())

    def _answer(self, flushes: list[_Flush]) -> None:
        for flush in flushes:
            del self._unanswered[flush.stream]
            self._effects.append(Answer(flush.stream, flush.cycle, self._durable_lsn))

    # Snapshots

    def _state(self) -> QueueState:
        if self._is_writing:
            raise LocalProtocolError("the state is captured between two writes, not within one")
        return QueueState(
            self.last_lsn,
            dict(self.names),
            tuple(
                StreamState(
                    mark,
                    *self._merge.reached(place),
                    tuple(
                        WaitingPart(
                            waiting.part.stage,
                            waiting.part.batch.slice(waiting.begin),
                            waiting.keys[waiting.begin :],
                        )
                        for waiting in self._merge.waiting(place)
                        if waiting.rows  # one behind another may be taken before it
                    ),
                    cap=self._merge.cap(place),
                )
                for place, mark in enumerate(self._merge.marks())
            ),
        )

    def _restore(self, state: QueueState) -> None:
        self.last_lsn = self._rows_lsn = self._durable_lsn = state.lsn
        self.names = dict(state.names)
        for place, stream in enumerate(state.streams):
            for waiting in stream.waiting:
                self._count += 1
                part = Part(waiting.stage, waiting.batch, waiting.batch.nbytes, self._count)
                self._merge.restore_part(place, part, waiting.keys, part.size_bytes)
            self._merge.restore_stream(
                place, stream.mark, stream.greatest, stream.reached, stream.cap
            )
            self._newest[place] = self._count
            for item in stream.in_flight:
                if not isinstance(item, FlushAsked):  # nobody waits for its answer any more
                    self._deliver(place, item)
        self._effects = []


def rows_of(taken: Taken[Part]) -> pa.RecordBatch:
    batch = taken.part.batch
    if taken.begin == 0 and taken.end == batch.num_rows:
        return batch
    return batch.slice(taken.begin, taken.end - taken.begin)


def keys_of(batch: pa.RecordBatch, delay: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The times of a parcel's rows, later by the delay; at most the last clock there is."""
    times: np.ndarray[Any, np.dtype[np.uint64]] = times_of(batch).to_numpy()
    if not delay:
        return times
    late: np.ndarray[Any, np.dtype[np.uint64]] = np.minimum(times, np.uint64(CLOCK_MAX - delay))
    return late + np.uint64(delay)
