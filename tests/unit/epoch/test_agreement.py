"""Leaders and followers together, with events in any order, against what is on record and on disk.

A small sister of tests/simulation: Hypothesis chooses when things go on as they should, and what
comes in between, and shows the shortest list of steps that breaks a rule.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, assert_never

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.epoch import follower as following
from penstock.epoch import leader as leading
from penstock.epoch.follower import Follower, FollowerEffect, FollowerEvent
from penstock.epoch.leader import Leader, LeaderEffect, LeaderEvent

if TYPE_CHECKING:
    from penstock.epoch.announcements import Acknowledgement, Announcement
    from penstock.epoch.decisions import Decision

MEMBERS = (1, 2)
SECONDS = 1.0


class Site:
    """One member: its disk, and the follower of its present life."""

    def __init__(self, world: World, member: int) -> None:
        self.world, self.member = world, member
        self.disk: dict[int, str] = {}
        self.start()

    def start(self) -> None:
        doubts = [epoch for epoch, status in self.disk.items() if status == "prepared"]
        self.work: deque[FollowerEffect] = deque()
        self.follower = Follower(self.member, SECONDS, doubts, max(self.world.log, default=0))
        self.take(self.follower.start(self.world.newest(), self.world.now))

    def handle(self, event: FollowerEvent) -> None:
        self.take(self.follower.handle(event, self.world.now))

    def take(self, effects: list[FollowerEffect]) -> None:
        for effect in effects:
            match effect:
                case following.Acknowledge():
                    self.world.slots[self.member] = effect.acknowledgement
                case following.Resume() | following.GiveUp():
                    pass
                case _:
                    self.work.append(effect)

    def work_on(self, fails: bool) -> None:
        if not self.work:
            return
        log, effect = self.world.log, self.work.popleft()
        error = "it fails" if fails else None
        match effect:
            case following.Capture():
                self.handle(following.Captured(effect.barrier.epoch, error=error))
            case following.Prepare():
                assert effect.epoch not in self.disk, "nothing is prepared twice"
                if not fails:
                    self.disk[effect.epoch] = "prepared"
                self.handle(following.Prepared(effect.epoch, error))
            case following.Learn():
                self.handle(following.Learned(effect.epoch, log.get(effect.epoch)))
            case following.AbortUnlessDecided():
                held = self.world.decide(effect.decision)
                self.handle(following.Learned(held.epoch, held))
            case following.Finish():
                self.finish(effect.epoch, effect.commit)
                self.handle(following.Finished(effect.epoch))
            case following.Acknowledge() | following.Resume() | following.GiveUp():
                raise AssertionError("no work")
            case _:
                assert_never(effect)

    def finish(self, epoch: int, commit: bool) -> None:
        decision, status = self.world.log.get(epoch), self.disk.get(epoch)
        if commit:
            assert decision is not None
            assert decision.is_commit
            assert status == "prepared"
            self.disk[epoch] = "committed"
        else:
            assert decision is None or not decision.is_commit
            assert status != "prepared" or decision is not None, "it aborts on its own"
            self.disk[epoch] = "aborted"


class Reign:
    def __init__(self, world: World, term: int) -> None:
        self.world = world
        self.undecided: deque[Decision] = deque()
        self.leader = Leader(100 + term, term, MEMBERS, SECONDS, list(world.log.values()))
        self.take(self.leader.start())

    def handle(self, event: LeaderEvent) -> None:
        self.take(self.leader.handle(event, self.world.now))

    def take(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            if isinstance(effect, leading.Announce):
                self.world.said.append(effect.announcement)
            elif isinstance(effect, leading.Decide):
                self.undecided.append(effect.decision)

    def decide(self) -> None:
        if self.undecided:
            self.handle(leading.Recorded(self.world.decide(self.undecided.popleft())))


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.log: dict[int, Decision] = {}
        self.said: list[Announcement] = []
        self.slots: dict[int, Acknowledgement] = {}
        self.sites = [Site(self, member) for member in MEMBERS]
        self.reigns = [Reign(self, 1)]
        self.peace = itertools.cycle(PEACE)

    def decide(self, decision: Decision) -> Decision:
        if decision.epoch not in self.log:
            assert decision.epoch == len(self.log) + 1, "without gaps"
            if decision.is_commit:
                statuses = [site.disk.get(decision.epoch) for site in self.sites]
                assert statuses == ["prepared"] * len(MEMBERS)
            self.log[decision.epoch] = decision
        return self.log[decision.epoch]

    def newest(self) -> Announcement | None:
        return max(self.said, key=lambda each: each.order, default=None)

    def step(self, kind: str, choice: int) -> None:
        reign = self.reigns[-1 - choice % len(self.reigns)]
        site = self.sites[choice % len(self.sites)]
        match kind:
            case "go on":
                for _ in range(choice):
                    self.step(*next(self.peace))
            case "lead":
                self.reigns.append(Reign(self, len(self.reigns) + 1))
            case "begin" if reign.leader.ready:
                reign.handle(leading.Begin())
            case "weigh":
                reign.handle(leading.Acknowledged(dict(self.slots)))
            case "decide":
                reign.decide()
            case "tell" if self.said:
                heard = self.said[-1 - choice // 2 % len(self.said)]
                site.handle(following.Announced(heard))
            case "work":
                site.work_on(fails=choice // 2 % 8 == 7)
            case "wait":
                self.now += SECONDS * choice
                site.handle(following.Passed())
                site.work_on(fails=False)
                reign.handle(leading.Passed())
            case "crash":
                site.start()

    def settle(self) -> None:
        """A last leader, and whatever has to be done until nothing is left to do."""
        self.step("lead", 0)
        for _ in range(20):
            for site in self.sites:
                newest = self.newest()
                if newest is not None:
                    site.handle(following.Announced(newest))
                while site.work:
                    site.work_on(fails=False)
            self.reigns[-1].decide()
            self.reigns[-1].handle(leading.Acknowledged(dict(self.slots)))
            self.now += 4 * SECONDS
            for site in self.sites:
                site.handle(following.Passed())


PEACE = (
    ("decide", 0), ("begin", 0), ("tell", 0), ("tell", 1), ("work", 0), ("work", 1), ("work", 0),
    ("work", 1), ("weigh", 0), ("decide", 0), ("tell", 0), ("tell", 1), ("work", 0), ("work", 1),
)  # fmt: skip
"""An epoch."""
KINDS = (
    *["go on"] * 8, "begin", "weigh", "decide", *["tell", "work", "wait", "crash", "lead"] * 2
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 15)), max_size=80))
def test_all_do_what_is_on_record_and_in_the_end_everything_of_it(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    for kind, choice in steps:
        world.step(kind, choice)
    world.settle()
    assert world.reigns[-1].leader.ready
    for site in world.sites:
        assert "prepared" not in site.disk.values(), "nobody stays in doubt"
        committed = [epoch for epoch, status in site.disk.items() if status == "committed"]
        expected = [epoch for epoch, decision in world.log.items() if decision.is_commit]
        assert sorted(committed) == sorted(expected)


def test_in_peace_every_epoch_is_committed() -> None:
    world = World()
    world.step("go on", 5 * len(PEACE))
    verdicts = [decision.is_commit for decision in world.log.values()]
    assert verdicts == [False, *[True] * 5]
    for site in world.sites:
        assert site.disk == dict.fromkeys(range(2, 7), "committed")
