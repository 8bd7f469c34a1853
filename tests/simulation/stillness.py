"""Liveness: a run in which nothing befalls anybody comes to its end, or says when it stands still.

That nothing moves any more is another fault than that everything moves and nothing comes of it. The
first is told as soon as it is sure, with what each part waits for.
"""

from __future__ import annotations

from typing import Final

STILL_SECONDS_MAX: Final = 15.0
"""Longer than anything takes that goes on by itself: leases, timeouts, pauses."""


class Stillness:
    """Since when a state, whatever it is made of, has not changed."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._state: object = None

    def look(self, now: float, state: object) -> float | None:
        """Since when nothing moves, if that is too long."""
        if state != self._state:
            self._state, self._since = state, now
        return self._since if now - self._since > STILL_SECONDS_MAX else None
