"""The disk budget of a Queue: it slows a pipeline down, and never stops it for good. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """Above the limit nothing more is written until half of it is free, as long as the consumer
    could make room: as long as something was written that it is not done with. When it is done with
    everything, what fills the disk is held by open transactions, and only more rows can close them:
    so the Queue goes on, over its budget.

    A recovery session writes what was there before, for a consumer that waits for all of it: no
    limit holds it up.
    """

    limit_bytes: int
    recovering: bool = False
    is_pressed: bool = False
    """Above the limit, and not yet down to half of it."""
    consumed_lsn: int = 0
    """Up to where the consumer is done."""

    def used(self, size_bytes: int) -> None:
        if size_bytes >= self.limit_bytes:
            self.is_pressed = True
        elif size_bytes < self.limit_bytes // 2:
            self.is_pressed = False

    def consumed(self, lsn: int) -> None:
        self.consumed_lsn = max(self.consumed_lsn, lsn)

    def may_write(self, last_lsn: int) -> bool:
        return not self.is_pressed or self.recovering or self.consumed_lsn >= last_lsn

    def is_overdrawn(self, last_lsn: int) -> bool:
        """Whether what is written now goes over the budget: worth a warning."""
        return self.is_pressed and self.may_write(last_lsn)
