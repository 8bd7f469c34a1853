"""Warnings about what strangers send: seldom enough that nobody can fill the log with them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

PEERS_MAX: Final = 256
"""Remembered. Who complains about more in a minute complains about one of them twice."""
QUIET_SECONDS: Final = 60.0


class Complaints:
    def __init__(self) -> None:
        self._said: OrderedDict[str, float] = OrderedDict()
        self.count = 0

    def is_due(self, peer: str, now: float) -> bool:
        """Counts, and tells whether it is time to warn about this peer again."""
        self.count += 1
        said = self._said.get(peer)
        if said is not None and now - said < QUIET_SECONDS:
            return False
        self._said[peer] = now
        self._said.move_to_end(peer)
        if len(self._said) > PEERS_MAX:
            self._said.popitem(last=False)
        return True
