"""What holds up a Slice that reads journals, or seems to."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.watch.cause import NEVER, OfSlice, journals_named
from penstock.watch.wording import counted, lasting


@dataclass(frozen=True, slots=True)
class JournalLags(OfSlice):
    kind = "journal_lags"

    journal: str
    binding: int
    offset: int
    head: int
    count: int
    """How many journals hold up the Slice so."""

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.journal, self.binding)

    def text(self, seconds: float) -> str:
        return (
            f"Member {self.member} has waited {lasting(seconds)} for rows of "
            f"{journals_named(self.journal, self.count)}, which is {self.head - self.offset:,} "
            "rows behind and gives none; rows of other journals may have to come after them."
        )

    @property
    def advice(self) -> str | None:
        return f"Look whether journal {self.journal} can be read, and whether its disk is slow."


@dataclass(frozen=True, slots=True)
class ReadDelay(OfSlice):
    kind = "read_delay"
    is_normal = True
    stall_after_seconds = NEVER

    binding: int
    collection: str
    delay_seconds: float
    due: float
    """When the next of them is old enough."""
    rows: int

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.binding,)

    def text(self, seconds: float) -> str:
        del seconds
        return (
            f"{counted(self.rows, 'row')} of {self.collection} are too young at member "
            f"{self.member}: binding {self.binding} is read {lasting(self.delay_seconds)} late."
        )

    @property
    def advice(self) -> str | None:
        return "Nothing is wrong. To have them sooner, lower read_delay of the binding."


@dataclass(frozen=True, slots=True)
class ClockAhead(OfSlice):
    """Nothing waits for it: the clock is not believed."""

    kind = "clock_ahead"
    is_normal = True
    shown_after_seconds = 0.0
    stall_after_seconds = NEVER

    journal: str
    producer: str
    ahead_seconds: float
    count: int
    """How many journals have such documents."""

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.journal, self.producer)

    def text(self, seconds: float) -> str:
        del seconds
        return (
            f"The clock of producer {self.producer} is {lasting(self.ahead_seconds)} ahead of "
            f"member {self.member}'s, by documents in {journals_named(self.journal, self.count)}: "
            "they are delivered without waiting, in the order of their journal."
        )

    @property
    def advice(self) -> str | None:
        return (
            f"Set the clock of the machine where producer {self.producer} runs, and open another "
            "producer there: this one never goes back behind its last clock. Reads as of a time, "
            "not_before and not_after go by clocks, and take these documents for later ones."
        )
