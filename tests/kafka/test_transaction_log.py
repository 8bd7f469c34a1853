"""What a test can have happen to the transaction log: compaction, ids that expire, timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.reading import SECONDS_MAX
from tests.kafka.segments import batches

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

LOG = "__transaction_state"
TRANSACTIONS = 200


@pytest.fixture(scope="module")
def hasty() -> Iterator[KafkaCluster]:
    """A cluster that compacts its log, forgets ids and aborts transactions within seconds."""
    require_kafka()
    settings = {
        "transaction.state.log.num.partitions": "1",
        # Only closed segments are compacted. By size Kafka closes none below 1 MiB; by age it does.
        "log.roll.ms": "500",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.backoff.ms": "100",
        "transactional.id.expiration.ms": "3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with KafkaCluster(settings=settings) as cluster:
        yield cluster


def transactional(kafka: KafkaCluster, name: str, timeout_ms: int = 60_000) -> Producer:
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "transactional.id": name,
        "transaction.timeout.ms": timeout_ms,
        "linger.ms": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(SECONDS_MAX)
    return producer


def test_the_log_is_compacted_while_it_is_written(hasty: KafkaCluster, topic: str) -> None:
    hasty.topics.create(topic)
    producer = transactional(hasty, topic)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.commit_transaction(SECONDS_MAX)

    def is_compacted() -> bool:
        offsets = [each.offset for each in batches(hasty, LOG, 0)]
        newest = max(offsets, default=0)
        return newest >= 2 * TRANSACTIONS and len(offsets) < newest // 2

    wait_until(is_compacted, "the cleaner to go over the log", SECONDS_MAX)


def test_an_id_that_is_idle_expires(hasty: KafkaCluster, topic: str) -> None:
    transactional(hasty, topic)
    consumer = Consumer({"bootstrap.servers": hasty.bootstrap_servers, "group.id": "log"})
    consumer.assign([TopicPartition(LOG, 0, OFFSET_BEGINNING)])

    def is_forgotten() -> bool:
        return any(
            topic.encode() in (message.key() or b"") and message.value() is None
            for message in consumer.consume(1000, timeout=0.1)
        )

    try:
        wait_until(is_forgotten, f"the id {topic} to expire", SECONDS_MAX)
    finally:
        consumer.close()


def test_a_transaction_is_aborted_when_its_time_is_up(hasty: KafkaCluster, topic: str) -> None:
    hasty.topics.create(topic)
    producer = transactional(hasty, topic, timeout_ms=2000)
    producer.begin_transaction()
    producer.produce(topic, b"late")
    assert producer.flush(SECONDS_MAX) == 0
    wait_until(
        lambda: [each.marker for each in batches(hasty, topic, 0)] == [None, "ABORT"],
        "the broker to abort",
        SECONDS_MAX,
    )
