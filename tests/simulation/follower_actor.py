"""The edge around a Follower: it carries out effects, one step each, and decides nothing."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from penstock.epoch.announcements import (
    ACKNOWLEDGEMENT_KEY,
    ANNOUNCEMENT_KEY,
    Announcement,
)
from penstock.epoch.follower import (
    AbortUnlessDecided,
    Acknowledge,
    Announced,
    Capture,
    Captured,
    Finish,
    Finished,
    Follower,
    GiveUp,
    Learn,
    Learned,
    Passed,
    Prepare,
    Prepared,
    Resume,
)
from penstock.errors import RemoteProtocolError
from tests.simulation.choices import Menu, seldom
from tests.simulation.records import Task
from tests.simulation.rules import PREPARED, Part
from tests.simulation.story import plain

if TYPE_CHECKING:
    from penstock.epoch.decisions import Decision
    from penstock.epoch.follower import FollowerEffect, FollowerEvent
    from tests.simulation.member import Member

PATIENCE_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.3
STEPS: Final = Menu((90, 0.001), (6, 0.01), (3, 0.1), (1, 1.0))
"""In seconds: how long a process takes from one effect to the next."""
CAPTURES: Final = Menu((70, 0.01), (20, 0.1), (8, 0.5), (2, 3.0))
WRITES: Final = Menu((60, 0.02), (25, 0.1), (10, 0.6), (5, 2.5))
"""In seconds, of a participant's durable write."""
CAPTURE_FAILS: Final = seldom(10)
PREPARE_FAILS: Final = seldom(15)
FINISH_FAILS: Final = seldom(30)
STOPS_WHEN_GIVEN_UP: Final = seldom(500)


@lru_cache(4096)
def parsed(text: str) -> Announcement:
    return Announcement.from_json(text)


Work: TypeAlias = Capture | Prepare | Learn | AbortUnlessDecided | Finish


