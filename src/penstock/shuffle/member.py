"""A member of a shuffle: a Slice for each lane, a Queue, and its part in the epochs.

    epoch announced ──> capture: a barrier into every Slice; the Queue aligns those of all members
                    ──> prepare: segments synced, snapshot written ──> acknowledged

Whatever fails in a member ends it. What it held is in the last epoch: from there all go on.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.epoch.decisions import DecisionLog
from penstock.epoch.member import EpochMember
from penstock.errors import PenstockError, UnreadableRowError
from penstock.logs import about
from penstock.shuffle import control
from penstock.shuffle.capture import Capture, MemberParticipant
from penstock.shuffle.handover import Far, Handover, Left, Restored, hand_over, restore
from penstock.shuffle.plan import make_plan
from penstock.shuffle.queue.actor import QueueActor, Reclaim
from penstock.shuffle.queue.budget import Budget
from penstock.shuffle.queue.events import EpochGivenUp, QueueState
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.machine import QueueMachine
from penstock.shuffle.queue.snapshot import encode_state
from penstock.shuffle.resume import SNAPSHOTS
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.state import AllReadsStarted, AskProgress, StartRead
from penstock.shuffle.session.topology import Topology
from penstock.shuffle.slice import events as slice_events
from penstock.shuffle.slice.actor import SliceActor
from penstock.shuffle.slice.state import SliceState
from penstock.shuffle.status import MemberStatus, ended_threads, silent_store
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.threads import supervised
from penstock.transport import Origin, Receiver, Sender, VnodeData

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.checkpoint import Barrier
    from penstock.directory.keyvalue import KeyValue
    from penstock.journal.store import ReadableStore
    from penstock.routing import Assignment
    from penstock.shuffle.control import FromMember, Message
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from penstock.storage import Storage
    from penstock.transport.security import Security

STATUS_SECONDS: Final = 0.25
DETAILS_EVERY: Final = 4
"""Journals and open spans are told with every so many statuses: once a second."""
_HOST: Final = socket.gethostname()

RECEIVED_BYTES: Final = 128 * 1024 * 1024
"""What a Queue holds of all Slices' rows before they are written, if there are 6 to 32 streams. It
is shared out over them, and a round takes half of a share at most, over all members."""
STREAM_BYTES_MIN: Final = 4 * 1024 * 1024
"""With a smaller share rounds are so small that what each costs beside its rows is the most."""
STREAM_BYTES_MAX: Final = 24 * 1024 * 1024
"""With 16 MiB the shuffle took a tenth more of a processor; with 32 no less, and more memory."""

_LOG: Final = logging.getLogger("penstock.shuffle")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may want to change of a shuffle."""

    carrier: str = "tcp"
    disk_budget_bytes: int = 64 * 1024**3
    read_ahead_bytes: int = 32 * 1024**2
    aligned_seconds_max: float = 5.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a session is: the same for all its members."""

    feed: Feed
    assignment: Assignment
    epoch: int | None = None
    """The committed one to go on from, with its queues. None: the queues are begun anew."""
    recovering: bool = False
    handover: Handover | None = None
    """The epoch's queues were filled under another assignment."""
    settings: Settings = field(default_factory=Settings)


