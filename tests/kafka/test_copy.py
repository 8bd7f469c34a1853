"""`penstock copy` from topics to files and back: what is kept of a record, and that transactions
are whole and once although the command is killed at random moments."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.journal import Collection, open_store
from penstock.journal.documents import read_documents
from penstock.testing.kafka.machine import wait_until
from tests.kafka.committed import SECONDS_MAX, committed
from tests.kafka.test_cli import COMMAND
from tests.kafka.test_cli import penstock as command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal import ProducingStore
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

KILLS = 3
ROWS = 3
"""Of each transaction, in each collection."""


def writing(
    store: ProducingStore, names: list[str], row: Callable[[int], dict[str, Any]]
) -> contextlib.AbstractContextManager[Callable[[], int]]:
    """Writes transactions into all of these, until the block ends. How many so far."""

    @contextlib.contextmanager
    def block() -> Iterator[Callable[[], int]]:
        stop, count = threading.Event(), 0

        def write() -> None:
            nonlocal count
            with store.producer() as producer:
                while not stop.is_set():
                    with producer.transaction() as transaction:
                        for name in names:
                            transaction.append(name, [row(count)] * ROWS)
                    count += 1
                    time.sleep(0.01)  # the pace of the writing, not a wait for anything

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield lambda: count
        finally:
            stop.set()
            thread.join()

    return block()


def copy_killed_at_random(arguments: list[str], seen: Callable[[], list[Counter[int]]]) -> None:
    """Follows, is killed some times, and each time the target has whole transactions once each."""
    seed = random.randrange(1 << 32)
    chosen = random.Random(seed)
    for kill in range(KILLS):
        copied = sum(seen()[0].values())
        child = subprocess.Popen(
            [sys.executable, COMMAND, *arguments, "--follow", "--epoch-seconds", "0.05"],
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 180
            while sum(seen()[0].values()) <= copied:  # it has begun to write
                assert child.poll() is None, child.communicate()
                assert time.monotonic() < deadline, "nothing was copied"
            time.sleep(chosen.uniform(0, 0.5))  # any moment will do
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        first, second = seen()
        if first != second:  # what it asked for last was carried out between two looks
            first, second = seen()
        assert first == second, f"torn between collections after kill {kill}, seed {seed}"
        assert set(first.values()) == {ROWS}, f"torn or repeated after kill {kill}, seed {seed}"


def in_files(place: Path, names: list[str], column: str = "value") -> list[Counter[int]]:
    if not place.exists():
        return [Counter() for _ in names]
    with open_store(place) as store:
        if not set(names) <= set(store.collections()):
            return [Counter() for _ in names]
        # One cut of both: a transaction is in it whole, or not at all.
        journals = {one.name: name for name in names for one in store.journals(name)}
        found: dict[str, Counter[int]] = {name: Counter() for name in names}
        for cut in store.cut(list(journals)):
            for part in read_documents(store, cut):
                texts = part.documents.column(column).to_numpy(zero_copy_only=False)
                found[journals[cut.journal]].update(map(int, texts))
        return list(found.values())


def in_topics(kafka: KafkaCluster, names: list[str]) -> list[Counter[int]]:
    found = committed(kafka, *names)
    return [
        Counter(int(each.value() or b"") for each in found if each.topic() == name)
        for name in names
    ]


@pytest.fixture
def topics(kafka: KafkaCluster, topic: str) -> list[str]:
    return [kafka.topics.create(f"{topic}-{one}", partitions=2) for one in "ab"]


def test_from_topics_to_files_killed_at_random(
    kafka: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    url = f"kafka://{kafka.bootstrap_servers}"
    chosen = [part for name in topics for part in ("--collection", name)]
    arguments = ["copy", url, str(tmp_path / "kept"), *chosen]
    arguments += ["--folder", str(tmp_path / "under-way"), "--create"]
    with penstock.open_kafka(url) as store:
        with writing(store, topics, lambda n: {"key": str(n), "value": str(n)}) as count:
            copy_killed_at_random(arguments, lambda: in_files(tmp_path / "kept", topics))
            assert count() > KILLS
        command(*arguments)
        expected = [Counter(dict.fromkeys(range(count()), ROWS))] * 2
    assert in_topics(kafka, topics) == expected
    assert in_files(tmp_path / "kept", topics) == expected


def test_from_files_to_topics_killed_at_random(
    kafka: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    chosen = [part for each in topics for part in ("--collection", each)]
    arguments = ["copy", str(tmp_path / "source"), f"kafka://{kafka.bootstrap_servers}", *chosen]
    arguments += ["--folder", str(tmp_path / "under-way"), "--name", topics[0][-24:]]
    with open_store(tmp_path / "source", durability="buffered") as store:
        for each in topics:
            store.create(Collection.define(each, "key STRING NOT NULL, value STRING", "key"))
        with writing(store, topics, lambda n: {"key": str(n), "value": str(n)}) as count:
            copy_killed_at_random(arguments, lambda: in_topics(kafka, topics))
            assert count() > KILLS
        command(*arguments)
        expected = [Counter(dict.fromkeys(range(count()), ROWS))] * 2
    assert in_files(tmp_path / "source", topics) == expected
    assert in_topics(kafka, topics) == expected


def test_a_record_comes_back_as_it_was(
    kafka: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    url, name = f"kafka://{kafka.bootstrap_servers}", topics[0][-24:]
    moment = datetime.datetime(2020, 2, 3, 4, 5, 6, 7_000, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"key": b"k", "value": b"1", "partition": 1, "timestamp": moment},
        {"key": None, "value": b"2", "headers": [{"key": "h", "value": b"x"}], "partition": 0},
        {"key": b"\xff", "value": None, "headers": [{"key": "h", "value": None}]},
    ]
    with penstock.open_kafka(url) as store, store.producer() as producer:
        producer.append(topics[0], rows)
        producer.append(topics[1], rows[:1])
    there = ["--collection", topics[0], "--folder", str(tmp_path / "there")]
    command("copy", url, str(tmp_path / "kept"), *there, "--create")
    before = content(committed(kafka, topics[0]))
    kafka.topics.delete(topics[0])
    missing = "has no topic"
    back = ["--collection", topics[0], "--folder", str(tmp_path / "back"), "--name", name]
    refused = command("copy", str(tmp_path / "kept"), url, *back, code=1).stderr
    assert missing in refused
    lost = ["copy", url, str(tmp_path / "no"), *there[:2], "--folder", str(tmp_path / "x")]
    assert missing in command(*lost, "--create", code=1).stderr
    wait_until(lambda: not kafka.topics.leaders(topics[0]), "the topic to go", SECONDS_MAX)
    kafka.topics.create(topics[0], partitions=2)
    assert "3 new documents" in command("copy", str(tmp_path / "kept"), url, *back).stdout
    assert content(committed(kafka, topics[0])) == before


def content(messages: list[Any]) -> Counter[Any]:
    return Counter(
        (m.partition(), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp())
        for m in messages
    )


def test_documents_become_json_and_come_back(
    kafka: KafkaCluster, topics: list[str], tmp_path: Path
) -> None:
    url, name = f"kafka://{kafka.bootstrap_servers}", topics[0][-24:]
    schema = "id BIGINT, part STRING, amount DECIMAL(9,2), at TIMESTAMP"
    rows = [
        {
            "id": number,
            "part": "abc"[number % 3],
            "amount": decimal.Decimal(number) / 4,
            "at": datetime.datetime(2020, 1, 1 + number, tzinfo=datetime.UTC),
        }
        for number in range(9)
    ]
    given = ["--format", "json", "--name", name]
    with open_store(tmp_path / "source") as store:
        store.create(Collection.define(topics[0], schema, "id"))
        store.create(Collection.define(topics[1], schema, ("id", "part")))
        with store.producer() as producer, producer.transaction() as transaction:
            for topic in topics:
                transaction.append(topic, rows)
    both = ["--collection", topics[0], "--collection", topics[1]]
    raw = ["copy", str(tmp_path / "source"), url, *both, "--folder", str(tmp_path / "raw")]
    assert "With --format json" in command(*raw, code=1).stderr
    there = [*both, *given, "--folder", str(tmp_path / "there")]
    assert "18 new documents" in command("copy", str(tmp_path / "source"), url, *there).stdout
    keys = {one.key() for one in committed(kafka, topics[0])}
    assert keys == {str(row["id"]).encode() for row in rows}
    assert b'{"id":1,"part":"b"}' in {one.key() for one in committed(kafka, topics[1])}
    back = [*both, *given, "--folder", str(tmp_path / "back"), "--schema", schema]
    target = str(tmp_path / "target")
    assert "say --key" in command("copy", url, target, *back, "--create", code=1).stderr
    command("copy", url, target, *back, "--create", "--key", "id")
    with open_store(tmp_path / "target") as store:
        for topic in topics:
            found = []
            for cut in store.cut([one.name for one in store.journals(topic)]):
                for part in read_documents(store, cut, ["id", "part", "amount", "at"]):
                    found += part.documents.to_pylist()
            assert sorted(found, key=lambda row: row["id"]) == rows
