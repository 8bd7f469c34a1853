"""Several nodes: one may die or stall, and the way between them may freeze."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.settings import KafkaSettings, kafka_settings
from penstock.sinks import kafka as kafka_sink
from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.reading import SECONDS_MAX, committed
from tests.kafka.segments import batches
from tests.kafka.test_sink import Writing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

REQUEST_SECONDS = KafkaSettings(()).request_timeout_seconds
SILENCE_SECONDS = 2.0
"""A marker comes within milliseconds where nothing holds it back."""


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(3) as cluster:
        yield cluster


def transactional(kafka: KafkaCluster, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    return producer


def commit(producer: Producer, topic: str, value: str, *partitions: int) -> None:
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, value.encode(), partition=partition)
    producer.commit_transaction(SECONDS_MAX)


def test_three_nodes_survive_a_kill_of_any(three: KafkaCluster, topic: str) -> None:
    three.topics.create(topic, 3)
    producer = transactional(three, topic)
    values = ["before"]
    commit(producer, topic, "before", 0, 1, 2)
    for node in three.nodes:
        three.kill(node)
        values.append(f"without {node}")
        commit(producer, topic, values[-1], 0, 1, 2)
        three.start(node)
        wait_until(lambda: has_all_copies(three, topic), "all copies", SECONDS_MAX)
    for partition in range(3):
        assert committed(three, topic, len(values), partition) == values


def has_all_copies(kafka: KafkaCluster, topic: str) -> bool:
    """Whether no partition, of the transaction log either, would suffer from another kill."""
    described = kafka.topics.admin.list_topics(timeout=SECONDS_MAX).topics
    partitions = (
        each
        for name in (topic, "__transaction_state")
        for each in described[name].partitions.values()
    )
    return all(len(each.isrs) == 3 and each.leader >= 0 for each in partitions)


@pytest.mark.parametrize("role", ["leader of rows", "coordinator"])
def test_a_batch_is_written_once_when_its_brokers_die_between_its_steps(
    three: KafkaCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
) -> None:
    three.topics.create(topic, 3)
    writing = Writing(three, tmp_path, topic)
    writing.write(0, [0])
    wait_until(lambda: has_all_copies(three, topic), "all copies", SECONDS_MAX)
    wanted: list[kafka_sink.Step] = []
    killed: list[int] = []

    def reached(at: kafka_sink.Step) -> None:
        if at in wanted:  # once: of three brokers, only one may be missing
            wanted.remove(at)
            killed.append(victim(three, writing, role))
            three.kill(killed[-1])

    monkeypatch.setattr(kafka_sink, "reached", reached)
    steps = [kafka_sink.Step.OPENED, kafka_sink.Step.SENT, kafka_sink.Step.PROVEN]
    for number, step in enumerate(steps, start=1):
        wanted.append(step)
        writing.write(number, [10 * number], [10 * number + 1, 10 * number + 2])
        assert len(killed) == number
        three.start(killed[-1])
        wait_until(lambda: has_all_copies(three, topic), "all copies", SECONDS_MAX)
    assert writing.seen() == Counter([0, 10, 11, 12, 20, 21, 22, 30, 31, 32])


def victim(kafka: KafkaCluster, writing: Writing, role: str) -> int:
    """Leads a partition that the batch goes to, or the partition of the transaction log in which
    the query's transactional id is."""
    if role == "leader of rows":
        return kafka.topics.leaders(writing.topic)[0]
    log = kafka.topics.leaders("__transaction_state")
    return log[java_hash(f"penstock-{writing.query}") % len(log)]


def java_hash(text: str) -> int:
    """Java's of a text, without its sign, as coordinators are chosen."""
    found = 0
    for each in text.encode("utf-16-be")[1::2]:
        found = (31 * found + each) & 0xFFFFFFFF
    return abs(found - (1 << 32) if found >> 31 else found)


def test_a_paused_node_is_replaced_and_comes_back(three: KafkaCluster, topic: str) -> None:
    three.topics.create(topic)
    paused = three.topics.leaders(topic)[0]
    reader = KafkaLog(kafka_settings({"bootstrap.servers": three.bootstrap_servers}))
    only = Partition(topic, 0)
    assert reader.read(only, Want(0), Deadline.after(SECONDS_MAX)).high_watermark == 0
    three.pause(paused)
    try:
        wait_until(
            lambda: three.topics.leaders(topic).get(0, paused) != paused,
            "another leader",
            SECONDS_MAX,
        )
        commit(transactional(three, topic), topic, "meanwhile", 0)
        assert three.nodes[paused].is_running
        # It asks the broker that it knows as the leader. Who waits there for as long as a request
        # may take is too late.
        found = reader.read(only, Want(0), Deadline.after(0.8 * REQUEST_SECONDS))
        assert found.decoded.rows["value"].to_pylist() == [b"meanwhile"]
    finally:
        three.resume(paused)
        reader.close()
    wait_until(lambda: has_all_copies(three, topic), "all copies", SECONDS_MAX)
    assert committed(three, topic, 1) == ["meanwhile"]


def test_a_frozen_way_holds_markers_back_behind_a_decided_commit(topic: str) -> None:
    require_kafka()
    with KafkaCluster(proxied=True) as kafka:
        kafka.topics.create(topic)
        producer = transactional(kafka, topic)
        commit(producer, topic, "first", 0)
        wait_until(lambda: markers(kafka, topic) == ["COMMIT"], "a marker", SECONDS_MAX)
        producer.begin_transaction()
        producer.produce(topic, b"second", partition=0)
        # A broker asks the coordinator, over this way too, before it takes the first message.
        assert producer.flush(SECONDS_MAX) == 0
        kafka.proxies[1].freeze()
        producer.commit_transaction(SECONDS_MAX)  # decided: the producer has its answer
        until = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < until:
            assert markers(kafka, topic) == ["COMMIT"]
            time.sleep(0.01)
        assert committed(kafka, topic, 1) == ["first"]
        kafka.proxies[1].thaw()
        assert committed(kafka, topic, 2) == ["first", "second"]


def markers(kafka: KafkaCluster, topic: str) -> list[str]:
    return [each.marker for each in batches(kafka, topic, 0) if each.marker is not None]
