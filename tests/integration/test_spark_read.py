"""Stories of journals, each read by both readers: the data source and Spark SQL."""

from __future__ import annotations

import datetime
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812

import penstock as ps
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, to_json
from penstock.ids import Kind, Producer, clock_to_datetime
from penstock.journal import transaction
from penstock.journal.file.ledger import FileLedger
from penstock.journal.frames import Ack, encode_ack, encode_documents
from penstock.journal.rows import conform
from penstock.journal.transaction import Step
from penstock.spark import documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.slow

JOURNAL = "orders/000"


@pytest.fixture
def store(tmp_path: Path) -> ps.OpenStore:
    store = ps.open_store(tmp_path / "store", durability="buffered", segment_bytes_max=20_000)
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL, note STRING", "id"))
    store.create(ps.Collection.define("payments", "id BIGINT NOT NULL, note STRING", "id"))
    return store


def rows(*ids: int, note: str = "") -> list[dict[str, Any]]:
    return [{"id": number, "note": note} for number in ids]


def load(spark: SparkSession, store: ps.OpenStore, collection: str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("store", store.url)
    return reader.option("collection", collection).options(**options).load()


def both(
    spark: SparkSession, store: ps.OpenStore, collection: str = "orders", **options: Any
) -> list[Row]:
    """What both readers give: the same documents, or the test fails."""
    found = load(spark, store, collection, **options).collect()
    by_sql = documents(spark, store=store.url, collection=collection, **options).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, by_sql))
    return found


def ids(
    spark: SparkSession, store: ps.OpenStore, collection: str = "orders", **options: Any
) -> list[int]:
    return sorted(row.id for row in both(spark, store, collection, **options))


def by_hand(
    store: ps.OpenStore, journal: str, producer: Producer, *what: tuple[Kind, int], start: int = 0
) -> None:
    """Appends one row each as no producer of ours would; documents are numbered from `start`."""
    spec = store.collection(journal.partition("/")[0])
    for number, (kind, clock) in enumerate(what, start):
        if kind is Kind.ACK:
            payloads = [encode_ack(1, Ack(producer, clock))]
        else:
            batch = conform(spec, rows(number))
            clocks = np.array([clock], dtype=np.uint64)
            payloads = list(encode_documents(spec.version, batch, producer, clocks, kind))
        end = store.append(journal, payloads, None).end
        store.sync(journal, end)


class Crash(BaseException):
    """The process ends here."""


def crash_at(wanted: Step) -> Callable[[Step], None]:
    def reached(step: Step) -> None:
        if step is wanted:
            raise Crash

    return reached


def test_documents_sent_twice_are_read_once(spark: SparkSession, store: ps.OpenStore) -> None:
    with store.producer() as producer:
        stamped = producer.stamp("orders", rows(1, 2, 3))
        producer.send(stamped)
        producer.send(stamped)
        producer.append("orders", rows(4))
    assert ids(spark, store) == [1, 2, 3, 4]
    raw = load(spark, store, "orders", view="raw")
    assert raw.count() == 7
    assert [row.id for row in raw.orderBy("_offset").collect()] == [1, 2, 3, 1, 2, 3, 4]


def test_meta_tells_place_and_identity(spark: SparkSession, store: ps.OpenStore) -> None:
    before = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    with store.producer() as producer:
        with producer.transaction() as txn:
            txn.append("orders", rows(1, 2))
        name = str(producer.id)
    first, second = sorted(both(spark, store, binding="7"), key=lambda row: row.id)
    meta = second._meta
    assert (meta.journal, meta.offset, meta.producer, meta.binding) == (JOURNAL, 1, name, 7)
    assert meta.clock_raw == first._meta.clock_raw + 160
    assert meta.clock - first._meta.clock == datetime.timedelta(microseconds=1)
    assert datetime.timedelta(0) <= meta.clock - before < datetime.timedelta(minutes=5)
    assert meta.commit_clock_raw == first._meta.commit_clock_raw > meta.clock_raw


def test_meta_clock_is_exact_to_the_microsecond(spark: SparkSession, store: ps.OpenStore) -> None:
    # Beyond what a double can hold apart, and before what Unix time can.
    clocks = [5, *((5 * 10**17 + units) << 4 | 15 for units in range(25))]
    by_hand(store, JOURNAL, Producer.random(), *((Kind.OUTSIDE, clock) for clock in clocks))
    found = sorted(both(spark, store), key=lambda row: row.id)
    assert [row._meta.clock_raw for row in found] == clocks
    moments = [clock_to_datetime(clock).replace(tzinfo=None) for clock in clocks]
    assert [row._meta.clock for row in found] == moments


