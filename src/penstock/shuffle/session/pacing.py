"""When the next epoch begins, and when a long wait is said again. Pure: it is told what happened,
and when.

An epoch costs some processor time and a dozen syncs, so without a reason there is one in a while. A
consumer that waits is a reason to begin at once. One that is busy with its last epoch will be back
in about the time that it took before: the next epoch begins so that it is there by then, with all
that came meanwhile, and the consumer does not wait for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

HURRY_SECONDS: Final = 0.02
"""Between the beginnings of two epochs, at least."""
LEAD: Final = 2.0
"""An epoch is begun so many times its own length before it is wanted: it may take longer than the
last one. What comes while it is ready and waits is in the next one."""
REMIND_SECONDS: Final = 180.0
"""A checkpoint that waits this long for a commit is logged, and again after as long."""


class Pacing:
    """Of one Session. Times are seconds of one clock that never goes back."""

    def __init__(self, epoch_seconds: float) -> None:
        self._epoch_seconds = epoch_seconds
        self._begun_at = -math.inf
        self._took_seconds = 0.0
        """The last epoch, from its beginning until it was committed."""
        self._is_wanted = False
        """The consumer asked for an epoch, and none was begun since."""
        self._busy_since: float | None = None
        """The consumer has an epoch, and none was begun since."""
        self._given_at: float | None = None
        self._busy_seconds = 0.0
        """From an epoch that the consumer got until it asked for the next, the last time."""

    def asked(self, now: float) -> None:
        """The consumer asks for an epoch, perhaps again."""
        if self._given_at is not None:
            self._busy_seconds = now - self._given_at
            self._given_at = None

    def waits(self) -> None:
        """There is none that the consumer has not got yet."""
        self._is_wanted = True
        self._busy_since = None

    def given(self, now: float) -> None:
        """The consumer got an epoch, the newest one."""
        self._is_wanted = False
        self._given_at = self._busy_since = now

    def begun(self, now: float) -> None:
        self._begun_at = now
        self._is_wanted = False
        self._busy_since = None

    def ended(self, now: float) -> None:
        """The epoch that was begun is committed or aborted."""
        self._took_seconds = now - self._begun_at

    @property
    def due_at(self) -> float:
        """When an epoch may begin, if there is something for it."""
        due = self._begun_at + self._epoch_seconds
        if self._is_wanted:
            due = self._begun_at
        elif self._busy_since is not None:
            back_at = self._busy_since + self._busy_seconds
            due = min(due, back_at - LEAD * self._took_seconds)
        return max(due, self._begun_at + HURRY_SECONDS)


class Reminders:
    """Of waits that last: each is said again and again, as long as it does."""

    def __init__(self, every_seconds: float = REMIND_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._said_at: dict[int, float] = {}

    def due(self, waits: Mapping[int, float], now: float) -> list[int]:
        """Of the waits that there are, by their numbers and since when they last, those to be said
        now."""
        self._said_at = {wait: self._said_at.get(wait, since) for wait, since in waits.items()}
        for wait, since in waits.items():  # another one has begun
            self._said_at[wait] = max(self._said_at[wait], since)
        due = [wait for wait, said in self._said_at.items() if now - said >= self._every_seconds]
        self._said_at |= dict.fromkeys(due, now)
        return due
