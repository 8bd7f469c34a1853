"""What holds rows up between Slices and Queues."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.watch.cause import OfQueue, OfSlice
from penstock.watch.wording import counted, lasting, listed, sized


@dataclass(frozen=True, slots=True)
class Credit(OfSlice):
    kind = "credit"

    to_member: int
    free: float
    """Of all the credit that there ever was, 0 to 1."""

    def text(self, seconds: float) -> str:
        return (
            f"Member {self.member} has sent nothing for {lasting(seconds)}, because the queue of "
            f"member {self.to_member} has no room for more (lane {self.lane})."
        )

    @property
    def advice(self) -> str | None:
        return f"See what queue {self.to_member} waits for."


@dataclass(frozen=True, slots=True)
class HigherLane(OfQueue):
    kind = "higher_lane"

    lane: int
    rows: int
    higher_lane: int
    slices: tuple[str, ...]
    """Of the higher lane, those that have something due and do not send it."""

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.lane, self.higher_lane)

    def text(self, seconds: float) -> str:
        return (
            f"{counted(self.rows, 'row')} of lane {self.lane} have waited {lasting(seconds)} in "
            f"queue {self.member} for documents of lane {self.higher_lane}, which go first and are "
            f"due at {listed(self.slices, 'slice')}."
        )

    @property
    def advice(self) -> str | None:
        return f"See what {listed(self.slices, 'slice')} waits for; or give both one priority."


@dataclass(frozen=True, slots=True)
class SlowSlice(OfQueue):
    kind = "slow_slice"

    lane: int
    slices: tuple[str, ...]
    rows: int

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.lane,)

    def text(self, seconds: float) -> str:
        return (
            f"{counted(self.rows, 'row')} have waited {lasting(seconds)} in queue {self.member}, "
            f"because {listed(self.slices, 'slice')} may still send older ones."
        )

    @property
    def advice(self) -> str | None:
        return f"See what {listed(self.slices, 'slice')} waits for, and whether its member lives."


@dataclass(frozen=True, slots=True)
class DiskBudget(OfQueue):
    kind = "disk_budget"

    size_bytes: int
    limit_bytes: int

    def text(self, seconds: float) -> str:
        return (
            f"Queue {self.member} has written nothing for {lasting(seconds)}: its "
            f"{sized(self.size_bytes)} are above the disk budget of {sized(self.limit_bytes)}, and "
            "it waits for the consumer to make room."
        )

    @property
    def advice(self) -> str | None:
        return "Let the consumer go on (is the query running?), or give a larger disk budget."


@dataclass(frozen=True, slots=True)
class DiskOverdrawn(OfQueue):
    kind = "disk_overdrawn"

    size_bytes: int
    limit_bytes: int
    overdrawn_bytes: int
    producer: str | None
    """Of the largest open transaction, whose rows are held."""
    journal: str | None

    def text(self, seconds: float) -> str:
        why = (
            "rows of open transactions are held"
            if self.producer is None
            else f"open transactions hold the rest; the largest is that of producer "
            f"{self.producer} in journal {self.journal}"
        )
        return (
            f"Queue {self.member} is {sized(self.overdrawn_bytes)} over its disk budget of "
            f"{sized(self.limit_bytes)}, for {lasting(seconds)} now: the consumer has read all it "
            f"may, and {why}."
        )

    @property
    def advice(self) -> str | None:
        if self.producer is None:
            return "Commit or roll back what is open, or give a larger disk budget."
        return f"Have producer {self.producer} commit or roll back, or give a larger disk budget."


@dataclass(frozen=True, slots=True)
class Aligning(OfQueue):
    kind = "alignment"

    epoch: int
    slices: tuple[str, ...]
    """Whose barriers are missing."""

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.epoch,)

    def text(self, seconds: float) -> str:
        return (
            f"Queue {self.member} has waited {lasting(seconds)} for the barrier of epoch "
            f"{self.epoch} from {listed(self.slices, 'slice')}."
        )

    @property
    def advice(self) -> str | None:
        return f"See what {listed(self.slices, 'slice')} waits for, and whether its member lives."
