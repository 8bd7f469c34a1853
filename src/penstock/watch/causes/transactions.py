"""What transactions hide, and what the checkpoint of a cohort waits for."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.watch.cause import NEVER, Cause
from penstock.watch.wording import counted, lasting, listed, quoted


@dataclass(frozen=True, slots=True)
class OpenTransaction(Cause):
    """It hides its own rows, and nothing waits for it: a stall is what does, as `DiskOverdrawn`."""

    kind = "open_transaction"
    is_normal = True
    stall_after_seconds = NEVER

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
            f"{where}: {held} stored, and hidden until it commits; rows of others do not wait for "
            "it."
        )

    @property
    def advice(self) -> str | None:
        if self.in_kafka:
            return (
                f"If it is open for too long, have producer {self.producer} commit or abort; if it "
                f"hangs, penstock abort {quoted(self.producer)} --store kafka://... ends the "
                "transaction, and the rows are lost. Kafka itself aborts it after the producer's "
                "transaction.timeout.ms."
            )
        return (
            f"If it is open for too long, have producer {self.producer} commit or roll back; if "
            "its process is gone, penstock recover rolls back what it left; if it hangs, penstock "
            f"abort {self.producer} does, and the rows are lost."
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
