"""A Queue's actor, played: it writes to its disk, and gives credit back."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, assert_never

from penstock.checkpoint import Barrier
from penstock.shuffle.marks import Mark
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
    ReadNames,
    Sync,
    Synced,
    TimeIs,
    WaitingPart,
    Write,
    Wrote,
)
from tests.simulation.choices import Menu
from tests.simulation.world import Violation
from tests.simulation_shuffle.disk import entries_of
from tests.simulation_shuffle.network import Data, Flushing
from tests.simulation_shuffle.oracle import Document

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.frontier import Frontier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.events import QueueEffect, QueueEvent, QueueState
    from penstock.shuffle.queue.machine import QueueMachine
    from tests.simulation.world import Process
    from tests.simulation_shuffle.disk import Disk
    from tests.simulation_shuffle.network import Frame, Stream

_SYNCS: Final = Menu((6, 0.01), (2, 0.1), (1, 0.6))


class PlayedQueue:
    """`captured` gets the state at each barrier, or why there is none; `answer` the answers to
    flushes; `room_needed` is called when an epoch would help."""

    def __init__(
        self,
        process: Process,
        member: int,
        machine: QueueMachine,
        disk: Disk,
        *,
        step: Callable[[str], None],
        captured: Callable[[int, int, QueueState | str], None],
        answer: Callable[[int, int, int], None],
        room_needed: Callable[[], None],
    ) -> None:
        self.name = f"q{member}"
        self.member = member
        self.disk = disk
        self.machine = machine
        self.streams: list[Stream] = []
        self._process = process
        self._step = step
        self._captured = captured
        self._answer = answer
        self._room_needed = room_needed
        self._needed_room = False
        self._deadline: float | None = None
        self._came: list[set[Document]] = []
        """By stream, what came of it in this life."""
        self._flushing: dict[tuple[int, int], set[Document]] = {}
        """By stream and cycle, what came before the flush."""
        self._names: dict[int, tuple[int, str]] = dict(machine.names)

    def start(self, restored: QueueState | None) -> None:
        self._came = [set() for _ in self.streams]
        if restored is not None:
            for came, stream in zip(self._came, restored.streams, strict=True):
                for item in stream.in_flight:
                    if isinstance(item, ReadNames):
                        self._names.update(item.names)
                for part in (*stream.waiting, *stream.in_flight):
                    if isinstance(part, WaitingPart | Part):
                        came.update(self._documents(part.stage, part.batch))
        self.handle(TimeIs())

    def arrive(self, stream: int, frame: Frame) -> None:
        match frame:
            case Data(stage=None, batch=batch):
                columns = [column.to_pylist() for column in batch.columns]
                names = {read: (binding, name) for read, binding, name in zip(*columns)}  # noqa: B905
                self._names.update(names)
                self.handle(Arrived(stream, ReadNames(names)))
            case Data(stage=stage, batch=batch):
                assert stage is not None
                self._came[stream].update(self._documents(stage, batch))
                part = Part(stage, batch, frame.charged_bytes, ticket=(stream, frame))
                self.handle(Arrived(stream, part))
            case Mark():
                self.handle(Arrived(stream, frame))
            case Flushing(cycle=cycle):
                self._flushing[stream, cycle] = set(self._came[stream])
                self.handle(Arrived(stream, FlushAsked(cycle)))
            case Barrier():
                self.handle(BarrierCame(stream, frame))

    def consumed(self, frontier: Frontier, lsn: int) -> None:
        self.disk.consumed(frontier, lsn)
        self._step("reclaimed")
        self._needed_room = False
        self.handle(Consumed(lsn, self.disk.size_bytes, self.disk.last_lsn))

    def give_up(self, epoch: int) -> None:
        self.handle(EpochGivenUp(epoch))

    def handle(self, event: QueueEvent) -> None:
        world = self._process.world
        effects: deque[QueueEffect] = deque(self.machine.handle(event, world.now))
        while effects:
            effect = effects.popleft()
            self._step(type(effect).__name__)
            match effect:
                case Write():
                    effects += self.machine.handle(self._write(effect), world.now)
                case Sync():
                    self._sync()
                case Answer():
                    self._check_durable(effect)
                    self._answer(effect.stream, effect.cycle, effect.lsn)
                case GiveBack(parts=parts):
                    self._give_back(parts)
                case Captured(barrier=barrier, state=state):
                    if any(stream.in_flight for stream in state.streams):
                        world.counts["captured in flight"] += 1
                    self._captured(self.member, barrier.epoch, state)
                case NotCaptured(epoch=epoch, reason=reason):
                    self._captured(self.member, epoch, reason)
                case _:
                    assert_never(effect)
        self._look_for_room()
        deadline = self.machine.deadline_seconds
        if deadline is not None and deadline != self._deadline:
            self._process.after(max(0.0, deadline - world.now), self._look_at_time, "time")
        self._deadline = deadline

    def _give_back(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part.ticket, tuple):  # none if it comes from a snapshot
                stream, frame = part.ticket
                self.streams[stream].give_back(frame.charged_bytes)

    def _look_for_room(self) -> None:
        if self.machine.needs_room != self._needed_room:
            self._needed_room = self.machine.needs_room
            if self._needed_room:
                self._process.world.counts["room needed"] += 1
                self._room_needed()

    def _look_at_time(self) -> None:
        self._deadline = None
        self.handle(TimeIs())

    def _write(self, write: Write) -> Wrote:
        self._process.world.counts["overdrawn"] += write.overdraws
        parcels = [
            (taken.part.stage, taken.part.batch.slice(taken.begin, taken.end - taken.begin))
            for taken in write.merged.parts
        ]
        lsn = self.disk.append(parcels, write.merged.order, self.machine.names)
        self._step("written")
        return Wrote(lsn, self.disk.size_bytes)

    def _sync(self) -> None:
        world = self._process.world
        lsn = self.disk.last_lsn
        delay = world.choices.choose(f"{self.name} syncs", _SYNCS)
        self._process.after(delay, lambda: self._synced(lsn), "sync")

    def _synced(self, lsn: int) -> None:
        durable = self.disk.sync_to(lsn)
        self._step("synced")
        self.handle(Synced(durable))

    # Rules

    def _documents(self, stage: Stage, batch: pa.RecordBatch) -> list[Document]:
        entries = entries_of(stage, batch, self._names)
        return [entry for entry in entries if isinstance(entry, Document)]

    def _check_durable(self, answer: Answer) -> None:
        """A flush is answered when all that came before it in its stream is durable."""
        expected = self._flushing.pop((answer.stream, answer.cycle), None)
        if expected is None:
            raise Violation(f"a flush is answered that nobody asked for: {answer}")
        missing = expected - self.disk.durable_documents
        if missing:
            raise Violation(f"a flush is answered, and not durable are {len(missing)} documents")