class Member:
    """From `start` to `close`. `ended` is set when the Session has released it, or when it cannot
    go on: then `failure` says why."""

    def __init__(
        self,
        setup: Setup,
        store: ReadableStore,
        security: Security,
        keyvalue: KeyValue,
        *,
        place: Storage,
        folder: Path,
        host: str = "127.0.0.1",
        far: Far | None = None,
    ) -> None:
        """`place` has the cluster's decisions and snapshots, `folder` this member's queue. Others
        reach it by `host`. `far` finds queues on other machines that it takes vnodes over from."""
        self.member: Final = security.member
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._log_about = about(_LOG, feed=setup.feed.name, member=self.member)
        settings, assignment = setup.settings, setup.assignment
        self._store = store
        plan = make_plan(setup.feed, store)
        members = assignment.members
        lanes = range(len(plan.lanes))
        snapshots = SnapshotStore(place.within(SNAPSHOTS), self.member)
        left = None if setup.epoch is None else Left(place, setup.epoch, plan)
        restored: Restored | None = None
        if left is not None and setup.handover is None:
            restored = restore(left, self.member, folder)
        elif left is not None and setup.handover is not None:
            topology = Topology.of(plan, store, assignment)
            restored = hand_over(left, self.member, folder, setup.handover, topology, far=far)
        self._log = QueueLog.open(folder, 0, discard=True) if restored is None else restored.log
        streams = {
            Origin(member, lane): lane * len(members) + place
            for lane in lanes
            for place, member in enumerate(members)
        }
        self._receiver = Receiver(
            security,
            keyvalue,
            carrier=settings.carrier,
            host=host,
            inbound_bytes_max=_share(len(streams)) * (len(streams) + 1),
            streams_max=len(streams) + 1,
            held="parcels/",
        )
        self._senders = [
            Sender(
                security,
                keyvalue,
                lane=lane,
                near=self._receiver.near,
                on_room=self._waker(lane),
            )
            for lane in lanes
        ]
        self._queue = QueueActor(
            QueueMachine(
                [lane for lane in lanes for _ in members],
                {binding.place: binding.delay for binding in plan.bindings},
                Budget(settings.disk_budget_bytes, recovering=setup.recovering),
                aligned_seconds_max=settings.aligned_seconds_max,
                restored=None if restored is None else restored.queue,
                epoch=-1 if setup.epoch is None else setup.epoch,
            ),
            self._log,
            self._receiver,
            streams,
            member=self.member,
            hear=self._hear,
            captured=self._queue_captured,
            room_needed=lambda: self._tell(0, control.RoomNeeded(self.member)),
            released=self.ended.set,
            fail=self._fail,
        )
        hint_index = HintIndex(plan)
        self._slices = [
            SliceActor(
                self.member,
                lane,
                SliceState(
                    plan.of_lane(lane),
                    assignment,
                    hint_index,
                    read_ahead_bytes=settings.read_ahead_bytes // len(plan.lanes),
                    restored=None if restored is None else restored.slices[lane],
                ),
                store,
                self._senders[lane],
                members=members,
                listed=[
                    binding
                    for binding in plan.of_lane(lane)
                    if members[binding.place % len(members)] == self.member
                ],
                tell=self._teller(lane),
                captured=self._slice_captured,
                fail=self._fail,
            )
            for lane in lanes
        ]
        self._lsns: dict[int, int] = {}
        """Of epochs that the consumer may not be done with."""
        if setup.epoch is not None and restored is not None and restored.lsn is not None:
            self._lsns[setup.epoch] = restored.lsn
        self._capture = Capture(len(self._slices))
        self._participant = MemberParticipant(
            SnapshotParticipant(snapshots, self._captured), self._give_up, self._log
        )
        self._epochs = EpochMember(keyvalue, DecisionLog(place), [self._participant])
        self._closing = threading.Event()
        self._status = supervised("member status", self._tell_status, fail=self._fail)

    def start(self) -> Member:
        self._epochs.start()
        self._queue.start()
        for each in self._slices:
            each.start()
        self._status.start()
        return self

    def stop(self) -> None:
        """Reads and sends no more: from here on other members may go away."""
        self._closing.set()
        self._capture.give_up_all()
        self._epochs.close()
        for each in self._slices:
            each.close()
        for sender in self._senders:
            sender.close()

    def close(self) -> None:
        self.stop()
        self._queue.close()
        self._receiver.close()
        self._log.close()
        if self._status.is_alive():
            self._status.join()

    # What the Session says, and what it is told

    def _hear(self, message: Message) -> None:
        match message:
            case StartRead():
                self._slices[message.lane].post(
                    slice_events.ReadStarted(
                        message.read,
                        message.binding,
                        message.journal,
                        message.entries,
                        message.identity,
                        message.known_as,
                    )
                )
            case AllReadsStarted():
                self._slices[message.lane].post(slice_events.AllReadsStarted())
            case AskProgress():
                self._slices[message.lane].post(slice_events.ProgressAsked())
            case control.ConsumedThrough(epoch=epoch, frontier=frontier):
                lsn = self._lsns.get(epoch)
                if lsn is not None:  # else it is older than this process: a later one will do
                    self._lsns = {one: at for one, at in self._lsns.items() if one >= epoch}
                    self._queue.post(Reclaim(frontier, lsn))
            case other:
                raise PenstockError(f"a member is not told {other}")

    def _teller(self, lane: int) -> Callable[[FromMember], None]:
        return lambda message: self._tell(lane, message)

    def _tell(self, lane: int, message: FromMember) -> None:
        batch = control.encode_messages([message])
        self._senders[lane].send(control.SESSION, VnodeData(control.STAGE, 0, batch))

    def _waker(self, lane: int) -> Callable[[int], None]:
        return lambda _: self._slices[lane].wake()

    def _fail(self, error: BaseException) -> None:
        if self.ended.is_set() or self._closing.is_set():
            return
        self.failure = error
        self.ended.set()
        self._log_about.error("member %d cannot go on: %s", self.member, error)
        try:
            reason = f"{type(error).__name__}: {error}"
            is_final = isinstance(error, UnreadableRowError)
            self._tell(0, control.MemberFailed(self.member, reason, is_final))
        except PenstockError:
            self._log_about.exception("member %d could not tell the Session", self.member)

    def _tell_status(self) -> None:
        turn = 0
        while not self._closing.wait(STATUS_SECONDS) and not self.ended.is_set():
            self._epochs.check()
            for each in self._slices:
                # Behind the progress that the lane has told: what is settled is known there.
                self._tell(each.lane, self._lane_status(each, turn % DETAILS_EVERY == 0))
            turn += 1

    def _lane_status(self, of: SliceActor, with_details: bool) -> MemberStatus:
        queue, queue_waits = self._queue.status()
        status, waits, details = of.status(with_details=with_details)
        if of.lane == 0:
            silent = silent_store(self.member, self._store)
            waits += (*queue_waits, *ended_threads(), *silent)
        return MemberStatus(self.member, of.lane, os.getpid(), _HOST, status, queue, waits, details)

    # Epochs

    def _captured(self, barrier: Barrier) -> Captured:
        """Waits until the barrier has gone through all Slices and come from all members."""
        self._capture.begin(barrier.epoch)
        for each in self._slices:
            each.inject(barrier)
        slices, queue = self._capture.wait(barrier.epoch)
        parts = {f"slice-{lane}": snapshot.encode() for lane, snapshot in slices.items()}
        self._lsns = {**self._lsns, barrier.epoch: queue.lsn}
        watermark = min(snapshot.promised for snapshot in slices.values())
        return Captured(
            {"queue": encode_state(queue), **parts},
            # As text: a number of 64 bits is too large for JSON's readers.
            {
                "lsn": queue.lsn,
                "generation": f"{self._log.generation:x}",
                "next_read": queue.next_read,
            },
            watermark or None,
        )

    def _slice_captured(self, lane: int, barrier: Barrier, snapshot: SliceSnapshot) -> None:
        self._capture.slice(barrier.epoch, lane, snapshot)

    def _queue_captured(self, epoch: int, state: QueueState | str) -> None:
        self._capture.queue(epoch, state)

    def _give_up(self, epoch: int) -> None:
        self._capture.give_up(epoch)
        self._queue.post(EpochGivenUp(epoch))


def _share(streams: int) -> int:
    """Of each stream."""
    return min(STREAM_BYTES_MAX, max(STREAM_BYTES_MIN, RECEIVED_BYTES // streams))
