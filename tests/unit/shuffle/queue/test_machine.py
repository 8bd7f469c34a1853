"""The Queue on a log in memory: what is answered is durable, what is cut is consistent."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint import Barrier
from penstock.errors import RemoteProtocolError
from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.parcels import PARCEL_FIELDS, ROLLBACK_SCHEMA, Stage
from penstock.shuffle.queue.budget import Budget
from penstock.shuffle.queue.events import (
    Answer,
    Arrived,
    BarrierCame,
    Captured,
    Consumed,
    EpochGivenUp,
    FlushAsked,
    GiveBack,
    NotCaptured,
    Part,
    QueueEvent,
    QueueState,
    ReadNames,
    StreamEnded,
    Sync,
    Synced,
    TimeIs,
    Write,
    Wrote,
)
from penstock.shuffle.queue.machine import QueueMachine, keys_of
from penstock.shuffle.queue.snapshot import decode_state, encode_state
from penstock.watch.causes import Aligning, DiskBudget, DiskOverdrawn, HigherLane, SlowSlice
from penstock.watch.standing import Seen

STAGE = Stage(0, 1)
ENOUGH = 2**60


def parcel(clocks: list[int], first_offset: int = 0, stage: Stage = STAGE) -> Part:
    rows = len(clocks)
    columns: list[pa.Array[Any]] = [
        pa.array([0] * rows, pa.uint32()),
        pa.array(range(first_offset, first_offset + rows), pa.int64()),
        pa.array([65536] * rows, pa.int64()),
        pa.array(clocks, pa.uint64()),
        pa.array([0] * rows, pa.uint16()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(PARCEL_FIELDS)))
    return Part(stage, batch, batch.nbytes, ticket=object())


def offsets_of(batch: pa.RecordBatch) -> list[int]:
    return cast("list[int]", batch.column("_offset").to_pylist())


@dataclass
class Driven:
    """A machine with its effects carried out, as an actor would, on a log in memory."""

    machine: QueueMachine
    syncs_late: bool = False
    blocks: list[list[int]] = field(default_factory=list)
    """The offsets of each block's rows, in their order. The LSN is their number."""
    durable: int = 0
    answers: list[Answer] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    """Streams that wait for an answer."""
    captured: dict[int, QueueState] = field(default_factory=dict)
    not_captured: dict[int, str] = field(default_factory=dict)
    given_back: list[object] = field(default_factory=list)
    overdrawn: int = 0
    waiting_sync: bool = False

    def handle(self, event: QueueEvent, now: float = 0.0) -> None:
        for effect in self.machine.handle(event, now):
            match effect:
                case Write():
                    self.overdrawn += effect.overdraws
                    rows = [
                        offset
                        for taken in effect.merged.parts
                        for offset in offsets_of(
                            taken.part.batch.slice(taken.begin, taken.end - taken.begin)
                        )
                    ]
                    order = effect.merged.order
                    self.blocks.append(rows if order is None else [rows[at] for at in order])
                    size = sum(map(len, self.blocks)) * 100
                    self.handle(Wrote(len(self.blocks), size), now)
                case Sync():
                    assert not self.waiting_sync, "one at a time"
                    self.waiting_sync = True
                    if not self.syncs_late:
                        self.sync()
                case Answer():
                    assert effect.lsn <= self.durable, "answered before it was durable"
                    self.answers.append(effect)
                    self.asked.discard(effect.stream)
                case GiveBack():
                    self.given_back += [part.ticket for part in effect.parts]
                case Captured():
                    self.captured[effect.barrier.epoch] = effect.state
                case NotCaptured():
                    self.not_captured[effect.epoch] = effect.reason

    def sync(self) -> None:
        if self.waiting_sync:
            self.waiting_sync = False
            self.durable = len(self.blocks)
            self.handle(Synced(self.durable))

    @property
    def written(self) -> list[int]:
        return [offset for block in self.blocks for offset in block]


