"""How epochs went, for whoever watches: when each phase was over, and who was last. Pure.

The coordinator's thread writes it, another one reads: a lock is between them.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.epoch.announcements import Stage
    from penstock.epoch.decisions import Decision

KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class EpochTime:
    """Moments are those of the wall clock."""

    number: int
    began: float
    captured: float | None = None
    prepared: float | None = None
    concluded: float | None = None
    stage: Stage | None = None
    """What members have to acknowledge, while it is open."""
    waits_for: tuple[int, ...] = ()
    last_member: int | None = None
    """Who was the last to have prepared it."""
    decision: Decision | None = None


class EpochTimes:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: EpochTime | None = None
        self._over: deque[EpochTime] = deque(maxlen=KEPT)

    def began(self, number: int, now: float) -> None:
        with self._lock:
            self._open = EpochTime(number, now)

    def captured(self, now: float) -> None:
        with self._lock:
            if self._open is not None:
                self._open = replace(self._open, captured=now)

    def waits(self, stage: Stage, members: tuple[int, ...]) -> None:
        with self._lock:
            if self._open is not None and members:
                self._open = replace(
                    self._open, stage=stage, waits_for=members, last_member=members[-1]
                )

    def prepared(self, now: float) -> None:
        with self._lock:
            if self._open is not None:
                self._open = replace(self._open, prepared=now, stage=None, waits_for=())

    def concluded(self, decision: Decision, now: float) -> None:
        with self._lock:
            if self._open is not None and self._open.number == decision.epoch:
                self._over.append(replace(self._open, concluded=now, decision=decision))
            self._open = None

    def all(self) -> tuple[EpochTime, ...]:
        """The newest last; it may be open."""
        with self._lock:
            return (*self._over, *([] if self._open is None else [self._open]))
