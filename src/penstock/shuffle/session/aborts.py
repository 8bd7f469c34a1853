"""When epochs that are aborted again and again end the session. Pure: it is told the time.

One abort is part of normal flow: a member was started while the epoch was under way, or a disk was
slow for once. What aborts every epoch does not pass by itself, and is hidden by trying on.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError
from penstock.watch.wording import lasting

ABORTS_MAX: Final = 3
"""In a row. With the time that an epoch has by default, these take a minute and a half."""
ABORTED_SECONDS_MIN: Final = 60.0
"""From the first of them to the last: a store that is away for a moment aborts several a second."""


class EpochsAbortedError(PenstockError):
    """No epoch was committed for a while, because each was aborted. The reason of the last one
    stands here: see to it. All members begin anew at the newest epoch."""


class Aborts:
    """Of one session."""

    def __init__(self) -> None:
        self._count = 0
        self._first_at = 0.0

    def committed(self) -> None:
        self._count = 0

    def aborted(self, reason: str, now: float) -> None:
        """Raises EpochsAbortedError when there were enough."""
        if self._count == 0:
            self._first_at = now
        self._count += 1
        seconds = now - self._first_at
        if self._count >= ABORTS_MAX and seconds >= ABORTED_SECONDS_MIN:
            raise EpochsAbortedError(
                f"the last {self._count} epochs were aborted, for {lasting(seconds)} now; the last "
                f"one because: {reason}"
            )