def driven(
    lanes: list[int],
    *,
    limit_bytes: int = ENOUGH,
    aligned_seconds_max: float = math.inf,
    restored: QueueState | None = None,
    epoch: int = -1,
    syncs_late: bool = False,
) -> Driven:
    machine = QueueMachine(
        lanes,
        {0: 0, 1: 5},
        Budget(limit_bytes),
        aligned_seconds_max=aligned_seconds_max,
        restored=restored,
        epoch=epoch,
    )
    lsn = restored.lsn if restored is not None else 0
    return Driven(machine, syncs_late, [[] for _ in range(lsn)], durable=lsn)


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, object]]]:
    """What streams deliver, each true to its promises, with a barrier of every epoch in each."""
    lanes = draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
    epochs = draw(st.integers(0, 3))
    queues: list[list[object]] = []
    offset = 0
    for _ in lanes:
        said: list[object] = []
        key, greatest, cycle = 0, 0, 0
        for epoch in range(epochs + 1):
            for _ in range(draw(st.integers(0, 4))):
                kind = draw(st.sampled_from(["rows", "rows", "rows", "mark", "mark", "flush"]))
                if kind == "rows":
                    clocks = sorted(
                        key + step
                        for step in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
                    )
                    said.append(parcel(clocks, offset))
                    offset += len(clocks)
                    greatest = max(greatest, clocks[-1])
                elif kind == "mark":
                    key = greatest = greatest + draw(st.integers(0, 3))
                    said.append(Mark(MarkKind.DUE, key))
                else:
                    cycle += 1
                    said.append(FlushAsked(cycle))
            if epoch < epochs:
                said.append(Barrier(epoch + 1, epoch + 1))
        queues.append([*said, IDLE])
    order = draw(st.permutations([s for s, said in enumerate(queues) for _ in said]))
    return lanes, [(stream, queues[stream].pop(0)) for stream in order]


def deliver(to: Driven, stream: int, item: object) -> None:
    if isinstance(item, FlushAsked):
        if stream in to.asked:
            return  # a Slice asks for one at a time
        to.asked.add(stream)
    if isinstance(item, Barrier):
        to.handle(BarrierCame(stream, item))
    else:
        assert isinstance(item, Part | Mark | FlushAsked)
        to.handle(Arrived(stream, item))


def rows_of(story: list[tuple[int, object]], stream: int | None = None) -> Counter[int]:
    return Counter(
        offset
        for by, item in story
        if isinstance(item, Part) and stream in (None, by)
        for offset in offsets_of(item.batch)
    )


@given(stories(), st.integers(0, 4), st.sampled_from([math.inf, 0.0]))
def test_every_row_is_written_once_and_every_flush_answered(
    story: tuple[list[int], list[tuple[int, object]]], syncs_every: int, aligned: float
) -> None:
    lanes, said = story
    queue = driven(lanes, syncs_late=syncs_every > 0, aligned_seconds_max=aligned)
    asked: dict[tuple[int, int], Counter[int]] = {}
    came: list[Counter[int]] = [Counter() for _ in lanes]
    for at, (stream, item) in enumerate(said):
        if isinstance(item, FlushAsked) and stream not in queue.asked:
            asked[stream, item.cycle] = came[stream].copy()
        if isinstance(item, Part):
            came[stream].update(offsets_of(item.batch))
        before = len(queue.answers)
        deliver(queue, stream, item)
        if syncs_every and at % syncs_every == 0:
            queue.sync()
        for answer in queue.answers[before:]:
            on_disk = Counter(offset for block in queue.blocks[: answer.lsn] for offset in block)
            assert asked[answer.stream, answer.cycle] <= on_disk
    while queue.waiting_sync:
        queue.sync()
    assert Counter(queue.written) == rows_of(said)
    assert Counter((a.stream, a.cycle) for a in queue.answers) == Counter(asked.keys())
    tickets = [item.ticket for _, item in said if isinstance(item, Part)]
    assert Counter(map(id, queue.given_back)) == Counter(map(id, tickets)), "credit, once each"


