"""Feeds over topics: formats, keys from headers, selectors, priorities, delays, identities; and
feeds of topics and embedded collections."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.errors import UnreadableRowError
from penstock.journal import Collection, open_store
from penstock.testing.kafka.machine import wait_until
from tests.kafka.feeds import SECONDS_MAX, FeedRun, Sender
from tests.kafka.side_by_side import transactional

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def run(text: str, folder: Path, **more: Any) -> Iterator[FeedRun]:
    made = FeedRun(text, folder, **more)
    try:
        yield made
    finally:
        made.close()


def address(kafka: KafkaCluster) -> str:
    return f"kafka://{kafka.bootstrap_servers}"


def test_formats_header_keys_and_selectors(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """Three bindings of one topic: partition 0 as JSON by a header, partition 1 as it is by Kafka's
    own key, and all of it as JSON by a column."""
    kafka.topics.create(topic, 2)
    sender = Sender(kafka, topic)
    for number in range(200):
        value = json.dumps({"account": number % 7, "cents": number}).encode()
        headers = [("tenant", f"t{number % 5}")] if number % 10 else None
        sender.send(value, number % 2, key=f"k{number % 3}", headers=headers)
    sender.flush()
    text = f"""
        name = "money"
        store = "{address(kafka)}"
        [[binding]]
        collection = "{topic}"
        format = "json"
        schema = "account BIGINT, cents BIGINT"
        key = ["header:tenant"]
        partitions = "partition=0"
        [[binding]]
        collection = "{topic}"
        key = ["key"]
        partitions = "topic={topic},!partition=0"
        [[binding]]
        collection = "{topic}"
        format = "json"
        schema = "account BIGINT, cents BIGINT"
        key = ["account"]
    """
    with run(text, tmp_path / "feed") as feed:
        rows = feed.catch_up()
        by_header, by_key, by_column = (
            [(member, row) for place, member, row in rows if place == binding]
            for binding in range(3)
        )
        assert sorted(row["cents"] for _, row in by_header) == list(range(0, 200, 2))
        assert {row["partition"] for _, row in by_key} == {1}
        assert len(by_key) == 100
        assert sorted(row["cents"] for _, row in by_column) == list(range(200))
        # A key is at one member, and rows without the header are at both.
        for binding, column in ((by_header, "header:tenant"), (by_key, "key")):
            members: dict[Any, set[int]] = {}
            for member, row in binding:
                members.setdefault(row[column], set()).add(member)
            assert members.pop(None, {1, 2}) == {1, 2}
            assert all(len(owners) == 1 for owners in members.values())
        assert feed.streamed() == feed.batch()


def test_priorities_and_delays(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """What is urgent comes first although it is younger; what is delayed is held back until it is
    old enough."""
    urgent, plain, late = names = [f"{topic}-{one}" for one in ("urgent", "plain", "late")]
    ages = {urgent: 10, plain: 20, late: 0}
    for name in names:
        kafka.topics.create(name, 2)
        sender = Sender(kafka, name)
        first_ms = int((time.time() - ages[name]) * 1000)
        for number in range(500):
            sender.send(b"%d" % number, number % 2, timestamp=first_ms, key=b"%d" % (number % 9))
        sender.flush()
    settings = {urgent: "priority = 2", plain: "", late: 'read_delay = "4s"'}
    text = "".join(f'[[binding]]\ncollection = "{name}"\n{settings[name]}\n' for name in names)
    with run(text, tmp_path / "feed", store=address(kafka)) as feed:

        def has_all_but_late() -> bool:
            feed.step()
            return sum(place < 2 for place, _, _ in feed.rows) == 1_000

        wait_until(has_all_but_late, "rows without a delay", SECONDS_MAX)
        for member in (1, 2):
            lanes = [place for place, owner, _ in feed.rows if owner == member and place < 2]
            assert lanes == sorted(lanes), "all urgent ones before the others"

        def has_all() -> bool:
            came = len(feed.rows)
            if feed.step():
                times = (row["timestamp"].timestamp() for place, _, row in feed.rows[came:])
                assert all(time.time() >= stamp + 4 for stamp in times), "held back until then"
            return len(feed.rows) == 1_500

        assert all(
            time.time() >= row["timestamp"].timestamp() + 4
            for place, _, row in feed.rows
            if place == 2
        )
        wait_until(has_all, "the delayed rows", SECONDS_MAX)
        assert feed.streamed() == feed.batch()


def repeated(sender: Sender, lives: int, numbers: int, *, headers: bool) -> None:
    """Two writers, each started again and again: every life repeats what it is not sure of."""
    for life in range(lives):
        for number in range(max(0, life * numbers - numbers // 2), (life + 1) * numbers):
            for writer in ("left", "right"):
                value = json.dumps({"writer": writer, "number": number, "life": life}).encode()
                own = {"headers": [("id", f"{writer}:{number}")]} if headers else {}
                sender.send(value, number % 3, **own)
    sender.flush()


@pytest.mark.parametrize("by", ["header", "columns"])
def test_repetitions_fall_away(kafka: KafkaCluster, topic: str, tmp_path: Path, by: str) -> None:
    """Through restarts, and with queues lost in the middle; the batch reader has the same."""
    kafka.topics.create(topic, 3)
    sender = Sender(kafka, topic)
    identity = '{header = "id"}' if by == "header" else '{producer="writer", sequence="number"}'
    text = f"""
        [[binding]]
        collection = "{topic}"
        format = "json"
        schema = "writer STRING, number BIGINT, life INT"
        key = ["writer"]
        identity = {identity}
    """
    expected = [(writer, number) for number in range(600) for writer in ("left", "right")]

    def came(feed: FeedRun) -> list[tuple[str, int]]:
        return sorted((row["writer"], row["number"]) for _, _, row in feed.rows)

    repeated(sender, 2, 100, headers=by == "header")
    with run(text, tmp_path / "feed", store=address(kafka)) as feed:
        feed.catch_up()
        assert came(feed) == sorted(expected[:400])
        repeated(sender, 4, 100, headers=by == "header")  # all of it once more, and then more
        unread = feed.reach()
        wanted = feed.read(feed.last, unread)
        assert len(wanted) == 400
        for is_lost in (False, True):
            feed.begin_anew(without_queues=is_lost)
            again = feed.read(feed.last, unread)
            assert sorted(map(repr, again)) == sorted(map(repr, wanted))
        repeated(sender, 6, 100, headers=by == "header")
        feed.catch_up()
        assert came(feed) == sorted(expected)
        assert {row["life"] for _, _, row in feed.rows if row["number"] < 100} == {0}
        assert feed.streamed() == feed.batch()


def test_a_row_without_an_identity_ends_the_read_or_counts(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    kafka.topics.create(topic, 1)
    sender = Sender(kafka, topic)
    for header in ("a:1", "a:1", None, "a:2"):
        sender.send(b"x", headers=None if header is None else [("id", header)])
    sender.flush()
    kept = f"""
        [[binding]]
        collection = "{topic}"
        identity = {{header = "id", on_error = "keep"}}
    """
    with run(kept, tmp_path / "kept", store=address(kafka)) as feed:
        assert sorted(row["offset"] for _, _, row in feed.catch_up()) == [0, 2, 3]
    strict = kept.replace("keep", "fail")
    with (
        run(strict, tmp_path / "strict", store=address(kafka)) as feed,
        pytest.raises(UnreadableRowError, match=f"offset 2 of {topic}-0 has no identity"),
    ):
        feed.catch_up()


def test_topics_and_embedded_collections_in_one_feed(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Kafka's transactions over two topics and the store's over two collections come whole, each in
    one epoch; one collection has a topic's name; a feed that is begun anew reads the same, also
    when its queues were lost."""
    kafka.topics.create(topic, 2)
    kafka.topics.create(f"{topic}-more", 2)
    store = open_store(tmp_path / "store")
    for name in (topic, "others"):
        store.create(Collection.define(name, "transfer STRING", key="transfer"))
    producer, own = transactional(kafka, topic), store.producer()

    def transfer(name: str) -> None:
        producer.begin_transaction()
        for place, to in enumerate((topic, f"{topic}-more", topic)):
            producer.produce(to, json.dumps({"transfer": name}), partition=place % 2)
        producer.flush(SECONDS_MAX)
        with own.transaction() as transaction:
            transaction.append(topic, [{"transfer": name}])
            producer.commit_transaction(SECONDS_MAX)
            transaction.append("others", [{"transfer": name}])

    text = f"""
        name = "both"
        store = "{store.url}"
        [[binding]]
        collection = "{topic}"
        [[binding]]
        collection = "others"
        [[binding]]
        store = "{address(kafka)}"
        collection = "{topic}"
        format = "json"
        schema = "transfer STRING"
        key = ["transfer"]
        [[binding]]
        store = "{address(kafka)}"
        collection = "{topic}-more"
        format = "json"
        schema = "transfer STRING"
        key = ["transfer"]
    """
    with run(text, tmp_path / "feed") as feed:
        assert [one.collection for one in feed.plan.bindings][2] == f"{topic}-2"
        torn = 0
        for number in range(40):
            transfer(f"t{number}")
            before = len(feed.rows)
            feed.step()
            torn += is_torn(feed.rows[before:])
            if number == 20:
                unread = feed.reach()
                wanted = feed.read(feed.last, unread)
                for is_lost in (False, True):
                    feed.begin_anew(without_queues=is_lost)
                    again = feed.read(feed.last, unread)
                    assert sorted(map(repr, again)) == sorted(map(repr, wanted))
        feed.catch_up()
        assert torn == 0
        assert [one.total() for one in feed.streamed()] == [40, 40, 80, 40]
        assert feed.streamed() == feed.batch()
        members: dict[str, set[int]] = {}
        for _, member, row in feed.rows:
            members.setdefault(row["transfer"], set()).add(member)
        assert all(len(owners) == 1 for owners in members.values()), "a key is at one member"
    own.close()
    store.close()


