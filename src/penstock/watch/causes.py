"""The kinds of waits: what may hold a feed up, each with its facts. Pure.

A cause is what a role says of itself at a moment. It knows no clock: since when it holds is found
out by who collects it (`standing.py`), and comes in as seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from penstock.errors import RemoteProtocolError
from penstock.watch.wording import counted, lasting, listed, quoted, sized

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Cause:
    """Of any kind."""

    kind: ClassVar[str]
    shown_after_seconds: ClassVar[float] = 1.0
    """What is over sooner is how things flow."""
    stall_after_seconds: ClassVar[float] = 2.0
    """From here on it is no part of a normal flow."""
    heals_itself: ClassVar[bool] = False
    """Nobody needs to do anything, unless it takes very long."""
    is_normal: ClassVar[bool] = False
    """A feed that has such a wait, as long as it is no stall, is healthy."""

    @property
    def who(self) -> str:
        """Which role waits."""
        return "session"

    @property
    def subject(self) -> tuple[object, ...]:
        """What tells two waits of the same role and kind apart."""
        return ()

    def text(self, seconds: float) -> str:
        """One plain sentence. It has lasted for so long."""
        raise NotImplementedError

    @property
    def advice(self) -> str | None:
        """What a person could do."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class _OfSlice(Cause):
    member: int
    lane: int

    @property
    def who(self) -> str:
        return f"slice {self.member}.{self.lane}"


@dataclass(frozen=True, slots=True)
class _OfQueue(Cause):
    member: int

    @property
    def who(self) -> str:
        return f"queue {self.member}"


# What is out of order


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


# What the beginning waits for


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
class Listing(_OfSlice):
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
class Probing(_OfSlice):
    kind = "probing"

    journal: str
    count: int

    def text(self, seconds: float) -> str:
        return (
            f"Member {self.member} has waited {lasting(seconds)} for a first look at "
            f"{_journals(self.journal, self.count)}; its rows are not ordered before."
        )

    @property
    def advice(self) -> str | None:
        return "Look whether the store answers: penstock doctor --store URL."


@dataclass(frozen=True, slots=True)
class JournalLags(_OfSlice):
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
            f"{_journals(self.journal, self.count)}, which is {self.head - self.offset:,} rows "
            "behind and gives none; rows of other journals may have to come after them."
        )

    @property
    def advice(self) -> str | None:
        return f"Look whether journal {self.journal} can be read, and whether its disk is slow."


@dataclass(frozen=True, slots=True)
class ReadDelay(_OfSlice):
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
class ClockAhead(_OfSlice):
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
            f"member {self.member}'s, by documents in {_journals(self.journal, self.count)}: they "
            "are delivered without waiting, in the order of their journal."
        )

    @property
    def advice(self) -> str | None:
        return (
            f"Set the clock of the machine where producer {self.producer} runs, and open another "
            "producer there: this one never goes back behind its last clock. Reads as of a time, "
            "not_before and not_after go by clocks, and take these documents for later ones."
        )


# Between Slices and Queues


@dataclass(frozen=True, slots=True)
class Credit(_OfSlice):
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
class HigherLane(_OfQueue):
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
class SlowSlice(_OfQueue):
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
class DiskBudget(_OfQueue):
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
class DiskOverdrawn(_OfQueue):
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
class Aligning(_OfQueue):
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


# Transactions


@dataclass(frozen=True, slots=True)
class OpenTransaction(Cause):
    kind = "open_transaction"
    is_normal = True
    stall_after_seconds = 60.0

    producer: str
    journals: tuple[str, ...]
    cohort: int
    rows: int | None
    bytes: int | None
    in_kafka: bool = False

    @property
    def who(self) -> str:
        return f"producer {self.producer}"

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.cohort,)

    def text(self, seconds: float) -> str:
        held = "its rows are" if self.rows is None else counted(self.rows, "row")
        held += {None: "", 1: " is"}.get(self.rows, " are")
        where = listed(self.journals, "partition" if self.in_kafka else "journal")
        return (
            f"Producer {self.producer} has had a transaction open for {lasting(seconds)} in "
            f"{where}: {held} stored, and hidden until it commits."
        )

    @property
    def advice(self) -> str | None:
        if self.in_kafka:
            return (
                f"Have producer {self.producer} commit or abort; if it hangs, penstock abort "
                f"{quoted(self.producer)} --store kafka://... ends the transaction, and the "
                "rows are lost. Rows of others are delivered meanwhile. Kafka itself aborts it "
                "after the producer's transaction.timeout.ms."
            )
        return (
            f"Have producer {self.producer} commit or roll back; if its process is gone, "
            "penstock recover rolls back what it left; if it hangs, penstock abort "
            f"{self.producer} does, and the rows are lost."
        )


