"""The edge around a lease and a Leader: a candidate that leads while it has the lease."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final, assert_never

from penstock.epoch.announcements import ACKNOWLEDGEMENT_KEY, ANNOUNCEMENT_KEY, Acknowledgement
from penstock.epoch.decisions import Decision, prunable
from penstock.epoch.leader import (
    Acknowledged,
    Announce,
    Begin,
    Concluded,
    Decide,
    Deposed,
    Leader,
    Passed,
    Recorded,
)
from penstock.epoch.lease import Lease
from tests.simulation.choices import evenly, seldom
from tests.simulation.follower_actor import RETRY_SECONDS, STEPS
from tests.simulation.records import Task
from tests.simulation.story import plain

if TYPE_CHECKING:
    from penstock.epoch.leader import LeaderEffect, LeaderEvent
    from tests.simulation.member import Member

LEASE_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.9
"""From one look at the lease to the next."""
EPOCH_SECONDS_MAX: Final = 3.0
INTERVALS: Final = evenly(0.3, 0.6, 1.5)
"""In seconds, from an epoch to the next."""
PRUNES: Final = seldom(400)
"""How often, of a thousand epochs, the log is pruned after one."""


@lru_cache(4096)
def parsed(text: str) -> Acknowledgement:
    return Acknowledgement.from_json(text)


class LeaderActor:
    """Of one process."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.process = member.process
        self.lease = Lease(member.records, self.process.member, self.process.name, LEASE_SECONDS)
        self.leader: Leader | None = None
        self.term: int | None = None
        """Of the leader that is led, or was."""
        self._inbox: deque[LeaderEvent] = deque()
        self._effects: deque[LeaderEffect] = deque()
        self._busy = False
        self._pruning = False
        self._timer: float | None = None
        self._hold()

    # The lease.

    def _hold(self) -> None:
        now = self.process.clock()
        Task(
            self.member.records,
            "lease",
            lambda: self.lease.hold(now),
            self._held,
            self._look_again,
            keeps=self.lease,
        )

    def _look_again(self) -> None:
        """A lease that cannot be renewed for now is not another's."""
        self.process.after(LOOK_SECONDS, self._hold, "lease: look")

    def _held(self, term: int | None) -> None:
        self._look_again()
        if term == self.term:
            return
        if self.leader is not None:
            self._stop("has lost its lease")
        self.term = term
        if term is not None:
            self.member.world.tell(self.process, f"has the lease under term {term}")
            self._take_over(term)

    def _stop(self, why: str) -> None:
        self.member.world.tell(self.process, f"leads no more: it {why}")
        self.leader = None
        self._inbox.clear()
        self._effects.clear()

    def _take_over(self, term: int) -> None:
        Task(
            self.member.records,
            "take over",
            self._decisions,
            lambda decisions: self._lead(term, decisions),
            lambda: self.process.after(
                RETRY_SECONDS, lambda: self._take_over_again(term), "take over again"
            ),
        )

    def _take_over_again(self, term: int) -> None:
        if self.term == term:
            self._take_over(term)

    def _decisions(self) -> list[Decision]:
        return self.member.log.decisions()

    def _lead(self, term: int, decisions: list[Decision]) -> None:
        if self.term != term:
            return
        process = self.process
        self.leader = self.member.parts.leader(
            process.member, term, self.member.members, EPOCH_SECONDS_MAX, decisions
        )
        self._effects.extend(self.leader.start())
        self._begin_later()
        self._pump()

    # Events.

    def slots_changed(self) -> None:
        if self.leader is not None and self.leader.deadline is not None:
            self._tell(Acknowledged(self._acknowledgements()))

    def _acknowledgements(self) -> dict[int, Acknowledgement]:
        slots = self.member.view.scan(ACKNOWLEDGEMENT_KEY)
        return {member: parsed(text) for member, text in slots.items()}

    def _tell(self, event: LeaderEvent) -> None:
        self._inbox.append(event)
        self._pump()

    def _begin_later(self) -> None:
        term, seconds = (
            self.term,
            self.member.world.choices.choose(f"{self.process} begins", INTERVALS),
        )

        def begin() -> None:
            if self.leader is None or self.term != term:
                return
            held = self.lease.term(self.process.clock()) == term
            if held and self.leader.ready and not self._busy and not self._inbox:
                self._tell(Begin())
            else:
                self._begin_later()

        self.process.after(seconds, begin, "leader: begin")

    def _passed(self) -> None:
        self._timer = None
        if self.leader is not None:
            self._tell(Passed())

    def _pump(self) -> None:
        leader = self.leader
        if leader is None:
            return
        while not self._busy and not self._effects and self._inbox:
            event = self._inbox.popleft()
            self._effects.extend(leader.handle(event, self.process.clock()))
        if self._effects and not self._busy:
            self._busy = True
            kind = f"leader: {type(self._effects[0]).__name__}"
            if isinstance(effect := self._effects[0], Announce):
                kind = f"{kind} {effect.announcement.phase}"
            seconds = self.member.world.choices.choose(f"{self.process} steps", STEPS)
            self.process.after(seconds, self._carry_out, kind)
        deadline = leader.deadline
        if deadline is not None and deadline != self._timer and not self._busy:
            self._timer = deadline
            self.process.after(
                max(0.0, deadline - self.process.clock()) + 1e-6, self._passed, "leader: timer"
            )

    # Effects.

    def _carry_out(self) -> None:
        self._busy = False
        if self.leader is None or not self._effects:
            return
        effect = self._effects.popleft()
        world = self.member.world
        if world.trace is not None:
            world.tell(self.process, f"leader: {plain(effect)}")
        match effect:
            case Announce():
                if self.member.write(ANNOUNCEMENT_KEY, effect.announcement.to_json()):
                    self.member.rules.announced(effect.announcement)
            case Decide():
                self._decide(effect.decision)
            case Concluded():
                world.counts[f"epochs: {type(effect.outcome).__name__}"] += 1
                self._begin_later()
                self._prune()
            case Deposed():
                world.counts["leaders: deposed"] += 1
                self.lease.drop()
                self._stop(f"is deposed by term {effect.decision.term}")
            case _:
                assert_never(effect)
        self._pump()

    def _decide(self, decision: Decision) -> None:
        leader = self.leader

        def recorded(held: Decision) -> None:
            if self.leader is leader:
                self._tell(Recorded(held))

        def again() -> None:
            if self.leader is leader:
                self._decide(decision)

        Task(
            self.member.records,
            "decide",
            lambda: self.member.log.decide(decision),
            recorded,
            lambda: self.process.after(RETRY_SECONDS, again, "decide again"),
        )

    # Pruning, now and then. A leader that lost its lease meanwhile goes on with it.

    def _prune(self) -> None:
        if self._pruning or not self.member.world.choices.choose(f"{self.process} prunes", PRUNES):
            return
        acknowledgements = self._acknowledgements()
        if set(acknowledgements) < set(self.member.members):
            return
        finished = min(each.finished for each in acknowledgements.values())
        self._pruning = True

        def prune() -> None:
            self.member.log.delete(prunable(self._decisions(), finished))

        Task(self.member.records, "prune", prune, lambda _: self._pruned(), self._pruned)

    def _pruned(self) -> None:
        self._pruning = False
