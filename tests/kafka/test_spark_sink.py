"""Spark writes to Kafka once: through kills, in foreachBatch, as a batch, with headers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.sinks import kafka as kafka_sink
from tests.integration.test_spark_write import Pipeline
from tests.kafka.committed import committed

if TYPE_CHECKING:
    import enum
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

STEPS: list[enum.Enum] = [
    kafka_sink.Step.PROVEN,
    kafka_sink.Step.ENDED,
]
"""The sink's conformance suite has all of them; these cross Spark's own processes."""


def ids_in(kafka: KafkaCluster, topic: str) -> Counter[int]:
    return Counter(int(each.value() or b"") for each in committed(kafka, topic))


def records(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")


def test_a_stream_is_written_once_through_kills(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    kafka.topics.create(topic, partitions=3)
    pipeline = Pipeline(
        spark,
        tmp_path,
        sink="kafka",
        topic=topic,
        **{"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.compression.type": "lz4"},
    )
    frame = records(pipeline.frame())
    for step in STEPS:
        before = Counter(pipeline.expected)
        first = len(pipeline.expected)
        pipeline.add(*range(first, first + 20))
        pipeline.crash_at(step, frame)
        found = ids_in(kafka, topic)
        assert found in (before, Counter(pipeline.expected)), f"{step}: whole or not at all"
        pipeline.run(frame=frame)
        assert ids_in(kafka, topic) == Counter(pipeline.expected), f"killed at {step}"
    staged = (tmp_path / "checkpoint" / "penstock" / "staged").glob("*/*")
    assert not [path for path in staged if path.parent.name != "unknown"]


def test_what_changes_is_written_once_in_foreach_batch(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    topics = [kafka.topics.create(f"{topic}-{letter}", partitions=2) for letter in "ab"]
    dying = [True]

    def write(frame: DataFrame, number: int) -> None:
        for name in topics:
            writer = frame.write.format("penstock").option("sink", "kafka").option("topic", name)
            writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            writer = writer.option("folder", str(tmp_path / "staged")).option("batch", number)
            writer.mode("append").save()
            if dying[0]:
                dying[0] = False
                raise RuntimeError("between the two")

    pipeline = Pipeline(spark, tmp_path)
    totals = pipeline.frame().groupBy("region").count()
    changes = totals.selectExpr("region AS key", "CAST(count AS STRING) AS value")

    def run() -> None:
        writer = changes.writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    pipeline.add(0, 1, 3)
    with pytest.raises(StreamingQueryException, match="between the two"):
        run()
    run()
    for name in topics:
        found = Counter((each.key(), each.value()) for each in committed(kafka, name))
        assert found == Counter([(b"r0", b"2"), (b"r1", b"1")])


def test_a_data_frame_is_written_with_where_it_came_from(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    one, two = (kafka.topics.create(f"{topic}-{n}", partitions=2) for n in "12")
    options = {
        "sink": "kafka",
        "topic": one,
        "folder": str(tmp_path),
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    frame = records(spark.range(50))
    frame.write.format("penstock").options(**options).mode("append").save()
    assert ids_in(kafka, one) == Counter(range(50))
    read = spark.read.format("penstock").option("subscribe", one)
    read = read.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    again = read.load().drop("topic", "partition").write.format("penstock").options(**options)
    again.option("topic", two).option("meta", "source").mode("append").save()
    places = {
        (each.topic(), each.partition(), each.offset()): each.value()
        for each in committed(kafka, one)
    }
    for each in committed(kafka, two):
        headers: dict[str, Any] = dict(each.headers() or ())
        number = int(headers["source.journal"].split(b"/")[-2].removeprefix(b"partition=%_"))
        assert places[one, number, int(headers["source.offset"])] == each.value()
    for wrong, words in (
        (frame.selectExpr("key"), "has no column 'value'"),
        (frame.selectExpr("value", "key AS colour"), "has a column 'colour'"),
        (frame.selectExpr("1 AS value"), "must be STRING or BINARY"),
    ):
        with pytest.raises(Exception, match=words):
            wrong.write.format("penstock").options(**options).mode("append").save()
