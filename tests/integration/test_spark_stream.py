"""`spark.readStream.format("penstock")`, held against the batch reader over the same journals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock as ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow

WAIT_SECONDS_MAX = 180


@pytest.fixture
def store(tmp_path: Path) -> ps.OpenStore:
    store = ps.open_store(tmp_path / "store", durability="buffered", segment_bytes_max=50_000)
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL, customer STRING", "customer"))
    store.create(ps.Collection.define("payments", "id BIGINT NOT NULL, paid BIGINT", "id"))
    return store


class Streams:
    """Queries over one store, each with the rows of its batches."""

    def __init__(self, spark: SparkSession, store: ps.OpenStore, folder: Path) -> None:
        self._spark = spark
        self._store = store
        self._folder = folder

    def frame(self, schema: str | None = None, **options: Any) -> DataFrame:
        stream = self._spark.readStream.format("penstock").option("store", self._store.url)
        if schema is not None:
            stream = stream.schema(schema)
        return stream.options(
            **{"collection": "orders", **options} if "feed" not in options else options
        ).load()

    def start(
        self,
        batches: dict[int, list[Any]],
        name: str = "query",
        after: Callable[[int], None] | None = None,
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> StreamingQuery:
        def take(frame: DataFrame, number: int) -> None:
            # A repeated batch takes the place of the one before.
            batches[number] = [
                row.asDict(recursive=True) | {"task": task}
                for task, rows in enumerate(frame.rdd.glom().collect())
                for row in rows
            ]
            if after is not None:
                after(number)

        writer = self.frame(**options).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoints" / name))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def drain(self, batches: dict[int, list[Any]], **more: Any) -> StreamingQuery:
        query = self.start(batches, **more)
        assert query.awaitTermination(WAIT_SECONDS_MAX)
        return query

    def by_batch_reader(self, collection: str = "orders") -> Counter[tuple[str, int]]:
        reader = self._spark.read.format("penstock").option("store", self._store.url)
        rows = reader.option("collection", collection).load().select("_meta").collect()
        return Counter((row._meta.journal, row._meta.offset) for row in rows)


@pytest.fixture
def streams(spark: SparkSession, store: ps.OpenStore, tmp_path: Path) -> Streams:
    return Streams(spark, store, tmp_path)


def places(batches: dict[int, list[Any]]) -> Counter[tuple[str, int]]:
    return Counter(
        (row["_meta"]["journal"], row["_meta"]["offset"])
        for rows in batches.values()
        for row in rows
    )


def orders(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "customer": f"c{number % 17}"} for number in ids]


def write(store: ps.OpenStore, begin: int, count: int) -> None:
    """Some documents alone, some twice, some in transactions, some rolled back."""
    with store.producer() as producer:
        stamped = producer.stamp("orders", orders(*range(begin, begin + count)))
        producer.send(stamped)
        producer.send(stamped)
        with producer.transaction() as transaction:
            transaction.append("orders", orders(*range(begin + count, begin + 2 * count)))
            transaction.append("payments", [{"id": begin, "paid": 1}])
        transaction = producer.transaction()
        transaction.append("orders", orders(-1))
        transaction.rollback()


def test_a_stream_has_what_the_batch_reader_has_and_goes_on_where_it_was(
    streams: Streams, store: ps.OpenStore
) -> None:
    write(store, 0, 300)
    batches: dict[int, list[Any]] = {}
    streams.drain(batches)
    assert places(batches) == streams.by_batch_reader()
    assert len(places(batches)) == 600
    first = dict(batches)
    streams.drain(batches)  # with nothing new there is no batch
    assert batches == first
    write(store, 1_000, 50)
    streams.drain(batches)
    assert places(batches) == streams.by_batch_reader()
    assert first.items() <= batches.items()
    _check_order_and_keys([row for number in sorted(batches) for row in batches[number]])


def _check_order_and_keys(rows: list[dict[str, Any]]) -> None:
    """Within a task of a batch by clock; every customer at one member, by its vnode."""
    keys = [(row["_meta"]["epoch"], row["task"], row["_meta"]["clock_raw"]) for row in rows]
    assert keys == sorted(keys)
    members: dict[str, set[tuple[int, int]]] = {}
    for row in rows:
        place = row["_meta"]["member"], row["_meta"]["vnode"]
        members.setdefault(row["customer"], set()).add(place)
    assert all(len(found) == 1 for found in members.values())
    assert {member for found in members.values() for member, _ in found} == {1, 2}


def test_splits_divide_members_by_vnode(streams: Streams, store: ps.OpenStore) -> None:
    write(store, 0, 100)
    batches: dict[int, list[Any]] = {}
    streams.drain(batches, splits=3)
    assert places(batches) == streams.by_batch_reader()
    tasks: dict[int, set[int]] = {}
    for row in batches[0]:
        tasks.setdefault(row["_meta"]["vnode"], set()).add(row["task"])
    assert all(len(found) == 1 for found in tasks.values())
    assert len({task for found in tasks.values() for task in found}) > 2


def test_a_feed_file_reads_several_collections_in_one_frame(
    streams: Streams, store: ps.OpenStore, tmp_path: Path
) -> None:
    write(store, 0, 100)
    feed = tmp_path / "both.toml"
    feed.write_text(
        '[[binding]]\ncollection = "orders"\n[[binding]]\ncollection = "payments"\npriority = 5\n'
    )
    batches: dict[int, list[Any]] = {}
    streams.drain(batches, feed=str(feed), members=1)
    assert places(batches) == streams.by_batch_reader() + streams.by_batch_reader("payments")
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert {row["_meta"]["binding"] for row in rows} == {0, 1}
    for row in rows:
        is_order = row["_meta"]["binding"] == 0
        assert (row["customer"] is not None, row["paid"] is not None) == (is_order, not is_order)


def test_a_schema_chooses_columns(streams: Streams, store: ps.OpenStore, tmp_path: Path) -> None:
    write(store, 0, 100)
    feed = tmp_path / "both.toml"
    feed.write_text('[[binding]]\ncollection = "orders"\n[[binding]]\ncollection = "payments"\n')
    batches: dict[int, list[Any]] = {}
    streams.drain(batches, feed=str(feed), splits=2, schema="paid BIGINT, id BIGINT")
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert all(row.keys() == {"paid", "id", "task"} for row in rows)
    expected = [(number, None) for number in range(200)] + [(0, 1)]
    assert Counter((row["id"], row["paid"]) for row in rows) == Counter(expected)


def test_a_limit_makes_more_batches(streams: Streams, store: ps.OpenStore) -> None:
    batches: dict[int, list[Any]] = {}
    running = streams.start(batches, trigger={"processingTime": "0 seconds"}, max_documents=1)
    try:
        for number in range(3):
            before = len(batches)
            write(store, number * 100, 10)
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while len(batches) == before and running.isActive:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        running.stop()
    assert running.exception() is None
    streams.drain(batches, max_documents=1)
    assert places(batches) == streams.by_batch_reader()
    assert len(batches) >= 3


def test_spark_sees_the_lag(streams: Streams, store: ps.OpenStore) -> None:
    write(store, 0, 10)
    query = streams.drain({})
    latest = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
    ends = [json.loads(one["sources"][0]["endOffset"]) for one in query.recentProgress]
    assert latest[-1]["epoch"] >= ends[-1]["epoch"]
    assert latest[-1]["rows_behind"] == 0
    assert latest[-1]["open_transactions"] == 0
    assert {"watermark", "stall"} <= latest[-1].keys()


def source_processes(store: ps.OpenStore) -> list[int]:
    """Spark's Python processes that have a feed of the store open: they hold its lock."""
    feeds = str(Path(store.url.removeprefix("file://")) / "feeds")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [str(each.readlink()) for each in (process / "fd").iterdir()]
        except OSError:
            continue  # it is over, or not ours
        if any(link.startswith(feeds) and link.endswith("/lock") for link in links):
            found.append(int(process.name))
    return found


