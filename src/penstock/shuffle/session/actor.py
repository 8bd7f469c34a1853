"""The Session's loop: hears the Slices, says who reads what, and leads the epochs.

Two threads: one hears and answers, the other begins an epoch whenever there is something new.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from penstock.epoch.coordinator import Coordinator
from penstock.epoch.decisions import DecisionLog, Verdict
from penstock.epoch.member import EpochMember
from penstock.errors import (
    LocalProtocolError,
    PeerUnavailableError,
    PenstockError,
    UnreadableRowError,
)
from penstock.frontier import Frontier
from penstock.ids import Producer
from penstock.journal.errors import DataLossError
from penstock.journal.names import name_of
from penstock.logs import about
from penstock.shuffle import control
from penstock.shuffle.plan import make_plan
from penstock.shuffle.resume import SNAPSHOTS, Epoch, SessionRecord, load_record
from penstock.shuffle.session.aborts import Aborts
from penstock.shuffle.session.log_matching import FindMarkers, LogRead, MarkersFound, ReadLog
from penstock.shuffle.session.log_reading import LogReader, opened_log
from penstock.shuffle.session.looking import Looker
from penstock.shuffle.session.lost import RowsLostError
from penstock.shuffle.session.pacing import Pacing, Reminders
from penstock.shuffle.session.state import (
    AllReadsStarted,
    AskProgress,
    CheckpointReady,
    ListingAdded,
    ListingDone,
    ListingRemoved,
    Progressed,
    ReadEnded,
    RowsMissing,
    SessionState,
    SliceOpened,
    SpansLeft,
    StartRead,
)
from penstock.shuffle.session.topology import Topology
from penstock.shuffle.session.view import (
    AWAITED_MAX,
    AwaitedView,
    SessionView,
    committed_at,
    rows_to_recover,
)
from penstock.shuffle.status import MemberStatus
from penstock.shuffle.target import Target
from penstock.snapshot import SnapshotParticipant, SnapshotStore
from penstock.threads import supervised
from penstock.transport import Close, Receiver, Sender, VnodeData
from penstock.watch.causes import AwaitedCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.checkpoint import Barrier, Flags
    from penstock.directory.keyvalue import KeyValue
    from penstock.journal.store import ReadableStore
    from penstock.journal.transaction_log import NamedProducer
    from penstock.shuffle.member import Setup
    from penstock.shuffle.resume import Resume
    from penstock.shuffle.session.state import SessionEffect, SessionEvent, SliceKey
    from penstock.shuffle.session.view import Heard
    from penstock.shuffle.status import Details, QueueStatus
    from penstock.snapshot import Captured
    from penstock.storage import Storage
    from penstock.transport import Received
    from penstock.transport.frames import Origin
    from penstock.transport.security import Security

EPOCH_SECONDS: Final = 1.0
EPOCHS_AHEAD_MAX: Final = 256
"""A consumer that lags by so many is given no more: what comes meanwhile is in the next one. The
snapshots of those it may still ask for are kept."""
EPOCHS_TOLD: Final = 100
"""Of so many is told how large they were."""
WAKE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.05
"""Between two looks for journals that are waited for, or whose reads ended: a listing of their
collections. With many journals the looks are spaced so that they take a tenth of a processor."""

_LOG: Final = logging.getLogger("penstock.shuffle")


class MemberLostError(PenstockError):
    """A member of the shuffle failed, or its stream is gone. All of them begin anew at the newest
    epoch."""

    def __init__(self, reason: str, member: int | None = None) -> None:
        """`member`, if it is known which."""
        super().__init__(reason, member)
        self.member = member

    def __str__(self) -> str:
        return str(self.args[0])


class Session:
    """From `start` to `close`. `failed` is set when it cannot go on; `failure` says why."""

    def __init__(
        self,
        setup: Setup,
        store: ReadableStore,
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
        self._heard: dict[SliceKey, Heard] = {}
        self._decoders: defaultdict[Origin, control.MessageDecoder] = defaultdict(
            control.MessageDecoder
        )
        """What each Slice and its Queue did so far, and when they told."""
        self._details: dict[SliceKey, Details] = {}
        self._epoch_rows: dict[int, int] = {}
        self._rows_to_recover = rows_to_recover(resume)
        self._log = about(_LOG, feed=setup.feed.name)
        self._pacing = Pacing(epoch_seconds)
        self._reminders = Reminders()
        self._aborts = Aborts()
        self._diagnose = diagnose or (lambda error: error)
        self._store = store
        self._place = place
        self._plan = plan = make_plan(setup.feed, store)
        topology = Topology.of(plan, store, setup.assignment)
        members = setup.assignment.members
        self._members = members
        self._lock = threading.RLock()
        """Over the state, which both threads use."""
        transactions, remembered = opened_log(resume, store)
        self._is_whole = transactions is not None or not any(
            binding.by_offset for binding in plan.bindings
        )
        self._log_reader = (
            None
            if transactions is None
            else LogReader(store, transactions, plan, tell=self._hear_log, fail=self.fail)
        )
        self._state = SessionState(
            plan,
            topology,
            resume.frontier,
            time.monotonic(),
            first_read=resume.record.next_read,
            adopted=resume.record.adopted,
            restored=resume.epoch is not None,
            has_log=transactions is not None,
            remembered=remembered,
        )
        self._looker = Looker(store, plan)
        self._record = resume.record
        """What the next epoch captures."""
        self._epochs: deque[Epoch] = deque([resume.readable])
        self._changed = threading.Condition(self._lock)
        self._wants_epoch = False
        self._drawn = 0
        """After this epoch the consumer has asked for another."""
        self._owes_epoch = setup.handover is not None
        """Its queues are those of no epoch yet."""
        self._taken_rows = 0
        """Of the journals, that the next epoch has and the one before has not."""
        self._gone: set[str] = set()
        """Journals that were said to be out of reach."""
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
        self._participant = SnapshotParticipant(
            snapshots, self._captured, needed_from=lambda: self._record.consumed.number
        )
        self._epoch_member = EpochMember(keyvalue, DecisionLog(place), [self._participant])
        # Whoever has this Session holds the lock of the shuffle's folder: an earlier one is gone.
        self._coordinator = Coordinator(
            keyvalue, place, (control.SESSION, *members), takes_over=True
        )
        self._threads = [
            supervised(f"session {name}", work, fail=self.fail, until=self._closing.is_set)
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
        if self._log_reader is not None and not self._state.recovery:
            self._log_reader.start()
        return self

    def wait_epoch(
        self, after: int, timeout_seconds: float | None = None, *, hurry: bool = False
    ) -> Epoch | None:
        """The newest epoch, once it is above this one. None after the timeout. In a hurry, the next
        one begins as soon as there is something for it, and not when it is due; and the one after
        that so that it is there when the consumer comes back."""
        with self._changed:
            self._drawn = max(self._drawn, after)
            if hurry:
                self._pacing.asked(time.monotonic())
                if self._epochs[-1].number <= after:
                    self._pacing.waits()
                    self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._epochs[-1].number > after or self.failed.is_set(), timeout_seconds
            )
            self.check()
            if self._epochs[-1].number <= after:
                return None
            if hurry:
                self._pacing.given(time.monotonic())
            return self._epochs[-1]

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

    def target(self) -> Target:
        """What is in the journals now."""
        return Target(self._store, self._plan)

    def wait_caught_up(self, timeout_seconds: float | None = None) -> bool:
        """Waits until everything that is committed in the journals now is in a committed epoch.
        False after the timeout."""
        target = self.target()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            while not (is_reached := target.is_reached(self._epochs[-1].frontier)):
                self.check()
                left = WAKE_SECONDS if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, WAKE_SECONDS))
            self.check()
            return is_reached

    def _is_caught_up(self) -> bool:
        """As far as members have told lately: all is read, durable, told and committed."""
        slices = [status.slice for _, status in self._heard.values()]
        return (
            len(slices) == len(self._members) * len(self._plan.lanes)
            and all(each.settled for each in slices)
            and not self._state.unlisted
            and not self._state.has_ready
            and not self._state.waiting
            and self._epochs[-1].frontier == self._state.frontier
        )

    @property
    def statuses(self) -> dict[SliceKey, MemberStatus]:
        """What each Slice and its Queue did so far."""
        with self._lock:
            return {key: status for key, (_, status) in self._heard.items()}

    @property
    def queues(self) -> dict[int, QueueStatus]:
        """What each member's Queue did so far."""
        return {member: status.queue for (member, _), status in self.statuses.items()}

    @property
    def rows_behind(self) -> int:
        """Of the journals, that were not read yet, by what members said last."""
        return sum(status.slice.rows_behind for status in self.statuses.values())

    def view(self) -> SessionView:
        """All that whoever watches wants to know."""
        to_wall = time.time() - time.monotonic()
        with self._lock:
            state = self._state
            awaited = [
                AwaitedView(
                    waiting.cohort,
                    waiting.since + to_wall,
                    commit,
                    state.hinted_by(waiting.cohort, commit),
                )
                for waiting in state.waiting
                for commit in waiting.awaited[:AWAITED_MAX]
            ]
            unmatched = state.unmatched_since
            return SessionView(
                plan=self._plan,
                members=self._members,
                heard=dict(self._heard),
                details=dict(self._details),
                unlisted=tuple((binding, state.lister(binding)) for binding in state.unlisted),
                awaited=tuple(awaited[:AWAITED_MAX]),
                epochs=self._coordinator.times.all(),
                epoch_rows=dict(self._epoch_rows),
                consumed=self._record.consumed.number,
                drawn=max(self._drawn, self._record.consumed.number),
                newest=self._epochs[-1].number,
                epochs_ahead_max=EPOCHS_AHEAD_MAX,
                has_news=state.has_ready or self._wants_epoch,
                is_recovery=state.recovery,
                is_caught_up=self._is_caught_up(),
                rows_to_recover=self._rows_to_recover,
                is_whole=self._is_whole,
                unmatched_since=unmatched and unmatched + to_wall,
                named=self._named(awaited),
            )

    def _named(self, awaited: Iterable[AwaitedView]) -> dict[str, NamedProducer]:
        """Those whose transactions are shown."""
        if self._log_reader is None:
            return {}
        shown = {span.producer for one in self._details.values() for span in one.spans}
        shown |= {str(each.commit.producer) for each in awaited}
        found = {one: self._log_reader.named(Producer.from_hex(one).int64) for one in shown}
        return {one: name for one, name in found.items() if name is not None}

    def check(self) -> None:
        """Raises what ended the shuffle, if something did."""
        match self.failure:
            case None:
                pass
            case (
                RowsLostError() | DataLossError() | UnreadableRowError()
            ) as error:  # to begin anew does not help
                raise type(error)(*error.args) from error
            case error:
                member = getattr(error, "member", None)
                raise MemberLostError(str(error), member) from error

    def stop(self) -> None:
        """Neither hears nor leads any more, and releases the members."""
        self._closing.set()
        self._receiver.interrupt()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        if self._log_reader is not None:
            self._log_reader.close()
        self._coordinator.close()
        self._epoch_member.close()
        self._sender.close()

    def close(self) -> None:
        self.stop()
        self._receiver.close()

    def fail(self, error: BaseException) -> None:
        """By whoever watches the members: one of them is gone."""
        if self._closing.is_set() or self.failed.is_set():
            return
        if not isinstance(error, UnreadableRowError):
            error = self._diagnose(error)
        with self._changed:
            if self._closing.is_set() or self.failed.is_set():
                return
            self.failure = error
            self.failed.set()
            self._changed.notify_all()
        member = getattr(error, "member", None)
        self._log.error("the shuffle cannot go on: %s", error, extra={"member": member})

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
            self._remind(time.monotonic())

    def _remind(self, now: float) -> None:
        """A checkpoint may wait for a commit without limit: a transaction is delivered whole."""
        with self._lock:
            waits = {waiting.cohort: waiting for waiting in self._state.waiting}
            since = {cohort: waiting.since for cohort, waiting in waits.items()}
            for cohort in self._reminders.due(since, now):
                first = waits[cohort].awaited[0]
                by = self._state.hinted_by(cohort, first)
                cause = AwaitedCommit(
                    cohort,
                    str(first.producer),
                    name_of(first.journal),
                    by and name_of(by),
                    committed_at(self._plan, first),
                )
                text = f"{cause.text(now - since[cohort])} {cause.advice}"
                self._log.warning("%s", text, extra={"journal": name_of(first.journal)})

    def _look_for_gone(self) -> None:
        """A journal that nobody reads may be waited for, and deleted; or be there again."""
        begun, worked = time.monotonic(), time.thread_time()
        if begun < self._look_at:
            return
        with self._lock:
            sought = self._state.sought(begun)
        if sought.journals:
            found = self._looker.look(sought)
            with self._lock:
                effects = self._state.looked_for(sought, found, time.monotonic())
            for effect in effects:
                self._obey(effect)
            gone = {name for name, looked in found.items() if looked.identity is None}
            if not gone <= self._gone:
                self._log.warning("journals are not there any more: %s", ", ".join(sorted(gone)))
            self._gone = (self._gone | gone) - (found.keys() - gone)
        pause = max(LOOK_SECONDS, 10 * (time.thread_time() - worked))
        self._look_at = time.monotonic() + pause

    def _take(self, received: Received) -> None:
        match received.frame:
            case VnodeData(stage=control.STAGE, batch=batch):
                for message in self._decoders[received.origin].decode(batch):
                    self._take_message(message)
            case Close(reason=reason):
                raise PeerUnavailableError(f"{received.origin} is gone: {reason}")
            case other:
                raise PenstockError(f"{received.origin} sent {other} to the Session")

    def _take_message(self, message: control.Message) -> None:
        match message:
            case SliceOpened() | ListingAdded() | ListingRemoved() | ListingDone() | Progressed():
                self._handle(message)
            case ReadEnded() | RowsMissing() | SpansLeft():
                self._handle(message)
            case MemberStatus(member=member, lane=lane, details=details):
                with self._changed:
                    self._heard[member, lane] = time.time(), message
                    if details is not None:
                        self._details[member, lane] = details
                    self._changed.notify_all()
            case control.RoomNeeded(member=member):
                text = "member %d needs room on its disk"
                self._log.info(text, member, extra={"member": member})
                self.begin_epoch()
            case control.MemberFailed(member=member, reason=reason, is_final=True):
                raise UnreadableRowError(f"member {member} failed: {reason}")
            case control.MemberFailed(member=member, reason=reason):
                raise MemberLostError(f"member {member} failed: {reason}", member)
            case other:
                raise PenstockError(f"the Session is not told {other}")

    def _handle(self, event: SessionEvent) -> None:
        with self._lock:
            effects = self._state.on_event(event, time.monotonic())
        for effect in effects:
            self._obey(effect)

    def _hear_log(self, read: LogRead | MarkersFound) -> None:
        with self._lock:
            now = time.monotonic()
            if isinstance(read, MarkersFound):
                effects = self._state.on_markers(read, now)
            else:
                effects = self._state.on_log(read, now)
        for effect in effects:
            self._obey(effect)

    def _obey(self, effect: SessionEffect) -> None:
        match effect:
            case StartRead() | AllReadsStarted() | AskProgress():
                self._say(effect.member, effect)
            case CheckpointReady():
                with self._changed:
                    self._changed.notify_all()
            case ReadLog(looks=looks):
                if self._log_reader is not None:
                    self._log_reader.want(looks=looks)
            case FindMarkers():
                if self._log_reader is not None:
                    self._log_reader.find(effect)
            case _:
                assert_never(effect)

    def _say(self, member: int, message: control.Message) -> None:
        batch = control.encode_messages([message])
        self._sender.send(member, VnodeData(control.STAGE, 0, batch))

    # Leading

    def _lead(self) -> None:
        while not self._closing.is_set():
            if self._wait_for_news():
                self._lead_epoch()
                with self._lock:
                    self._pacing.ended(time.monotonic())

    def _is_epoch_due(self) -> bool:
        ahead = self._epochs[-1].number - self._record.consumed.number
        must_begin = self._state.recovery or self._owes_epoch
        if ahead >= EPOCHS_AHEAD_MAX and not must_begin:
            return False
        if self._state.frontier.unresolved_hints:
            return self._state.has_ready  # before what was lost is fetched, there is none to be had
        return self._state.has_ready or self._wants_epoch

    def _wait_for_news(self) -> bool:
        with self._changed:
            if self._closing.is_set():
                return False
            seconds = self._pacing.due_at - time.monotonic() if self._is_epoch_due() else math.inf
            if seconds > 0:
                self._changed.wait(min(seconds, WAKE_SECONDS))  # or until something changes
                return False
            # Fixed before the epoch is announced: all of it is in the queues then.
            self._wants_epoch = False
            self._pacing.begun(time.monotonic())
            taken = self._state.take()
            if taken is not None:
                self._taken_rows += int(taken.bytes_read_delta.sum())
            self._record = SessionRecord(
                self._state.frontier,
                self._record.consumed,
                self._state.next_read,
                self._state.adopted,
                self._state.remembered(),
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
            text = "epoch %d was aborted: %s"
            known = {"epoch": decision.epoch}
            self._log.warning(text, decision.epoch, decision.reason, extra=known)
            self._aborts.aborted(decision.reason, time.monotonic())
            self.begin_epoch()
            return
        self._aborts.committed()
        with self._changed:
            self._epoch_rows[decision.epoch], self._taken_rows = self._taken_rows, 0
            if len(self._epoch_rows) > EPOCHS_TOLD:
                del self._epoch_rows[next(iter(self._epoch_rows))]
            self._epochs.append(Epoch(decision.epoch, record.frontier, decision.watermark))
            self._owes_epoch = False
            self._changed.notify_all()

    def _captured(self, _: Barrier) -> Captured:
        with self._lock:
            return self._record.captured()

    @property
    def frontier(self) -> Frontier:
        """Up to where everything is complete, committed or not."""
        with self._lock:
            return self._state.frontier
