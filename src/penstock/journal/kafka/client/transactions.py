"""What brokers say of transactions when asked, and the abort of one that hangs.

The transaction log says more (`transaction_log.py`): while a commit is being carried out,
DescribeTransactions lists only the partitions that still lack a marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import InitProducerIdRequest, WriteTxnMarkersRequest

from penstock.journal.kafka.client.asking import PartitionAsk, of_partitions
from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    AskAgainError,
    described,
    is_refusal,
    is_retriable,
)
from penstock.journal.kafka.errors import KafkaAccessError, KafkaProtocolError
from penstock.journal.kafka.records.batches import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline

TRANSACTION_COORDINATOR: Final = 1
TRANSACTIONAL_ID_NOT_FOUND: Final = 105
_DESCRIBE_ADVICE: Final = "Give the reader the right to Describe the transactional id"
_ALTER_ADVICE: Final = (
    "An abort needs the right to Alter the cluster, as kafka-transactions.sh does"
)

_WRITE_ADVICE: Final = "To fence a producer one needs the right to Write with its transactional id"


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id that a coordinator has a state of."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Described:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    """None: no transaction is open."""
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer that wrote to a partition lately."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_begin: int | None
    """The first offset of its open transaction in this partition; None: it has none open."""


def list_transactions(
    cluster: Cluster, deadline: Deadline, *, states: Iterable[str] = ()
) -> tuple[Listed, ...]:
    """What all coordinators know, or those in these states ("Ongoing", "PrepareCommit", ...). The
    cluster leaves out what we may not describe."""
    wanted = list(states)

    def attempt() -> tuple[Listed, ...]:
        nodes = cluster.nodes(deadline)
        requests: dict[int, list[Any]] = {
            node: [ListTransactionsRequest(state_filters=wanted, producer_id_filters=[])]
            for node in nodes
        }
        answers, failures = cluster.ask_all(requests, deadline)
        if failures:
            raise next(iter(failures.values()))
        listed = []
        for node, (response,) in answers.items():
            check(response.error_code, node, "list transactions", _DESCRIBE_ADVICE)
            listed += [
                Listed(each.transactional_id, each.producer_id, each.transaction_state)
                for each in response.transaction_states
            ]
        return tuple(listed)

    return cluster.repeated("list transactions", attempt, deadline)


def describe_transaction(
    cluster: Cluster, transactional_id: str, deadline: Deadline
) -> Described | None:
    """What the id's coordinator knows; None if it has never heard of it, or has forgotten it."""
    task = f"describe the transaction of {transactional_id!r}"

    def attempt() -> Described | None:
        node = coordinator(cluster, transactional_id, deadline)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = cluster.ask(node, request, deadline).transaction_states
        if state.error_code == TRANSACTIONAL_ID_NOT_FOUND:
            return None
        check(state.error_code, node, task, _DESCRIBE_ADVICE)
        return Described(
            state.transactional_id,
            state.producer_id,
            state.producer_epoch,
            state.transaction_state,
            state.transaction_timeout_ms,
            state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
            tuple(Partition(t.topic, number) for t in state.topics for number in t.partitions),
        )

    return cluster.repeated(task, attempt, deadline)


def describe_producers(
    cluster: Cluster, partitions: Iterable[Partition], deadline: Deadline
) -> dict[Partition, tuple[OpenProducer, ...]]:
    """The producers that the leader of each partition has a state of."""

    def request(topics: Mapping[str, list[Partition]], _epochs: Mapping[Partition, int]) -> Any:
        kind = DescribeProducersRequest.TopicRequest
        return DescribeProducersRequest(
            topics=[
                kind(name=name, partition_indexes=[each.number for each in mine])
                for name, mine in topics.items()
            ]
        )

    found = of_partitions(
        cluster, tuple(partitions), [PartitionAsk("producers", request)], deadline
    )
    return {
        partition: tuple(
            OpenProducer(
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.last_timestamp,
                each.coordinator_epoch,
                each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
            )
            for each in answer.active_producers
        )
        for partition, (answer,) in found.items()
    }


def abort_in_partition(
    cluster: Cluster, partition: Partition, producer: OpenProducer, deadline: Deadline
) -> None:
    """Has the partition's leader write an abort marker for the producer's open transaction, as
    Kafka's `kafka-transactions.sh abort` does. For a transaction that hangs: one that no
    coordinator knows of any more. The leader refuses if the producer has gone on meanwhile."""
    task = f"abort the transaction of producer {producer.producer_id} in {partition}"
    kind = WriteTxnMarkersRequest.WritableTxnMarker
    marker = kind(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(producer.coordinator_epoch, 0),
        topics=[
            kind.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.number])
        ],
    )

    def attempt() -> None:
        led, waiting = cluster.by_leader([partition], deadline)
        if waiting:
            raise AskAgainError("(leader)", waiting[partition])
        (node,) = led
        response = cluster.ask(node, WriteTxnMarkersRequest(markers=[marker]), deadline)
        for result in response.markers:
            for topic in result.topics:
                for answer in topic.partitions:
                    if is_retriable(answer.error_code):
                        cluster.forget(partition.topic)
                    check(answer.error_code, node, task, _ALTER_ADVICE)

    cluster.repeated(task, attempt, deadline)


def fence(cluster: Cluster, seen: Described, deadline: Deadline) -> None:
    """Takes the transactional id over, as a new producer of it would: the coordinator fences the
    old one, and aborts its open transaction. Until that is done it answers that it is not."""
    task = f"fence the producer of {seen.transactional_id!r}"
    request = InitProducerIdRequest(
        transactional_id=seen.transactional_id,
        transaction_timeout_ms=seen.timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )

    def attempt() -> None:
        node = coordinator(cluster, seen.transactional_id, deadline)
        response = cluster.ask(node, request, deadline)
        check(response.error_code, node, task, _WRITE_ADVICE)

    cluster.repeated(task, attempt, deadline)


def coordinator(
    cluster: Cluster,
    name: str,
    deadline: Deadline,
    kind: int = TRANSACTION_COORDINATOR,
    advice: str = _DESCRIBE_ADVICE,
) -> int:
    """The broker that coordinates a transactional id, or a group. Raises `AskAgainError`."""
    request = FindCoordinatorRequest(key=name, key_type=kind, coordinator_keys=[name])
    response = cluster.ask_anyone(request, deadline)
    found = response.coordinators[0] if response.coordinators else response
    check(found.error_code, "(any)", "find a coordinator", advice)
    if found.node_id not in cluster.nodes(deadline):
        raise AskAgainError(str(found.node_id), f"it coordinates {name!r}, and is not there")
    return int(found.node_id)


def check(code: int, node: int | str, task: str, advice: str) -> None:
    """Raises what an error that a broker gave back means."""
    if code == NO_ERROR:
        return
    if is_refusal(code):
        raise KafkaAccessError(task, described(code), advice)
    if is_retriable(code):
        raise AskAgainError(str(node), described(code))
    raise KafkaProtocolError(str(node), task, described(code))
