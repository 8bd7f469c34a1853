"""The transaction log of a real coordinator: commits, aborts, fences, timeouts, compaction, and ids
that expire; producers of version 1 (librdkafka) and 2 (Java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.settings import kafka_settings
from penstock.journal.kafka.transaction_log import Entry, Status, Tombstone
from penstock.journal.kafka.transaction_tail import TransactionTail
from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.java_client import JavaClientError, JavaProducer
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SECONDS_MAX = 60.0
COMMITTED = [Status.ONGOING, Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT]
ABORTED = [Status.ONGOING, Status.PREPARE_ABORT, Status.COMPLETE_ABORT]
EXPIRING = {
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "2000",
    "transaction.state.log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


class Followed:
    """A tail, and all that it has brought so far."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._cluster = Cluster(
            kafka_settings({"kafka.bootstrap.servers": kafka.bootstrap_servers})
        )
        self._tail = TransactionTail(self._cluster)
        self.entries: list[Entry | Tombstone] = []

    def of(self, transactional_id: str) -> list[Entry]:
        """Everything but tombstones, of one id."""
        self.entries += self._tail.read(Deadline.after(SECONDS_MAX)).entries
        return [
            each
            for each in self.entries
            if isinstance(each, Entry) and each.transactional_id == transactional_id
        ]

    def statuses(self, transactional_id: str) -> list[Status]:
        """Without repetitions: a coordinator writes Ongoing again for each partition it is told."""
        found = [each.status for each in self.of(transactional_id)]
        return [now for now, before in zip(found, [None, *found], strict=False) if now != before]

    def wait_for(self, transactional_id: str, status: Status) -> Entry:
        wait_until(
            lambda: (
                bool(self.of(transactional_id)) and self.of(transactional_id)[-1].status == status
            ),
            f"{transactional_id} to be {status.name}",
            SECONDS_MAX,
        )
        return self.of(transactional_id)[-1]

    def close(self) -> None:
        self._cluster.close()


@pytest.fixture
def followed(kafka: KafkaCluster) -> Iterator[Followed]:
    followed = Followed(kafka)
    yield followed
    followed.close()


def producer_of(kafka: KafkaCluster, transactional_id: str, **others: int) -> Producer:
    given = {name.replace("_", "."): value for name, value in others.items()}
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": transactional_id,
            **given,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def write(producer: Producer, topic: str, *partitions: int) -> None:
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def test_a_commit_and_an_abort_of_version_1(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic, 3)
    producer = producer_of(kafka, topic)
    write(producer, topic, 0, 2)
    producer.commit_transaction(SECONDS_MAX)
    followed.wait_for(topic, Status.COMPLETE_COMMIT)
    write(producer, topic, 1)
    producer.abort_transaction(SECONDS_MAX)
    followed.wait_for(topic, Status.COMPLETE_ABORT)
    assert followed.statuses(topic) == [Status.EMPTY, *COMMITTED, *ABORTED]
    entries = {each.status: each for each in followed.of(topic)}
    assert sorted(entries[Status.PREPARE_COMMIT].partitions) == [(topic, 0), (topic, 2)]
    assert entries[Status.PREPARE_ABORT].partitions == ((topic, 1),)
    assert entries[Status.COMPLETE_COMMIT].partitions == ()
    assert {each.epoch for each in followed.of(topic)} == {0}
    assert len({each.log_partition for each in followed.of(topic)}) == 1
    offsets = [each.offset for each in followed.of(topic)]
    assert offsets == sorted(offsets)


def test_a_decision_is_there_when_the_commit_returns(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic, 2)
    producer = producer_of(kafka, topic)
    for count in range(1, 30):
        write(producer, topic, 0, 1)
        producer.commit_transaction(SECONDS_MAX)
        statuses = [each.status for each in followed.of(topic)]
        assert statuses.count(Status.PREPARE_COMMIT) == count


def test_version_2_has_an_epoch_for_each_transaction(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic, 2)
    with JavaProducer(kafka.bootstrap_servers, topic) as producer:
        producer.init()
        for commits in (True, False, True):
            producer.begin()
            producer.send(topic, b"x", partition=0)
            producer.send(topic, b"y", partition=1)
            producer.flush()
            producer.commit() if commits else producer.abort()
        followed.wait_for(topic, Status.COMPLETE_COMMIT)
    decided = [
        each
        for each in followed.of(topic)
        if each.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
    ]
    assert [each.status for each in decided] == [
        Status.PREPARE_COMMIT,
        Status.PREPARE_ABORT,
        Status.PREPARE_COMMIT,
    ]
    assert {each.client_version for each in decided} == {2}
    assert all(sorted(each.partitions) == [(topic, 0), (topic, 1)] for each in decided)
    epochs = [each.epoch for each in decided]
    assert epochs == sorted(set(epochs))


