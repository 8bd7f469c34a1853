"""Who is in the cluster, and what happened to whom."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.directory.gossip.detector import Detector

if TYPE_CHECKING:
    from penstock.directory.gossip.timing import GossipTiming

EVENTS_MAX: Final = 1024
"""Kept of the past. Who asks too seldom sees from the events' numbers that some are missing, and
finds how things stand in `members()`."""


class MemberStatus(StrEnum):
    HEARD_OF = "heard of"
    """Others know it, but no sign of life has come yet. It may be long dead."""
    ALIVE = "alive"
    DEAD = "dead"
    """Its heartbeats stopped: it is dead, cut off or held up. It may come back."""
    LEFT = "left"
    """It said farewell. It comes back only under a new generation."""


class MembershipChange(StrEnum):
    JOINED = "joined"
    LEFT = "left"
    DIED = "died"
    RETURNED = "returned"
    """Taken for dead, it is heard of again: the same process, with all it knew."""
    RESTARTED = "restarted"
    """A new process of the same member, under a greater generation."""


@dataclass(frozen=True, slots=True)
class MemberState:
    member: int
    generation: int
    status: MemberStatus
    address: str
    """Of its gossip, as host:port. Empty until it is known."""
    since_seconds: float
    """When it came to this status, by the monotonic clock of this process."""


@dataclass(frozen=True, slots=True)
class MembershipEvent:
    number: int
    """From 1 on, without gaps."""
    change: MembershipChange
    member: int
    generation: int
    at_seconds: float
    """By the monotonic clock of this process."""


@dataclass(slots=True)
class _Known:
    generation: int
    status: MemberStatus
    since_seconds: float
    since_awake: float
    detector: Detector | None = None
    """None until there was a sign of life."""


class Membership:
    """How one member sees the others. `awake` is the time that this process was awake, `now` that
    of its clock: see AwakeClock."""

    def __init__(self, timing: GossipTiming) -> None:
        self._timing = timing
        self._known: dict[int, _Known] = {}
        self._events: deque[MembershipEvent] = deque(maxlen=EVENTS_MAX)
        self._last_number = 0

    @property
    def last_number(self) -> int:
        """Of the newest event; 0 before the first."""
        return self._last_number

    def events(self, since: int) -> list[MembershipEvent]:
        """Events with numbers above `since`, as far as they are kept."""
        return [event for event in self._events if event.number > since]

    def status(self, member: int) -> MemberStatus | None:
        known = self._known.get(member)
        return known.status if known is not None else None

    def since(self, member: int) -> float:
        return self._known[member].since_seconds

    def meet(self, member: int, generation: int, awake: float, now: float) -> None:
        """The member, or this generation of it, is told of for the first time."""
        known = self._known.get(member)
        if known is None:
            self._known[member] = _Known(generation, MemberStatus.HEARD_OF, now, awake)
            return
        known.generation = generation
        if known.status is MemberStatus.HEARD_OF:
            known.since_seconds, known.since_awake = now, awake
            return
        # Only a starting process makes a new generation: that is a sign of life in itself.
        known.detector = Detector(self._timing, awake)
        self._set(member, MemberStatus.ALIVE, awake, now, MembershipChange.RESTARTED)

    def beat(self, member: int, awake: float, now: float) -> None:
        """A heartbeat came that had not come before."""
        known = self._known[member]
        if known.status is MemberStatus.LEFT:
            return  # sent before the farewell, and overtaken by it
        if known.detector is None:
            known.detector = Detector(self._timing, awake)
            self._set(member, MemberStatus.ALIVE, awake, now, MembershipChange.JOINED)
            return
        known.detector.beat(awake)
        if known.status is MemberStatus.DEAD and known.detector.alive:
            self._set(member, MemberStatus.ALIVE, awake, now, MembershipChange.RETURNED)

    def leave(self, member: int, awake: float, now: float) -> None:
        known = self._known[member]
        if known.status is MemberStatus.HEARD_OF:
            self._set(member, MemberStatus.LEFT, awake, now, None)
        elif known.status is not MemberStatus.LEFT:
            self._set(member, MemberStatus.LEFT, awake, now, MembershipChange.LEFT)

    def check(self, awake: float, now: float) -> None:
        """Finds out who has died."""
        for member, known in self._known.items():
            if (
                known.status is MemberStatus.ALIVE
                and known.detector is not None
                and not known.detector.check(awake)
            ):
                self._set(member, MemberStatus.DEAD, awake, now, MembershipChange.DIED)

    def is_told(self, member: int, awake: float) -> bool:
        """Whether others are told of a member. Of one that is gone for long they are not."""
        return self._gone_seconds(member, awake) < self._timing.forget_seconds / 2

    def forgettable(self, awake: float) -> list[int]:
        return [
            member
            for member in self._known
            if self._gone_seconds(member, awake) >= self._timing.forget_seconds
        ]

    def forget(self, member: int) -> None:
        del self._known[member]

    def _gone_seconds(self, member: int, awake: float) -> float:
        known = self._known.get(member)
        if known is None or known.status is MemberStatus.ALIVE:
            return 0.0
        return awake - known.since_awake

    def _set(
        self,
        member: int,
        status: MemberStatus,
        awake: float,
        now: float,
        change: MembershipChange | None,
    ) -> None:
        known = self._known[member]
        known.status, known.since_seconds, known.since_awake = status, now, awake
        if change is not None:
            self._last_number += 1
            self._events.append(
                MembershipEvent(self._last_number, change, member, known.generation, now)
            )
