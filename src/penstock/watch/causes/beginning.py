"""What a feed that starts or begins anew waits for, and what is out of order."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.watch.cause import Cause, OfSlice, journals_named
from penstock.watch.wording import counted, lasting, listed


@dataclass(frozen=True, slots=True)
class ThreadEnded(Cause):
    kind = "thread_ended"

    process: int
    thread: str
    reason: str

    @property
    def who(self) -> str:
        return f"process {self.process}"

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.thread,)

    def text(self, seconds: float) -> str:
        return (
            f"The thread {self.thread!r} of process {self.process} ended {lasting(seconds)} ago: "
            f"{self.reason}."
        )

    @property
    def advice(self) -> str | None:
        return "Restart the process: it goes on without what the thread did. Report the reason."


@dataclass(frozen=True, slots=True)
class Starting(Cause):
    kind = "starting"
    stall_after_seconds = 60.0
    heals_itself = True

    members: tuple[int, ...]
    """Those that are not heard yet."""
    on_spark: bool

    def text(self, seconds: float) -> str:
        where = "as tasks of Spark" if self.on_spark else "up"
        return f"{_begun(listed(self.members, 'member'))} coming {where}, for {lasting(seconds)}."

    @property
    def advice(self) -> str | None:
        if self.on_spark:
            return "Look whether Spark has free slots for all members: each takes one for good."
        return "Wait: a member takes a second or two to start, more on a busy machine."


@dataclass(frozen=True, slots=True)
class StoreSilent(Cause):
    kind = "store_silent"
    shown_after_seconds = 2.0
    stall_after_seconds = 10.0
    heals_itself = True

    member: int
    store: str
    reason: str

    @property
    def who(self) -> str:
        return f"member {self.member}"

    def text(self, seconds: float) -> str:
        return (
            f"Member {self.member} has waited {lasting(seconds)} for an answer of {self.store}: "
            f"{self.reason}."
        )

    @property
    def advice(self) -> str | None:
        return (
            "See whether the brokers run, lead their partitions, and can be reached from the "
            "member's machine. Nothing is lost: the feed goes on by itself when they answer."
        )


@dataclass(frozen=True, slots=True)
class Restart(Cause):
    kind = "restart"
    shown_after_seconds = 0.0
    stall_after_seconds = 0.0
    heals_itself = True

    reason: str
    member: int | None
    in_a_row: int
    """Restarts with no epoch between them."""

    def text(self, seconds: float) -> str:
        return f"All members begin anew, for {lasting(seconds)}, because {self.reason}."

    @property
    def advice(self) -> str | None:
        if self.in_a_row > 1:
            return (
                f"This is restart {self.in_a_row} without an epoch between them: look for the "
                "cause in the reason and in the log; after five the feed gives up."
            )
        return "Wait: nothing is lost, and all goes on from the newest epoch."


@dataclass(frozen=True, slots=True)
class Recovery(Cause):
    kind = "recovery"
    shown_after_seconds = 0.0
    stall_after_seconds = 0.0
    heals_itself = True

    rows_done: int
    rows_total: int
    journals: int
    """Of which something is missing yet."""

    def text(self, seconds: float) -> str:
        return (
            "Queues were lost, and what was in them is read again: "
            f"{self.rows_done:,} of {counted(self.rows_total, 'row')} in {lasting(seconds)}, "
            f"{counted(self.journals, 'journal')} left."
        )

    @property
    def advice(self) -> str | None:
        return "Wait: the consumer goes on when all of it is read; nothing is delivered twice."


@dataclass(frozen=True, slots=True)
class Listing(OfSlice):
    kind = "listing"

    binding: int
    collection: str

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.binding,)

    def text(self, seconds: float) -> str:
        return (
            f"The first listing of the journals of {self.collection} (binding {self.binding}, by "
            f"member {self.member}) is not done after {lasting(seconds)}; nothing is sent before."
        )

    @property
    def advice(self) -> str | None:
        return "Look whether the store answers: penstock doctor --store URL."


@dataclass(frozen=True, slots=True)
class Probing(OfSlice):
    kind = "probing"

    journal: str
    count: int

    def text(self, seconds: float) -> str:
        return (
            f"Member {self.member} has waited {lasting(seconds)} for a first look at "
            f"{journals_named(self.journal, self.count)}; its rows are not ordered before."
        )

    @property
    def advice(self) -> str | None:
        return "Look whether the store answers: penstock doctor --store URL."


def _begun(text: str) -> str:
    verb = "are" if text.startswith("members") else "is"
    return f"{text[:1].upper()}{text[1:]} {verb}"
