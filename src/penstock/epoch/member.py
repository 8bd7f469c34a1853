"""A member's loop around its Follower: it hears announcements, has participants do their part, and
acknowledges.

Two threads: the loop, which never waits for a disk, and a worker, which lets participants do one
thing after the other and asks the decision log. What is decided is tried until it is done.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, assert_never

from penstock.checkpoint.watermark import cluster_minimum
from penstock.epoch import follower as machine
from penstock.epoch.announcements import (
    ACKNOWLEDGEMENT_KEY,
    ANNOUNCEMENT_KEY,
    Acknowledgement,
    Announcement,
)
from penstock.epoch.follower import Follower, FollowerEffect, FollowerEvent
from penstock.epoch.inbox import Inbox
from penstock.epoch.temporary import is_temporary, put_up_with
from penstock.errors import FencedError, LocalProtocolError, PenstockError, RemoteProtocolError
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from penstock.directory.keyvalue import KeyValue
    from penstock.epoch.decisions import DecisionLog
    from penstock.epoch.participant import Participant

PATIENCE_SECONDS: Final = 10.0
"""After the leader's own time. Less than a new leader needs would abort what it might commit."""
RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0

_LOG: Final = logging.getLogger("penstock.epoch")

T = TypeVar("T")

Work: TypeAlias = (
    machine.Capture | machine.Prepare | machine.Learn | machine.AbortUnlessDecided | machine.Finish
)


