"""A real database's changes, by a real connector of Debezium's that is killed and repeats itself.

PENSTOCK_TRANSACTIONS=10000 python -m pytest -n 0 tests/kafka/test_changes.py
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.errors import UnreadableRowError
from penstock.journal.kafka.address import BOOTSTRAP, KafkaAddress, Subscription
from penstock.journal.kafka.store import KafkaStore, partition_of
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.resume import NOTHING
from penstock.testing.kafka import debezium_jars
from penstock.testing.kafka.machine import wait_until
from penstock.testing.kafka.ports import ReservedPort
from tests.kafka.bank import SCHEMA, TABLES, Bank, Change, bank_server
from tests.kafka.broker import require_kafka
from tests.kafka.connector import PostgresConnector
from tests.postgres_server import ADMINISTRATOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.testing.kafka import KafkaCluster

TRANSACTIONS = int(os.environ.get("PENSTOCK_TRANSACTIONS", "900"))
KILLS = 3
STARTS = 5
PARTITIONS = 2
SECONDS_MAX = 180.0
"""Only a failure takes this long, on however loaded a machine."""
WRITING = "the connector to write"
PREFIX = "bank"
TOPICS = tuple(f"{PREFIX}.public.{table}" for table in TABLES)
VALUES = {"format": "debezium", "schema": SCHEMA}
ADDED = ["_op", "_transaction", "_order", "_sequence", "_committed"]

pytestmark = pytest.mark.slow


class Changes:
    """The topics of a bank, as a store."""

    def __init__(
        self, kafka: KafkaCluster, expected: set[Change], topics: tuple[str, ...] = TOPICS
    ) -> None:
        self.kafka = kafka
        self.expected = expected
        self.topics = topics

    def store(self, values: dict[str, str] | None = None) -> KafkaStore:
        """A new one each time: it knows nothing of what others have read."""
        subscriptions = {
            topic: Subscription((topic,), values=VALUES if values is None else values)
            for topic in self.topics
        }
        return KafkaStore(KafkaAddress({BOOTSTRAP: self.kafka.bootstrap_servers}, subscriptions))

    def journals(self, store: KafkaStore) -> list[str]:
        return [journal.name for topic in self.topics for journal in store.journals(topic)]

    def rows(self, store: KafkaStore, journal: str, begin: int = 0) -> list[dict[str, Any]]:
        found = []
        for batch in store.read(journal, begin, fetch_bytes=64 << 10):
            documents = batch.documents.to_pylist()
            offsets = batch.offsets.tolist()
            topic = partition_of(journal).topic
            found += [
                {**row, "offset": offset, "topic": topic}
                for row, offset in zip(documents, offsets, strict=True)
            ]
        return found

    def copied(self, prefix: str) -> Copy:
        """Into topics that have nothing yet."""
        topics = tuple(f"{prefix}.public.{table}" for table in TABLES)
        for topic in topics:
            self.kafka.topics.create(topic, PARTITIONS)
        store = self.store({})
        try:
            rows = [self.rows(store, name) for name in self.journals(store)]
        finally:
            store.close()
        return Copy(self.kafka, self.expected, topics, dict(zip(TOPICS, topics, strict=True)), rows)


class Copy(Changes):
    """Rows as they are elsewhere, at the same offsets and times, as far as they have grown."""

    def __init__(
        self,
        kafka: KafkaCluster,
        expected: set[Change],
        topics: tuple[str, ...],
        names: dict[str, str],
        partitions: list[list[dict[str, Any]]],
    ) -> None:
        super().__init__(kafka, expected, topics)
        self._names = names
        self._partitions = partitions
        self._grown = [0] * len(partitions)

    def grow(self, share: float) -> None:
        """To this share of all rows of each partition."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for place, rows in enumerate(self._partitions):
            begin, self._grown[place] = self._grown[place], math.ceil(len(rows) * share)
            for row in rows[begin : self._grown[place]]:
                producer.produce(
                    self._names[row["topic"]],
                    row["value"],
                    row["key"],
                    partition=row["partition"],
                    timestamp=round(row["timestamp"].timestamp() * 1_000),
                )
        assert producer.flush(SECONDS_MAX) == 0


def key_of(row: dict[str, Any]) -> Change:
    table = row["topic"].rpartition(".")[2]
    version = None if row["_op"] == "d" else row["version"]
    return table, row["_op"], row["id"], version


