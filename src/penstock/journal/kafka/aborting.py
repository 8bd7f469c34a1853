"""Ends a transaction that its producer leaves open, as Kafka's own tool does.

If a coordinator knows of it, the coordinator is asked for the transactional id anew: it fences the
producer and aborts what is open (`kafka-transactions.sh forceTerminateTransaction`). If none does,
the transaction hangs: leaders of partitions hold it open, and nobody will ever end it. Then each of
them is told to write the marker itself (`kafka-transactions.sh abort`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.ids import Producer
from penstock.journal.kafka.client.transactions import (
    Described,
    OpenProducer,
    abort_in_partition,
    describe_producers,
    describe_transaction,
    fence,
    list_transactions,
)
from penstock.journal.offset_identity import transactional

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.records.batches import Partition


class NoOpenTransactionError(ConfigurationError):
    """The producer has no transaction open in the partitions that were looked at. It may have ended
    meanwhile: look again."""

    def __init__(self, producer: str) -> None:
        super().__init__(producer)
        self.producer = producer

    def __str__(self) -> str:
        return (
            f"producer {self.producer} has no open transaction in any topic that we may "
            "describe. It has ended, or the name is wrong: `penstock doctor` lists those that "
            "are open"
        )


@dataclass(frozen=True, slots=True)
class OpenInPartitions:
    """An open transaction, as leaders of partitions and its coordinator know it."""

    producer_id: int
    partitions: Mapping[Partition, OpenProducer]
    described: Described | None
    """None: it hangs, for no coordinator knows of it."""

    @property
    def names(self) -> tuple[str, ...]:
        """By which a user may call the producer."""
        ours = str(Producer.from_int64(transactional(self.producer_id)))
        given = () if self.described is None else (self.described.transactional_id,)
        return (*given, str(self.producer_id), ours)


def open_transactions(
    cluster: Cluster, partitions: Iterable[Partition], deadline: Deadline
) -> list[OpenInPartitions]:
    """All that are open in these partitions, by producer id."""
    found: dict[int, dict[Partition, OpenProducer]] = {}
    for partition, producers in describe_producers(cluster, partitions, deadline).items():
        for one in producers:
            if one.transaction_begin is not None:
                found.setdefault(one.producer_id, {})[partition] = one
    if not found:
        return []
    known = {one.producer_id: one for one in list_transactions(cluster, deadline)}
    opened = []
    for producer_id, own in sorted(found.items()):
        listed = known.get(producer_id)
        described = None
        if listed is not None:
            described = describe_transaction(cluster, listed.transactional_id, deadline)
        if described is not None and described.started_ms is None:
            described = None  # the coordinator is done with it; the partition is not
        opened.append(OpenInPartitions(producer_id, own, described))
    return opened


def chosen(opened: Iterable[OpenInPartitions], producer: str) -> OpenInPartitions:
    """The one that a user means: by its transactional id, Kafka's producer id, or the six bytes
    that `explain` shows. Raises `NoOpenTransactionError`."""
    for one in opened:
        if producer in one.names:
            return one
    raise NoOpenTransactionError(producer)


def abort_transaction(cluster: Cluster, seen: OpenInPartitions, deadline: Deadline) -> None:
    """Aborts what was seen, and nothing that the producer began since."""
    if seen.described is not None:
        fence(cluster, seen.described, deadline)
        return
    for partition, producer in seen.partitions.items():
        abort_in_partition(cluster, partition, producer, deadline)