def test_transaction_over_collections_rollback_and_open_one(
    spark: SparkSession, store: ps.OpenStore
) -> None:
    with store.producer() as producer, store.producer() as other:
        with producer.transaction() as txn:
            txn.append("orders", rows(1, 2))
            txn.append("payments", rows(1))
        txn = producer.transaction()
        txn.append("orders", rows(666))
        txn.append("payments", rows(666))
        txn.rollback()
        with producer.transaction() as txn:
            txn.append("orders", rows(3))
        producer.append("orders", rows(4))
        still_open = other.transaction()
        still_open.append("orders", rows(777))
        other_open = ids(spark, store), ids(spark, store, "payments")
        assert other_open == ([1, 2, 3, 4], [1])
        still_open.commit()
        assert ids(spark, store) == [1, 2, 3, 4, 777]
    hints = load(spark, store, "orders", view="raw").where("_kind = 'ACK'").orderBy("_offset")
    assert [row._hints for row in hints.collect()] == [["payments/000"], [], [], []]


def test_crash_between_acks_hides_all_then_shows_all(
    spark: SparkSession, store: ps.OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = store.producer()
    producer.append("orders", rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "reached", crash_at(Step.ACKNOWLEDGED_ONE))
        # A process that hangs there, or is killed, leaves nothing to recovery by itself.
        patch.setattr(FileLedger, "retire", lambda _ledger: None)
        txn = producer.transaction()
        txn.append("orders", rows(2))
        txn.append("payments", rows(2))
        with pytest.raises(Crash):
            txn.commit()
    # Others' appends make the ACK durable that this process never synced.
    with store.producer() as other:
        other.append("orders", rows(3))
        other.append("payments", rows(3))
    assert load(spark, store, "orders", view="raw").where("_kind = 'ACK'").count() == 1
    assert (ids(spark, store), ids(spark, store, "payments")) == ([1, 3], [3])
    os.close(producer._ledger._alive_descriptor)  # type: ignore[attr-defined]
    assert (ids(spark, store), ids(spark, store, "payments")) == ([1, 2, 3], [2, 3])


def test_several_segments_with_a_span_over_them_and_retention(
    spark: SparkSession, store: ps.OpenStore
) -> None:
    with store.producer() as producer, store.producer() as other:
        txn = producer.transaction()
        for step in range(12):
            txn.append("orders", rows(*range(step * 100, step * 100 + 50), note="x" * 50))
            other.append("orders", rows(*range(step * 100 + 50, step * 100 + 100), note="y" * 50))
        txn.commit()
        everything = list(range(1200))
        assert load(spark, store, "orders").rdd.getNumPartitions() > 3
        assert ids(spark, store) == everything
        first_kept = store.drop_before(JOURNAL, 500)
        assert 0 < first_kept <= 500
        kept = both(spark, store)
        assert min(row._meta.offset for row in kept) == first_kept
        # Documents come in pairs of 50 rows each, so that offset and number go together.
        assert sorted(row.id for row in kept) == everything[first_kept:]
        stamped = other.stamp("orders", rows(5000))
        other.send(stamped)
        store.drop_before(JOURNAL, store.probe(JOURNAL).write_head)
        other.send(stamped)
        assert ids(spark, store).count(5000) <= 1
        store.suspend(JOURNAL)
        assert ids(spark, store) == []
        other.append("orders", rows(6000))
        assert ids(spark, store) == [6000]


def test_new_columns_are_null_in_older_documents(spark: SparkSession, store: ps.OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", rows(1))
        before = load(spark, store, "orders")
        store.evolve("orders", "id BIGINT NOT NULL, note STRING, size INT, tags ARRAY<STRING>")
        producer.append("orders", [{"id": 2, "note": "b", "size": 7, "tags": ["t", None]}])
    found = sorted((row.id, row.size, row.tags) for row in both(spark, store))
    assert found == [(1, None, None), (2, 7, ["t", None])]
    assert before.columns == ["id", "note", "_meta"]
    assert [row.id for row in before.collect()] == [1]


def test_partitions_are_selected(spark: SparkSession, store: ps.OpenStore) -> None:
    spec = ps.Collection.define(
        "sales", "id BIGINT, region STRING, tier INT", "id", ("region", "tier")
    )
    store.create(spec)
    sales = [
        {"id": number, "region": region, "tier": tier}
        for number, (region, tier) in enumerate(
            (region, tier) for region in ("eu", "us", "a/b", None) for tier in (1, 2)
        )
    ]
    with store.producer() as producer:
        producer.append("sales", sales)
    assert ids(spark, store, "sales") == list(range(8))
    assert ids(spark, store, "sales", partitions="region=eu,region=a/b,!tier=2") == [0, 4]
    assert ids(spark, store, "sales", partitions="region=nowhere") == []


def test_as_of_a_moment_is_atomic_over_collections(
    spark: SparkSession, store: ps.OpenStore
) -> None:
    with store.producer() as producer:
        with producer.transaction() as txn:
            txn.append("orders", rows(1))
            txn.append("payments", rows(1))
        txn = producer.transaction()
        txn.append("orders", rows(2))
        txn.append("payments", rows(2))
        time.sleep(0.01)
        moment = datetime.datetime.now(datetime.UTC)
        time.sleep(0.01)
        txn.commit()
    text = moment.isoformat()
    # The second transaction's documents are older than the moment, but its commit is not.
    for collection in ("orders", "payments"):
        assert ids(spark, store, collection, as_of=text) == [1]
        assert ids(spark, store, collection) == [1, 2]
    by_sql = documents(spark, store=store.url, collection="orders", as_of=moment)
    assert [row.id for row in by_sql.collect()] == [1]


def test_as_of_a_frontier(spark: SparkSession, store: ps.OpenStore) -> None:
    with store.producer() as producer, store.producer() as other:
        producer.append("orders", rows(1, 2, 3))
        other.append("orders", rows(4))
        clock = next(row._meta.clock_raw for row in both(spark, store) if row.id == 2)
        entry = ProducerFrontier(producer.id, clock, offset=-2)
    frontier = Frontier.of([JournalFrontier(JOURNAL, 3, (entry,))])
    assert ids(spark, store, as_of=to_json(frontier), binding="3") == [1, 2]
    assert ids(spark, store, as_of=to_json(frontier), binding="0") == []
    by_sql = documents(spark, store=store.url, collection="orders", as_of=frontier, binding=3)
    assert sorted(row.id for row in by_sql.collect()) == [1, 2]
    of_then = to_json(store.frontier("orders", "payments"))
    with store.producer() as producer, producer.transaction() as txn:
        txn.append("orders", rows(5))
        txn.append("payments", rows(5))
    assert ids(spark, store, as_of=of_then) == [1, 2, 3, 4]
    assert ids(spark, store, "payments", as_of=of_then) == []


def test_loaded_frame_keeps_its_cut_and_its_rows(spark: SparkSession, store: ps.OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", rows(*range(10)))
        frame = load(spark, store, "orders")
        by_sql = documents(spark, store=store.url, collection="orders")
        producer.append("orders", rows(10))
        assert frame.where("id > 4").count() == 5
    # Spark would use a reader that took a filter over for all that follows.
    for read in (frame, by_sql):
        assert read.where("id < 3").union(read.where("id >= 3")).count() == 10
        assert read.count() == 10
    assert load(spark, store, "orders").count() == 11


def test_shuffle_key_and_order(spark: SparkSession, store: ps.OpenStore) -> None:
    store.create(ps.Collection.define("clicks", "id BIGINT, who STRING, at INT", "id", "at"))
    clicks = [
        {"id": number, "who": None if number % 11 == 0 else f"who{number % 7}", "at": number % 3}
        for number in range(300)
    ]
    with store.producer() as producer, store.producer() as other:
        for start in range(0, 300, 50):
            (producer if start % 100 else other).append("clicks", clicks[start : start + 50])
    options = {"shuffle_key": "who, at", "shuffle_partitions": "4"}
    source = load(spark, store, "clicks", order="clock", **options)
    by_sql = documents(
        spark, store=store.url, collection="clicks", order="clock",
        shuffle_key=["who", "at"], shuffle_partitions=4,
    )  # fmt: skip
    for frame in (source, by_sql):
        found = frame.withColumn("part", F.spark_partition_id()).collect()
        assert sorted(row.id for row in found) == list(range(300))
        homes = {((row.who, row.at), row.part) for row in found}
        assert len(homes) == len({key for key, _ in homes}) == 24
        assert len({part for _, part in homes}) == 4
        for part in range(4):
            keys = [
                (row._meta.clock_raw, row._meta.journal, row._meta.offset)
                for row in found
                if row.part == part
            ]
            assert keys == sorted(keys)
            assert len({journal for _, journal, _ in keys}) > 1
    ordered = load(spark, store, "clicks", order="offset").collect()
    places = [(row._meta.journal, row._meta.offset) for row in ordered]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("what", "offset"),
    [
        ([(Kind.CONTINUE, 10), (Kind.CONTINUE, 11), (Kind.OUTSIDE, 12)], 2),
        ([(Kind.OUTSIDE, 5), (Kind.CONTINUE, 10), (Kind.ACK, 7)], 2),
    ],
)
def test_protocol_fault_is_told_with_its_place(
    spark: SparkSession, store: ps.OpenStore, what: list[tuple[Kind, int]], offset: int
) -> None:
    by_hand(store, JOURNAL, Producer.random(), *what)
    by_sql = documents(spark, store=store.url, collection="orders")
    # A condition that leaves the faulty producer out must not hide it.
    condition = "_meta.producer = '000000000000'"
    for frame in (load(spark, store, "orders"), by_sql, by_sql.where(condition)):
        with pytest.raises(Exception, match=f"journal {JOURNAL} at offset {offset}: producer"):
            frame.collect()


def test_damaged_segment_is_told_with_its_name(
    spark: SparkSession, store: ps.OpenStore, tmp_path: Path
) -> None:
    with store.producer() as producer:
        producer.append("orders", rows(*range(100), note="x" * 20))
    (segment,) = (tmp_path / "store" / "journals" / "orders" / "000").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[-100] ^= 1
    segment.write_bytes(bytes(data))
    by_sql = documents(spark, store=store.url, collection="orders")
    for frame in (load(spark, store, "orders"), by_sql):
        with pytest.raises(Exception, match=f"{JOURNAL}: segment {segment.name} is damaged"):
            frame.collect()
