"""Writing to Kafka on Spark: ours, exactly once, beside Spark's own sink, which is at least once.

Rows of 128 bytes with a key are in Parquet files, one of them a batch: both sides read the same.
The broker, the session and the number of partitions are the same for both; sides run in turns,
every run with a new checkpoint and a topic of its own.

`rows`: rows per second of whole queries, in batches of 100,000 rows; `processor.rows`: the same
per second of a processor, of all processes but the broker. `small`: milliseconds that a batch of
100 rows takes, the median, from Spark's progress; `processor.small`: those of a processor, with the
start of the query shared out over its batches; less is better.
"""

from __future__ import annotations

import compileall
import contextlib
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import penstock
from bench.report import Line
from bench.shuffle_peers import TUNED
from bench.spark_runs import Watch, finish
from penstock.spark.session import STREAMING, local_session
from penstock.testing.kafka import KafkaCluster, spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

CORES: Final = 2
BROKER_JAVA: Final = ("-Xms256m", "-Xmx512m")
OURS, THEIRS = "penstock", "kafka"
VALUE: Final = (
    "concat(lpad(id, 10, '0'), sha2(CAST(id AS STRING), 256), substr(sha2('x', 256), 1, 54))"
)
DDL: Final = "key STRING, value STRING"


@dataclass(frozen=True, slots=True)
class Sizes:
    batches: int = 12
    rows: int = 100_000
    """Of a large batch."""
    small_batches: int = 40
    small_rows: int = 100
    partitions: int = 8
    rounds: int = 3


def run(sizes: Sizes | None = None) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd())
        yield from _Run(stack, Path(stack.enter_context(folder)), sizes or Sizes()).lines()


class _Run:
    def __init__(self, stack: contextlib.ExitStack, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._numbers = iter(range(10_000))
        # Spark's Python is compiled when it is installed; ours, in a checkout, may never be.
        compileall.compile_dir(Path(penstock.__file__).parent, quiet=1)
        self._kafka = stack.enter_context(
            KafkaCluster(java_options=BROKER_JAVA, folder=folder / "broker")
        )
        self._left_out = {self._kafka.nodes[1].pid}
        settings: dict[str, Any] = {
            **STREAMING,
            "spark.driver.memory": "2g",
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
        }
        self._spark: SparkSession = local_session("penstock bench", CORES, **settings)
        stack.callback(self._spark.stop)
        for name, value in TUNED.items():
            self._spark.conf.set(name, value)

    def lines(self) -> Iterator[Line]:
        large = self._input("large", self._sizes.batches, self._sizes.rows)
        small = self._input("small", self._sizes.small_batches, self._sizes.small_rows)
        sides = (OURS, THEIRS)
        for side in sides:
            self._written(side, small)
        rounds = [[self._written(side, large) for side in sides] for _ in range(self._sizes.rounds)]
        for kind, rate in (("", 0), ("processor.", 1)):
            figures = [one[0][rate] for one in rounds], [one[1][rate] for one in rounds]
            yield Line.of_rounds(f"kafka_sink.{kind}rows", *figures, "rows/s")
        runs = [[self._written(side, small) for side in sides] for _ in range(2)]
        ours, peer = (statistics.median(one[side][2] for one in runs) for side in (0, 1))
        yield Line.of("kafka_sink.small", ours, peer, "ms")
        rows = self._sizes.small_rows
        ours, peer = (
            statistics.median(1000 * rows / one[side][1] for one in runs) for side in (0, 1)
        )
        yield Line.of("kafka_sink.processor.small", ours, peer, "ms")

    def _input(self, name: str, batches: int, rows: int) -> Path:
        """As many files as batches. Spark takes them one at a time."""
        path = self._folder / name
        frame = self._spark.range(0, batches * rows, 1, batches)
        frame.selectExpr("CAST(id % 9000 AS STRING) AS key", f"{VALUE} AS value").write.parquet(
            str(path)
        )
        return path

    def _written(self, side: str, path: Path) -> tuple[float, float, float]:
        """Rows per second, the same per second of a processor, and milliseconds of a batch."""
        number = next(self._numbers)
        topic = self._kafka.topics.create(f"out-{number}", partitions=self._sizes.partitions)
        reader = self._spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(path)).repartition(CORES)
        writer = frame.writeStream.format(side).option("topic", topic)
        if side == OURS:
            writer = writer.option("sink", "kafka")
        writer = writer.option("kafka.bootstrap.servers", self._kafka.bootstrap_servers)
        writer = writer.option("kafka.compression.type", "lz4")
        writer = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{number}"))
        watch = Watch(self._left_out)
        query = writer.trigger(availableNow=True).start()
        finish(query)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        rows = sum(each["numInputRows"] for each in progress)
        took_ms = [each["durationMs"]["triggerExecution"] for each in progress]
        self._kafka.topics.delete(topic)
        return *watch.rates(rows), statistics.median(took_ms[1:])
