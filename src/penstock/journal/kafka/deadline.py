"""How long a caller waits."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by this process's own clock."""

    seconds: float
    """From its making on: for errors."""
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(seconds, time.monotonic() + seconds)

    def left(self) -> float:
        return max(self.at - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """This one, or the given time from now, whichever is first."""
        return min(self, Deadline.after(seconds), key=lambda each: each.at)
