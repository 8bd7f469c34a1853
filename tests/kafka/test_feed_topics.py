"""Bindings over several topics, where they begin, and a feed file read as a batch."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.errors import ConfigurationError
from penstock.journal import Collection, open_store
from penstock.testing.kafka.machine import wait_until
from tests.kafka.feeds import SECONDS_MAX, FeedRun
from tests.kafka.side_by_side import FIRST_MS, fill, transact, transactional
from tests.kafka.test_feeds import address, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(kafka: KafkaCluster, topic: str) -> str:
    """A topic of two partitions with 40 rows, from 40 seconds."""
    kafka.topics.create(topic, 2)
    fill(kafka, topic, 0, 40)
    return topic


def totals(feed: FeedRun) -> list[int]:
    feed.catch_up()
    assert feed.streamed() == feed.batch()
    return [rows.total() for rows in feed.streamed()]


def test_each_binding_begins_where_it_says(
    kafka: KafkaCluster, filled: str, tmp_path: Path
) -> None:
    """Five bindings of one topic. What was decided at the first start holds after restarts, also
    for queues that were lost and are filled again."""
    beginnings = (
        "",
        'starting_offsets = "latest"',
        'starting_offsets = {0 = 15, 1 = "latest"}\n',
        f"starting_timestamp = {FIRST_MS + 30_000}",
        'partitions = "partition=1"\nstarting_offsets = {1 = -2}',
    )
    text = "".join(f'[[binding]]\ncollection = "{filled}"\n{one}\n' for one in beginnings)
    with run(text, tmp_path / "feed", store=address(kafka)) as feed:
        assert totals(feed) == [40, 0, 5, 10, 20]
        fill(kafka, filled, 40, 10)
        unread = feed.reach()
        wanted = feed.read(feed.last, unread)
        for is_lost in (False, True):
            feed.begin_anew(without_queues=is_lost)
            again = feed.read(feed.last, unread)
            assert sorted(map(repr, again)) == sorted(map(repr, wanted))
        fill(kafka, filled, 50, 10)
        assert totals(feed) == [60, 20, 25, 30, 30]


@pytest.mark.parametrize(
    ("starting", "said"),
    [
        ("starting_offsets = {0 = 3}", "'starting_offsets' does not name .*-1"),
        ("starting_offsets = {0 = 3, 1 = 3, 2 = 3}", "names .*-2, which is not read"),
        (f"starting_timestamp = {FIRST_MS + 3_600_000}", "has no row of that time or later"),
    ],
)
def test_a_beginning_that_is_not_there(
    kafka: KafkaCluster, filled: str, tmp_path: Path, starting: str, said: str
) -> None:
    text = f'[[binding]]\ncollection = "{filled}"\n{starting}\n'
    with (
        pytest.raises(ConfigurationError, match=said),
        run(text, tmp_path / "feed", store=address(kafka)),
    ):
        pass


def test_several_topics_are_one_binding(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """Transactions over its topics are whole; a topic that appears later is read from its begin,
    whatever the others begin with; names may begin with an underscore."""
    names = debited, credited, late = [f"{one}{topic}" for one in ("_d-", "c-", "late-")]
    for name in (debited, credited):
        kafka.topics.create(name, 2)
    producer = transactional(kafka, topic)

    def transfer(number: int) -> None:
        rows = [(debited, number % 2, b"%d" % number), (credited, 1, b"%d" % number)]
        transact(producer, rows, commit=True)

    transfer(0)
    listed = ", ".join(f'"{name}"' for name in names)
    text = f"""
        [[binding]]
        subscribe = [{listed}]
        starting_offsets = "latest"
        [[binding]]
        subscribe_pattern = "^(_d|c|late)-{topic}$"
        [[binding]]
        assign = {{"{debited}" = [1]}}
        [[binding]]
        collection = "{debited}"
    """
    with run(text, tmp_path / "feed", store=address(kafka)) as feed:
        names_here = [one.collection for one in feed.plan.bindings]
        assert names_here == ["kafka", "kafka-2", debited, f"{debited}-2"]
        assert totals(feed) == [0, 2, 0, 1]
        for number in range(1, 21):
            transfer(number)
            came = len(feed.rows)
            feed.step()
            assert not torn(feed.rows[came:])
        kafka.topics.create(late, 1)
        fill(kafka, late, 0, 7, partitions=1)

        def has_late() -> bool:
            feed.step()
            late_rows = [row for _, _, row in feed.rows if row["topic"] == late]
            return len(late_rows) == 14

        wait_until(has_late, "the topic that appeared", SECONDS_MAX)
        assert totals(feed) == [40 + 7, 42 + 7, 10, 21]


def torn(rows: list[tuple[int, int, dict[str, Any]]]) -> bool:
    """Whether one of the first two bindings has a part of a transaction."""
    for binding in range(2):
        values = [row["value"] for place, _, row in rows if place == binding]
        if any(values.count(value) != 2 for value in values):
            return True
    return False


FEED = """
    name = "all"
    [[binding]]
    store = "{kafka}"
    subscribe = ["{topic}", "{topic}-more"]
    priority = 1
    not_before = {moment}
    [[binding]]
    store = "{kafka}"
    collection = "{topic}"
    starting_offsets = {{0 = 15, 1 = 0}}
    [[binding]]
    store = "{store}"
    collection = "accounts"
    partitions = "region=eu"
    read_delay = "100ms"
    [[binding]]
    store = "{store}"
    collection = "accounts"
    key = ["owner"]
