"""Spark's own Kafka source and ours, in one session, with the same options."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from penstock.testing.kafka import spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.testing.kafka import KafkaCluster

SECONDS_MAX = 180.0
OURS, THEIRS = "penstock", "kafka"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EMPTY: Counter[Any] = Counter()
FIRST_MS = (int(time.time()) - 24 * 3600) * 1000
"""The timestamp of the first row that `fill` sends; the others follow, a second each. They are not
so old that retention takes them away."""


class Sources:
    """Reads topics of one cluster by both sources, as streams and as batches."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, folder: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._folder = folder

    def options(self, kind: str, options: dict[str, Any]) -> dict[str, Any]:
        found = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers, **options}
        if kind == OURS:
            return found
        own = ("members", "folder", "key", "splits")
        return {
            "kafka.isolation.level": "read_committed",
            **{name: value for name, value in found.items() if name not in own},
        }

    def stream(self, kind: str, **options: Any) -> DataFrame:
        given = self.options(kind, options)
        if kind == OURS:
            given = {"folder": str(self._folder / "feeds"), **given}
        return self._spark.readStream.format(kind).options(**given).load()

    def start(
        self,
        frame: DataFrame,
        take: Callable[[DataFrame, int], None],
        name: str,
        **trigger: Any,
    ) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoints" / name))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def drain(self, kind: str, name: str = "", **options: Any) -> list[Counter[Any]]:
        """The rows of each batch of a query that reads all there is and ends. Queries of one name
        go on where the last one ended."""
        batches: list[Counter[Any]] = []

        def take(frame: DataFrame, number: int) -> None:
            del number
            batches.append(rows_of(frame))

        query = self.start(self.stream(kind, **options), take, f"{kind}-{name or uuid.uuid4().hex}")
        assert query.awaitTermination(int(SECONDS_MAX))
        return batches

    def streamed(self, name: str = "", **options: Any) -> Counter[Any]:
        """What both sources streamed, which is the same."""
        ours, theirs = (
            sum(self.drain(kind, name, **options), Counter()) for kind in (OURS, THEIRS)
        )
        check_same(ours, theirs)
        return ours

    def frame(self, kind: str, **options: Any) -> DataFrame:
        return self._spark.read.format(kind).options(**self.options(kind, options)).load()

    def loaded(self, **options: Any) -> Counter[Any]:
        """What both sources read as a batch, which is the same."""
        ours, theirs = (rows_of(self.frame(kind, **options)) for kind in (OURS, THEIRS))
        check_same(ours, theirs)
        return ours


def add_kafka_jars(spark: SparkSession) -> None:
    """Once in a session: its tasks would find jars replaced that they have open."""
    for jar in spark_kafka_jars():
        spark.sql(f"ADD JAR '{jar}'")


def check_same(ours: Counter[Any], theirs: Counter[Any]) -> None:
    more, less = ours - theirs, theirs - ours
    assert not more + less, (
        f"{more.total()} rows only of ours, like {list(more)[:3]}; {less.total()} only of Spark's, "
        f"like {list(less)[:3]}"
    )


def rows_of(frame: DataFrame) -> Counter[Any]:
    """Rows as a multiset, by the columns that both sources have."""
    columns = [name for name in frame.columns if name != "_meta"]
    return Counter(
        tuple(_hashable(value) for value in row) for row in frame.select(*columns).collect()
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return tuple(_hashable(each) for each in value)
    return value


def values_of(rows: Counter[Any]) -> list[Any]:
    """Just the values, sorted; rows without one last."""
    values = [row[1] for row in rows.elements()]
    return sorted(values, key=lambda value: (value is None, value))


def fill(
    kafka: KafkaCluster, topic: str, begin: int, count: int, partitions: int = 2, **more: Any
) -> None:
    """Rows of every kind: with and without keys, values and headers."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, **more}
    producer = Producer({name.replace("_", "."): value for name, value in settings.items()})
    for number in range(begin, begin + count):
        row: dict[str, Any] = {"partition": number % partitions}
        if number % 3:
            row["key"] = b"k%d" % (number % 5)
        if number % 7 != 3:
            row["value"] = b"v%06d" % number
        if number % 4 == 1:
            row["headers"] = [("a", b"1"), ("a", None), ("\u00fc", b""), ("n", b"%d" % number)]
        producer.produce(topic, timestamp=FIRST_MS + number * 1000, **row)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0


def transactional(kafka: KafkaCluster, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    return producer


def transact(producer: Producer, rows: list[tuple[str, int, bytes]], *, commit: bool) -> None:
    """Rows by topic, partition and value, in one transaction."""
    producer.begin_transaction()
    for topic, partition, value in rows:
        producer.produce(topic, value, key=value[:2], partition=partition)
    assert producer.flush(SECONDS_MAX) == 0
    if commit:
        producer.commit_transaction(SECONDS_MAX)
    else:
        producer.abort_transaction(SECONDS_MAX)