@dataclass(frozen=True, slots=True)
class AwaitedCommit(Cause):
    kind = "awaited_commit"

    cohort: int
    producer: str
    journal: str
    hinted_by: str | None
    committed: float | None
    """The clock of the commit, as seconds. None: Kafka's broker writes it, as a marker."""

    @property
    def who(self) -> str:
        return f"cohort {self.cohort}"

    @property
    def subject(self) -> tuple[object, ...]:
        return (self.producer, self.journal)

    def text(self, seconds: float) -> str:
        by = "" if self.hinted_by is None else f", which journal {self.hinted_by} hints at"
        if self.committed is None:
            return (
                f"The checkpoint of cohort {self.cohort} has waited {lasting(seconds)} until "
                f"journal {self.journal} is read up to the transaction marker of producer "
                f"{self.producer}: the transaction is committed, and delivered whole."
            )
        return (
            f"The checkpoint of cohort {self.cohort} waits since {lasting(seconds)} for the commit "
            f"of producer {self.producer} in journal {self.journal}{by}."
        )

    @property
    def advice(self) -> str | None:
        if self.committed is None:
            return (
                "See whether the partition has a leader that answers (kafka-topics.sh --describe): "
                "the broker that coordinates the transaction writes its marker there."
            )
        return (
            f"See whether producer {self.producer} still runs: it has to write its commit into "
            f"journal {self.journal}; if its process is gone, penstock recover does; if it hangs, "
            f"penstock abort {self.producer} carries the commit out in its place."
        )


@dataclass(frozen=True, slots=True)
class TransactionLogWait(Cause):
    kind = "transaction_log"

    def text(self, seconds: float) -> str:
        return (
            f"What was read has waited {lasting(seconds)} for the cluster's transaction log, which "
            "says which commits belong together."
        )

    @property
    def advice(self) -> str | None:
        return (
            "See whether the brokers that lead the topic __transaction_state answer. A producer "
            "that never pauses between its commits delays the begin, too."
        )


@dataclass(frozen=True, slots=True)
class WholePerPartition(Cause):
    kind = "whole_per_partition"
    is_normal = True
    stall_after_seconds = NEVER

    def text(self, seconds: float) -> str:  # noqa: ARG002 - it does not change
        return (
            "Transactions are whole within each partition only: the cluster does not let this "
            "reader read its transaction log."
        )

    @property
    def advice(self) -> str | None:
        return "Give the reader the rights to Describe and Read the topic __transaction_state."


# Epochs and the consumer


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


KINDS: Final[dict[str, type[Cause]]] = {
    cause.kind: cause
    for cause in (
        Restart,
        ThreadEnded,
        Recovery,
        Starting,
        StoreSilent,
        Listing,
        Probing,
        JournalLags,
        Acknowledging,
        AwaitedCommit,
        TransactionLogWait,
        EpochsAhead,
        DiskBudget,
        DiskOverdrawn,
        Consuming,
        OpenTransaction,
        Aligning,
        HigherLane,
        SlowSlice,
        Credit,
        ReadDelay,
        ClockAhead,
        WholePerPartition,
        Idle,
    )
}
"""The most important first: what stands further up tends to be the cause of what stands below."""


def cause_of(kind: str, facts: dict[str, Any]) -> Cause:
    """From what `facts` gave, perhaps by way of JSON."""
    try:
        made = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return KINDS[kind](**made)
    except (KeyError, TypeError) as error:
        raise RemoteProtocolError(f"{kind!r} with {facts} is no wait: {error!r}") from error


def _journals(journal: str, count: int) -> str:
    return f"journal {journal}" if count == 1 else f"journal {journal} and {count - 1} more"


def _parties(members: tuple[int, ...]) -> str:
    """The Session, which has the number 0, takes part in epochs too."""
    return listed(["the session" if member == 0 else f"member {member}" for member in members])


def _begun(text: str) -> str:
    verb = "are" if text.startswith("members") else "is"
    return f"{text[:1].upper()}{text[1:]} {verb}"
