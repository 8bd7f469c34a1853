"""Places for connections that have not said yet who they are. Pure: no threads, no clock.

A stranger costs a descriptor and a thread, so there is a limit to them; but strangers that come and
say nothing must not keep members out. So nobody is in here for longer than its time, however much
it says; and when all places are taken, the stranger that was here longest goes, once it has had the
time that a member takes at most to show its certificate. Those who have shown one take no place
from strangers, nor lose theirs to them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

STRANGERS_MAX: Final = 256
"""At one receiver. A member is in here for some milliseconds, so that even when hundreds of them
begin at once there is room for the next."""
GRACE_SECONDS: Final = 0.5
"""What a stranger has before it makes room for another: a handshake takes a hundredth of it, on a
machine that has time."""

T = TypeVar("T", bound="Hashable")


class Lobby(Generic[T]):
    def __init__(self, seconds_max: float) -> None:
        """How long anybody may be in here."""
        self._seconds_max = seconds_max
        # Each in the order of coming, with when that was.
        self._strangers: dict[T, float] = {}
        self._certified: dict[T, float] = {}

    def enter(self, who: T, now: float) -> None:
        self._strangers[who] = now

    def certify(self, who: T) -> None:
        """It has shown a member's certificate. What is left is to say Hello, within its time."""
        came = self._strangers.pop(who, None)
        if came is not None:
            self._certified[who] = came

    def leave(self, who: T) -> None:
        """It is known now, or gone."""
        self._strangers.pop(who, None)
        self._certified.pop(who, None)

    def room_at(self, now: float) -> float:
        """When the next one may enter."""
        if len(self._strangers) < STRANGERS_MAX:
            return now
        return max(now, next(iter(self._strangers.values())) + GRACE_SECONDS)

    def crowded_out(self) -> T | None:
        """Who has to leave before the next one enters."""
        return None if len(self._strangers) < STRANGERS_MAX else next(iter(self._strangers))

    def dispensable(self, now: float) -> T | None:
        """Who leaves first where there is too little of anything, if it has had its time."""
        for who, came in self._strangers.items():
            return who if came + GRACE_SECONDS <= now else None
        return None

    def overdue(self, now: float) -> list[T]:
        """Those whose time is up."""
        return [
            who
            for group in (self._strangers, self._certified)
            for who, came in group.items()
            if came + self._seconds_max <= now
        ]

    def next_overdue_at(self) -> float:
        groups = (self._strangers, self._certified)
        came = min((next(iter(group.values())) for group in groups if group), default=math.inf)
        return came + self._seconds_max
