"""The Session's loop: hears the Slices, says who reads what, and leads the epochs.

Two threads: one hears and answers, the other begins an epoch whenever there is something new.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from penstock.epoch.coordinator import Coordinator
from penstock.epoch.decisions import DecisionLog, Verdict
from penstock.epoch.member import EpochMember
from penstock.errors import LocalProtocolError, PeerUnavailableError, PenstockError
from penstock.frontier import Frontier
from penstock.shuffle import control
from penstock.shuffle.plan import make_plan
from penstock.shuffle.resume import SNAPSHOTS, Epoch, SessionRecord, load_record
from penstock.shuffle.session.lost import RowsLostError
from penstock.shuffle.session.state import (
    AllReadsStarted,
    AskProgress,
    CheckpointReady,
    ListingAdded,
    ListingDone,
    Progressed,
    ReadEnded,
    RowsMissing,
    SessionState,
    SliceOpened,
    StartRead,
)
from penstock.shuffle.session.topology import Topology
from penstock.shuffle.target import covers, target_of_now
from penstock.snapshot import SnapshotParticipant, SnapshotStore
from penstock.transport import Close, Receiver, Sender, VnodeData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.checkpoint import Barrier, Flags
    from penstock.directory.keyvalue import KeyValue
    from penstock.journal.store import JournalStore
    from penstock.shuffle.member import Setup
    from penstock.shuffle.resume import Resume
    from penstock.shuffle.session.state import SessionEffect, SessionEvent
    from penstock.snapshot import Captured
    from penstock.storage import Storage
    from penstock.transport import Received
    from penstock.transport.security import Security

EPOCH_SECONDS: Final = 1.0
EPOCHS_AHEAD_MAX: Final = 256
"""A consumer that lags by so many is given no more: what comes meanwhile is in the next one. So the
snapshots of those it may still ask for are kept."""
SNAPSHOTS_KEPT: Final = 2 * EPOCHS_AHEAD_MAX
HURRY_SECONDS: Final = 0.02
"""Between epochs that are asked for as soon as can be."""
WAKE_SECONDS: Final = 0.5
GONE_SECONDS: Final = 1.0
"""Between two looks for journals that are waited for and not read: a listing of their collections.
"""

_LOG: Final = logging.getLogger("penstock.shuffle")


class MemberLostError(PenstockError):
    """A member of the shuffle failed, or its stream is gone. All of them begin anew at the newest
    epoch."""


class Session:
    """From `start` to `close`. `failed` is set when it cannot go on; `failure` says why."""

    def __init__(
        self,
        setup: Setup,
        store: JournalStore,
        security: Security,
        keyvalue: KeyValue,
        *,
        place: Storage,
        resume: Resume,
        epoch_seconds: float = EPOCH_SECONDS,
        diagnose: Callable[[BaseException], BaseException] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`diagnose` is asked, before the Session fails, what is behind an error: a stream that is
        gone does not tell that a process was killed. Members reach this by `host`."""
        self.failed = threading.Event()
        self.failure: BaseException | None = None
        self.statuses: dict[int, Mapping[str, float]] = {}
        """What each member did so far."""
        self._epoch_seconds = epoch_seconds
        self._diagnose = diagnose or (lambda error: error)
        self._store = store
        self._place = place
        self._plan = plan = make_plan(setup.feed, store)
        collections = {
            binding.collection: store.collection(binding.collection) for binding in plan.bindings
        }
        topology = Topology(plan, collections, setup.assignment)
        members = setup.assignment.members
        self._members = members
        self._lock = threading.RLock()
        """Over the state, which both threads use."""
        self._state = SessionState(
            plan,
            topology,
            resume.frontier,
            time.monotonic(),
            first_read=resume.record.next_read,
        )
        self._record = resume.record
        """What the next epoch captures."""
        self._epochs: deque[Epoch] = deque([resume.readable])
        self._changed = threading.Condition(self._lock)
        self._wants_epoch = False
        self._hurries = False
        self._gone: set[str] = set()
        """Journals that were said to be deleted."""
        self._look_at = 0.0
        """When journals that are waited for are looked for."""
        self._closing = threading.Event()
        self._receiver = Receiver(
            security,
            keyvalue,
            carrier=setup.settings.carrier,
            host=host,
            streams_max=len(members) * len(plan.lanes),
        )
        self._sender = Sender(security, keyvalue)
        snapshots = SnapshotStore(place.within(SNAPSHOTS), control.SESSION)
        self._participant = SnapshotParticipant(snapshots, self._captured, keep=SNAPSHOTS_KEPT)
        self._epoch_member = EpochMember(keyvalue, DecisionLog(place), [self._participant])
        # Whoever has this Session holds the lock of the shuffle's folder: an earlier one is gone.
        self._coordinator = Coordinator(
            keyvalue, place, (control.SESSION, *members), takes_over=True
        )
        self._threads = [
            threading.Thread(
                target=self._guarded, args=(work,), name=f"penstock session {name}", daemon=True
            )
            for work, name in ((self._hear, "hears"), (self._lead, "leads"))
        ]

    @property
    def newest(self) -> Epoch:
        """The newest committed epoch."""
        with self._lock:
            return self._epochs[-1]

    @property
    def recovering(self) -> bool:
        """Whether this session only fetches what was lost. It is over with its first epoch."""
        return self._state.recovery

    def start(self) -> Session:
        self._epoch_member.start()
        self._coordinator.start()
        for thread in self._threads:
            thread.start()
        return self

    def wait_epoch(
        self, after: int, timeout_seconds: float | None = None, *, hurry: bool = False
    ) -> Epoch | None:
        """The newest epoch, once it is above this one. None after the timeout. In a hurry, the next
        one begins as soon as there is something for it, and not when it is due."""
        with self._changed:
            if hurry and self._epochs[-1].number <= after and not self._hurries:
                self._hurries = True
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._epochs[-1].number > after or self.failed.is_set(), timeout_seconds
            )
            self.check()
            return self._epochs[-1] if self._epochs[-1].number > after else None

    def epochs(self, after: int) -> list[Epoch]:
        """Those of this session that are above this one."""
        with self._lock:
            return [epoch for epoch in self._epochs if epoch.number > after]

    def consumed(self, epoch: int) -> None:
        """By the consumer: it is done with everything up to this epoch. An older one than it was
        done with before changes nothing."""
        found = self._epoch(epoch)
        with self._lock:
            if epoch <= self._record.consumed.number:
                return
            while self._epochs[0].number < epoch:
                self._epochs.popleft()
            self._record = replace(self._record, consumed=found)
            self._changed.notify_all()
        try:
            for member in self._members:
                self._say(member, control.ConsumedThrough(epoch, found.frontier))
        except PeerUnavailableError as error:
            self.fail(error)
            self.check()

    def _epoch(self, number: int) -> Epoch:
        with self._lock:
            for one in self._epochs:
                if one.number == number:
                    return one
            newest = self._epochs[-1].number
        if number > newest:
            raise LocalProtocolError(
                f"the consumer cannot be done with epoch {number}: {newest} is the newest"
            )
        # It is of an earlier session.
        frontier = load_record(self._place, number).frontier if number else Frontier.of()
        return Epoch(number, frontier)

    def begin_epoch(self) -> None:
        """Asks for an epoch soon, whether there is something new or not."""
        with self._changed:
            self._wants_epoch = True
            self._changed.notify_all()

    def target(self) -> Frontier:
        """What is in the journals now."""
        return target_of_now(self._store, self._plan)

    def wait_caught_up(self, timeout_seconds: float | None = None) -> bool:
        """Waits until everything that is committed in the journals now is in a committed epoch.
        False after the timeout."""
        target = self.target()
        with self._changed:
            self._changed.wait_for(
                lambda: self.failed.is_set() or covers(self._epochs[-1].frontier, target),
                timeout_seconds,
            )
            self.check()
            return covers(self._epochs[-1].frontier, target)

    def check(self) -> None:
        """Raises what ended the shuffle, if something did."""
        match self.failure:
            case None:
                pass
            case RowsLostError() as error:  # to begin anew does not help
                raise RowsLostError(*error.args) from error
            case error:
                raise MemberLostError(str(error)) from error

    def stop(self) -> None:
        """Neither hears nor leads any more, and releases the members."""
        self._closing.set()
        self._receiver.interrupt()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._coordinator.close()
        self._epoch_member.close()
        self._sender.close()

    def close(self) -> None:
        self.stop()
        self._receiver.close()

    def _guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - whatever it is, the shuffle cannot go on
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """By whoever watches the members: one of them is gone."""
        if self._closing.is_set() or self.failed.is_set():
            return
        error = self._diagnose(error)
        with self._changed:
            if self._closing.is_set() or self.failed.is_set():
                return
            self.failure = error
            self.failed.set()
            self._changed.notify_all()
        _LOG.error("the shuffle cannot go on: %s", error)

    # Hearing

    def _hear(self) -> None:
        while not self._closing.is_set():
            first = self._receiver.receive(WAKE_SECONDS)
            for received in () if first is None else (first, *self._receiver.drain()):
                self._take(received)
            for loss in self._sender.losses():
                raise PeerUnavailableError(
                    f"the stream to member {loss.member} is lost: {loss.reason}"
                )
            self._coordinator.check()
            self._epoch_member.check()
            self._look_for_gone()

    def _look_for_gone(self) -> None:
        """A journal that nobody reads may be waited for, and deleted; or be there again."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + GONE_SECONDS
        with self._lock:
            unread = self._state.unread
        if not unread:
            return
        # Listed, and not probed: if the whole store is out of reach, that is an error.
        bindings = self._plan.bindings
        collections = {bindings[binding].collection for _, binding in unread}
        there = {one.name for name in collections for one in self._store.journals(name)}
        with self._lock:
            effects = self._state.looked_for(unread, there, time.monotonic())
        gone = {journal for journal, _ in unread} - there
        if not gone <= self._gone:
            self._gone |= gone
            _LOG.warning("deleted, and not waited for: %s", ", ".join(sorted(gone)))
        for effect in effects:
            self._obey(effect)

    def _take(self, received: Received) -> None:
        match received.frame:
            case VnodeData(stage=control.STAGE, batch=batch):
                for message in control.decode_messages(batch):
                    self._take_message(message)
            case Close(reason=reason):
                raise PeerUnavailableError(f"{received.origin} is gone: {reason}")
            case other:
                raise PenstockError(f"{received.origin} sent {other} to the Session")

    def _take_message(self, message: control.Message) -> None:
        match message:
            case SliceOpened() | ListingAdded() | ListingDone() | Progressed():
                self._handle(message)
            case ReadEnded() | RowsMissing():
                self._handle(message)
            case control.MemberStatus(member=member, figures=figures):
                with self._changed:
                    self.statuses[member] = {**self.statuses.get(member, {}), **figures}
                    self._changed.notify_all()
            case control.RoomNeeded(member=member):
                _LOG.info("member %d needs room on its disk", member)
                self.begin_epoch()
            case control.MemberFailed(member=member, reason=reason):
                raise MemberLostError(f"member {member} failed: {reason}")
            case other:
                raise PenstockError(f"the Session is not told {other}")

    def _handle(self, event: SessionEvent) -> None:
        with self._lock:
            effects = self._state.on_event(event, time.monotonic())
        for effect in effects:
            self._obey(effect)

    def _obey(self, effect: SessionEffect) -> None:
        match effect:
            case StartRead() | AllReadsStarted() | AskProgress():
                self._say(effect.member, effect)
            case CheckpointReady():
                with self._changed:
                    self._changed.notify_all()
            case _:
                assert_never(effect)

    def _say(self, member: int, message: control.Message) -> None:
        batch = control.encode_messages([message])
        self._sender.send(member, VnodeData(control.STAGE, 0, batch))

    # Leading

    def _lead(self) -> None:
        while not self._closing.is_set():
            begun = time.monotonic()
            if self._wait_for_news():
                self._lead_epoch()
            self._closing.wait(max(0.0, begun + HURRY_SECONDS - time.monotonic()))
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing.is_set() or self._hurries,
                    max(0.0, begun + self._epoch_seconds - time.monotonic()),
                )

    def _is_epoch_due(self) -> bool:
        ahead = self._epochs[-1].number - self._record.consumed.number
        may_begin = ahead < EPOCHS_AHEAD_MAX or self._state.recovery
        return may_begin and (self._state.has_ready or self._wants_epoch)

    def _wait_for_news(self) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing.is_set() or self._is_epoch_due(), WAKE_SECONDS
            )
            if self._closing.is_set() or not self._is_epoch_due():
                return False
            if self._state.frontier.unresolved_hints and not self._state.has_ready:
                return False  # what was lost is not yet fetched: there is no epoch to be had
            # Fixed before the epoch is announced: all of it is in the queues then.
            self._wants_epoch = self._hurries = False
            self._state.take()
            self._record = SessionRecord(
                self._state.frontier, self._record.consumed, self._state.next_read
            )
            return True

    def _lead_epoch(self, flags: Flags | None = None) -> None:
        record = self._record
        future = self._coordinator.begin(int(flags or 0))
        while not self._closing.is_set():
            try:
                concluded = future.result(WAKE_SECONDS)
                break
            except FutureTimeoutError:
                continue
        else:
            return
        decision = concluded.decision
        if decision.verdict is not Verdict.COMMIT:
            _LOG.warning("epoch %d was aborted: %s", decision.epoch, decision.reason)
            self.begin_epoch()
            return
        with self._changed:
            self._epochs.append(Epoch(decision.epoch, record.frontier, decision.watermark))
            self._changed.notify_all()

    def _captured(self, _: Barrier) -> Captured:
        with self._lock:
            return self._record.captured()

    @property
    def frontier(self) -> Frontier:
        """Up to where everything is complete, committed or not."""
        with self._lock:
            return self._state.frontier
