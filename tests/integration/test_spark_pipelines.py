"""The examples' pipelines, held against Spark SQL over the batch reader."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.demo import fleet, producers
from penstock.spark.pipeline import Pipeline, load_pipeline
from tests.postgres_server import Database, database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

__all__ = ["database"]

EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_SECONDS_MAX = 300
DELAY_SECONDS = 1.0
"""The read delay of payments in the join."""


class World:
    """A store with faults in it, and pipelines over it, each with its own checkpoints."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._parts = 0
        self._written_at = time.time()
        self.store = ps.open_store(folder / "store", durability="buffered")
        for collection in fleet.COLLECTIONS:
            self.store.create(collection)
        orders = "id BIGINT NOT NULL, customer STRING NOT NULL, cents BIGINT"
        payments = "id BIGINT NOT NULL, order_id BIGINT, cents BIGINT"
        self.store.create(ps.Collection.define("orders", orders, "id", "customer"))
        self.store.create(ps.Collection.define("payments", payments, "id"))

    def write(self) -> None:
        """More of everything: twice, in transactions, rolled back, and by several producers."""
        self._write_auctions(self._parts * 60_000)
        self._write_shop(self._parts * 100)
        self._parts += 1
        self._written_at = time.time()

    def _write_auctions(self, first: int) -> None:
        """Of some seconds of the auctions' time, one now and one later."""
        for number in range(2):
            job = producers.Job(
                name=f"job-{first}-{number}",
                store=self.store.url,
                report=str(self._folder / f"report-{first}-{number}"),
                seed=2,
                first=first + number * 120_000,
                count=1_200,
                batch_events=100,
                fault=producers.Fault.ORDINARY,
            )
            producers.run(job)

    def _write_shop(self, first: int) -> None:
        """Orders, of which most are paid, many in two parts."""
        ids = range(first, first + 100)
        orders = [{"id": id_, "customer": f"c{id_ % 7}", "cents": 900 * id_} for id_ in ids]
        payments = [
            {"id": 2 * id_ + part, "order_id": id_, "cents": 450 * id_}
            for id_ in ids
            for part in range(id_ % 3)
        ]
        with self.store.producer() as producer:
            with producer.transaction() as transaction:
                transaction.append("orders", orders[:50])
                transaction.append("payments", payments[:20])
            for collection, rows in (("orders", orders[50:]), ("payments", payments[20:])):
                stamped = producer.stamp(collection, rows)
                producer.send(stamped)
                producer.send(stamped)
            transaction = producer.transaction()
            transaction.append("orders", orders)
            transaction.append("payments", payments)
            transaction.rollback()

    def run(self, file: str) -> None:
        """To the end of what is there now, each query after the one before."""
        name, function = load_pipeline(EXAMPLES / file)
        made = Pipeline(
            self._spark,
            self.store,
            self._folder / "checkpoints" / name,
            trigger={"availableNow": True},
            started=lambda query: query.awaitTermination(WAIT_SECONDS_MAX),
        )
        function(made)
        assert made.queries
        assert [query for query in made.queries if query.isActive] == []

    def await_delayed(self) -> None:
        """Until all that is written is old enough for a delayed binding."""
        time.sleep(max(0.0, self._written_at + DELAY_SECONDS + 0.1 - time.time()))

    def by_sql(self, query: str) -> Counter[tuple[Any, ...]]:
        """Of all collections, as the batch reader has them now."""
        for collection in self.store.collections():
            reader = self._spark.read.format("penstock").option("store", self.store.url)
            reader.option("collection", collection).load().createOrReplaceTempView(collection)
        return Counter(tuple(row) for row in self._spark.sql(query).collect())

    def newest(self, collection: str, key: int) -> Counter[tuple[Any, ...]]:
        """Of each key, which is the first so many columns, the newest document."""
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for *row, clock in sorted(
            self.by_sql(f"SELECT * EXCEPT (_meta), _meta.clock_raw FROM {collection}"),
            key=lambda row: row[-1],
        ):
            assert clock
            found[tuple(row[:key])] = tuple(row)
        return Counter(found.values())


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(spark, tmp_path_factory.mktemp("pipelines"))
    made.write()
    return made