@given(stories(), st.sampled_from([math.inf, 0.0]), st.data())
def test_a_snapshot_is_a_consistent_cut_to_go_on_from(
    story: tuple[list[int], list[tuple[int, object]]], aligned: float, data: st.DataObject
) -> None:
    lanes, said = story
    queue = driven(lanes, aligned_seconds_max=aligned)
    for stream, item in said:
        deliver(queue, stream, item)
    epochs = {item.epoch for _, item in said if isinstance(item, Barrier)}
    assert set(queue.captured) == epochs
    if not epochs:
        return
    epoch = data.draw(st.sampled_from(sorted(epochs)))
    state = queue.captured[epoch]
    barriers = {
        stream: at
        for at, (stream, item) in enumerate(said)
        if isinstance(item, Barrier) and item.epoch == epoch
    }
    before = Counter(
        offset
        for at, (stream, item) in enumerate(said)
        if at < barriers[stream] and isinstance(item, Part)
        for offset in offsets_of(item.batch)
    )
    held = Counter(offset for block in queue.blocks[: state.lsn] for offset in block)
    for stream_state in state.streams:
        for waiting in stream_state.waiting:
            held.update(offsets_of(waiting.batch))
        for item in stream_state.in_flight:
            if isinstance(item, Part):
                held.update(offsets_of(item.batch))
    assert held == before, "what came before the barriers, and nothing else"

    resumed = driven(lanes, restored=state, epoch=epoch, aligned_seconds_max=aligned)
    resumed.blocks = [list(block) for block in queue.blocks[: state.lsn]]
    resumed.handle(TimeIs())
    for at, (stream, item) in enumerate(said):
        if at > barriers[stream]:
            deliver(resumed, stream, item)
    assert Counter(resumed.written) == rows_of(said)


def test_rows_wait_for_the_slowest_stream() -> None:
    queue = driven([0, 0])
    queue.handle(Arrived(0, parcel([10, 30], 0)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 40)))
    assert queue.written == []
    assert queue.machine.waits(1, 0, ["1.0", "2.0"]) == [Seen(SlowSlice(1, 0, ("2.0",), 2))]
    queue.handle(Arrived(1, parcel([20], 100)))
    queue.handle(Arrived(1, Mark(MarkKind.DUE, 25)))
    assert queue.written == [0, 100]
    queue.handle(Arrived(1, IDLE))
    assert queue.written == [0, 100, 1]


def test_a_lower_lane_says_which_higher_one_it_waits_for() -> None:
    queue = driven([0, 0, 1])
    queue.handle(Arrived(0, IDLE))
    queue.handle(Arrived(1, Mark(MarkKind.DUE, 5)))
    queue.handle(Arrived(2, parcel([10, 30], 0)))
    queue.handle(Arrived(2, IDLE))
    waits = queue.machine.waits(1, 0, ["1.0", "2.0", "1.1"])
    assert waits == [Seen(HigherLane(1, 1, 2, 0, ("2.0",)))]
    queue.handle(Arrived(1, IDLE))
    assert queue.machine.waits(1, 0, ["1.0", "2.0", "1.1"]) == []


def test_what_comes_behind_a_barrier_is_held_until_all_barriers_are_there() -> None:
    queue = driven([0, 0])
    queue.handle(Arrived(1, IDLE))
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    queue.handle(Arrived(0, parcel([1], 7)))
    queue.handle(Arrived(0, IDLE))
    assert queue.written == []
    assert queue.machine.waits(1, 0, ["1.0", "2.0"]) == [Seen(Aligning(1, 1, ("2.0",)))]
    queue.handle(BarrierCame(1, Barrier(1, 1)))
    assert queue.written == [7]
    assert queue.captured[1].lsn == 0
    assert queue.machine.waits(1, 0, ["1.0", "2.0"]) == []


def test_a_given_up_epoch_releases_what_was_held() -> None:
    queue = driven([0, 0])
    queue.handle(Arrived(1, IDLE))
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    queue.handle(Arrived(0, parcel([1], 7)))
    queue.handle(Arrived(0, IDLE))
    queue.handle(EpochGivenUp(1))
    assert queue.written == [7]
    assert queue.not_captured == {1: "it was cancelled"}


def test_an_aligned_epoch_that_takes_too_long_becomes_unaligned() -> None:
    queue = driven([0, 0], aligned_seconds_max=2.0)
    queue.handle(BarrierCame(0, Barrier(1, 1)), 10.0)
    assert queue.machine.deadline_seconds == 12.0
    queue.handle(Arrived(1, parcel([1], 7)), 11.0)
    queue.handle(TimeIs(), 12.0)
    queue.handle(Arrived(1, parcel([2], 8)), 12.5)
    queue.handle(BarrierCame(1, Barrier(1, 1)), 13.0)
    (state,) = queue.captured.values()
    assert [offsets_of(part.batch) for part in state.streams[1].waiting] == [[7]]
    assert [offsets_of(item.batch) for item in state.streams[1].in_flight] == [[8]]  # type: ignore[union-attr]