def is_torn(rows: list[tuple[int, int, dict[str, Any]]]) -> bool:
    """Whether an epoch has a part of a transaction, of either store."""
    counts: dict[tuple[str, int], list[int]] = {}
    for place, _, row in rows:
        counts.setdefault((row["transfer"], place // 2), [0, 0])[place % 2] += 1
    return any(found != [1 + kind, 1] for (_, kind), found in counts.items())


MIXED = """
    name = "mixed"
    [[binding]]
    store = "{kafka}"
    collection = "{topic}"
    format = "json"
    schema = "writer STRING, number BIGINT, life INT"
    key = ["header:tenant"]
    partitions = "!partition=2"
    priority = 1
    identity = {{producer = "writer", sequence = "number"}}
    [[binding]]
    store = "{store}"
    collection = "accounts"
    read_delay = "100ms"
"""


@pytest.fixture
def mixed(kafka: KafkaCluster, topic: str, tmp_path: Path) -> Path:
    """A feed file over a topic of repetitions and an embedded collection."""
    kafka.topics.create(topic, 3)
    sender = Sender(kafka, topic)
    for again in range(2):
        for number in range(90):
            value = json.dumps({"writer": "w", "number": number, "life": again}).encode()
            sender.send(value, number % 3, headers=[("tenant", f"t{number % 4}")])
        sender.flush()
    with open_store(tmp_path / "store") as store:
        store.create(Collection.define("accounts", "id BIGINT, owner STRING", key="id"))
        with store.producer() as producer:
            producer.append("accounts", [{"id": number, "owner": "o"} for number in range(50)])
        text = MIXED.format(kafka=address(kafka), topic=topic, store=store.url)
    path = tmp_path / "mixed.toml"
    path.write_text(text)
    return path


def test_the_shuffle_command_verifies_such_a_feed(mixed: Path, tmp_path: Path) -> None:
    """With members in processes of their own, which get the addresses of both stores."""
    command = str(Path(sys.executable).with_name("penstock"))
    done = subprocess.run(
        [
            *(command, "shuffle", "--feed", str(mixed), "--members", "2", "--verify", "--json"),
            *("--folder", str(tmp_path / "feed")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["documents"] == 60 + 50
    assert report["verified"]["equal"] is True
    assert report["verified"]["documents"] == 60 + 50


def test_a_stream_of_a_feed_file_is_what_batches_read(
    kafka: KafkaCluster, spark: SparkSession, topic: str, mixed: Path, tmp_path: Path
) -> None:
    options = {"feed": str(mixed), "folder": str(tmp_path / "feeds")}
    frame = spark.readStream.format("penstock").options(**options).load()
    seen: list[Any] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(batch.drop("_meta").collect())

    def drain(name: str) -> None:
        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        assert query.awaitTermination(int(SECONDS_MAX))

    drain("checkpoint")
    from_topic = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("assign", json.dumps({topic: [0, 1]}))
        .option("format", "json")
        .option("schema", "writer STRING, number BIGINT, life INT")
        .option("identity", '{"producer": "writer", "sequence": "number"}')
        .option("shuffle_key", "header:tenant")
        .load()
    )
    columns = ["writer", "number", "life", "`header:tenant`"]
    expected = from_topic.select(*columns).collect()
    assert len(expected) == 60
    found = [row for row in seen if row["writer"] is not None]
    assert sorted((row["number"], row["header:tenant"]) for row in found) == sorted(
        (row["number"], row["header:tenant"]) for row in expected
    )
    assert {row["life"] for row in found} == {row["life"] for row in expected} == {0}
    accounts = spark.read.format("penstock").option("store", str(tmp_path / "store"))
    assert sorted(row["id"] for row in seen if row["writer"] is None) == sorted(
        row["id"] for row in accounts.option("collection", "accounts").load().collect()
    )
    mixed.write_text(mixed.read_text().replace('sequence = "number"', 'sequence = "life"'))
    with pytest.raises(PySparkException, match="this query began with other bindings"):
        drain("checkpoint")