@dataclass(frozen=True, slots=True)
class Case:
    file: str
    collection: str
    answer: str
    key: int = 0
    """With mode `update`: how many columns of the collection are its key."""
    again: bool = False
    """Whether it is run a second time, on more documents."""


WINDOW = "window(date_time, '10 seconds').start"
CASES = [
    Case(
        "nexmark/q1_currency.py",
        "bids_in_euros",
        "SELECT id, auction, bidder, price * 0.908D, date_time FROM bids",
    ),
    Case(
        "nexmark/q2_selection.py",
        "selected_bids",
        "SELECT id, auction, price FROM bids WHERE auction % 123 = 0",
    ),
    Case(
        "nexmark/q3_local_items.py",
        "local_items",
        "SELECT auctions.id, name, city, state FROM auctions JOIN people ON seller = people.id "
        "WHERE state IN ('OR', 'ID', 'CA') AND category = 10",
        again=True,
    ),
    Case(
        "nexmark/q5_hot_items.py",
        "hot_items",
        "SELECT auction, window.start, count(*) FROM bids "
        "GROUP BY auction, window(date_time, '10 seconds', '5 seconds')",
        key=2,
        again=True,
    ),
    Case(
        "nexmark/q8_new_users.py",
        "new_users",
        f"WITH joined AS (SELECT *, {WINDOW} AS begin FROM people), "
        f"begun AS (SELECT *, {WINDOW} AS begin FROM auctions) "
        "SELECT joined.id, name, begun.id FROM joined JOIN begun "
        "ON joined.id = seller AND joined.begin = begun.begin",
    ),
    Case(
        "order_payment_join.py",
        "paid_orders",
        "SELECT order_id, customer, payments.cents, "
        "CAST(payments._meta.clock AS DOUBLE) - CAST(orders._meta.clock AS DOUBLE) "
        "FROM orders JOIN payments ON orders.id = order_id "
        "WHERE payments._meta.clock >= orders._meta.clock",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_a_pipeline_writes_what_spark_sql_finds(world: World, case: Case) -> None:
    world.await_delayed()
    world.run(case.file)
    _check(world, case)
    if case.again:
        before = len(world.by_sql(f"SELECT * FROM {case.collection}"))
        world.write()
        world.run(case.file)
        _check(world, case)
        assert len(world.by_sql(f"SELECT * FROM {case.collection}")) > before


def _check(world: World, case: Case) -> None:
    expected = world.by_sql(case.answer)
    assert expected
    if case.key:
        assert world.newest(case.collection, case.key) == expected
    else:
        assert world.by_sql(f"SELECT * EXCEPT (_meta) FROM {case.collection}") == expected


def test_two_stages_meet_in_a_collection(world: World) -> None:
    for _ in range(2):
        world.run("two_stages.py")
        sums = world.by_sql("SELECT order_id, sum(cents) FROM payments GROUP BY order_id")
        assert sums
        assert world.newest("paid", key=1) == sums
        large = world.by_sql("SELECT order_id, cents FROM paid WHERE cents >= 10000")
        assert large
        assert world.by_sql("SELECT order_id, cents FROM large") == large
        world.write()


def test_a_table_of_postgres_is_kept_up_to_date(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE spent (customer text PRIMARY KEY, cents bigint)")
    monkeypatch.setenv("SHOP_DATABASE", database.conninfo)
    for _ in range(2):
        world.run("postgres_upsert.py")
        with database.connect() as connection:
            found = connection.execute("SELECT customer, cents FROM spent").fetchall()
        assert Counter(found) == world.by_sql(
            "SELECT customer, sum(cents) FROM orders GROUP BY customer"
        )
        world.write()
