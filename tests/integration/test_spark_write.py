"""Spark writes through two-phase sinks: once, through a crash at every step."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.journal import transaction
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.sinks import batches, kafka
from penstock.sinks.two_phase import Batch
from penstock.spark import documents, read_manifests
from penstock.spark.source import PenstockSource
from penstock.spark.writing import SinkStreamWriter, sink_for
from tests import crashing
from tests.crashing import arm
from tests.postgres_server import Database, database

if TYPE_CHECKING:
    import enum
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.slow

__all__ = ["database"]

STEPS: list[enum.Enum] = [
    *batches.Step,
    *(step for step in transaction.Step if step is not transaction.Step.ROLLED_BACK_ONE),
]


class CrashingWriter(SinkStreamWriter):
    """Every task stages its rows twice, and tells of the second time only. A process that comes to
    the step that a file names is killed, and the file removed."""

    def __init__(self, sink: Any, plan: str) -> None:
        super().__init__(sink)
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        rows = list(iterator)
        self._sink.stage(Batch("unknown", 0), 0, iter(rows))
        self._arm()
        super().write(iter(rows))
        return super().write(iter(rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._arm()
        super().commit(messages, batchId)

    def _arm(self) -> None:
        arm(self._plan, batches, transaction, kafka)


class CrashingSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        plan = options.pop("plan")
        return CrashingWriter(sink_for(options, schema, overwrite), plan)


for module in (crashing, sys.modules[__name__]):  # Spark's processes do not find them by name
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class Pipeline:
    """Numbers from files, one file a batch, into a sink."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        spark.dataSource.register(CrashingSource)
        self.spark = spark
        self.folder = folder
        self.input = folder / "input"
        self.input.mkdir(parents=True)
        self.plan = folder / "plan"
        self.options = options
        self.expected: list[int] = []

    def add(self, *ids: int) -> None:
        lines = [json.dumps({"id": each, "region": f"r{each % 3}"}) for each in ids]
        name = f"{len(list(self.input.iterdir())):06}.json"
        (self.folder / name).write_text("\n".join(lines))
        (self.folder / name).rename(self.input / name)
        self.expected += ids

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema("id BIGINT, region STRING")
        frame = reader.option("maxFilesPerTrigger", 1).json(str(self.input))
        return frame.repartition(2, "id")

    def run(self, form: str = "crashing", frame: DataFrame | None = None) -> str:
        """Works off all input; gives the query's id."""
        writer = (self.frame() if frame is None else frame).writeStream.format(form)
        if form == "crashing":
            writer = writer.option("plan", str(self.plan))
        checkpoint = str(self.folder / "checkpoint")
        query = (
            writer.options(**self.options)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.id)

    def crash_at(self, step: enum.Enum, frame: DataFrame | None = None) -> None:
        self.plan.write_text(repr(step))
        with pytest.raises(StreamingQueryException):
            self.run(frame=frame)
        assert not self.plan.exists(), f"{step} was not reached"


@pytest.fixture
def store(tmp_path: Path) -> ps.OpenStore:
    return new_store(tmp_path / "store")


def new_store(folder: Path) -> ps.OpenStore:
    store = ps.open_store(folder, durability="buffered")
    schema = "id BIGINT NOT NULL, region STRING NOT NULL, note STRING"
    store.create(ps.Collection.define("out", schema, "id", "region"))
    return store


def ids_in(spark: SparkSession, store: ps.OpenStore, collection: str = "out") -> Counter[int]:
    """By the reader that knows nothing of the one we use: Spark SQL over raw rows."""
    frame = documents(spark, store=store.url, collection=collection)
    return Counter(row.id for row in frame.select("id").collect())


def ids_now(store: ps.OpenStore) -> Counter[Any]:
    """The same without Spark, which takes a second for it."""
    store.recover()
    found: Counter[Any] = Counter()
    for cut in take_cut(store, lambda: [journal.name for journal in store.journals("out")]):
        for part in read_documents(store, cut, columns=["id"]):
            found.update(part.documents.column("id").to_pylist())
    return found


