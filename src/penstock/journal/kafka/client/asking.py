"""Asks something of many partitions: each at the broker that leads it, until all have answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.journal.kafka.client.cluster import READ_ADVICE
from penstock.journal.kafka.client.failures import (
    NO_ERROR,
    UNKNOWN_TOPIC_CODES,
    AskAgainError,
    described,
    is_refusal,
    is_retriable,
)
from penstock.journal.kafka.errors import (
    KafkaAccessError,
    KafkaProtocolError,
    UnknownTopicError,
)
from penstock.journal.kafka.records.batches import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.journal.kafka.client.cluster import Cluster
    from penstock.journal.kafka.deadline import Deadline

Topics: TypeAlias = Mapping[str, list[Partition]]
MakeRequest: TypeAlias = Callable[[Topics, Mapping[Partition, int]], Any]
"""A request of partitions by topic, with the epochs of their leaders."""


@dataclass(frozen=True, slots=True)
class PartitionAsk:
    """One question, which many partitions are asked."""

    what: str
    make: MakeRequest


def of_partitions(
    cluster: Cluster,
    partitions: Sequence[Partition],
    asks: Sequence[PartitionAsk],
    deadline: Deadline,
) -> dict[Partition, list[Any]]:
    """The answers of each partition to each question. Raises `BrokersUnavailableError` at the
    deadline, `UnknownTopicError`, `KafkaAccessError`."""
    found: dict[Partition, list[Any]] = {}

    def attempt() -> None:
        rest = [partition for partition in partitions if partition not in found]
        try:
            found.update(_round(cluster, rest, asks, deadline))
        except UnknownTopicError as error:
            if cluster.is_gone(error):
                raise
            raise AskAgainError("(any)", str(error)) from None
        left = [partition for partition in partitions if partition not in found]
        if left:
            others = f" and {len(left) - 1} others" if len(left) > 1 else ""
            raise AskAgainError("(leader)", f"{left[0]}{others} did not answer")

    cluster.repeated(f"get the {asks[0].what} of {_named(partitions)}", attempt, deadline)
    return found


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    topics: dict[str, list[Partition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def _round(
    cluster: Cluster,
    partitions: Sequence[Partition],
    asks: Sequence[PartitionAsk],
    deadline: Deadline,
) -> dict[Partition, list[Any]]:
    """Those that answered all questions."""
    led, waiting = cluster.by_leader(partitions, deadline)
    requests = {}
    for node, mine in led.items():
        epochs = {partition: cluster.leader(partition).epoch for partition in mine}
        requests[node] = [ask.make(by_topic(mine), epochs) for ask in asks]
    answers, failures = cluster.ask_all(requests, deadline)
    found: dict[Partition, list[Any]] = {}
    for node, responses in answers.items():
        for ask, response in zip(asks, responses, strict=True):
            for partition, answer in _each(response):
                if _is_answer(cluster, partition, answer, ask, node):
                    found.setdefault(partition, []).append(answer)
    whole = {partition: each for partition, each in found.items() if len(each) == len(asks)}
    if not whole and failures:
        raise next(iter(failures.values()))
    if not whole and waiting:
        raise AskAgainError("(leader)", next(iter(waiting.values())))
    return whole


def _each(response: Any) -> Iterable[tuple[Partition, Any]]:
    for topic in response.topics:
        for answer in topic.partitions:
            name = getattr(topic, "name", None) or getattr(topic, "topic", None)
            number = getattr(answer, "partition_index", None)
            yield Partition(str(name), answer.partition if number is None else number), answer


def _is_answer(
    cluster: Cluster, partition: Partition, answer: Any, ask: PartitionAsk, node: int
) -> bool:
    code = answer.error_code
    if code == NO_ERROR:
        return True
    task = f"get the {ask.what} of {partition}"
    if is_refusal(code):
        raise KafkaAccessError(task, described(code), READ_ADVICE)
    if code in UNKNOWN_TOPIC_CODES or is_retriable(code):
        cluster.forget(partition.topic)
        return False
    raise KafkaProtocolError(str(node), task, described(code))


def _named(partitions: Sequence[Partition]) -> str:
    if not partitions:
        return "no partition"
    others = f" and {len(partitions) - 1} other partitions" if len(partitions) > 1 else ""
    return f"{partitions[0]}{others}"
