"""A cluster starts, keeps what it was given, survives its nodes, and ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.testing.kafka import KafkaCluster, NodeFailedError
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.reading import SECONDS_MAX, committed

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.slow


def producer(kafka: KafkaCluster, **settings: str) -> Producer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, **given})


def send(into: Producer, topic: str, values: Iterable[str], partition: int = 0) -> None:
    for value in values:
        into.produce(topic, value.encode(), partition=partition)


def test_a_reader_of_committed_messages_sees_a_transaction_and_not_an_aborted_one(
    kafka: KafkaCluster, topic: str
) -> None:
    kafka.topics.create(topic, 2)
    writer = producer(kafka, transactional_id=topic)
    writer.init_transactions(SECONDS_MAX)
    writer.begin_transaction()
    send(writer, topic, ["aborted"])
    writer.abort_transaction(SECONDS_MAX)
    writer.begin_transaction()
    send(writer, topic, ["first"])
    send(writer, topic, ["second"], partition=1)
    writer.commit_transaction(SECONDS_MAX)
    assert committed(kafka, topic, 1) == ["first"]
    assert committed(kafka, topic, 1, partition=1) == ["second"]


def test_topics_grow_and_go_and_come_back_as_others(kafka: KafkaCluster, topic: str) -> None:
    topics = kafka.topics
    topics.create(topic, 1, settings={"retention.ms": "100000"})
    topics.grow(topic, 3)
    assert topics.leaders(topic) == {0: 1, 1: 1, 2: 1}
    topics.delete(topic)
    assert topics.leaders(topic) == {}
    topics.create(topic, 2)
    assert topics.leaders(topic) == {0: 1, 1: 1}


def test_a_killed_broker_comes_back_with_its_data(topic: str) -> None:
    require_kafka()
    with KafkaCluster() as kafka:
        kafka.topics.create(topic)
        before = producer(kafka)
        send(before, topic, ["before"])
        assert before.flush(SECONDS_MAX) == 0
        kafka.kill(1)
        assert not kafka.nodes[1].is_running
        kafka.start(1)
        after = producer(kafka)
        send(after, topic, ["after"])
        assert after.flush(SECONDS_MAX) == 0
        assert committed(kafka, topic, 2) == ["before", "after"]


def test_a_start_that_fails_names_the_node_and_quotes_its_log() -> None:
    require_kafka()
    with (
        pytest.raises(NodeFailedError, match=r"(?s)node 1 .*num\.io\.threads"),
        KafkaCluster(settings={"num.io.threads": "none"}),
    ):
        pass


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    require_kafka()
    program = (
        "import sys, time\n"
        "from penstock.testing.kafka import KafkaCluster\n"
        f"kafka = KafkaCluster(folder=__import__('pathlib').Path({str(tmp_path / 'kafka')!r}))\n"
        "kafka.__enter__()\n"
        "print(kafka.nodes[1].pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        broker = int(it.stdout.readline())
        assert not has_ended(broker)
        os.kill(it.pid, signal.SIGKILL)
        it.wait()
    wait_until(lambda: has_ended(broker), "the broker to end", SECONDS_MAX)


def has_ended(pid: int) -> bool:
    """An orphan that nobody asked for its exit code has ended too: that is state Z."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"
