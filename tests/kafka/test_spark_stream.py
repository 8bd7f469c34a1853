"""`spark.readStream.format("penstock")` with the options of Spark's own Kafka source, beside that
source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.testing.kafka.machine import wait_until
from tests.kafka.side_by_side import (
    CODECS,
    EMPTY,
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

if TYPE_CHECKING:
    from collections import Counter

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def filled(kafka: KafkaCluster, topic: str) -> str:
    """A topic of two partitions with 40 rows, from 40 seconds."""
    kafka.topics.create(topic, 2)
    fill(kafka, topic, 0, 40)
    return topic


@pytest.mark.parametrize("with_headers", ["false", "true"])
def test_columns_are_those_of_sparks_own_source(
    sources: Sources, filled: str, with_headers: str
) -> None:
    options = {"subscribe": filled, "includeHeaders": with_headers}
    ours, theirs = (sources.stream(kind, **options) for kind in (OURS, THEIRS))
    assert ours.drop("_meta").schema.simpleString() == theirs.schema.simpleString()
    assert ours.columns == [*theirs.columns, "_meta"]


def test_rows_are_those_of_sparks_own_source(
    sources: Sources, kafka: KafkaCluster, topic: str
) -> None:
    """Over two topics: every codec; rows without a key, a value, headers; transactions that were
    committed and aborted; times of the producer's and of the broker's."""
    other = f"{topic}-appended"
    kafka.topics.create(topic, 2)
    kafka.topics.create(other, 3, settings={"message.timestamp.type": "LogAppendTime"})
    for place, codec in enumerate(CODECS):
        fill(kafka, topic, place * 100, 100, compression_type=codec)
        fill(kafka, other, place * 100, 50, partitions=3, compression_type=codec)
    producer = transactional(kafka, topic)
    transact(producer, [(topic, 0, b"whole-1"), (other, 2, b"whole-2")], commit=True)
    transact(producer, [(topic, 1, b"never-1"), (other, 0, b"never-2")], commit=False)
    transact(producer, [(topic, 1, b"whole-3"), (other, 0, b"whole-4")], commit=True)
    options = {"startingOffsets": "earliest", "includeHeaders": "true"}
    found = sources.streamed(subscribe=f"{topic},{other}", **options)
    assert found.total() == 754
    assert {value for value in values_of(found) if value and value[:1] != b"v"} == {
        *(b"whole-1", b"whole-2", b"whole-3", b"whole-4")
    }
    assert {row[6] for row in found} == {0, 1}  # both types of timestamps


def test_latest_is_decided_once(sources: Sources, kafka: KafkaCluster, filled: str) -> None:
    """What came while the query was down is not left out."""
    assert sources.streamed("latest", subscribe=filled) == EMPTY
    fill(kafka, filled, 40, 10)
    assert sources.streamed("latest", subscribe=filled).total() == 10
    fill(kafka, filled, 50, 10)
    # As Spark has it, where to begin is asked for at the first start only.
    again = sources.streamed("latest", subscribe=filled, startingOffsets="earliest")
    assert again.total() == 10


def test_a_topic_that_appears_later_is_read_from_its_begin(
    sources: Sources, kafka: KafkaCluster, filled: str
) -> None:
    options = {"subscribePattern": f"{filled}(-more)?$", "startingOffsets": "latest"}
    assert sources.streamed("pattern", **options) == EMPTY
    kafka.topics.create(f"{filled}-more", 1)
    kafka.topics.create(f"{filled}-more-or-less", 1)
    fill(kafka, f"{filled}-more", 0, 15, partitions=1)
    fill(kafka, f"{filled}-more-or-less", 0, 15, partitions=1)
    fill(kafka, filled, 40, 5)
    assert sources.streamed("pattern", **options).total() == 20


def test_a_topic_and_partitions_that_appear_in_mid_stream_are_read(
    sources: Sources, kafka: KafkaCluster, filled: str
) -> None:
    seen: list[Counter[Any]] = []

    def take(frame: DataFrame, number: int) -> None:
        del number
        seen.append(rows_of(frame))

    def count() -> int:
        return sum(rows.total() for rows in seen)

    frame = sources.stream(OURS, subscribePattern=f"{filled}.*", startingOffsets="earliest")
    query = sources.start(frame, take, "live", processingTime="0 seconds")
    try:
        wait_until(lambda: count() == 40, "40 rows", SECONDS_MAX)
        kafka.topics.create(f"{filled}-more", 1)
        fill(kafka, f"{filled}-more", 0, 15, partitions=1)
        wait_until(lambda: count() == 55, "the rows of a new topic", SECONDS_MAX)
        kafka.topics.grow(filled, 4)
        fill(kafka, filled, 40, 40, partitions=4)
        wait_until(lambda: count() == 95, "the rows of new partitions", SECONDS_MAX)
    finally:
        query.stop()


def test_single_partitions_and_offsets(sources: Sources, filled: str) -> None:
    one = sources.streamed(assign=json.dumps({filled: [1]}), startingOffsets="earliest")
    assert {row[3] for row in one} == {1}
    offsets = json.dumps({filled: {"0": 15, "1": -2}})
    assert sources.streamed(subscribe=filled, startingOffsets=offsets).total() == 5 + 20
    offsets = json.dumps({filled: {"0": 15, "1": -1}})
    assert sources.streamed(subscribe=filled, startingOffsets=offsets).total() == 5


def test_times(sources: Sources, filled: str) -> None:
    late = FIRST_MS + 30_000
    found = sources.streamed(subscribe=filled, startingTimestamp=str(late))
    assert found.total() == 10
    by_partition = json.dumps({filled: {"0": late, "1": FIRST_MS}})
    found = sources.streamed(subscribe=filled, startingOffsetsByTimestamp=by_partition)
    assert found.total() == 5 + 20


def test_a_time_that_is_behind_all_rows(sources: Sources, kafka: KafkaCluster, filled: str) -> None:
    options = {"subscribe": filled, "startingTimestamp": str(FIRST_MS + 39_000)}  # in 1, not in 0
    for kind in (OURS, THEIRS):
        with pytest.raises(PySparkException):
            sources.drain(kind, **options)
    options["startingOffsetsByTimestampStrategy"] = "latest"
    assert sources.streamed("behind", **options).total() == 1
    fill(kafka, filled, 40, 10)
    assert sources.streamed("behind", **options).total() == 10


def test_limits_and_partitions(sources: Sources, kafka: KafkaCluster, topic: str) -> None:
    """With a limit all rows come, nothing twice; a batch has as many tasks as are asked for, or
    more."""
    kafka.topics.create(topic, 2)
    name, options = "limited", {"subscribe": topic, "startingOffsets": "earliest"}
    for begin in range(0, 300, 100):
        fill(kafka, topic, begin, 100)
        batches = sources.drain(OURS, name, maxOffsetsPerTrigger="150", **options)
        assert sum(rows.total() for rows in batches) == 100
    partitions: list[int] = []

    def take(frame: DataFrame, number: int) -> None:
        del number
        partitions.append(frame.rdd.getNumPartitions())

    frame = sources.stream(OURS, minPartitions="5", **options)
    assert sources.start(frame, take, "split").awaitTermination(int(SECONDS_MAX))
    assert min(partitions) >= 5


@pytest.mark.parametrize("page", ["README.md", "docs/kafka.md"])
def test_what_is_written_for_users_runs(
    kafka: KafkaCluster, kafka_spark: SparkSession, filled: str, page: str
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    block = next(
        one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "kafka" in one
    )
    code = block.replace("broker:9092", kafka.bootstrap_servers).replace("orders,payments", filled)
    names: dict[str, Any] = {"spark": kafka_spark}
    exec(code, names)
    assert names["orders"].columns[:3] == ["key", "value", "topic"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("minOffsetsPerTrigger", "5", "trigger interval"),
        ("startingOffsets", "soon", "earliest"),
        ("startingOffsets", '{"other": {"0": 1}}', "names other-0, which is not read"),
        ("kafka.auto.offset.reset", "latest", "startingOffsets"),
        ("kafka.isolation.level", "read_uncommitted", "aborted"),
        ("assign", '{"other": [0]}', "subscribe and assign"),
        ("endingOffsets", "latest", "batch read only"),
        ("failOnDataLoss", "perhaps", "'true' or 'false'"),
        ("startingofsets", "earliest", "no option 'startingofsets'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    sources: Sources, filled: str, option: str, value: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        sources.drain(OURS, subscribe=filled, **{option: value})