def test_names_of_reads_are_known_and_part_of_the_snapshot() -> None:
    queue = driven([0])
    queue.handle(Arrived(0, ReadNames({3: (0, "orders/000")})))
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    assert queue.machine.names == {3: (0, "orders/000")} == queue.captured[1].names


def test_a_rollback_is_written_behind_the_rows_that_it_forgets() -> None:
    queue = driven([0])
    queue.handle(Arrived(0, parcel([5, 9], 0)))
    row = {"_read": 0, "_producer": 65536, "after": 4, "through": 9}
    forgets = pa.RecordBatch.from_pylist([row], schema=ROLLBACK_SCHEMA)
    rollbacks = Part(Stage(0, 0), forgets, forgets.nbytes)
    blocks: list[list[Stage]] = []
    queue.machine.handle(Arrived(0, rollbacks), 0)
    queue.machine.handle(Arrived(0, parcel([6], 2)), 0)
    for effect in queue.machine.handle(Arrived(0, IDLE), 0):
        if isinstance(effect, Write):
            merged = effect.merged
            rows = [t.part.stage for t in merged.parts for _ in range(t.begin, t.end)]
            order = range(len(rows)) if merged.order is None else merged.order
            blocks.append([rows[at] for at in order])
    assert blocks == [[STAGE, STAGE, Stage(0, 0), STAGE]]


def test_an_unknown_binding_is_refused() -> None:
    queue = driven([0])
    with pytest.raises(RemoteProtocolError, match="no binding 9"):
        queue.handle(Arrived(0, parcel([1], stage=Stage(9, 1))))


def test_a_stream_that_ends_holds_nobody_up() -> None:
    queue = driven([0, 0])
    queue.handle(Arrived(0, parcel([1], 7)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 1)))
    assert queue.written == []
    queue.handle(StreamEnded(1))
    assert queue.written == [7]


def test_delays_are_added_and_end_with_time() -> None:
    clocks = parcel([5, 2**64 - 1]).batch
    assert keys_of(clocks, 3).tolist() == [8, 2**64 - 1]
    assert keys_of(clocks, 3).dtype == np.uint64


class TestBudget:
    def test_a_full_disk_waits_for_a_consumer_that_has_something_to_do(self) -> None:
        queue = driven([0], limit_bytes=200)
        queue.handle(Arrived(0, parcel([1, 2], 0)))
        queue.handle(Arrived(0, IDLE))
        queue.handle(Arrived(0, parcel([3], 2)))
        assert queue.written == [0, 1], "200 of 200 bytes are used"
        assert queue.machine.waits(1, 200, ["1.0"]) == [Seen(DiskBudget(1, 200, 200), 1)]
        queue.handle(Consumed(1, 150, len(queue.blocks)))
        assert queue.written == [0, 1, 2], "the consumer is done with everything: over the budget"
        assert queue.overdrawn == 1
        queue.handle(Consumed(2, 250, len(queue.blocks)))
        over = DiskOverdrawn(1, 250, 200, 50, None, None)
        assert queue.machine.waits(1, 250, ["1.0"]) == [Seen(over)]

    def test_half_of_it_must_be_free_before_it_goes_on(self) -> None:
        queue = driven([0], limit_bytes=200)
        queue.handle(Arrived(0, IDLE))
        queue.handle(Arrived(0, parcel([1], 0)))
        queue.handle(Arrived(0, parcel([2], 1)))
        queue.handle(Arrived(0, parcel([3], 2)))
        assert queue.written == [0, 1]
        queue.handle(Consumed(1, 100, len(queue.blocks)))
        assert queue.written == [0, 1]
        queue.handle(Consumed(1, 99, len(queue.blocks)))
        assert queue.written == [0, 1, 2]
        assert queue.overdrawn == 0

    def test_recovery_knows_no_limit(self) -> None:
        budget = Budget(10, recovering=True)
        budget.used(1000)
        assert budget.may_write(5)
        budget.recovering = False
        assert not budget.may_write(5)

    def test_survivors_do_not_count_as_something_to_consume(self) -> None:
        queue = driven([0], limit_bytes=200)
        queue.handle(Arrived(0, IDLE))
        queue.handle(Arrived(0, parcel([1, 2], 0)))
        queue.handle(Arrived(0, parcel([3], 2)))
        assert queue.machine.needs_room
        queue.blocks.append([])  # the survivors of an open span, written by reclaim
        queue.handle(Consumed(1, 210, len(queue.blocks)))
        assert queue.written == [0, 1, 2]
        assert not queue.machine.needs_room

    def test_flushes_are_answered_although_rows_wait_for_room(self) -> None:
        """Progress that is durable must be told: else no epoch would free anything."""
        queue = driven([0, 0], limit_bytes=100)
        queue.handle(Arrived(0, IDLE))
        queue.handle(Arrived(1, IDLE))
        queue.handle(Arrived(0, parcel([1], 0)))
        queue.handle(Arrived(0, FlushAsked(1)))
        queue.handle(Arrived(1, parcel([2], 1)))
        queue.handle(Arrived(1, FlushAsked(1)))
        assert [(answer.stream, answer.cycle) for answer in queue.answers] == [(0, 1)]


