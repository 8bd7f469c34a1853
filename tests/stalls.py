"""How long a process stood still because the machine, or whoever else runs there, let it wait."""

from __future__ import annotations

import threading
import time
from typing import Final

STEP_SECONDS: Final = 0.01


class Stalls:
    """Looks at the clock all the time, in a thread."""

    def __init__(self) -> None:
        self._seconds_max = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(STEP_SECONDS):
            now = time.monotonic()
            self._seconds_max = max(self._seconds_max, now - before - STEP_SECONDS)
            before = now

    def take(self) -> float:
        """The longest since it was asked last."""
        longest, self._seconds_max = self._seconds_max, 0.0
        return longest

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self.take()
