"""What epochs wait for, and the consumer."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.watch.cause import NEVER, Cause
from penstock.watch.wording import lasting, listed


@dataclass(frozen=True, slots=True)
class Acknowledging(Cause):
    kind = "acknowledgement"

    epoch: int
    phase: str
    """What is acknowledged: captured or prepared."""
    members: tuple[int, ...]
    silent: tuple[int, ...]
    """Those of them that say nothing at all."""

    @property
    def who(self) -> str:
        return f"epoch {self.epoch}"

    def text(self, seconds: float) -> str:
        silent = f"; {listed(self.silent, 'member')} says nothing at all" if self.silent else ""
        return (
            f"Epoch {self.epoch} has waited {lasting(seconds)} for {_parties(self.members)} to "
            f"have {self.phase} it{silent}."
        )

    @property
    def advice(self) -> str | None:
        if self.silent:
            return (
                f"Look at the process of {listed(self.silent, 'member')}: it is stopped, swapped "
                "out, or out of reach. If it does not come back, kill it: all begin anew then."
            )
        return "See what these members wait for; a slow disk or a large snapshot takes its time."


@dataclass(frozen=True, slots=True)
class Consuming(Cause):
    kind = "consumer"
    is_normal = True
    shown_after_seconds = 2.0
    stall_after_seconds = 60.0

    consumer: str
    consumed: int
    newest: int

    @property
    def who(self) -> str:
        return "consumer"

    def text(self, seconds: float) -> str:
        return (
            f"Epochs {self.consumed + 1} to {self.newest} are ready, and the consumer has taken "
            f"none for {lasting(seconds)}; it is done with epoch {self.consumed}."
        )

    @property
    def advice(self) -> str | None:
        if self.consumer == "spark":
            return "Look at the Spark query: does it run, and how long does a batch of it take?"
        return "Look at the consumer: it has to draw epochs, and to say when it is done."


@dataclass(frozen=True, slots=True)
class EpochsAhead(Cause):
    kind = "epochs_ahead"
    stall_after_seconds = 0.0

    consumed: int
    newest: int
    limit: int

    def text(self, seconds: float) -> str:
        return (
            f"No epoch has begun for {lasting(seconds)}: the consumer is "
            f"{self.newest - self.consumed} of them behind, as many as are kept."
        )

    @property
    def advice(self) -> str | None:
        return "Let the consumer go on; what comes meanwhile will be in one larger epoch."


@dataclass(frozen=True, slots=True)
class Idle(Cause):
    kind = "idle"
    is_normal = True
    stall_after_seconds = NEVER

    @property
    def who(self) -> str:
        return "feed"

    def text(self, seconds: float) -> str:
        return f"All that there is was delivered; nothing new came for {lasting(seconds)}."


def _parties(members: tuple[int, ...]) -> str:
    """The Session, which has the number 0, takes part in epochs too."""
    return listed(["the session" if member == 0 else f"member {member}" for member in members])
