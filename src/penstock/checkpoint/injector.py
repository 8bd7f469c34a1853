"""The injector: how a coordinator's thread gets a barrier into the loops that read sources.

A source loop runs for every batch, and almost never is there a barrier for it. So it looks at a
plain attribute, and only when something is there does it go and claim it:

    if injector.pending is not None and (barrier := injector.claim()) is not None:
        ...

The lock is for claims and triggers. A loop that looks without it may see a barrier that is just
being claimed by another, and then claims nothing; or miss one that is just being triggered, and
then finds it on its next turn.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.checkpoint.barrier import Barrier


class Injector:
    """Safe for any number of threads on both sides. Holds one barrier at most: the newest."""

    __slots__ = ("_lock", "_newest", "pending")

    def __init__(self) -> None:
        self.pending: Barrier | None = None
        """To be read and compared with None, and nothing else. `claim` takes it."""
        self._lock = threading.Lock()
        # The order of triggers. A checkpoint's cancellation comes after the checkpoint itself.
        self._newest: tuple[int, bool] = (-1, False)

    def trigger(self, barrier: Barrier) -> bool:
        """Offers a barrier, in place of an older one that nobody claimed yet: that one is never
        injected here, and the alignment downstream gives its checkpoint up.

        False, and nothing changes, when this barrier or a newer one was triggered before: so an
        announcement may be repeated or come late.
        """
        order = (barrier.checkpoint, barrier.is_cancel)
        with self._lock:
            if order <= self._newest:
                return False
            self._newest = order
            self.pending = barrier
            return True

    def claim(self) -> Barrier | None:
        """Takes the pending barrier. None when there is none, or another loop was faster."""
        with self._lock:
            barrier = self.pending
            self.pending = None
            return barrier