"""
"""Rows of one topic and of one collection come by two bindings each."""


@pytest.fixture
def feed_file(kafka: KafkaCluster, filled: str, tmp_path: Path) -> Path:
    kafka.topics.create(f"{filled}-more", 1)
    fill(kafka, f"{filled}-more", 0, 12, partitions=1)
    producer = transactional(kafka, filled)
    rows = [(filled, 0, b"whole"), (f"{filled}-more", 0, b"whole")]
    transact(producer, rows, commit=True)
    transact(producer, rows, commit=False)
    with open_store(tmp_path / "store") as store:
        schema = "id BIGINT, owner STRING, region STRING"
        store.create(Collection.define("accounts", schema, key="id", partition_by="region"))
        with store.producer() as producer_here:
            for number in range(30):
                region = "eu" if number % 3 else "us"
                row = {"id": number, "owner": f"o{number % 4}", "region": region}
                producer_here.append("accounts", [row])
        moment = f"{_moment(FIRST_MS + 10_000)}"
        text = FEED.format(kafka=address(kafka), topic=filled, store=store.url, moment=moment)
    path = tmp_path / "all.toml"
    path.write_text(text)
    return path


def _moment(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).isoformat()


def places(rows: list[Any]) -> list[tuple[Any, ...]]:
    """What a stream and a batch both know of rows."""
    return sorted(
        (meta["binding"], meta["journal"], meta["offset"], meta["clock"], repr(rest))
        for row in rows
        for meta, rest in [(row["_meta"], {**row.asDict(), "_meta": None})]
    )


def test_a_batch_of_a_feed_file_has_the_rows_of_its_stream(
    kafka: KafkaCluster, spark: SparkSession, filled: str, feed_file: Path, tmp_path: Path
) -> None:
    """Topics with and without beginnings, selectors, moments, an embedded store: the same rows, of
    the same bindings, at the same places. The option begins what does not say where it begins."""
    seen: list[Any] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(batch.collect())

    def options(**more: str) -> dict[str, str]:
        return {"feed": str(feed_file), "folder": str(tmp_path / "feeds"), **more}

    def drain(**more: str) -> list[Any]:
        seen.clear()
        frame = spark.readStream.format("penstock").options(**options(**more)).load()
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(int(SECONDS_MAX))
        return list(seen)

    def load(**more: str) -> DataFrame:
        return spark.read.format("penstock").options(**options(**more)).load()

    starts = {filled: {"0": 20, "1": 19}, f"{filled}-more": {"0": 6}}
    from_there = {"startingOffsets": json.dumps(starts)}
    streamed = drain(**from_there)
    frame = load(**from_there, order="clock")
    assert places(frame.collect()) == places(streamed)
    by_binding = [sum(row["_meta"]["binding"] == place for row in streamed) for place in range(4)]
    assert by_binding == [1 + 1 + 3, 5 + 20 + 1, 20, 30]
    assert len(load().collect()) == (30 + 1 + 3) + 26 + 20 + 30
    clocks: list[list[Any]] = frame.select("_meta.clock").rdd.glom().collect()
    assert all(part == sorted(part) for part in clocks), "as the option order has it"
    # A stream that goes on keeps to where it began.
    fill(kafka, filled, 40, 10)
    assert len(drain(startingOffsets="latest")) == 2 * 10
    for wrong, said in (
        ({"startingOffsets": "latest"}, "cannot be 'latest' in a batch read"),
        ({"endingOffsets": "latest"}, "does not go with 'feed'"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "other-0, which is not read"),
    ):
        with pytest.raises(PySparkException, match=said):
            load(**wrong).collect()