@pytest.fixture(scope="module")
def changes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changes]:
    """All changes of many transactions are in Kafka, some of them more than once."""
    require_kafka(debezium_jars)
    folder = tmp_path_factory.mktemp("bank")
    port = ReservedPort()
    server = bank_server(port)
    try:
        database = server.new_database()
        bank = Bank(database.conninfo)
        kafka.topics.create(f"{PREFIX}.transaction")
        for topic in TOPICS:
            kafka.topics.create(topic, PARTITIONS)
        connection = {"port": str(port.number), "user": ADMINISTRATOR, "dbname": database.name}
        connector = PostgresConnector(kafka.bootstrap_servers, folder, PREFIX, connection)
        connector.start()
        found = Changes(kafka, bank.expected)
        for kill in range(KILLS + 1):
            bank.transact(TRANSACTIONS // (KILLS + 1), seed=kill * 100)
            if kill < KILLS:
                # In the middle of what it writes, and not only of what it has written.
                wait_until(functools.partial(_has_written, found, kill), WRITING, SECONDS_MAX)
                connector.kill()
                connector.start()
        wait_until(lambda: _is_all_there(found), "all changes to be in Kafka", SECONDS_MAX)
        connector.kill()
        yield found
    finally:
        server.close()
        port.release()


def _has_written(changes: Changes, kill: int) -> bool:
    return _count(changes) > len(changes.expected) * kill // (KILLS + 1)


def _count(changes: Changes) -> int:
    store = changes.store()
    try:
        return sum(store.probe(journal).write_head for journal in changes.journals(store))
    finally:
        store.close()


def _is_all_there(changes: Changes) -> bool:
    if _count(changes) < len(changes.expected):
        return False
    columns = "op STRING, before STRUCT<id: BIGINT>, after STRUCT<version: BIGINT>"
    store = changes.store({"format": "json", "schema": columns})
    try:
        rows = [row for name in changes.journals(store) for row in changes.rows(store, name)]
    finally:
        store.close()
    versions = {row["after"]["version"] for row in rows if row["after"] is not None}
    deleted = {row["before"]["id"] for row in rows if row["op"] == "d"}
    wanted = {version for *_, version in changes.expected if version is not None}
    gone = {number for _, kind, number, _ in changes.expected if kind == "d"}
    return versions >= wanted and deleted >= gone


def test_each_change_is_there_once(changes: Changes) -> None:
    store = changes.store()
    raw = changes.store({})
    try:
        rows = [row for name in changes.journals(store) for row in changes.rows(store, name)]
        sent = sum(
            row["value"] is not None
            for name in changes.journals(raw)
            for row in changes.rows(raw, name)
        )
    finally:
        store.close()
        raw.close()
    assert Counter(map(key_of, rows)) == Counter(changes.expected)
    assert sent > len(rows), "the connector did not repeat anything"


def test_rows_of_a_table_stand_in_the_order_of_commits(changes: Changes) -> None:
    store = changes.store()
    try:
        for name in changes.journals(store):
            rows = changes.rows(store, name)
            transactions = [row["_transaction"] for row in rows]
            # Each stands together, however its rows are mixed with others' in the database's log.
            before = [None, *transactions[:-1]]
            starts = sum(one != other for one, other in zip(transactions, before, strict=True))
            assert starts == len(set(transactions))
    finally:
        store.close()


def test_whoever_begins_in_the_middle_leaves_out_the_same(changes: Changes) -> None:
    """A new reader, at any offset: also among repetitions, whose first ones lie before it."""
    store = changes.store()
    try:
        journals = changes.journals(store)
        whole = {name: changes.rows(store, name) for name in journals}
        heads = {name: store.probe(name).write_head for name in journals}
    finally:
        store.close()
    random_ = random.Random(5)
    for name in journals:
        there = {row["offset"] for row in whole[name]}
        gaps = [offset for offset in range(heads[name]) if offset not in there]
        for begin in [*random_.sample(gaps, min(10, len(gaps))), random_.randrange(heads[name])]:
            fresh = changes.store()
            try:
                rows = changes.rows(fresh, name, begin)
            finally:
                fresh.close()
            assert rows == [row for row in whole[name] if row["offset"] >= begin], (name, begin)


def test_a_stream_that_is_started_again_has_each_change_once(
    changes: Changes, tmp_path: Path
) -> None:
    """The topics grow by a fourth each time, and so end anywhere, also among repetitions."""
    seen: Counter[Change] = Counter()
    last: Any = NOTHING
    copied = changes.copied("again")
    for share in range(1, STARTS + 1):
        copied.grow(share / STARTS)
        store = copied.store()
        feed = Feed("bank", tuple(Binding(topic, key=("account",)) for topic in copied.topics))
        shuffle = EmbeddedShuffle(feed, store, tmp_path / "feed", members=2)
        outlet = Outlet(shuffle, store, feed)
        try:
            outlet.newest()
            target = shuffle.session.target()
            while not target.is_reached(last.frontier):
                epoch = outlet.wait_epoch(last.number, SECONDS_MAX)
                assert epoch is not None, "what is in the topics does not come"
                for member in shuffle.members:
                    for found in shuffle.read(member, last, epoch):
                        topic = copied.topics[found.stage.binding]
                        rows = found.batch.to_pylist()
                        seen.update(key_of({**row, "topic": topic}) for row in rows)
                outlet.consumed(epoch.number)
                last = epoch
        finally:
            outlet.close()
            store.close()
        assert max(seen.values()) == 1
    assert seen == Counter(changes.expected)


def test_spark_sees_the_columns_of_a_table(changes: Changes, spark: SparkSession) -> None:
    frame = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", changes.kafka.bootstrap_servers)
        .option("subscribe", TOPICS[0])
        .option("format", "debezium")
        .option("schema", SCHEMA)
        .load()
    )
    assert frame.columns == ["id", "account", "cents", "version", *ADDED, "key", "_meta"]
    rows = [{**row.asDict(), "topic": TOPICS[0]} for row in frame.drop("_meta").collect()]
    wanted = [one for one in changes.expected if one[0] == TABLES[0]]
    assert Counter(map(key_of, rows)) == Counter(wanted)


def test_another_topic_is_refused(changes: Changes) -> None:
    """Its rows are no changes: the error says where, and what they are."""
    topic = f"{PREFIX}.transaction"
    address = KafkaAddress(
        {BOOTSTRAP: changes.kafka.bootstrap_servers}, {topic: Subscription((topic,), values=VALUES)}
    )
    store = KafkaStore(address)
    try:
        (journal,) = store.journals(topic)
        with pytest.raises(UnreadableRowError, match=f"offset 0 of {topic}-0.*no change of a row"):
            list(store.read(journal.name, 0))
    finally:
        store.close()
