"""What is said about whom: stories of joining, leaving, dying and coming back."""

from __future__ import annotations

from itertools import pairwise

from penstock.directory.gossip.membership import (
    EVENTS_MAX,
    Membership,
    MembershipChange,
    MemberStatus,
)
from penstock.directory.gossip.timing import GossipTiming

TIMING = GossipTiming(forget_seconds=100)
OFFSET = 1000.0
"""The clock is ahead of the time awake, so that no test takes one for the other."""


class Story:
    """A membership, and a time that goes on."""

    def __init__(self) -> None:
        self.membership = Membership(TIMING)
        self.awake = 0.0

    @property
    def now(self) -> float:
        return self.awake + OFFSET

    def meet(self, generation: int = 1, member: int = 7) -> None:
        self.membership.meet(member, generation, self.awake, self.now)

    def beat(self, count: int = 1, member: int = 7) -> None:
        for _ in range(count):
            self.awake += TIMING.interval_seconds
            self.membership.beat(member, self.awake, self.now)
            self.membership.check(self.awake, self.now)

    def leave(self) -> None:
        self.membership.leave(7, self.awake, self.now)

    def silence(self, seconds: float) -> None:
        self.awake += seconds
        self.membership.check(self.awake, self.now)

    @property
    def changes(self) -> list[str]:
        return [event.change.value for event in self.membership.events(0)]

    @property
    def status(self) -> MemberStatus | None:
        return self.membership.status(7)


def alive() -> Story:
    story = Story()
    story.meet()
    story.beat(5)
    assert story.changes == ["joined"]
    assert story.status is MemberStatus.ALIVE
    return story


def test_who_is_only_heard_of_has_not_joined_and_cannot_die() -> None:
    story = Story()
    assert story.status is None
    story.meet()
    story.silence(50)
    assert story.status is MemberStatus.HEARD_OF
    assert story.changes == []


def test_silence_is_death_and_heartbeats_are_a_return() -> None:
    story = alive()
    story.silence(3)
    statuses = [story.status]
    for _ in range(2):
        story.beat()
        statuses.append(story.status)
    assert statuses == ["dead", "dead", "alive"], "one heartbeat may be a straggler"
    assert story.changes == ["joined", "died", "returned"]


def test_a_farewell_is_final_for_its_generation() -> None:
    story = alive()
    story.leave()
    story.leave()
    story.beat(5)
    story.silence(10)
    assert story.status is MemberStatus.LEFT
    assert story.changes == ["joined", "left"]


def test_the_dead_may_turn_out_to_have_left() -> None:
    story = alive()
    story.silence(3)
    story.leave()
    assert story.changes == ["joined", "died", "left"]


def test_of_who_left_before_one_came_nothing_is_said() -> None:
    story = Story()
    story.meet()
    story.leave()
    story.beat(3)
    assert (story.status, story.changes) == (MemberStatus.LEFT, [])
    story.meet(generation=2)
    story.silence(3)
    assert story.changes == ["restarted", "died"]


def test_a_new_generation_is_a_restart_whatever_was_before() -> None:
    running, dead, left = alive(), alive(), alive()
    dead.silence(3)
    left.leave()
    for story, before in ((running, []), (dead, ["died"]), (left, ["left"])):
        story.meet(generation=2)
        assert story.status is MemberStatus.ALIVE
        assert story.changes == ["joined", *before, "restarted"]
        assert story.membership.events(0)[-1].generation == 2
        story.silence(1)
        assert story.changes[-1] == "restarted", "what the one before did is not held against it"
        story.silence(3)
        assert story.changes[-1] == "died", "a restart that is never heard from again has died"


def test_a_new_generation_of_who_was_only_heard_of_is_hearsay_too() -> None:
    story = Story()
    story.meet()
    story.meet(generation=2)
    assert (story.status, story.changes) == (MemberStatus.HEARD_OF, [])
    story.beat()
    assert story.changes == ["joined"]


def test_events_say_when_by_the_clock() -> None:
    story = alive()
    story.silence(3)
    joined, died = story.membership.events(0)
    assert (joined.number, died.number) == (1, 2)
    assert died.at_seconds == story.now == story.membership.since(7)
    assert story.membership.events(1) == [died]
    assert story.membership.events(2) == []
    assert died.change is MembershipChange.DIED


def test_old_events_make_room_for_new_ones_and_numbers_tell() -> None:
    story = Story()
    for member in range(EVENTS_MAX + 10):
        story.meet(member=member)
        story.membership.beat(member, story.awake, story.now)
    events = story.membership.events(0)
    assert len(events) == EVENTS_MAX
    assert events[0].number == 11
    assert all(later.number == earlier.number + 1 for earlier, later in pairwise(events))
    assert story.membership.last_number == events[-1].number


def test_the_gone_are_not_told_of_after_half_the_time_and_forgotten_after_all_of_it() -> None:
    story = alive()
    story.silence(3)
    told, forgotten = [], []
    for _ in range(110):
        story.awake += 1
        told.append(story.membership.is_told(7, story.awake))
        forgotten.append(bool(story.membership.forgettable(story.awake)))
    assert told == [True] * 49 + [False] * 61
    assert forgotten == [False] * 99 + [True] * 11
    story.membership.forget(7)
    assert story.status is None
    assert story.membership.forgettable(story.awake) == []


def test_the_living_are_never_forgotten() -> None:
    story = alive()
    story.beat(2000)
    assert story.membership.is_told(7, story.awake)
    assert story.membership.forgettable(story.awake) == []


def test_who_is_only_heard_of_is_forgotten_too() -> None:
    story = Story()
    story.meet()
    story.silence(100)
    assert story.membership.forgettable(story.awake) == [7]
