"""Watermarks: the clock up to which a stream is thought to be complete. They never go back.

Of each input, of a member, and of the cluster. Clocks are plain integers; None says that nothing is
known yet. When an input counts as idle is decided by the caller, who has a clock to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """What a snapshot keeps of a tracker."""

    watermark: int | None
    clocks: tuple[int | None, ...]
    idle: tuple[bool, ...]
    """An input that had ended is idle here: after a restart it may report again."""


class WatermarkTracker:
    """The watermark of an operator: the minimum over its inputs that are not idle.

    An input that was never heard of holds the watermark back until it reports or is idle. When all
    inputs are idle nothing can be held back, and the watermark is the maximum.
    """

    def __init__(self, inputs: int, at_least: int | None = None) -> None:
        if inputs < 1:
            raise ConfigurationError(f"watermarks are tracked for one input or more, not {inputs}")
        self._clocks: list[int | None] = [None] * inputs
        self._idle = [False] * inputs
        self._ended = [False] * inputs
        self._watermark = at_least

    @classmethod
    def restored(cls, state: WatermarkState, at_least: int | None = None) -> WatermarkTracker:
        """Goes on where a snapshot ends.

        `at_least` is what was announced since the state was taken: the watermark of the committed
        epoch. With an unaligned snapshot it may be newer than the state, because items in flight
        moved the watermark on before the member acknowledged. Those items come again now, and move
        nothing back: not the watermark, nor the clock of their input.
        """
        tracker = cls(len(state.clocks), _latest(state.watermark, at_least))
        tracker._clocks = list(state.clocks)
        tracker._idle = list(state.idle)
        return tracker

    @property
    def watermark(self) -> int | None:
        return self._watermark

    def state(self) -> WatermarkState:
        return WatermarkState(self._watermark, tuple(self._clocks), tuple(self._idle))

    def update(self, index: int, clock: int) -> int | None:
        """An input reported. An older clock than its last changes nothing, but the input is active
        again. Returns the new watermark if it rose."""
        self._check(index)
        if self._ended[index]:
            raise LocalProtocolError(f"input {index} ended, and then reported clock {clock}")
        self._clocks[index] = _latest(self._clocks[index], clock)
        self._idle[index] = False
        return self._advance()

    def mark_idle(self, index: int) -> int | None:
        """An input has nothing to say for now. Returns the new watermark if it rose."""
        self._check(index)
        self._idle[index] = True
        return self._advance()

    def end(self, index: int) -> int | None:
        """An input will never report again: idle for good. Returns the new watermark if it rose."""
        self._check(index)
        self._ended[index] = True
        return self.mark_idle(index)

    def _advance(self) -> int | None:
        active = [clock for clock, idle in zip(self._clocks, self._idle, strict=True) if not idle]
        clock = member_minimum(active) if active else _latest(*self._clocks)
        if clock is None or (self._watermark is not None and clock <= self._watermark):
            return None
        self._watermark = clock
        return clock

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self._clocks):
            raise LocalProtocolError(
                f"there is no input {index}: inputs are 0 to {len(self._clocks) - 1}"
            )


def member_minimum(clocks: Iterable[int | None]) -> int | None:
    """The watermark of a member from those of its parts. A part without one holds it back: its
    documents may be older than everybody's."""
    found: list[int] = []
    for clock in clocks:
        if clock is None:
            return None
        found.append(clock)
    return min(found, default=None)


def cluster_minimum(reports: Iterable[int | None]) -> int | None:
    """The watermark of an epoch from what its members acknowledged. A member without one reads
    nothing that has clocks, and is passed over."""
    return min((clock for clock in reports if clock is not None), default=None)


class ClusterWatermark:
    """The cluster's watermark as one member knows it. Announcements may come late and out of order:
    the newest clock stays."""

    __slots__ = ("_clock",)

    def __init__(self, at_least: int | None = None) -> None:
        self._clock = at_least

    @property
    def clock(self) -> int | None:
        return self._clock

    def advance(self, announced: int | None) -> int | None:
        """Takes an announced minimum. Returns what holds now."""
        self._clock = _latest(self._clock, announced)
        return self._clock


def _latest(*clocks: int | None) -> int | None:
    return max((clock for clock in clocks if clock is not None), default=None)
