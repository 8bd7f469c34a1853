"""Whether a member is alive, told from when its heartbeats came: the phi accrual failure detector
of Hayashibara, Défago, Yared and Katayama (2004).

Phi says how unlikely the present silence is, if heartbeats go on coming as they did: at phi 8 it
would happen once in 10**8 times. The detector can only suspect. A member that is cut off looks the
same as one that is dead, and comes back.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.directory.gossip.timing import GossipTiming

INTERVALS_MAX: Final = 100
"""Remembered between heartbeats: 20 seconds of them. Long enough to know a busy member, short
enough to forget a bad minute."""
RETURN_HEARTBEATS: Final = 2
"""A dead member that is heard of so often is alive again. One heartbeat may be a straggler, passed
on by somebody slow after the member had died."""


def phi(silence_seconds: float, mean_seconds: float, deviation_seconds: float) -> float:
    """How unlikely so long a silence is, as a power of ten, for normally distributed intervals."""
    steps = (silence_seconds - mean_seconds) / deviation_seconds
    likely = 0.5 * math.erfc(steps / math.sqrt(2))
    return -math.log10(likely) if likely > 0 else math.inf


class Detector:
    """Follows one generation of one member. Time is what the caller says, and goes forward."""

    def __init__(self, timing: GossipTiming, now: float) -> None:
        """Made when the member is heard of: that counts as a heartbeat. As nothing else is known of
        it yet, its heart is taken to beat as often as ours."""
        self._timing = timing
        self.alive = True
        self._since_death = 0
        self._last = now
        self._intervals = deque([timing.interval_seconds], maxlen=INTERVALS_MAX)

    def beat(self, now: float) -> None:
        """A heartbeat came that had not come before."""
        if self.alive:
            self._intervals.append(now - self._last)
            self._last = now
            return
        # The silence before a return is no interval: it would make the next death go unnoticed.
        if self._since_death == 0 or self._is_over(now):
            self._intervals = deque([self._timing.interval_seconds], maxlen=INTERVALS_MAX)
            self._since_death = 1
        else:
            self._intervals.append(now - self._last)
            self._since_death += 1
        self._last = now
        self.alive = self._since_death >= RETURN_HEARTBEATS

    def check(self, now: float) -> bool:
        """Whether the member is alive. Death is found here and nowhere else."""
        if self.alive and self._is_over(now):
            self.alive = False
            self._since_death = 0
        return self.alive

    def phi(self, now: float) -> float:
        count = len(self._intervals)
        mean = math.fsum(self._intervals) / count
        variance = math.fsum((each - mean) ** 2 for each in self._intervals) / count
        deviation = max(math.sqrt(variance), self._timing.deviation_seconds_min)
        return phi(now - self._last, mean, deviation)

    def _is_over(self, now: float) -> bool:
        silence = now - self._last
        if silence <= self._timing.interval_seconds:
            return False  # as good as always so, and cheap to tell
        return silence > self._timing.silence_seconds_max or self.phi(now) > self._timing.phi_max


class AwakeClock:
    """The time that this process was awake. While it was held up (stopped, swapped out, starved) it
    could not hear anybody, so that others' silence then says little about them."""

    def __init__(self, pause_seconds_max: float, now: float) -> None:
        self._pause_seconds_max = pause_seconds_max
        self._awake = 0.0
        self._ticked = now

    def tick(self, now: float) -> float:
        """Called regularly: a longer time between two calls is a pause."""
        self._awake = self.at(now)
        self._ticked = now
        return self._awake

    def at(self, now: float) -> float:
        return self._awake + min(max(now - self._ticked, 0.0), self._pause_seconds_max)