@pytest.fixture(scope="module")
def going_on(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Pipeline, ps.OpenStore]:
    """One query, whose every batch is killed at another step."""
    folder = tmp_path_factory.mktemp("crashes")
    store = new_store(folder / "store")
    return Pipeline(spark, folder, store=store.url, collection="out"), store


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_killed_at_a_step_and_started_again(
    going_on: tuple[Pipeline, ps.OpenStore], step: enum.Enum
) -> None:
    pipeline, store = going_on
    before = Counter(pipeline.expected)
    first = len(pipeline.expected)
    pipeline.add(*range(first, first + 20))
    pipeline.crash_at(step)
    found = ids_now(store)
    assert found in (before, Counter(pipeline.expected)), "a batch is seen whole or not at all"
    pipeline.run()
    assert ids_in(pipeline.spark, store) == Counter(pipeline.expected)
    staged = Path(store.url.removeprefix("file://")) / "sinks" / "staged"
    left = [path for path in staged.glob("*/*") if path.parent.name != "unknown"]
    assert not left, "no attempt leaves a trace"


def test_several_batches_and_a_new_checkpoint(
    spark: SparkSession, store: ps.OpenStore, tmp_path: Path
) -> None:
    """A query without its checkpoint is another query: it begins with batch 0 again, and writes."""
    pipeline = Pipeline(spark, tmp_path, store=store.url, collection="out")
    for first in range(0, 30, 10):
        pipeline.add(*range(first, first + 10))
    first_id = pipeline.run("penstock")
    assert pipeline.run("penstock") == first_id
    assert ids_in(spark, store) == Counter(pipeline.expected)
    (tmp_path / "checkpoint").rename(tmp_path / "lost")
    assert pipeline.run("penstock") != first_id
    assert ids_in(spark, store) == Counter(pipeline.expected * 2)
    producers = {
        row.producer
        for row in documents(spark, store=store.url, collection="out")
        .select("_meta.producer")
        .distinct()
        .collect()
    }
    assert len(producers) <= 3, "a process uses one producer for all batches of a query"


def test_chained_collections_stay_exactly_once(
    spark: SparkSession, store: ps.OpenStore, tmp_path: Path
) -> None:
    """The first query writes what the second reads; either is killed on its way."""
    copy = "id BIGINT NOT NULL, region STRING, source STRUCT<journal: STRING, `offset`: BIGINT>"
    store.create(ps.Collection.define("copy", copy, "id"))
    first = Pipeline(spark, tmp_path / "first", store=store.url, collection="out")
    second = Pipeline(spark, tmp_path / "second", store=store.url, collection="copy", meta="source")
    reader = spark.readStream.format("penstock").option("store", store.url)
    read = reader.option("collection", "out").load().select("id", "region", "_meta")
    first.add(*range(20))
    first.crash_at(transaction.Step.DECIDED)
    first.run()
    second.crash_at(batches.Step.COMMITTED, read)
    second.run(frame=read)
    first.add(*range(20, 30))
    first.crash_at(batches.Step.DECIDED)
    second.run(frame=read)
    first.run()
    second.run(frame=read)
    assert ids_in(spark, store) == Counter(first.expected)
    assert ids_in(spark, store, "copy") == Counter(first.expected)
    traced = documents(spark, store=store.url, collection="copy").select("id", "source.*")
    places = documents(spark, store=store.url, collection="out")
    origin = places.select("id", "_meta.journal", "_meta.offset")
    assert sorted(map(tuple, traced.collect())) == sorted(map(tuple, origin.collect()))


def test_meta_travels_where_it_is_told_to(
    spark: SparkSession, store: ps.OpenStore, tmp_path: Path
) -> None:
    traced = "id BIGINT NOT NULL, source STRUCT<`offset`: BIGINT, journal: STRING>"
    store.create(ps.Collection.define("traced", traced, "id"))
    pipeline = Pipeline(spark, tmp_path, store=store.url, collection="traced")
    pipeline.add(1, 2)
    meta = F.struct(
        F.lit("in/000").alias("journal"),
        (F.col("id") + 7).alias("offset"),
        F.lit(1).alias("binding"),
    )
    frame = pipeline.frame().select("id", meta.alias("_meta"))
    with pytest.raises(StreamingQueryException, match="has the column '_meta'"):
        pipeline.run("penstock", frame)
    pipeline.options["meta"] = "source"
    pipeline.run("penstock", frame)
    rows = documents(spark, store=store.url, collection="traced").select("id", "source.*").collect()
    assert sorted(map(tuple, rows)) == [(1, 8, "in/000"), (2, 9, "in/000")]


