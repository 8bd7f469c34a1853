"""A streaming read, killed at any of its steps and started again, has every document once."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import penstock as ps
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.spark.columns import arrow_schema
from penstock.spark.source import PenstockSource
from penstock.spark.streaming import steps
from penstock.spark.streaming.options import StreamOptions
from penstock.spark.streaming.reader import PenstockStreamReader
from penstock.spark.streaming.steps import Step
from tests import crashing
from tests.crashing import arm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.slow

WAIT_SECONDS_MAX = 180
ONCE_IN_A_LIFE = [Step.DRAWN, Step.NOTED]
OTHERWISE_THE_FIRST_TIME = [Step.PLANNED]
"""The first batch of all is on record now, and with it the name that was drawn. Before that a query
that is started again draws another one."""


class CrashingReader(PenstockStreamReader):
    def __init__(self, options: StreamOptions, schema: pa.Schema, plan: str) -> None:
        super().__init__(options, schema)
        self._plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arm(self._plan, steps)  # in a task's process
        return super().read(partition)


class CrashingSource(PenstockSource):
    @classmethod
    def name(cls) -> str:
        return "crashing_source"

    def __init__(self, options: dict[str, str]) -> None:
        self._plan = options.pop("plan")
        super().__init__(options)

    def streamReader(self, schema: StructType) -> CrashingReader:  # noqa: N802
        arm(self._plan, steps)  # in the source process
        options = StreamOptions.parse(self.options)
        return CrashingReader(options, arrow_schema(schema), self._plan)


for module in (crashing, sys.modules[__name__]):  # Spark's processes do not find them by name
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class Query:
    """From its first run to its last, with the rows of its batches."""

    def __init__(self, spark: SparkSession, store: ps.OpenStore, folder: Path) -> None:
        self._spark = spark
        self._store = store
        self._folder = folder
        self._plan = folder / "plan"
        self.batches: dict[int, list[tuple[str, int, int]]] = {}
        folder.mkdir()

    def run(self) -> None:
        """Reads what is there."""
        reader = self._spark.readStream.format("crashing_source").option("plan", str(self._plan))
        frame = reader.option("store", self._store.url).option("collection", "orders").load()
        writer = frame.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        assert query.awaitTermination(WAIT_SECONDS_MAX)

    def crash_at(self, step: Step) -> None:
        self._plan.write_text(repr(step))
        with pytest.raises(PySparkException):
            self.run()
        assert not self._plan.exists(), f"{step} was not reached"

    def _take(self, frame: DataFrame, number: int) -> None:
        # A repeated batch takes the place of the one before.
        rows = frame.select("_meta.journal", "_meta.offset", "id").collect()
        self.batches[number] = [(row.journal, row.offset, row.id) for row in rows]

    @property
    def rows(self) -> Counter[tuple[str, int, int]]:
        return Counter(row for rows in self.batches.values() for row in rows)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ps.OpenStore:
    store = ps.open_store(tmp_path_factory.mktemp("steps") / "store", durability="buffered")
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL, customer STRING", "customer"))
    return store


@pytest.fixture(scope="module")
def going_on(
    spark: SparkSession, store: ps.OpenStore, tmp_path_factory: pytest.TempPathFactory
) -> Query:
    """One query, whose every later run is killed at another step."""
    spark.dataSource.register(CrashingSource)
    write(store)
    query = Query(spark, store, tmp_path_factory.mktemp("later") / "query")
    query.run()
    assert query.rows == by_batch_reader(store)
    return query


def write(store: ps.OpenStore) -> None:
    """Some documents alone and twice, some in a transaction, some rolled back."""
    rows = [{"id": number, "customer": f"c{number % 7}"} for number in range(20)]
    with store.producer() as producer:
        stamped = producer.stamp("orders", rows)
        producer.send(stamped)
        producer.send(stamped)
        with producer.transaction() as transaction:
            transaction.append("orders", rows)
        transaction = producer.transaction()
        transaction.append("orders", rows)
        transaction.rollback()


def by_batch_reader(store: ps.OpenStore) -> Counter[tuple[str, int, int]]:
    found: Counter[Any] = Counter()
    for cut in take_cut(store, lambda: [journal.name for journal in store.journals("orders")]):
        for part in read_documents(store, cut, columns=["id"]):
            ids = part.documents.column("id").to_pylist()
            places = zip(part.offsets.tolist(), ids, strict=True)
            found.update((cut.journal, offset, number) for offset, number in places)
    return found


@pytest.mark.parametrize("step", [*ONCE_IN_A_LIFE, *OTHERWISE_THE_FIRST_TIME], ids=str)
def test_killed_in_its_first_run(
    going_on: Query, spark: SparkSession, store: ps.OpenStore, tmp_path: Path, step: Step
) -> None:
    del going_on  # it has registered the source
    query = Query(spark, store, tmp_path / "query")
    query.crash_at(step)
    write(store)
    query.run()
    assert query.rows == by_batch_reader(store)


@pytest.mark.parametrize("step", [step for step in Step if step not in ONCE_IN_A_LIFE], ids=str)
def test_killed_in_a_later_run(going_on: Query, store: ps.OpenStore, step: Step) -> None:
    write(store)
    going_on.crash_at(step)
    write(store)
    going_on.run()
    assert going_on.rows == by_batch_reader(store)
