"""Reading Kafka on Spark, from a topic to a sink that keeps nothing, on two cores.

Documents are JSON of 128 bytes, packed with lz4, in eight partitions. The broker, the session and
the topic are the same for all sides; sides run in turns, and every run begins with a new checkpoint
at the topic's earliest offsets. Ours gives Spark columns by the option `format`, in the order of
keys, with transactions whole; Spark's own Kafka source gives it bytes, which `from_json` parses.

`read`: documents per second, beside Spark's source with `from_json`. `dedup`: beside the same with
`dropDuplicates` (RocksDB, changelogs, as many partitions as cores), repartitioned by key and sorted
in `foreachBatch`; that side gets the first documents only, because its state grows. `processor.`:
the same per second of a processor, of all processes but the broker.

`visible`: milliseconds from the return of a transaction's commit until a batch has its document,
the median, beside Spark's source with `read_committed`; `visible_p99`: the 99th percentile. Less is
better. `partitions`: ours, documents per second of a processor with the same documents in a
thousand partitions, beside eight. `memory`: ours, megabytes that a process had of its own at most
with ten times the backlog, beside once: a ratio of 1 is flat.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

import penstock
from bench.kafka_data import DDL, FIRST_ID, document, fill
from bench.report import Line
from bench.shuffle_peers import TUNED
from bench.spark_runs import RUN_SECONDS_MAX, MemoryWatch, Watch, finish, to_nowhere
from penstock.spark.session import STREAMING, local_session
from penstock.testing.kafka import KafkaCluster, spark_kafka_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
WARM_ROUNDS: Final = 1
OFFSETS_PER_TRIGGER: Final = 500_000
"""Of the side that drops duplicates: about what its memory bears."""
BROKER_JAVA: Final = ("-Xms256m", "-Xmx512m")
ROWS, FEW, SPREAD, BACKLOG, COMMITS = "rows", "few", "spread", "backlog", "commits"
"""The topics."""


@dataclass(frozen=True, slots=True)
class Sizes:
    documents: int = 2_000_000
    few: int = 500_000
    """For Spark, where it drops duplicates."""
    backlog: int = 20_000_000
    partitions: int = 8
    partitions_many: int = 1_000
    rounds: int = 3
    commits: int = 100
    parts: frozenset[str] = frozenset({"read", "visible", "partitions", "memory"})
    """What is measured; each by itself is soon done."""


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
        self._servers = self._kafka.bootstrap_servers
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
        parts = {
            "read": self._reads,
            "visible": self._visible,
            "partitions": self._partitions,
            "memory": self._memory,
        }
        for name, measure in parts.items():
            if name in self._sizes.parts:
                yield from measure()

    # Documents per second

    def _reads(self) -> Iterator[Line]:
        self._make(ROWS, self._sizes.documents)
        self._make(FEW, self._sizes.few)
        plain = (("read", self._plain), ("dedup", self._dedup))
        ours = functools.partial(self._drain, ROWS, self._sizes.documents)
        sides: list[Callable[[], tuple[float, float]]] = [ours, *(side for _, side in plain)]
        for _ in range(WARM_ROUNDS):
            for side in sides:
                side()
        rounds = [[side() for side in sides] for _ in range(self._sizes.rounds)]
        for place, (name, _) in enumerate(plain, 1):
            for kind, rate in (("", 0), ("processor.", 1)):
                figures = [one[0][rate] for one in rounds], [one[place][rate] for one in rounds]
                yield Line.of_rounds(f"kafka.{kind}{name}", *figures, "documents/s")

    def _drain(self, topic: str, documents: int) -> tuple[float, float]:
        """Ours, from nothing: members start, read, sort, keep, and Spark takes all of it."""
        watch = Watch(self._left_out)
        query = to_nowhere(self._ours(topic), self._place(), {"availableNow": True})
        finish(query)
        rates = watch.rates(documents)
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        if rows != documents:
            raise RuntimeError(f"{rows} rows came of {documents} documents")
        return rates

    def _plain(self) -> tuple[float, float]:
        watch = Watch(self._left_out)
        query = to_nowhere(self._theirs(ROWS), self._place(), {"availableNow": True})
        finish(query)
        return watch.rates(self._sizes.documents)

    def _dedup(self) -> tuple[float, float]:
        def sort(batch: DataFrame, _: int) -> None:
            ordered = batch.repartition(CORES, "account").sortWithinPartitions("id")
            ordered.write.format("noop").mode("overwrite").save()

        frame = self._theirs(FEW, maxOffsetsPerTrigger=str(OFFSETS_PER_TRIGGER))
        watch = Watch(self._left_out)
        writer = frame.dropDuplicates(["id"]).writeStream.foreachBatch(sort)
        writer = writer.option("checkpointLocation", str(self._place()))
        finish(writer.trigger(availableNow=True).start())
        return watch.rates(self._sizes.few)

    # From commit to visible

    def _visible(self) -> Iterator[Line]:
        self._make(COMMITS, 10)
        theirs = self._theirs(COMMITS, **{"kafka.isolation.level": "read_committed"})
        ours = sorted(self._waits(self._ours(COMMITS)))
        peer = sorted(self._waits(theirs))
        middle = statistics.median
        yield Line.of("kafka.visible", middle(ours), middle(peer), "ms")
        yield Line.of("kafka.visible_p99", _last(ours), _last(peer), "ms")

    def _waits(self, frame: DataFrame) -> list[float]:
        """Milliseconds from the return of a commit until a batch has the document."""
        seen: dict[int, float] = {}
        came = threading.Condition()

        def note(batch: DataFrame, _: int) -> None:
            ids = [row.id for row in batch.select("id").collect()]
            with came:
                seen.update(dict.fromkeys(ids, time.monotonic()))
                came.notify_all()

        running = frame.writeStream.foreachBatch(note)
        query = running.option("checkpointLocation", str(self._place())).start()
        try:
            with came:
                came.wait_for(lambda: FIRST_ID + 9 in seen, RUN_SECONDS_MAX)
            commit = _committing(self._servers, f"bench-{next(self._numbers)}")
            numbers = [10_000 + next(self._numbers) for _ in range(2 * self._sizes.commits)]
            waits = []
            for number in numbers:
                begin = commit(number)
                with came:
                    wanted = FIRST_ID + number
                    if not came.wait_for(lambda at=wanted: at in seen, RUN_SECONDS_MAX):  # type: ignore[misc]
                        raise RuntimeError(f"document {number} does not come")
                    waits.append((seen[wanted] - begin) * 1000)
            return waits[self._sizes.commits :]
        finally:
            query.stop()

    # What does not grow

    def _partitions(self) -> Iterator[Line]:
        """The cost of a document, by the number of partitions that hold the same documents."""
        if ROWS not in self._kafka.topics.admin.list_topics().topics:
            self._make(ROWS, self._sizes.documents)
        self._make(SPREAD, self._sizes.documents, self._sizes.partitions_many)
        pairs = [
            [self._drain(topic, self._sizes.documents)[1] for topic in (SPREAD, ROWS)]
            for _ in range(self._sizes.rounds)
        ]
        many, eight = ([pair[side] for pair in pairs] for side in (0, 1))
        yield Line.of_rounds("kafka.partitions", many, eight, "documents/s")

    def _memory(self) -> Iterator[Line]:
        self._make(BACKLOG, self._sizes.documents)
        with MemoryWatch(self._left_out) as once:
            self._drain(BACKLOG, self._sizes.documents)
        rest = self._sizes.backlog - self._sizes.documents
        fill(
            self._servers,
            BACKLOG,
            rest,
            self._sizes.partitions,
            first=self._sizes.documents,
        )
        with MemoryWatch(self._left_out) as tenfold:
            self._drain(BACKLOG, self._sizes.backlog)
        yield Line.of("kafka.memory", tenfold.bytes_max / 1e6, once.bytes_max / 1e6, "MB")

    # Topics and frames

    def _make(self, topic: str, documents: int, partitions: int | None = None) -> None:
        count = partitions or self._sizes.partitions
        self._kafka.topics.create(topic, partitions=count)
        fill(self._servers, topic, documents, count)

    def _ours(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("penstock").options(**self._options(topic))
        reader = reader.option("folder", str(self._folder / "feeds"))
        # The schema of the reader leaves out what the peer does not have: Kafka's key, and `_meta`.
        return reader.option("format", "json").option("schema", DDL).schema(DDL).load()

    def _theirs(self, topic: str, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("kafka").options(**self._options(topic), **options)
        text = "from_json(CAST(value AS STRING), '{}') AS document"
        return reader.load().selectExpr(text.format(DDL)).select("document.*")

    def _options(self, topic: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }

    def _place(self) -> Path:
        return self._folder / f"checkpoint-{next(self._numbers)}"


def _committing(servers: str, name: str) -> Callable[[int], float]:
    """What commits a document in a transaction of its own, and says when it had."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(RUN_SECONDS_MAX)

    def commit(number: int) -> float:
        producer.begin_transaction()
        producer.produce(COMMITS, document(number), b"%d" % number)
        producer.commit_transaction(RUN_SECONDS_MAX)
        return time.monotonic()

    return commit


def _last(waits: list[float]) -> float:
    """Of sorted ones, the 99th percentile."""
    return waits[min(len(waits) - 1, round(len(waits) * 0.99))]