def test_frame_that_does_not_fit_is_told_before_anything_is_written(
    spark: SparkSession, store: ps.OpenStore, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path, store=store.url, collection="out")
    pipeline.add(1)
    frame = pipeline.frame().withColumn("id", F.col("id").cast("string"))
    words = "column 'id' is STRING in the frame, and BIGINT in collection 'out'"
    with pytest.raises(StreamingQueryException, match=words):
        pipeline.run("penstock", frame)
    assert not list((tmp_path / "store").glob("sinks/**/*"))
    # What only the rows can tell is told by a task; nothing is committed.
    frame = pipeline.frame().withColumn("region", F.lit(None).cast("string"))
    with pytest.raises(StreamingQueryException, match="column 'region': has no value"):
        pipeline.run("penstock", frame)
    pipeline.run("penstock")
    assert ids_in(spark, store) == Counter([1])


def test_parquet_sink_killed_between_decision_and_manifest(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path, sink="parquet", path=str(tmp_path / "out"))
    pipeline.add(*range(20))
    pipeline.run()
    pipeline.add(*range(20, 40))
    pipeline.crash_at(batches.Step.DECIDED)
    assert read_manifests(spark, str(tmp_path / "out")).count() == 20
    query = pipeline.run()
    for frame in (
        read_manifests(spark, str(tmp_path / "out")),
        read_manifests(spark, str(tmp_path / "out"), query),
    ):
        assert Counter(row.id for row in frame.collect()) == Counter(range(40))
        assert frame.columns == ["id", "region"]


def test_postgres_sink_killed_when_prepared_and_when_decided(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE numbers (id bigint PRIMARY KEY, region text)")
    options = {"conninfo": database.conninfo, "table": "numbers"}
    pipeline = Pipeline(spark, tmp_path, sink="postgres", **options)
    for step in (batches.Step.PREPARED, batches.Step.DECIDED):
        first = len(pipeline.expected)
        pipeline.add(*range(first, first + 9))
        pipeline.crash_at(step)
        pipeline.run()
    with database.connect() as connection:
        found = connection.execute("SELECT id FROM numbers ORDER BY id").fetchall()
        left = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
    assert [each for (each,) in found] == pipeline.expected
    assert not left, "no prepared transaction is left behind"


def test_what_changes_is_written_once_in_foreach_batch(
    spark: SparkSession, database: Database, store: ps.OpenStore, tmp_path: Path
) -> None:
    """Aggregates go out in mode 'update', which Spark has for foreachBatch and not for sinks. The
    function dies between its two writes: the first is not written again."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE totals (region text PRIMARY KEY, documents bigint)")
    store.create(ps.Collection.define("changes", "region STRING, documents BIGINT", "region"))
    table = {"sink": "postgres", "conninfo": database.conninfo, "table": "totals", "key": "region"}
    collection = {"store": store.url, "collection": "changes"}
    dying = [False]

    def write(frame: DataFrame, number: int) -> None:
        for options in (collection, table):
            writer = frame.write.format("penstock").options(**options).option("batch", number)
            writer.mode("append").save()
            if dying[0]:
                dying[0] = False
                raise RuntimeError("between the two")

    pipeline = Pipeline(spark, tmp_path)
    totals = pipeline.frame().groupBy("region").agg(F.count("*").alias("documents"))

    def run() -> None:
        writer = totals.writeStream.outputMode("update").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    pipeline.add(0, 1, 3)
    run()
    pipeline.add(6, 2)
    dying[0] = True
    with pytest.raises(StreamingQueryException, match="between the two"):
        run()
    run()
    with database.connect() as connection:
        found = connection.execute("SELECT * FROM totals ORDER BY region").fetchall()
    assert found == [("r0", 3), ("r1", 1), ("r2", 1)]
    changes = documents(spark, store=store.url, collection="changes")
    rows = changes.select("region", "documents").collect()
    assert sorted(map(tuple, rows)) == [("r0", 2), ("r0", 3), ("r1", 1), ("r2", 1)]


def test_a_data_frame_is_written_whole(spark: SparkSession, store: ps.OpenStore) -> None:
    frame = spark.range(100).selectExpr("id", "concat('r', id % 4) AS region")
    writer = frame.write.format("penstock").option("store", store.url).option("collection", "out")
    writer.mode("append").save()
    assert ids_in(spark, store) == Counter(range(100))
    # In one task: what another one stages after the job was given up would stay.
    bad = frame.coalesce(1).selectExpr("id", "if(id = 77, null, region) AS region")
    failing = bad.write.format("penstock")
    with pytest.raises(Exception, match="column 'region': has no value"):
        failing.options(store=store.url, collection="out").mode("append").save()
    assert ids_in(spark, store) == Counter(range(100))
    # Folders are named after queries, by chance: some of those names begin like a part's, too.
    found = Path(store.url.removeprefix("file://")).glob("sinks/**/0*")
    assert not [path for path in found if path.is_file()], "nothing is left of it"
