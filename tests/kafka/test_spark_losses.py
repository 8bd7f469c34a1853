"""Rows that are gone before a query has read them: `failOnDataLoss`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.errors import PySparkException

from tests.kafka.side_by_side import EMPTY, OURS, SECONDS_MAX, Sources, fill

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


def drop(kafka: KafkaCluster, topic: str, partition: int, below: int) -> None:
    """As retention does."""
    topics = kafka.topics  # held until its client has done it
    deleted = topics.admin.delete_records([TopicPartition(topic, partition, below)])
    for future in deleted.values():
        future.result(SECONDS_MAX)


def make(kafka: KafkaCluster, topic: str, begin: int = 0) -> None:
    kafka.topics.create(topic, 2)
    fill(kafka, topic, begin, 20)


def total(batches: list[Counter[Any]]) -> int:
    return sum(rows.total() for rows in batches)


def drop_some(kafka: KafkaCluster, topic: str) -> None:
    fill(kafka, topic, 20, 20)
    drop(kafka, topic, 1, 15)


def delete(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.delete(topic)


def make_again(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.delete(topic)
    make(kafka, topic)


Loss = tuple["Callable[[KafkaCluster, str], None]", str, int]
LOSSES: list[Loss] = [
    (drop_some, "partition 1: offsets 10 to 14 were dropped", 15),
    (delete, "not there any more", 0),
    (make_again, "another one was made under its name", 20),
]


@pytest.mark.parametrize("loss", LOSSES, ids=["dropped", "deleted", "made-again"])
def test_what_went_while_the_query_was_down(
    sources: Sources, kafka: KafkaCluster, topic: str, loss: Loss
) -> None:
    """By how it went, what the error says, and how many rows there are to go on with."""
    lose, said, found = loss
    make(kafka, topic)
    options = {"subscribePattern": f"{topic}.*", "startingOffsets": "earliest"}
    assert total(sources.drain(OURS, "down", **options)) == 20
    lose(kafka, topic)
    with pytest.raises(PySparkException, match=said) as failed:
        sources.drain(OURS, "down", **options)
    assert f"topic {topic}" in str(failed.value)
    assert "failOnDataLoss" in str(failed.value)
    assert total(sources.drain(OURS, "down", failOnDataLoss="false", **options)) == found


def test_offsets_that_were_asked_for_and_are_not_there(
    sources: Sources, kafka: KafkaCluster, topic: str
) -> None:
    """To begin at the earliest loses nothing, wherever that is."""
    make(kafka, topic)
    drop(kafka, topic, 0, 4)
    assert sources.streamed(subscribe=topic, startingOffsets="earliest").total() == 16
    asked = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})}
    with pytest.raises(PySparkException, match="partition 0: offsets 1 to 3 were dropped"):
        sources.drain(OURS, **asked)
    assert total(sources.drain(OURS, failOnDataLoss="false", **asked)) == 16


def test_partitions_that_are_added_lose_nothing(
    sources: Sources, kafka: KafkaCluster, topic: str
) -> None:
    make(kafka, topic)
    options = {"subscribe": topic, "startingOffsets": "latest"}
    assert sources.streamed("added", **options) == EMPTY
    kafka.topics.grow(topic, 4)
    fill(kafka, topic, 20, 20, partitions=4)
    assert sources.streamed("added", **options).total() == 20