def test_of_a_part_that_is_half_written_the_other_half_is_in_the_snapshot() -> None:
    queue = driven([0, 0])
    queue.handle(Arrived(0, parcel([3, 9], 0)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 9)))
    queue.handle(Arrived(1, Mark(MarkKind.DUE, 5)))
    assert queue.written == [0]
    assert queue.given_back == [], "its credit is held until all of it is written"
    for stream in (0, 1):
        queue.handle(BarrierCame(stream, Barrier(1, 1)))
    state = queue.captured[1]
    assert [offsets_of(part.batch) for part in state.streams[0].waiting] == [[1]]
    assert state.streams[0].waiting[0].keys.tolist() == [9]
    resumed = driven([0, 0], restored=state, epoch=1)
    resumed.handle(Arrived(1, Mark(MarkKind.DUE, 9)))
    assert resumed.written == [1]


def test_syncs_come_one_at_a_time_and_answer_what_was_written_before_them() -> None:
    queue = driven([0, 0], syncs_late=True)
    for stream in (0, 1):
        queue.handle(Arrived(stream, IDLE))
    queue.handle(Arrived(0, parcel([1], 0)))
    queue.handle(Arrived(0, FlushAsked(1)))
    assert queue.waiting_sync
    queue.handle(Arrived(1, parcel([2], 1)))
    queue.handle(Arrived(1, FlushAsked(1)))
    queue.sync()
    assert [answer.stream for answer in queue.answers] == [0], "the other came during the sync"
    queue.sync()
    assert [answer.stream for answer in queue.answers] == [0, 1]


def test_a_second_flush_before_the_first_is_answered_is_refused() -> None:
    queue = driven([0, 0], syncs_late=True)
    queue.handle(Arrived(0, parcel([3], 0)))
    queue.handle(Arrived(0, FlushAsked(1)))
    queue.handle(Arrived(1, FlushAsked(1)))
    with pytest.raises(RemoteProtocolError, match="flush 2, and for 1 before"):
        queue.handle(Arrived(0, FlushAsked(2)))
    queue = driven([0])
    queue.handle(Arrived(0, parcel([3], 0)))
    queue.handle(Arrived(0, IDLE))
    for cycle in (1, 2):
        queue.handle(Arrived(0, FlushAsked(cycle)))
        assert queue.answers[-1].cycle == cycle


def test_a_clock_ahead_of_its_key_holds_up_nobody() -> None:
    """Also if an epoch is captured within the round, and the Queue goes on from there."""
    far = 10**15
    queue = driven([0, 0], aligned_seconds_max=0.0)
    queue.handle(Arrived(1, Mark(MarkKind.DUE, 20)))
    queue.handle(Arrived(0, Mark(MarkKind.CAPPED, 12)))
    queue.handle(BarrierCame(1, Barrier(1, 1)))
    queue.handle(Arrived(0, parcel([10, far, 11], 0)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 13)))
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    assert queue.written == [0, 1, 2]
    queue.handle(Arrived(0, parcel([15], 3)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 16)))
    assert queue.written == [0, 1, 2, 3], "and the mark lifts the cap"
    state = queue.captured[1]
    decoded = decode_state(pa.py_buffer(b"".join(map(bytes, encode_state(state)))))
    assert decoded.streams[0].cap == state.streams[0].cap == 12
    again = driven([0, 0], restored=decoded, epoch=1)
    again.handle(TimeIs())
    assert again.written == [0, 1, 2]
