"""The Session's epochs: fixed, injected, captured, and committed or given up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import Barrier
from penstock.shuffle.resume import Epoch, Resume, SessionRecord
from tests.simulation.choices import Menu, evenly
from tests.simulation.world import Violation
from tests.simulation_shuffle.journals import clock_at
from tests.simulation_shuffle.oracle import commits_of

if TYPE_CHECKING:
    from penstock.routing import Assignment
    from penstock.shuffle.queue.events import QueueState
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from tests.simulation_shuffle.cluster import Cluster

PATIENCE_SECONDS: Final = 20.0
"""In which an epoch is captured if nobody gives it up: far longer than anything takes here."""
PUT_OFF_MAX: Final = 5
"""Epochs in a row, in the end of a run."""
_PAUSES: Final = evenly(0.3, 0.05, 0.8)
_DELAYS: Final = Menu((6, 0.005), (2, 0.1), (1, 0.4))
_GIVEN_UP: Final = Menu((80, None), (12, 0.02), (4, 0.1), (4, 0.5))
_TOLD: Final = Menu((4, 0.005), (1, 0.3), (1, 1.5))
_PREPARES: Final = Menu((5, 0.02), (1, 0.3))


@dataclass(frozen=True, slots=True)
class Committed:
    number: int
    record: SessionRecord
    queues: dict[int, QueueState]
    slices: dict[tuple[int, int], SliceSnapshot]
    generations: dict[int, int]
    """Of the queues."""
    assignment: Assignment


@dataclass(slots=True)
class _UnderWay:
    number: int
    record: SessionRecord
    begun: float
    queues: dict[int, QueueState] = field(default_factory=dict)
    slices: dict[tuple[int, int], SliceSnapshot] = field(default_factory=dict)
    preparing: set[int] = field(default_factory=set)
    prepared: set[int] = field(default_factory=set)


class Leader:
    def __init__(self, cluster: Cluster, resume: Resume) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._process = cluster.process
        self._record = resume.record
        is_there = resume.epoch is not None and not cluster.is_handing_over
        self.epochs = [resume.newest] if is_there else []
        """Those that the consumer may read. If queues are lost, the newest is not there any more.
        """
        self.is_recovering = resume.recovering
        self._recovered_from = resume.record.consumed.frontier
        self._is_wanted = not is_there and resume.newest.number > 0
        self._under_way: _UnderWay | None = None
        self._put_off = 0

    def start(self) -> None:
        pause = self._world.choices.choose("epoch pauses", _PAUSES)
        self._process.after(pause, self._lead, "leads")

    def want_epoch(self) -> None:
        self._is_wanted = True

    def consumed(self, epoch: Epoch) -> None:
        self.epochs = [one for one in self.epochs if one.number >= epoch.number]
        self._record = replace(self._record, consumed=epoch)

    def _lead(self) -> None:
        current = self._under_way
        if current is None:
            if not self._puts_off():
                self._begin()
        elif self._world.now > current.begun + PATIENCE_SECONDS:
            raise Violation(f"epoch {current.number} is not captured, and nobody gave it up")
        self.start()

    def _puts_off(self) -> bool:
        """When nothing befalls anybody any more, there is an epoch when all is read, or for room:
        what it costs to play them counts."""
        clock = clock_at(self._world.now)
        reading = any(each.state.is_due(clock) for each in self._cluster.slices.values())
        self._put_off = self._put_off + 1 if reading and not self._is_wanted else 0
        return self._world.choices.quiet and 0 < self._put_off <= PUT_OFF_MAX

    def _begin(self) -> None:
        session = self._cluster.session
        if not (session.has_ready or self._is_wanted):
            return
        if session.frontier.unresolved_hints and not session.has_ready:
            return
        self._is_wanted = False
        session.take()
        self._record = SessionRecord(
            session.frontier,
            self._record.consumed,
            session.next_read,
            session.adopted,
            session.remembered(),
        )
        self._cluster.epochs_begun += 1
        number = self._cluster.epochs_begun
        self._under_way = _UnderWay(number, self._record, self._world.now)
        self._world.tell("leader", f"begins epoch {number}")
        for each in self._cluster.slices.values():
            self._cluster.step("announced")
            delay = self._world.choices.choose(f"{each.name} announced", _DELAYS)
            inject = each.inject
            self._process.after(
                delay,
                lambda inject=inject: inject(Barrier(number, number)),  # type: ignore[misc]
                "inject",
            )
        given_up = self._world.choices.choose("given up", _GIVEN_UP)
        if given_up is not None:
            self._process.after(given_up, lambda: self._give_up(number, "by choice"), "give up")

    def _give_up(self, number: int, reason: str) -> None:
        if self._under_way is None or self._under_way.number != number:
            return
        self._world.counts["epochs given up"] += 1
        self._world.tell("leader", f"gives epoch {number} up: {reason}")
        self._under_way = None
        self._is_wanted = True
        for queue in self._cluster.queues.values():
            delay = self._world.choices.choose(f"{queue.name} told", _TOLD)
            self._process.after(delay, lambda queue=queue: queue.give_up(number), "given up")  # type: ignore[misc]

    # What comes of it

    def slice_captured(
        self, member: int, lane: int, barrier: Barrier, snapshot: SliceSnapshot
    ) -> None:
        current = self._under_way
        if current is not None and current.number == barrier.epoch:
            current.slices[member, lane] = snapshot
            self._go_on(current, member)

    def queue_captured(self, member: int, epoch: int, state: QueueState | str) -> None:
        current = self._under_way
        if current is None or current.number != epoch:
            return
        if isinstance(state, str):
            self._process.after(0.01, lambda: self._give_up(epoch, state), "give up")
            return
        current.queues[member] = state
        self._go_on(current, member)

    def _go_on(self, current: _UnderWay, member: int) -> None:
        lanes = sum(1 for key in current.slices if key[0] == member)
        is_whole = member in current.queues and lanes == len(self._cluster.setting.plan.lanes)
        if is_whole and member not in current.preparing:
            current.preparing.add(member)
            disk = self._cluster.disks[member]
            lsn = disk.last_lsn

            def prepare() -> None:
                disk.sync_to(lsn)
                self._cluster.step("prepared")
                self._prepared(current, member)

            delay = self._world.choices.choose(f"prepare {member}", _PREPARES)
            self._process.after(delay, prepare, "prepare")

    def _prepared(self, current: _UnderWay, member: int) -> None:
        current.prepared.add(member)
        if self._under_way is not current or len(current.prepared) < len(self._cluster.disks):
            return
        cluster = self._cluster
        before = cluster.committed[-1].record.frontier if cluster.committed else None
        self._under_way = None
        record = current.record
        if not cluster.parts.numbers_reads_again:
            # Reads that were started while it was under way may be in the queues' parts only.
            numbers = [state.next_read for state in current.queues.values()]
            record = replace(record, next_read=max(record.next_read, *numbers))
        generations = {member: disk.generation for member, disk in cluster.disks.items()}
        cluster.committed.append(
            Committed(
                current.number,
                record,
                current.queues,
                current.slices,
                generations,
                cluster.setting.assignment,
            )
        )
        self._world.counts["epochs committed"] += 1
        self._world.tell("leader", f"commits epoch {current.number}")
        cluster.drop_disks_of_others()
        cluster.oracle.check_frontier(
            {} if before is None else commits_of(before), commits_of(current.record.frontier)
        )
        cluster.step("committed")
        self.epochs.append(Epoch(current.number, current.record.frontier))
        if self.is_recovering:
            cluster.oracle.check_recovered(
                commits_of(self._recovered_from),
                commits_of(current.record.frontier),
                {
                    (read.journal, read.binding): read.offset
                    for snapshot in current.slices.values()
                    for read in snapshot.reads
                },
            )
            self._process.after(0.01, cluster.restart, "restart")
