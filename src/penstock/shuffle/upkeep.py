"""What a consumer of a shuffle does beside reading: it begins anew after failures, and looks for
producers that died."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.shuffle.session.actor import MemberLostError

if TYPE_CHECKING:
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.watching import Watch

RESTARTS_MAX: Final = 5
"""In a row, without an epoch between them. What fails that often will not mend itself."""
PAUSE_SECONDS_MIN: Final = 0.25
RECOVER_SECONDS: Final = 2.0
"""How often dead producers are looked for, so that what they decided is read."""


class Restarts:
    """Of one shuffle."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._in_a_row = 0

    def after(self, error: MemberLostError) -> float:
        """How long to wait before the next one. Raises if there were enough."""
        if self._in_a_row == RESTARTS_MAX:
            reason = (
                f"given up after {RESTARTS_MAX} restarts without an epoch between them: {error}"
            )
            self._watch.failed(reason)
            raise MemberLostError(reason) from error
        self._watch.lost(str(error), error.member)
        pause = PAUSE_SECONDS_MIN * (1 << self._in_a_row)
        self._in_a_row += 1
        return pause

    def epoch_came(self) -> None:
        self._in_a_row = 0
        self._watch.epoch_came()


class DeadProducers:
    """Of one store."""

    def __init__(self, store: ReadableStore) -> None:
        self._store = store
        self._looked_at = float("-inf")

    def look(self) -> None:
        """Now and then, however often this is called."""
        if time.monotonic() - self._looked_at >= RECOVER_SECONDS:
            self._looked_at = time.monotonic()
            self._store.recover_if_possible()
