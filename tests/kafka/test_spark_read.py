"""`spark.read.format("penstock")` with the options of Spark's own Kafka source, beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from tests.kafka.side_by_side import (
    CODECS,
    FIRST_MS,
    OURS,
    SECONDS_MAX,
    THEIRS,
    Sources,
    fill,
    rows_of,
    transact,
    transactional,
    values_of,
)
from tests.kafka.test_spark_losses import drop

if TYPE_CHECKING:
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(kafka: KafkaCluster, topic: str) -> str:
    """A topic of two partitions with 40 rows, from 40 seconds."""
    kafka.topics.create(topic, 2)
    fill(kafka, topic, 0, 40)
    return topic


def test_columns_are_those_of_sparks_own_source(sources: Sources, filled: str) -> None:
    options = {"subscribe": filled, "includeHeaders": "true"}
    ours, theirs = (sources.frame(kind, **options) for kind in (OURS, THEIRS))
    assert ours.drop("_meta").schema.simpleString() == theirs.schema.simpleString()


def test_rows_are_those_of_sparks_own_source(
    sources: Sources, kafka: KafkaCluster, topic: str
) -> None:
    """Every codec; rows without a key, a value, headers; transactions of which the first is
    aborted."""
    other = f"{topic}-more"
    for name in (topic, other):
        kafka.topics.create(name, 2)
    for place, codec in enumerate(CODECS):
        fill(kafka, topic, place * 100, 100, compression_type=codec)
    producer = transactional(kafka, topic)
    transact(producer, [(topic, 0, b"never-1"), (other, 1, b"never-2")], commit=False)
    transact(producer, [(topic, 0, b"whole-1"), (other, 1, b"whole-2")], commit=True)
    fill(kafka, other, 0, 50)
    found = sources.loaded(subscribePattern=f"{topic}(-more)?$", includeHeaders="true")
    assert found.total() == 552
    chosen = sources.frame(OURS, subscribe=topic).select("offset", "value").count()
    assert chosen == 501


def test_where_it_begins_and_ends(sources: Sources, filled: str) -> None:
    def by_partition(first: int, second: int) -> str:
        return json.dumps({filled: {"0": first, "1": second}})

    found = sources.loaded(
        subscribe=filled, startingOffsets=by_partition(5, -2), endingOffsets=by_partition(7, -1)
    )
    assert found.total() == 2 + 20
    found = sources.loaded(assign=json.dumps({filled: [1]}), endingOffsets="latest")
    assert found.total() == 20
    times = {"startingTimestamp": FIRST_MS + 10_000, "endingTimestamp": FIRST_MS + 20_000}
    assert sources.loaded(subscribe=filled, **times).total() == 10
    found = sources.loaded(
        subscribe=filled,
        startingOffsetsByTimestamp=by_partition(FIRST_MS + 10_000, FIRST_MS),
        endingOffsetsByTimestamp=by_partition(FIRST_MS + 12_000, FIRST_MS + 99_000),
    )
    assert found.total() == 1 + 20


def test_transactions_are_whole(sources: Sources, kafka: KafkaCluster, filled: str) -> None:
    """An open one hides nothing of others. Up to given ends, what is committed below them counts:
    rows whose marker stands behind the end do not."""
    hanging = transactional(kafka, f"{filled}-hanging")
    hanging.begin_transaction()
    hanging.produce(filled, b"open", partition=0)
    assert hanging.flush(SECONDS_MAX) == 0
    producer = transactional(kafka, filled)
    transact(producer, [(filled, 0, b"whole-1"), (filled, 1, b"whole-2")], commit=True)
    found = rows_of(sources.frame(OURS, subscribe=filled))
    assert [value for value in values_of(found) if value and value[:1] != b"v"] == [
        *(b"whole-1", b"whole-2")
    ]
    marker = {row[1]: row[4] for row in found}[b"whole-2"] + 1
    ends = json.dumps({filled: {"0": -1, "1": marker}})
    cut = rows_of(sources.frame(OURS, subscribe=filled, endingOffsets=ends))
    assert set(values_of(found)) - set(values_of(cut)) == {b"whole-2"}
    hanging.abort_transaction(SECONDS_MAX)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("startingOffsets", "latest", "cannot be 'latest'"),
        ("endingOffsets", "earliest", "cannot be 'earliest'"),
        ("as_of", "2026-01-01T00:00:00Z", "endingOffsets"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    sources: Sources, filled: str, option: str, value: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        sources.frame(OURS, subscribe=filled, **{option: value}).count()


def test_offsets_that_are_not_there(sources: Sources, kafka: KafkaCluster, filled: str) -> None:
    drop(kafka, filled, 0, 4)
    assert sources.loaded(subscribe=filled).total() == 36
    asked = {"subscribe": filled, "startingOffsets": json.dumps({filled: {"0": 1, "1": 0}})}
    with pytest.raises(PySparkException, match="partition 0: offsets 1 to 3 were asked for"):
        sources.frame(OURS, **asked).collect()
    assert sources.frame(OURS, failOnDataLoss="false", **asked).count() == 36


def test_a_large_partition_is_not_held_in_memory(
    sources: Sources, kafka: KafkaCluster, topic: str
) -> None:
    """As many rows as there are come, in the order of offsets, from more than one fetch."""
    kafka.topics.create(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(20_000):
        producer.produce(topic, b"%0200d" % number)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    frame = sources.frame(OURS, subscribe=topic).select("offset")
    assert [row.offset for row in frame.collect()] == list(range(20_000))
