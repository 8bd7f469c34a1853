"""Streaming on Spark, from journals to a sink that keeps nothing, on two cores.

Documents are of 128 bytes; one in twenty is written twice, and one in ten is in a transaction. All
sides run in one warm session, in turns, and every run begins with a new checkpoint. All sides give
Spark the documents' own three columns; ours leave `_meta` out as users do, by `.schema(...)`.

`dedup`: documents per second with the shuffle running, beside plain Structured Streaming that
drops duplicates (RocksDB), repartitions and sorts in `foreachBatch`, otherwise as Spark comes;
`dedup_tuned`: beside the same with as many partitions as cores, and changelogs; `sort`: beside one
that does not even drop duplicates. The plain side reads Parquet files, which favours it. What drops
duplicates gets the first documents only: its state grows, so it is fastest with few.
`processor.`: the same per second of a processor, of all processes together; less depends on what
else the machine does.

`filled`: rows per second out of a queue that is full already, beside a Python source that gives one
prebuilt batch again and again: as fast as Spark takes rows from Python. `filled_meta`: the same
with `_meta` among the columns.

The others are milliseconds, and less is better. `batch`: a micro-batch of a few documents beside
one of a Python source that does nothing, medians; `visible`: from `append` to the batch that has
it, "ours" the median, "peer" the 99th percentile.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import itertools
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import penstock
from bench import shuffle_peers as peers
from bench.report import Line
from bench.shuffle_data import COLLECTION, make_store, write_documents
from bench.spark_runs import RUN_SECONDS_MAX, Watch, finish, to_nowhere
from bench.spark_sources import SCHEMA as COLUMNS
from bench.spark_sources import Prebuilt, Ticking
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.spark.session import STREAMING, local_session
from penstock.spark.streaming.options import MEMBERS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.journal import OpenStore

CORES: Final = 2
WARM_ROUNDS: Final = 2
"""Java compiles what runs often; it is not done after one."""


@dataclass(frozen=True, slots=True)
class Sizes:
    documents: int = 20_000_000
    """A query of ours takes a second and a half to start and to end, whatever it reads."""
    few: int = 1_000_000
    """For Spark, where it drops duplicates."""
    filled: int = 6_000_000
    rounds: int = 5
    short_rounds: int = 9
    """Of lines that take a second."""
    small_batches: int = 40
    appends: int = 100


def run(sizes: Sizes | None = None) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd())
        yield from _Run(stack, Path(stack.enter_context(folder)), sizes or Sizes()).lines()


class _Run:
    def __init__(self, stack: contextlib.ExitStack, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._numbers = iter(range(10_000))
        self._ids = itertools.count(1_000)
        self._store: OpenStore = stack.enter_context(make_store(folder / "journals"))
        write_documents(self._store, sizes.documents)
        peers.write_parquet(self._store, folder / "parquet")
        fewer = stack.enter_context(make_store(folder / "fewer"))
        write_documents(fewer, sizes.few)
        peers.write_parquet(fewer, folder / "few-parquet")
        # Spark's Python is compiled when it is installed; ours, in a checkout, may never be.
        compileall.compile_dir(Path(penstock.__file__).parent, quiet=1)
        settings: dict[str, Any] = {**STREAMING, "spark.driver.memory": "4g"}
        self._spark: SparkSession = local_session("penstock bench", CORES, **settings)
        stack.callback(self._spark.stop)
        for source in (Prebuilt, Ticking):
            self._spark.dataSource.register(source)

    def lines(self) -> Iterator[Line]:
        plain = (
            ("dedup", functools.partial(self._plain, dedup=True, settings=peers.AS_IT_COMES)),
            ("dedup_tuned", functools.partial(self._plain, dedup=True, settings=peers.TUNED)),
            ("sort", functools.partial(self._plain, dedup=False, settings=peers.TUNED)),
        )
        sides: list[Callable[[], tuple[float, float]]] = [self._ours, *(run for _, run in plain)]
        for _ in range(WARM_ROUNDS):
            for side in sides:
                side()
        rounds = [[side() for side in sides] for _ in range(self._sizes.rounds)]
        for place, (name, _) in enumerate(plain, 1):
            for kind, rate in (("", 0), ("processor.", 1)):
                rates = [(one[0][rate], one[place][rate]) for one in rounds]
                yield Line.of_rounds(f"spark.{kind}{name}", *_sides(rates), "documents/s")
        queue = _FilledQueue(self._folder / "filled", self._stream, self._sizes.filled)
        for schema in (COLUMNS, None):
            queue.read(schema)
            self._prebuilt()
            reads = range(self._sizes.short_rounds)
            filled = [(queue.read(schema), self._prebuilt()) for _ in reads]
            name = "spark.filled" if schema else "spark.filled_meta"
            yield Line.of_rounds(name, *_sides(filled), "documents/s")
        for _ in range(WARM_ROUNDS):
            for warm in (self._small_batches, self._ticks):
                warm()
        batches = [(self._small_batches(), self._ticks()) for _ in range(self._sizes.rounds)]
        yield Line.of_rounds("spark.batch", *_sides(batches), "ms")
        waits = sorted(self._visible())
        last = waits[min(len(waits) - 1, round(len(waits) * 0.99))]
        yield Line.of("spark.visible", statistics.median(waits), last, "ms")

    # Ours

    def _ours(self) -> tuple[float, float]:
        """From nothing: members start, read, sort, keep, and Spark takes all of it."""
        watch = Watch()
        query = self._drain(self._stream())
        rates = watch.rates(self._sizes.documents)
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        if rows != self._sizes.documents:
            raise RuntimeError(f"{rows} rows came of {self._sizes.documents} documents")
        return rates

    def _stream(self, schema: str | None = COLUMNS, **options: Any) -> DataFrame:
        """Without a schema there is `_meta`, too. To drop it later spares Spark nothing."""
        reader = self._spark.readStream.format("penstock").option("store", self._store.url)
        reader = reader.option("collection", COLLECTION).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    # The others

    def _plain(self, *, dedup: bool, settings: dict[str, str]) -> tuple[float, float]:
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        place = self._place()
        documents = self._folder / ("few-parquet" if dedup else "parquet")
        schema = self._spark.read.parquet(str(documents)).schema

        def sort(batch: DataFrame, _: int) -> None:
            ordered = batch.repartition(CORES, "id").sortWithinPartitions("clock")
            ordered.write.format("noop").mode("overwrite").save()

        reader = self._spark.readStream.schema(schema)
        frame = reader.option("maxFilesPerTrigger", peers.FILES_PER_TRIGGER).parquet(str(documents))
        if dedup:
            frame = frame.dropDuplicates(["id"])
        watch = Watch()
        finish(
            frame.writeStream.foreachBatch(sort)
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
        )
        return watch.rates(self._sizes.few if dedup else self._sizes.documents)

    def _prebuilt(self) -> float:
        frame = self._spark.readStream.format("prebuilt").option("rows", self._sizes.filled)
        query = to_nowhere(frame.load(), self._place(), {"availableNow": True})
        finish(query)
        return _rows_per_second(query)

    # Small batches

    def _small_batches(self) -> float:
        """Milliseconds of a batch, while documents trickle in."""
        store = make_store(self._folder / f"trickle-{next(self._numbers)}")
        stop = threading.Event()

        def trickle() -> None:
            """By one producer, which stays: others would be work beside what is measured."""
            with store.producer() as producer:
                while not stop.wait(0.02):
                    rows = [
                        {"id": next(self._ids), "shard": "0", "body": b"x" * 112} for _ in range(10)
                    ]
                    producer.append(COLLECTION, rows)

        write_documents(store, 10)
        writer = threading.Thread(target=trickle, daemon=True)
        query = to_nowhere(self._stream(store=store.url), self._place())
        writer.start()
        try:
            return _median_batch(query, self._sizes.small_batches)
        finally:
            stop.set()
            writer.join()
            query.stop()

    def _ticks(self) -> float:
        query = to_nowhere(self._spark.readStream.format("ticking").load(), self._place())
        try:
            return _median_batch(query, self._sizes.small_batches)
        finally:
            query.stop()

    def _visible(self) -> list[float]:
        """Milliseconds from `append` until a batch has the document."""
        store = make_store(self._folder / "visible")
        seen: dict[int, float] = {}
        came = threading.Condition()

        def note(batch: DataFrame, _: int) -> None:
            ids = [row.id for row in batch.select("id").collect()]
            with came:
                seen.update(dict.fromkeys(ids, time.monotonic()))
                came.notify_all()

        write_documents(store, 10)
        frame = self._stream(store=store.url)
        query = frame.writeStream.foreachBatch(note)
        running = query.option("checkpointLocation", str(self._place())).start()
        try:
            with came:
                came.wait_for(lambda: 9 in seen, RUN_SECONDS_MAX)
            waits = []
            with store.producer() as producer:
                for number in range(1_000, 1_000 + self._sizes.appends):
                    row = {"id": number, "shard": "0", "body": b"x" * 112}
                    begin = time.monotonic()
                    producer.append(COLLECTION, [row])
                    with came:
                        if not came.wait_for(lambda at=number: at in seen, RUN_SECONDS_MAX):  # type: ignore[misc]
                            raise RuntimeError(f"document {number} does not come")
                        waits.append((seen[number] - begin) * 1000)
            return waits
        finally:
            running.stop()

    def _drain(self, frame: DataFrame) -> StreamingQuery:
        query = to_nowhere(frame, self._place(), {"availableNow": True})
        finish(query)
        return query

    def _place(self) -> Path:
        return self._folder / f"checkpoint-{next(self._numbers)}"


class _FilledQueue:
    """A query whose second batch is all that its queue holds. It is read again and again, each time
    as if the batch had not been finished."""

    def __init__(self, folder: Path, stream: Callable[..., DataFrame], documents: int) -> None:
        self._documents = documents
        self._checkpoint = folder / "checkpoint"
        store = make_store(folder / "journals")
        feeds = folder / "feeds"
        self._stream = functools.partial(stream, store=store.url, folder=str(feeds))
        write_documents(store, 10)
        finish(to_nowhere(self._stream(), self._checkpoint, {"availableNow": True}))
        write_documents(store, documents, first=10)
        (feed,) = feeds.iterdir()
        _fill(store, feed)

    def read(self, schema: str | None) -> float:
        """Documents per second of that batch."""
        commits = self._checkpoint / "commits"
        for path in (commits / "1", commits / ".1.crc"):
            path.unlink(missing_ok=True)
        query = to_nowhere(self._stream(schema), self._checkpoint, {"availableNow": True})
        finish(query)
        (batch,) = [one for one in query.recentProgress if one["numInputRows"]]
        if batch["numInputRows"] != self._documents:
            raise RuntimeError(f"{batch['numInputRows']} rows came of {self._documents}")
        return _rows_per_second(query)


def _fill(store: OpenStore, folder: Path) -> None:
    """Without a consumer."""
    feed = Feed(COLLECTION, (Binding(COLLECTION),))
    outlet = Outlet(EmbeddedShuffle(feed, store, folder, members=MEMBERS_DEFAULT), store, feed)
    outlet.set_target()
    newest = outlet.newest()
    while not outlet.has_reached(newest):
        newest = outlet.wait_epoch(newest.number, 1.0) or newest
    outlet.close()


def _rows_per_second(query: StreamingQuery) -> float:
    """Of the batches alone, without what it takes to start a query."""
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    rows = sum(one["numInputRows"] for one in batches)
    return float(rows / sum(one["durationMs"]["addBatch"] for one in batches) * 1000)


def _median_batch(query: StreamingQuery, batches: int) -> float:
    """Milliseconds, once the first few are over."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while True:
        done = [one for one in query.recentProgress if one["numInputRows"]]
        if len(done) >= 2 * batches:
            took = [float(one["durationMs"]["triggerExecution"]) for one in done[-batches:]]
            return statistics.median(took)
        if time.monotonic() > deadline or not query.isActive:
            raise RuntimeError(f"only {len(done)} small batches came: {query.exception()}")
        time.sleep(0.1)


def _sides(rounds: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [ours for ours, _ in rounds], [peer for _, peer in rounds]
