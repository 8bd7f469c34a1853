"""From one assignment to the next: queues and reads change hands, and nothing is read twice.

    1  assigned   the next assignment is on record
    2  opened     a member has its queue as the epoch left it, or a new one
    3  settled    what waited in it is written
    4  gave       it has said which vnodes are not its own any more
    5  took       the rows of vnodes that are new to it are written, from the queues that had them
    6  synced     all of that is durable
    7  committed  there is an epoch of the new members
    8  dropped    queues of members that left are gone

2 to 6 are done by every member by itself, and only add to its own queue. So up to 7 the old epoch
has its queues as it left them: a start that comes to nothing is cut off by the next one, which may
have yet other members. From 7 on the new epoch is the newest, and a restart is one like any other.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.events import QueueState
from penstock.shuffle.queue.handover import Settled, Source, settle, take
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.segment import segment_of
from penstock.shuffle.queue.snapshot import decode_state
from penstock.shuffle.resume import SNAPSHOTS, load_record, queue_generation
from penstock.shuffle.slice.handover import inherit
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.snapshot import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.frontier import Frontier
    from penstock.routing import Assignment
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.queue.reader import QueueBatch
    from penstock.shuffle.resume import SessionRecord
    from penstock.shuffle.session.topology import Topology
    from penstock.snapshot import Snapshot
    from penstock.storage import Storage

_LOG: Final = logging.getLogger("penstock.shuffle")


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    ASSIGNED = "1"
    OPENED = "2"
    SETTLED = "3"
    GAVE = "4"
    TOOK = "5"
    SYNCED = "6"
    COMMITTED = "7"
    DROPPED = "8"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What a member has to know of it, beside the assignment that is to come."""

    before: Assignment
    """The one under which the epoch's queues were filled."""
    queues: Mapping[int, str]
    """Where the queues of its members are, as far as they are on the same machine."""
    elsewhere: frozenset[int] = frozenset()
    """Those that are on other machines."""


class Giving(Protocol):
    """A queue that vnodes are taken from."""

    def alive(
        self, consumed: Frontier, vnodes: Iterable[int]
    ) -> Iterator[tuple[int, QueueBatch]]: ...


class Far(Protocol):
    """Finds the queues that are on other machines."""

    def source(self, giver: int) -> Giving: ...


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What an epoch left, for those who go on from it."""

    place: Storage
    epoch: int
    plan: Plan

    def record(self) -> SessionRecord:
        return load_record(self.place, self.epoch)

    def snapshot(self, member: int) -> Snapshot:
        return SnapshotStore(self.place.within(SNAPSHOTS), member).load(self.epoch)

    @property
    def lanes(self) -> range:
        return range(len(self.plan.lanes))


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """What a member begins with."""

    log: QueueLog
    queue: QueueState
    slices: Sequence[SliceSnapshot]
    """By lane."""
    lsn: int | None
    """Where the queue was in the epoch. None: it had none."""


def restore(left: Left, member: int, folder: Path) -> Restored:
    """A member as the epoch left it."""
    snapshot = left.snapshot(member)
    state = decode_state(snapshot.part("queue"))
    slices = [_slice(snapshot, lane) for lane in left.lanes]
    return Restored(_open(folder, snapshot, state), state, slices, state.lsn)


def hand_over(
    left: Left,
    member: int,
    folder: Path,
    handover: Handover,
    topology: Topology,
    *,
    far: Far | None = None,
) -> Restored:
    """A member as the next assignment wants it, which is the topology's."""
    before = handover.before
    record = left.record()
    snapshots = {one: left.snapshot(one) for one in before.members}

    def is_own(journal: str, binding: int) -> bool:
        return topology.reader(binding, journal) == member

    slices = [
        inherit([_slice(one, lane) for one in snapshots.values()], record.frontier, is_own)
        for lane in left.lanes
    ]
    own = snapshots.get(member)
    state = None if own is None else decode_state(own.part("queue"))
    log = _open(folder, own, state)
    try:
        reached(Step.OPENED)
        if state is not None:
            _settle(left.plan, before, state).append_to(log)
        reached(Step.SETTLED)
        given = [vnode for vnode in before.vnodes_of(member) if topology.owner(vnode) != member]
        if given:
            log.append((), None, {}, gives=given)
        reached(Step.GAVE)
        for giver in before.members:
            vnodes = [one for one in before.vnodes_of(giver) if topology.owner(one) == member]
            if giver != member and vnodes:
                found: Giving
                if far is not None and giver in handover.elsewhere:
                    found = far.source(giver)
                else:
                    found = source_of(left, handover, giver)
                rows = take(log, found.alive(record.consumed.frontier, vnodes))
                _LOG.info("member %d has %d rows of member %d's now", member, rows, giver)
        reached(Step.TOOK)
        log.sync()
        reached(Step.SYNCED)
    except BaseException:
        log.close()
        raise
    lsn = None if state is None else state.lsn
    return Restored(log, QueueState(log.last_lsn, {}, ()), slices, lsn)


def _open(folder: Path, snapshot: Snapshot | None, state: QueueState | None) -> QueueLog:
    if snapshot is None or state is None:
        return QueueLog.open(folder, 0, discard=True)
    generation = queue_generation(snapshot)
    return QueueLog.open(folder, state.lsn, generation=generation, discard=True)


def _settle(plan: Plan, before: Assignment, state: QueueState) -> Settled:
    lanes = [lane for lane in range(len(plan.lanes)) for _ in before.members]
    return settle(state, lanes, {binding.place: binding.delay for binding in plan.bindings})


def source_of(left: Left, handover: Handover, giver: int) -> Source:
    """A queue on this machine. QueueLostError if it is not."""
    snapshot = left.snapshot(giver)
    state = decode_state(snapshot.part("queue"))
    folder = handover.queues.get(giver)
    if folder is None:
        raise QueueLostError(
            f"member-{giver}",
            segment_of(state.lsn),
            "it is on none of the members' machines",
        )
    settled = _settle(left.plan, handover.before, state)
    return Source(Path(folder), queue_generation(snapshot), state.lsn, settled)


def _slice(snapshot: Snapshot, lane: int) -> SliceSnapshot:
    return SliceSnapshot.decode(memoryview(snapshot.part(f"slice-{lane}")))