def test_a_killed_source_process_costs_nothing_but_a_restart(
    streams: Streams, store: ps.OpenStore
) -> None:
    write(store, 0, 200)
    batches: dict[int, list[Any]] = {}
    killed: list[int] = []
    mapped: list[str] = []

    def kill_once(_: int) -> None:
        if not killed:
            killed.extend(source_processes(store))
            for process in killed:
                mapped.append(Path(f"/proc/{process}/maps").read_text())
                os.kill(process, signal.SIGKILL)
            write(store, 1_000, 200)

    query = streams.start(batches, after=kill_once, trigger={"processingTime": "0 seconds"})
    with pytest.raises(PySparkException):
        query.awaitTermination(WAIT_SECONDS_MAX)
    assert len(killed) == 1
    assert "pyarrow" in mapped[0]
    assert "pandas" not in mapped[0], "it takes longer to import than all the rest"
    streams.drain(batches)
    assert places(batches) == streams.by_batch_reader()
    assert source_processes(store) == []


def test_the_first_batch_of_all_is_repeated_with_the_same_rows(
    streams: Streams, store: ps.OpenStore
) -> None:
    """Spark asks for an initial offset once more then, and not every feed begins with it."""
    write(store, 0, 50)
    batches: dict[int, list[Any]] = {}

    def fail(_: int) -> None:
        raise RuntimeError("the sink is not there")

    with pytest.raises(PySparkException, match="the sink is not there"):
        streams.drain(batches, after=fail)
    first = batches.pop(0)
    write(store, 1_000, 50)
    streams.drain(batches)
    assert batches[0] == first
    assert places(batches) == streams.by_batch_reader()
    assert len(list((Path(store.url.removeprefix("file://")) / "feeds").iterdir())) == 1


