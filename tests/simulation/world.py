"""Simulated time, and the processes that live in it.

Each thing that happens is one event. An event of a process happens at a step of some kind: there
the process can be killed or paused, before it takes the step.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.choices import Choices

    Act: TypeAlias = Callable[[], None]

EVENTS_MAX: Final = 200_000
"""In one run: more means that something goes round in circles."""


class Violation(Exception):  # noqa: N818 - it is found, not raised in error
    """A rule of the protocol is broken."""


class World:
    """The clock that nobody can see, and what happens next."""

    def __init__(self, choices: Choices, *, tracing: bool = False) -> None:
        self.choices = choices
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = [] if tracing else None
        self._events: list[tuple[float, int, Process | None, str, Act]] = []
        self._number = 0

    def post(
        self, seconds: float, act: Act, process: Process | None = None, kind: str = ""
    ) -> None:
        """Lets something happen later."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, process, kind, act))
        if self._number > EVENTS_MAX:
            raise Violation(f"more than {EVENTS_MAX} events: the run goes round in circles")

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, process, kind, act = heapq.heappop(events)
            if process is None or process.takes(kind, act):
                act()
        self.now = until

    def tell(self, who: object, what: str) -> None:
        """Adds a line to the story. Callers look at `trace` first where that saves time."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f}  {who!s:<8} {what}")


class Ambush:
    """Something that befalls a process when it comes to a step."""

    def __init__(self, kind: str, countdown: int, strike: Act) -> None:
        self.kind = kind
        self.countdown = countdown
        self.strike = strike


class Process:
    """One life of a member. What it knows is lost when it is killed; it has a clock of its own."""

    def __init__(
        self, world: World, member: int, life: int, rate: float, offset_seconds: float
    ) -> None:
        self.world = world
        self.member = member
        self.life = life
        self.name = f"m{member}.{life}"
        self.rate = rate
        self.dead = False
        self.paused = False
        self.replaced = False
        """Another process of the same member has been started."""
        self.ambush: Ambush | None = None
        self.born_at = world.now
        self._offset_seconds = offset_seconds
        self._held: list[tuple[str, Act]] = []
        self._paused_at = 0.0

    def __str__(self) -> str:
        return self.name

    def clock(self) -> float:
        """What this process takes for the time."""
        return self._offset_seconds + self.rate * self.world.now

    def after(self, seconds: float, act: Act, kind: str) -> None:
        """Lets the process take a step later, by its own clock."""
        self.world.post(seconds / self.rate, act, self, kind)

    def takes(self, kind: str, act: Act) -> bool:
        """Whether the process gets to do this now. When it is paused it does it later."""
        if self.dead:
            return False
        ambush = self.ambush
        if ambush is not None and ambush.kind == kind and not self.paused:
            ambush.countdown -= 1
            if ambush.countdown <= 0:
                self.ambush = None
                ambush.strike()
                if self.dead:
                    return False
        if self.paused:
            self._held.append((kind, act))
            return False
        return True

    def kill(self) -> None:
        self.dead = True
        self.world.tell(self, "is killed")

    def pause(self) -> None:
        self.paused = True
        self._paused_at = self.world.now
        self.world.tell(self, "is paused")

    def resume(self, *, clock_stood_still: bool) -> None:
        """Goes on as if nothing had been. The clock of a machine that was suspended stood still."""
        if self.dead or not self.paused:
            return
        self.paused = False
        if clock_stood_still:
            self._offset_seconds -= self.rate * (self.world.now - self._paused_at)
        held, self._held = self._held, []
        for kind, act in held:
            self.world.post(0.0, act, self, kind)
        stood = " (its clock stood still)" if clock_stood_still else ""
        self.world.tell(self, f"goes on after {self.world.now - self._paused_at:.1f} s{stood}")