class EpochMember:
    """Takes part in epochs from `start` to `close`."""

    def __init__(
        self,
        keyvalue: KeyValue,
        decisions: DecisionLog,
        participants: Sequence[Participant],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        on_resume: Callable[[int, int | None], None] | None = None,
        on_finished: Callable[[int, bool], None] | None = None,
    ) -> None:
        """`on_resume` is told that all members have captured an epoch, and the cluster's watermark;
        `on_finished` that this member committed (or aborted) one. Both from this loop: be quick."""
        names = [participant.name for participant in participants]
        if len(set(names)) != len(names):
            raise LocalProtocolError(f"participants of a member have names of their own: {names}")
        self.member: Final = keyvalue.member
        self._keyvalue = keyvalue
        self._decisions = decisions
        self._participants = tuple(participants)
        self._patience_seconds = patience_seconds
        self._on_resume = on_resume
        self._on_finished = on_finished
        self._follower: Follower | None = None
        self._inbox: Inbox[FollowerEvent] | None = None
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._unsent: Acknowledgement | None = None
        self._heard: dict[int, str] | None = {}
        """The announcements that were looked at last. None: the last look failed."""
        self._retry_seconds = RETRY_SECONDS_MIN
        """Until what failed, a look or an acknowledgement, is tried again."""
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def start(self) -> EpochMember:
        """Finds out what an earlier life left in doubt, and begins. Waits for the records, should
        they be out of reach for now."""
        newest = self._until_done("the newest decision cannot be read", self._decisions.newest)
        in_doubt = {epoch for each in self._participants for epoch in each.in_doubt()}
        if in_doubt:
            _LOG.info("member %d: epochs %s are in doubt", self.member, sorted(in_doubt))
        decided = 0 if newest is None else newest.epoch
        self._follower = Follower(self.member, self._patience_seconds, in_doubt, decided)
        self._inbox = Inbox(self._keyvalue, ANNOUNCEMENT_KEY)
        # What is announced from here on is no longer refused as under way.
        run = functools.partial(self._run, self._follower, self._inbox, self._newest())
        work_off = functools.partial(self._work_off, self._inbox)
        self._threads = [
            supervised(
                f"epoch {self.member} {name}",
                work,
                fail=self._end,
                until=self._closing.is_set,
            )
            for name, work in (("loop", run), ("work", work_off))
        ]
        for thread in self._threads:
            thread.start()
        return self

    @property
    def finished(self) -> int:
        """All epochs up to this one are committed or aborted here."""
        return self._follower.finished if self._follower else 0

    @property
    def watermark(self) -> int | None:
        """The cluster's, as far as announced."""
        return self._follower.watermark if self._follower else None

    def check(self) -> None:
        """Raises what ended one of its threads, if something did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stops taking part. What is prepared stays so, for the next life to finish."""
        self._closing.set()
        self._work.put(None)
        if self._inbox is not None:
            self._inbox.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> EpochMember:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The loop

    def _run(
        self, follower: Follower, inbox: Inbox[FollowerEvent], newest: Announcement | None
    ) -> None:
        self._carry_out(follower.start(newest, time.monotonic()))
        while not self._closing.is_set():
            self._keyvalue.check()
            now = time.monotonic()
            if follower.deadline is not None and now >= follower.deadline:
                self._carry_out(follower.handle(machine.Passed(), now))
            for event in inbox.take(self._wait_seconds(follower)):
                self._carry_out(follower.handle(event, time.monotonic()))
            if self._unsent is not None:
                self._acknowledge(self._unsent)
            newest = self._newest()
            if newest is not None:
                announced = machine.Announced(newest)
                self._carry_out(follower.handle(announced, time.monotonic()))

    def _wait_seconds(self, follower: Follower) -> float | None:
        """None: until something happens. What failed is tried again: nothing else may happen."""
        waits = []
        if follower.deadline is not None:
            waits.append(follower.deadline - time.monotonic())
        if self._unsent is not None or self._heard is None:
            waits.append(self._retry_seconds)
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)
        else:
            self._retry_seconds = RETRY_SECONDS_MIN
        return min(waits, default=None)

    def _end(self, error: BaseException) -> None:
        """One of the two threads has ended: the other one follows, and `check` raises why."""
        if self._failure is None:
            self._failure = error
        self._closing.set()
        self._work.put(None)
        if self._inbox is not None:
            self._inbox.close()
        text = "member %d takes no part in epochs any more: %s"
        _LOG.error(text, self.member, error, exc_info=error)

    def _newest(self) -> Announcement | None:
        try:
            slots = self._keyvalue.scan(ANNOUNCEMENT_KEY)
        except PenstockError as error:
            self._heard = None
            put_up_with(error, f"member {self.member} hears no announcements")
            return None
        if slots == self._heard:
            return None
        self._heard = slots
        announcements = []
        for member, text in slots.items():
            try:
                announcements.append(Announcement.from_json(text))
            except RemoteProtocolError as error:
                _LOG.warning("the announcement of member %d is ignored: %s", member, error)
        return max(announcements, key=lambda each: each.order, default=None)

    def _carry_out(self, effects: list[FollowerEffect]) -> None:
        for effect in effects:
            match effect:
                case machine.Acknowledge():
                    self._acknowledge(effect.acknowledgement)
                case machine.Resume():
                    if self._on_resume is not None:
                        self._on_resume(effect.epoch, effect.watermark)
                case machine.GiveUp():
                    for participant in self._participants:
                        participant.give_up(effect.epoch)
                case (
                    machine.Capture()
                    | machine.Prepare()
                    | machine.Learn()
                    | machine.AbortUnlessDecided()
                    | machine.Finish()
                ):
                    self._work.put(effect)
                case _:
                    assert_never(effect)

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        self._unsent = acknowledgement
        try:
            self._keyvalue.write(ACKNOWLEDGEMENT_KEY, acknowledgement.to_json())
        except PenstockError as error:
            put_up_with(error, f"member {self.member} cannot acknowledge")
        else:
            self._unsent = None

    # The worker

    def _work_off(self, inbox: Inbox[FollowerEvent]) -> None:
        with contextlib.suppress(_ClosedError):
            while (work := self._work.get()) is not None:
                inbox.put(self._answer(work))

    def _answer(self, work: Work) -> FollowerEvent:
        match work:
            case machine.Capture():
                return self._capture(work)
            case machine.Prepare():
                return self._prepare(work.epoch)
            case machine.Learn():
                return self._until_done(
                    f"the decision of epoch {work.epoch} cannot be read",
                    lambda: machine.Learned(work.epoch, self._decisions.read(work.epoch)),
                )
            case machine.AbortUnlessDecided():
                return self._until_done(
                    f"epoch {work.decision.epoch} cannot be decided",
                    lambda: machine.Learned(
                        work.decision.epoch, self._decisions.abort_unless_decided(work.decision)
                    ),
                )
            case machine.Finish():
                return self._until_done(
                    f"epoch {work.epoch} cannot be {'committed' if work.commit else 'aborted'}",
                    lambda: self._finish(work),
                    # A participant has errors of its own, and is asked until it has done it.
                    passes=lambda error: not isinstance(error, FencedError),
                )
            case _:
                assert_never(work)

    def _capture(self, capture: machine.Capture) -> machine.Captured:
        epoch = capture.barrier.epoch
        clocks = []
        for participant in self._participants:
            try:
                clocks.append(participant.capture(capture.barrier))
            except Exception as error:  # noqa: BLE001 - whatever it is, all members are told
                return machine.Captured(epoch, error=self._failed(participant, "capture", error))
        return machine.Captured(epoch, cluster_minimum(clocks))

    def _prepare(self, epoch: int) -> machine.Prepared:
        for participant in self._participants:
            try:
                participant.prepare(epoch)
            except Exception as error:  # noqa: BLE001 - whatever it is, all members are told
                return machine.Prepared(epoch, error=self._failed(participant, "prepare", error))
        return machine.Prepared(epoch)

    def _failed(self, participant: Participant, what: str, error: Exception) -> str:
        _LOG.warning("member %d: %s could not %s: %s", self.member, participant.name, what, error)
        return f"{participant.name} could not {what}: {type(error).__name__}: {error}"

    def _finish(self, finish: machine.Finish) -> machine.Finished:
        for participant in self._participants:
            if finish.commit:
                participant.commit(finish.epoch)
            else:
                participant.abort(finish.epoch)
        if self._on_finished is not None:
            self._on_finished(finish.epoch, finish.commit)
        return machine.Finished(finish.epoch)

    def _until_done(
        self,
        problem: str,
        attempt: Callable[[], T],
        passes: Callable[[Exception], bool] = is_temporary,
    ) -> T:
        """There is no other way than to do it: so it is tried again, and said why not yet, as long
        as what is in the way `passes`. Ends with _ClosedError when this member is closed."""
        seconds = RETRY_SECONDS_MIN
        while True:
            try:
                return attempt()
            except Exception as error:
                if not passes(error):
                    raise
                _LOG.warning("member %d: %s for now: %s", self.member, problem, error)
            if self._closing.wait(seconds):
                raise _ClosedError
            seconds = min(seconds * 2, RETRY_SECONDS_MAX)


class _ClosedError(LocalProtocolError):
    """This member was closed before something was done."""
