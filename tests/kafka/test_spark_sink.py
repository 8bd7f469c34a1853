"""Spark writes to Kafka once: through kills, in foreachBatch, as a batch, with headers."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.formats.avro_columns import avro_schema_of
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


COLUMNS = (
    "id BIGINT, small TINYINT, name STRING, raw BINARY, paid BOOLEAN, ratio FLOAT, amount DOUBLE, "
    "price DECIMAL(20,6), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, "
    "line STRUCT<number: INT, lines: ARRAY<STRUCT<x: DOUBLE>>>, counts MAP<STRING, BIGINT>"
)
AT = datetime.datetime(2020, 1, 2, 3, 4, 5, 600_000)
ROWS: list[tuple[Any, ...]] = [
    (1, -128, 'é😀 "\\\n\x01', b"\xff\x00", True, 0.1, 1e300, Decimal("-12345678901234.000001"),
     datetime.date(2020, 2, 29), AT, AT, ["a", None, ""], (None, [(1.5,), None]), {"k": None}),
    (2, None, "", b"", False, float("inf"), float("nan"), Decimal(0), datetime.date(1, 1, 1),
     AT, AT, [], (3, []), {}),
    (3, *[None] * 13),
]  # fmt: skip


def test_ordinary_columns_are_written_by_format_and_key(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    frame = spark.createDataFrame(ROWS, COLUMNS).coalesce(1)
    expected = [repr(row) for row in frame.orderBy("id").collect()]
    wanted = [json.loads(row[0]) for row in frame.selectExpr("to_json(struct(*))").collect()]
    options = {"sink": "kafka", "folder": str(tmp_path)}
    options["kafka.bootstrap.servers"] = kafka.bootstrap_servers
    for format_, key, keys in (
        ("json", "id", {b"1", b"2", b"3"}),
        ("avro", "day,paid", {b'{"day":"2020-02-29","paid":true}',
                              b'{"day":"0001-01-01","paid":false}', None}),
    ):  # fmt: skip
        name = kafka.topics.create(f"{topic}-{format_}", partitions=3)
        writer = frame.write.format("penstock").options(**options)
        writer.option("topic", name).option("format", format_).option("key", key).mode(
            "append"
        ).save()
        assert {each.key() for each in committed(kafka, name)} == keys
        schema = COLUMNS
        if format_ == "avro":
            schema = avro_schema_of(to_arrow_schema(frame.schema, timezone="UTC"))
        reader = spark.read.format("penstock").option("subscribe", name)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        read = reader.option("format", format_).option("schema", schema).load()
        found = read.select(*frame.columns).orderBy("id").collect()
        assert [repr(row) for row in found] == expected, f"{format_}, as we read it"
    values = [each.value() for each in committed(kafka, f"{topic}-json")]
    texts = spark.createDataFrame(
        [(bytes(each or b"").decode(),) for each in values], "value STRING"
    )
    parsed = texts.select(F.from_json("value", COLUMNS, {"mode": "FAILFAST"}).alias("row"))
    rows = parsed.select("row.*").orderBy("id").collect()
    assert [repr(row) for row in rows] == expected, "as Spark's from_json reads it"
    documents = sorted((json.loads(each or b"") for each in values), key=lambda each: each["id"])
    for document, by_spark in zip(documents, wanted, strict=True):
        for moment in ("at", "local"):
            one, other = (each.pop(moment, None) for each in (document, by_spark))
            assert (one is None) == (other is None)
            assert one is None or one.startswith(other.removesuffix("Z")), "more digits than Spark"
        assert document == by_spark, "as Spark's to_json writes it"


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