class FollowerActor:
    """Of one process."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.process = member.process
        self.follower: Follower | None = None
        self._told: Announcement | None = None
        self._inbox: deque[FollowerEvent] = deque()
        self._effects: deque[FollowerEffect] = deque()
        self._busy = False
        self._timer: float | None = None
        self._jobs: deque[Work] = deque()
        self._job: Work | None = None
        self._given_up = 0
        self._captured: dict[int, int | None] = {}
        self._read_log()

    # How a life begins.

    def _read_log(self) -> None:
        Task(
            self.member.records,
            "start",
            self.member.log.newest,
            self._start,
            lambda: self.process.after(RETRY_SECONDS, self._read_log, "start again"),
        )

    def _start(self, newest: Decision | None) -> None:
        in_doubt = sorted({epoch for disk in self.member.disks for epoch in disk.in_doubt()})
        if in_doubt:
            self.member.world.counts["followers: in doubt at start"] += 1
        decided = newest.epoch if newest is not None else 0
        self.follower = self.member.parts.follower(
            self.process.member, PATIENCE_SECONDS, in_doubt, decided
        )
        self._told = self._newest()
        self.member.world.tell(
            self.process,
            f"starts: in doubt {in_doubt}, decided {decided}, sees {plain(self._told)}",
        )
        self._effects.extend(self.follower.start(self._told, self.process.clock()))
        self._pump()

    # Events.

    def slots_changed(self) -> None:
        newest = self._newest()
        if self.follower is not None and newest is not None and newest != self._told:
            self._told = newest
            self._tell(Announced(newest))

    def _newest(self) -> Announcement | None:
        texts = self.member.view.scan(ANNOUNCEMENT_KEY).values()
        return max((parsed(text) for text in texts), key=lambda each: each.order, default=None)

    def _tell(self, event: FollowerEvent) -> None:
        self._inbox.append(event)
        self._pump()

    def _passed(self) -> None:
        self._timer = None
        self._tell(Passed())

    def _pump(self) -> None:
        follower = self.follower
        if follower is None:
            return
        while not self._busy and not self._effects and self._inbox:
            event = self._inbox.popleft()
            try:
                self._effects.extend(follower.handle(event, self.process.clock()))
            except RemoteProtocolError:
                if not self.process.replaced:
                    raise
                self.process.kill()  # the member takes part through another process
                return
            self.member.rules.finished(self.process, follower.finished)
        if self._effects and not self._busy:
            self._busy = True
            kind = f"follower: {type(self._effects[0]).__name__}"
            seconds = self.member.world.choices.choose(f"{self.process} steps", STEPS)
            self.process.after(seconds, self._carry_out, kind)
        deadline = follower.deadline
        if deadline is not None and deadline != self._timer and not self._busy:
            self._timer = deadline
            self.process.after(
                max(0.0, deadline - self.process.clock()) + 1e-6, self._passed, "follower: timer"
            )

    # Effects.

    def _carry_out(self) -> None:
        self._busy = False
        effect = self._effects.popleft()
        world = self.member.world
        if world.trace is not None:
            world.tell(self.process, f"follower: {plain(effect)}")
        match effect:
            case Capture() | Prepare() | Learn() | AbortUnlessDecided() | Finish():
                self._jobs.append(effect)
                self._work()
            case Acknowledge():
                self.member.write(ACKNOWLEDGEMENT_KEY, effect.acknowledgement.to_json())
            case GiveUp():
                if world.choices.choose(f"{self.process} gives up", STOPS_WHEN_GIVEN_UP):
                    self._given_up = effect.epoch
            case Resume():
                pass
            case _:
                assert_never(effect)
        self._pump()

    # The worker: participants and the log, one thing after the other.

    def _work(self) -> None:
        if self._job is not None or not self._jobs:
            return
        self._job = self._jobs.popleft()
        choose = self.member.world.choices.choose
        match self._job:
            case Capture():
                epoch = self._job.barrier.epoch
                seconds = choose(f"{self.process} captures", CAPTURES)
                self.process.after(seconds, lambda: self._capture(epoch), "capture")
            case Prepare():
                self._prepare_later(self._job.epoch, 0)
            case Learn():
                self.member.world.counts["followers: asked the record"] += 1
                self._learn(self._job.epoch)
            case AbortUnlessDecided():
                self.member.world.counts["followers: asked the record"] += 1
                self._abort(self._job.decision)
            case Finish():
                self._finish_later(self._job, 0)
            case _:
                assert_never(self._job)

    def _worked(self, event: FollowerEvent) -> None:
        self._job = None
        self._tell(event)
        self._work()

    def _learn(self, epoch: int) -> None:
        Task(
            self.member.records,
            "learn",
            lambda: self.member.log.read(epoch),
            lambda decision: self._worked(Learned(epoch, decision)),
            lambda: self.process.after(RETRY_SECONDS, lambda: self._learn(epoch), "learn again"),
        )

    def _abort(self, decision: Decision) -> None:
        Task(
            self.member.records,
            "abort",
            lambda: self.member.log.abort_unless_decided(decision),
            lambda held: self._worked(Learned(decision.epoch, held)),
            lambda: self.process.after(RETRY_SECONDS, lambda: self._abort(decision), "abort again"),
        )

    def _capture(self, epoch: int) -> None:
        if self.member.world.choices.choose(f"{self.process} captures", CAPTURE_FAILS):
            self.member.world.counts["participants: capture failed"] += 1
            self._worked(Captured(epoch, error="no line can be drawn"))
            return
        watermark = self.member.watermark()
        self._captured[epoch] = watermark
        self._worked(Captured(epoch, watermark))

    def _prepare_later(self, epoch: int, index: int) -> None:
        seconds = self.member.world.choices.choose(f"{self.process} writes", WRITES)
        self.process.after(seconds, lambda: self._prepare(epoch, index), f"prepare {index}")

    def _prepare(self, epoch: int, index: int) -> None:
        if self.member.is_fenced():
            return
        if self._given_up == epoch:
            self._worked(Prepared(epoch, "given up"))
            return
        if self.member.world.choices.choose(f"{self.process} writes", PREPARE_FAILS):
            self.member.world.counts["participants: prepare failed"] += 1
            self._worked(Prepared(epoch, "the disk is full"))
            return
        process = self.process
        self.member.disks[index].prepare(
            epoch, Part(PREPARED, self._captured[epoch], process.name, process.born_at)
        )
        if index + 1 < len(self.member.disks):
            self._prepare_later(epoch, index + 1)
        else:
            process.after(0.0, lambda: self._worked(Prepared(epoch)), "prepared")

    def _finish_later(self, job: Finish, index: int) -> None:
        seconds = self.member.world.choices.choose(f"{self.process} writes", WRITES)
        self.process.after(seconds, lambda: self._finish(job, index), f"finish {index}")

    def _finish(self, job: Finish, index: int) -> None:
        if self.member.is_fenced():
            return
        if self.member.world.choices.choose(f"{self.process} writes", FINISH_FAILS):
            self._finish_later(job, index)
            return
        disk = self.member.disks[index]
        self.member.rules.finishing(disk, job.epoch, job.commit)
        if index + 1 < len(self.member.disks):
            self._finish_later(job, index + 1)
        else:
            self.process.after(0.0, lambda: self._worked(Finished(job.epoch)), "finished")
