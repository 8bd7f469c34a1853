"""The coordinator's loop around a Leader: it holds the lease, announces, weighs and records.

One thread. It is woken by acknowledgements, by requests for an epoch, and by the clock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from penstock.epoch import leader as machine
from penstock.epoch.announcements import (
    ACKNOWLEDGEMENT_KEY,
    ANNOUNCEMENT_KEY,
    Acknowledgement,
    Announcement,
    Phase,
)
from penstock.epoch.decisions import Decision, DecisionLog, prunable
from penstock.epoch.inbox import Inbox
from penstock.epoch.leader import Concluded, Leader, LeaderEffect
from penstock.epoch.lease import LEASE_SECONDS, RENEWALS, Lease
from penstock.epoch.temporary import put_up_with
from penstock.epoch.times import EpochTimes
from penstock.errors import ConfigurationError, PenstockError, RemoteProtocolError
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from penstock.directory.keyvalue import KeyValue
    from penstock.epoch.records import Records

PREPARE_SECONDS_MAX: Final = 30.0
"""How long members may take to capture an epoch and make it durable."""
RETRY_SECONDS: Final = 0.5
PRUNED_AT: Final = 64
"""Decisions on record, before those that nobody needs are deleted: not one by one."""

_LOG: Final = logging.getLogger("penstock.epoch")


class LeadershipLostError(PenstockError):
    """Another leads, or this coordinator has ended. The epoch that was under way may be committed
    or aborted: its decision record tells, and every member finds it there."""


@dataclass(slots=True)
class _Request:
    flags: int
    future: Future[Concluded]


class Coordinator:
    """Leads the epochs of a cluster for as long as it holds the lease, from `start` to `close`."""

    def __init__(
        self,
        keyvalue: KeyValue,
        records: Records,
        members: Collection[int],
        *,
        prepare_seconds_max: float = PREPARE_SECONDS_MAX,
        lease_seconds: float = LEASE_SECONDS,
        takes_over: bool = False,
    ) -> None:
        """`takes_over`: whoever led before is known to be gone. The lease is not waited for."""
        if not members:
            raise ConfigurationError("an epoch needs at least one member")
        self._keyvalue = keyvalue
        self._members = tuple(sorted(set(members)))
        self._prepare_seconds_max = prepare_seconds_max
        self._log = DecisionLog(records)
        self._lease = Lease(
            records, keyvalue.member, uuid.uuid4().hex, lease_seconds, takes_over=takes_over
        )
        self._lease_seconds = lease_seconds
        self._leader: Leader | None = None
        self._term: int | None = None
        self._recorded: dict[int, Decision] = {}
        self._requests: deque[_Request] = deque()
        self._open: _Request | None = None
        self._undecided: Decision | None = None
        self._unannounced: Announcement | None = None
        self._acknowledgements: dict[int, Acknowledgement] = {}
        self._inbox: Inbox[_Request] | None = None
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._leads = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.times: Final = EpochTimes()
        """How epochs went, and what the open one waits for."""

    def start(self) -> Coordinator:
        self._inbox = Inbox(self._keyvalue, ACKNOWLEDGEMENT_KEY)
        self._thread = supervised(
            "epoch leader",
            self._run,
            self._inbox,
            fail=self._end,
            until=self._closing.is_set,
        )
        self._thread.start()
        return self

    def begin(self, flags: int = 0) -> Future[Concluded]:
        """Asks for an epoch; one is under way at a time. The answer comes when it is decided, and
        says how. Raises LeadershipLostError there if that is not known here."""
        request = _Request(flags, Future())
        if self._inbox is not None:
            self._inbox.put(request)
        if self._inbox is None or self._ended.is_set():
            self._refuse(request)
        return request.future

    def wait_until_leading(self, timeout_seconds: float | None = None) -> bool:
        """Whether this coordinator leads, after waiting for it to. False also when its loop has
        ended: `check` tells why."""
        return self._leads.wait(timeout_seconds) and not self._ended.is_set()

    def check(self) -> None:
        """Raises what ended the loop, if something did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stops leading, and gives the lease back. An epoch under way is left to the next leader,
        which aborts it."""
        self._closing.set()
        if self._inbox is not None:
            self._inbox.close()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Coordinator:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The loop

    def _run(self, inbox: Inbox[_Request]) -> None:
        try:
            while not self._closing.is_set():
                self._keyvalue.check()
                self._keep_lease()
                if self._leader is not None:
                    self._lead(self._leader)
                self._requests += inbox.take(self._wait_seconds())
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._resign(self._why_ended())
            self._ended.set()  # whoever asks from now on refuses itself
            self._leads.set()
            for request in (*self._requests, *inbox.take(0)):
                self._refuse(request)
            self._release()

    def _end(self, error: BaseException) -> None:
        self._failure = error
        self._ended.set()
        _LOG.error("the coordinator stopped: %s", error, exc_info=error)

    def _refuse(self, request: _Request) -> None:
        with contextlib.suppress(InvalidStateError):  # refused already, or cancelled
            request.future.set_exception(LeadershipLostError(self._why_ended()))

    def _why_ended(self) -> str:
        if self._failure is not None:
            return f"this coordinator stopped: {self._failure}"
        return "this coordinator was closed, or never started"

    def _keep_lease(self) -> None:
        """A lease that cannot be renewed for now, or took too long to be, is not another's: until
        it is renewed, or found to be another's, nothing is decided (`_decide`)."""
        now = time.monotonic()
        try:
            term = self._lease.hold(now)
        except PenstockError as error:
            put_up_with(error, "the lease cannot be renewed")
            return
        if term is not None and self._lease.term(time.monotonic()) is None:
            _LOG.warning(
                "to write the lease took %.1f s, longer than it lasts: no epoch is decided before "
                "that is faster. See what slows the disk down",
                time.monotonic() - now,
            )
        if term == self._term:
            return
        self._resign("the lease was lost")
        if term is None:
            return
        try:
            decisions = self._log.decisions()
        except PenstockError as error:
            put_up_with(error, "the decisions so far cannot be read")
            return
        self._term = term
        self._recorded = {decision.epoch: decision for decision in decisions}
        self._leader = Leader(
            self._keyvalue.member,
            term,
            self._members,
            self._prepare_seconds_max,
            decisions,
        )
        _LOG.info("member %d leads under term %d", self._keyvalue.member, term)
        self._carry_out(self._leader.start())

    def _lead(self, leader: Leader) -> None:
        if self._unannounced is not None:
            self._announce(self._unannounced)
        if self._undecided is not None:
            self._decide(self._undecided)
        if leader.deadline is not None:
            self._hear()
            heard = machine.Acknowledged(self._acknowledgements)
            self._carry_out(leader.handle(heard, time.monotonic()))
            if leader.awaits is not None:
                self.times.waits(*leader.awaits)
        if leader.ready and self._leader is leader:
            self._leads.set()
            while self._requests and self._open is None:
                request = self._requests.popleft()
                if not request.future.set_running_or_notify_cancel():
                    continue
                self._open = request
                begin = machine.Begin(request.flags)
                self._carry_out(leader.handle(begin, time.monotonic()))

    def _wait_seconds(self) -> float:
        waits = [self._lease_seconds / RENEWALS / 2]
        if self._undecided is not None or self._unannounced is not None:
            waits.append(RETRY_SECONDS)
        if self._leader is not None and self._leader.deadline is not None:
            waits.append(self._leader.deadline - time.monotonic())
        if self._leader is not None and self._leader.ready and self._requests:
            waits.append(0.0)
        return min(waits)

    def _hear(self) -> None:
        try:
            slots = self._keyvalue.scan(ACKNOWLEDGEMENT_KEY)
        except PenstockError as error:
            put_up_with(error, "acknowledgements cannot be read")
            return
        for member in self._members:
            if member not in slots:
                continue
            try:
                self._acknowledgements[member] = Acknowledgement.from_json(slots[member])
            except RemoteProtocolError as error:
                _LOG.warning("the acknowledgement of member %d is ignored: %s", member, error)

    def _carry_out(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case machine.Announce(announcement=announcement):
                    if announcement.phase is Phase.PREPARE:
                        self.times.began(announcement.epoch, time.time())
                    elif announcement.phase is Phase.ALIGNED:
                        self.times.captured(time.time())
                    self._announce(announcement)
                case machine.Decide():
                    self.times.prepared(time.time())
                    self._decide(effect.decision)
                case machine.Concluded():
                    self.times.concluded(effect.decision, time.time())
                    self._conclude(effect)
                case machine.Deposed():
                    self._lease.drop()
                    self._resign(f"member {effect.decision.decider} leads now")
                case _:
                    assert_never(effect)

    def _announce(self, announcement: Announcement) -> None:
        self._unannounced = announcement
        try:
            self._keyvalue.write(ANNOUNCEMENT_KEY, announcement.to_json())
        except PenstockError as error:
            put_up_with(error, f"epoch {announcement.epoch} cannot be announced")
        else:
            self._unannounced = None

    def _decide(self, decision: Decision) -> None:
        self._undecided = decision
        leader = self._leader
        if leader is None or self._lease.term(time.monotonic()) != self._term:
            return  # whoever holds the lease decides; that may be this one again
        try:
            held = self._log.decide(decision)
        except PenstockError as error:
            put_up_with(error, f"epoch {decision.epoch} cannot be decided")
            return
        self._undecided = None
        self._recorded[held.epoch] = held
        self._carry_out(leader.handle(machine.Recorded(held), time.monotonic()))

    def _conclude(self, concluded: Concluded) -> None:
        request, self._open = self._open, None
        if not concluded.decision.is_commit:
            _LOG.warning(
                "epoch %d was aborted: %s",
                concluded.decision.epoch,
                concluded.decision.reason,
                extra={"epoch": concluded.decision.epoch},
            )
        if request is not None:
            request.future.set_result(concluded)
        if len(self._recorded) >= PRUNED_AT:
            self._prune()

    def _prune(self) -> None:
        answers = [self._acknowledgements.get(member) for member in self._members]
        finished = min(0 if answer is None else answer.finished for answer in answers)
        epochs = prunable(self._recorded.values(), finished)
        try:
            self._log.delete(epochs)
        except PenstockError as error:
            put_up_with(error, "old decisions cannot be deleted")
            return
        for epoch in epochs:
            del self._recorded[epoch]

    def _resign(self, reason: str) -> None:
        if self._leader is not None:
            _LOG.info("member %d leads no more: %s", self._keyvalue.member, reason)
        self._leads.clear()
        self._leader = None
        self._term = None
        self._undecided = None
        self._unannounced = None
        request, self._open = self._open, None
        if request is not None:
            request.future.set_exception(LeadershipLostError(reason))

    def _release(self) -> None:
        try:
            self._lease.release(time.monotonic())
        except PenstockError as error:
            _LOG.warning("the lease was not given back, and runs out by itself: %s", error)