def test_a_second_producer_of_the_same_id_fences_the_first(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic)
    first = producer_of(kafka, topic)
    write(first, topic, 0)
    second = producer_of(kafka, topic)
    write(second, topic, 0)
    second.commit_transaction(SECONDS_MAX)
    followed.wait_for(topic, Status.COMPLETE_COMMIT)
    statuses = followed.statuses(topic)
    assert statuses[-3:] == COMMITTED
    assert Status.PREPARE_ABORT in statuses
    aborted = next(each for each in followed.of(topic) if each.status == Status.PREPARE_ABORT)
    assert aborted.partitions == ((topic, 0),)
    last = followed.of(topic)[-1]
    assert (last.producer_id, last.epoch) > (aborted.producer_id, 0)


def test_a_java_producer_that_is_killed_is_fenced_by_the_next(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic)
    first = JavaProducer(kafka.bootstrap_servers, topic)
    first.init()
    first.begin()
    first.send(topic, b"x")
    first.flush()
    first.kill()
    with JavaProducer(kafka.bootstrap_servers, topic) as second:
        second.init()
    followed.wait_for(topic, Status.EMPTY)
    with pytest.raises(JavaClientError):
        first.commit()
    first.process.close()
    statuses = followed.statuses(topic)
    assert Status.PREPARE_ABORT in statuses
    assert Status.PREPARE_COMMIT not in statuses


def test_a_transaction_that_times_out_is_aborted(
    kafka: KafkaCluster, topic: str, followed: Followed
) -> None:
    kafka.topics.create(topic)
    producer = producer_of(kafka, topic, transaction_timeout_ms=1_000)
    write(producer, topic, 0)
    last = followed.wait_for(topic, Status.COMPLETE_ABORT)
    assert last.epoch >= 1  # the coordinator raises it, so that the producer is fenced
    aborted = next(each for each in followed.of(topic) if each.status == Status.PREPARE_ABORT)
    assert aborted.partitions == ((topic, 0),)
    assert aborted.timeout_ms == 1_000


def test_a_tail_goes_on_where_another_ended(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    cluster = Cluster(kafka_settings({"kafka.bootstrap.servers": kafka.bootstrap_servers}))
    producer = producer_of(kafka, topic)
    ends = TransactionTail(cluster).read(Deadline.after(SECONDS_MAX)).ends
    write(producer, topic, 0)
    producer.commit_transaction(SECONDS_MAX)
    entries = TransactionTail(cluster, ends).read(Deadline.after(SECONDS_MAX)).entries
    assert {each.transactional_id for each in entries} == {topic}
    assert Status.EMPTY not in {each.status for each in entries if isinstance(each, Entry)}
    cluster.close()


def test_no_transaction_ever_then_compaction_and_an_id_that_expires() -> None:
    require_kafka()
    with KafkaCluster(settings=EXPIRING) as kafka:
        followed = Followed(kafka)
        assert followed.of("any") == []
        kafka.topics.create("orders")
        producer = producer_of(kafka, "short")
        write(producer, "orders", 0)
        producer.commit_transaction(SECONDS_MAX)
        followed.wait_for("short", Status.COMPLETE_COMMIT)

        def is_forgotten() -> bool:
            followed.of("short")
            return any(
                isinstance(each, Tombstone) and each.transactional_id == "short"
                for each in followed.entries
            )

        wait_until(is_forgotten, "the id to expire", SECONDS_MAX)
        _fill_until_compacted(kafka, followed)
        followed.close()


def _fill_until_compacted(kafka: KafkaCluster, followed: Followed) -> None:
    """Segments of a megabyte are full after some thousand transactions with long ids."""
    ids = ["long-" + "x" * 900 + str(n) for n in range(3)]
    producers = [producer_of(kafka, each) for each in ids]

    def is_compacted() -> bool:
        for _ in range(30):
            for producer in producers:
                write(producer, "orders", 0)
                producer.commit_transaction(SECONDS_MAX)
        fresh = Followed(kafka)
        seen = fresh.of(ids[0])
        fresh.close()
        return 0 < len(seen) < len(followed.of(ids[0]))

    wait_until(is_compacted, "the log to be compacted", 3 * SECONDS_MAX)
    fresh = Followed(kafka)
    for each in ids:
        assert fresh.of(each)[-1] == followed.of(each)[-1]
        assert fresh.of(each)[-1].status == Status.COMPLETE_COMMIT
    fresh.close()
