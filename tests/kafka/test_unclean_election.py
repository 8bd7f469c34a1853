"""A leader that lacks rows is elected: a reader that has read them is told so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.journal.errors import DataLossError
from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import LogTruncatedError
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.settings import kafka_settings
from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.topic_feed import TopicFeed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SECONDS_MAX = 120.0
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


def soon(seconds: float = SECONDS_MAX) -> Deadline:
    return Deadline.after(seconds)


def send(kafka: KafkaCluster, *values: bytes) -> None:
    """Acknowledged once every copy in sync has it: a follower counts as in sync before its first
    fetch, so with fewer acknowledgements it could be killed without the row that it is to keep."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(SECONDS_MAX) == 0


def test_rows_that_an_election_took_back(tmp_path: Path) -> None:
    require_kafka()
    with KafkaCluster(3) as kafka:
        kafka.topics.create("orders", replication=2, settings=UNCLEAN)
        only = Partition("orders", 0)
        with (
            KafkaLog(kafka_settings({"kafka.bootstrap.servers": kafka.bootstrap_servers})) as log,
            contextlib.closing(TopicFeed(kafka, tmp_path / "feed", "orders")) as feed,
        ):
            send(kafka, b"kept")
            leader = kafka.topics.leaders("orders")[0]
            follower = _follower(kafka, leader)
            wait_until(lambda: _in_sync(kafka) == {leader, follower}, "two copies", SECONDS_MAX)
            kafka.kill(follower)
            wait_until(lambda: _in_sync(kafka) == {leader}, "one copy", SECONDS_MAX)
            send(kafka, b"lost", b"lost too")
            want = Want(0)
            while want.offset < 3:
                want = log.read(only, want, soon(), wait_ms=1_000).behind
            log.check_not_truncated({only: (want.offset, want.read_epoch)}, soon())
            feed.wait_for("kept", "lost", "lost too")
            kafka.kill(leader)
            kafka.start(follower)
            wait_until(
                lambda: kafka.topics.leaders("orders").get(0) == follower,
                "an unclean election",
                SECONDS_MAX,
            )
            send(kafka, b"another", b"and another", b"and a third")
            with pytest.raises(LogTruncatedError, match="unclean leader election") as cut:
                log.read(only, want, soon())
            assert cut.value.end == 1
            with pytest.raises(LogTruncatedError):
                log.check_not_truncated({only: (want.offset, want.read_epoch)}, soon())
            with pytest.raises(DataLossError, match="unclean leader election"):
                feed.read_until_it_fails()
            assert "unclean leader election took rows back" in feed.wait_until_down()
            decoded = log.read(only, Want(0), soon()).decoded
            assert decoded.rows["value"].to_pylist() == [
                b"kept",
                b"another",
                b"and another",
                b"and a third",
            ]


def _follower(kafka: KafkaCluster, leader: int) -> int:
    (follower,) = set(_described(kafka).replicas) - {leader}
    return int(follower)


def _in_sync(kafka: KafkaCluster) -> set[int]:
    return set(_described(kafka).isrs)


def _described(kafka: KafkaCluster) -> Any:
    return (
        kafka.topics.admin.list_topics("orders", timeout=SECONDS_MAX).topics["orders"].partitions[0]
    )