def test_members_may_change_between_runs(streams: Streams, store: ps.OpenStore) -> None:
    """A batch that failed is read again, of other members, when the journals do not have it any
    more: it comes out of the queues."""
    write(store, 0, 300)
    batches: dict[int, list[Any]] = {}
    streams.drain(batches, members=2)
    write(store, 10_000, 2_000)

    def fail(_: int) -> None:
        raise RuntimeError("the sink is not there")

    with pytest.raises(PySparkException, match="the sink is not there"):
        streams.drain(batches, after=fail, members=2)
    failed = max(batches)
    before = batches.pop(failed)
    kept = streams.by_batch_reader()
    for journal in store.journals("orders"):
        store.drop_before(journal.name, store.probe(journal.name).write_head)
    assert len(streams.by_batch_reader()) < len(kept) - len(before) // 2
    write(store, 20_000, 50)
    streams.drain(batches, members=3)
    assert places({0: batches[failed]}) == places({0: before})
    assert {row["_meta"]["member"] for row in batches[failed]} == {1, 2, 3}
    write(store, 30_000, 50)
    streams.drain(batches, members=1)
    assert places(batches) == kept + (streams.by_batch_reader() - kept)


def test_documents_written_while_it_runs_arrive(streams: Streams, store: ps.OpenStore) -> None:
    batches: dict[int, list[Any]] = {}
    query = streams.start(batches, trigger={"processingTime": "0 seconds"})
    writers = [threading.Thread(target=write, args=(store, 1_000 * n, 100)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    expected = streams.by_batch_reader()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while places(batches) != expected and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    assert query.exception() is None
    assert places(batches) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"member": 3}, "there is no option 'member'; a batch read has .* a streaming read has "),
        ({"members": 3, "as_of": "now"}, "there is no option 'as_of' of a streaming read"),
        ({"members": 0}, "option 'members' is a whole number from 1 to 256, not '0'"),
        ({"read_delay": "soon"}, "option 'read_delay'"),
        ({"key": "nothing"}, "has no column 'nothing'"),
        ({"collection": "missing"}, "missing"),
        ({"feed": "no.toml"}, "feed file no.toml cannot be read"),
    ],
)
def test_bad_options_are_refused_in_plain_words(
    streams: Streams, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        streams.frame(**options).isStreaming  # noqa: B018


def test_a_feed_that_is_gone_or_replaced_is_not_mistaken_for_its_successor(
    streams: Streams, store: ps.OpenStore, tmp_path: Path
) -> None:
    write(store, 0, 10)
    folder = tmp_path / "queues"
    streams.drain({}, folder=folder)
    with pytest.raises(PySparkException, match="this query began with other bindings"):
        streams.drain({}, folder=folder, key="id")
    (feed,) = folder.iterdir()
    shutil.rmtree(feed)
    with pytest.raises(PySparkException, match="which is not there"):
        streams.drain({}, folder=folder)
    write(store, 1_000, 10)  # or the other feed's epochs would be just the same
    shutil.copytree(_another_feed(streams, folder), feed)
    with pytest.raises(PySparkException, match=r"does not have epoch|is not the one that Spark"):
        streams.drain({}, folder=folder)


def _another_feed(streams: Streams, folder: Path) -> Path:
    streams.drain({}, name="another", folder=folder)
    (feed,) = folder.iterdir()
    return feed
