"""What a plain client of Kafka's reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock.testing.kafka.machine import wait_until

if TYPE_CHECKING:
    from penstock.testing.kafka import KafkaCluster

SECONDS_MAX = 90.0
"""Only a failure takes this long: a session that ends, an election, a loaded machine do not."""


def committed(kafka: KafkaCluster, topic: str, count: int, partition: int = 0) -> list[str]:
    """What a reader of committed messages gets, up to this many."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reads-all",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[str] = []

    def has_all() -> bool:
        for message in consumer.consume(count, timeout=0.1):
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value.decode())
        return len(found) >= count

    try:
        wait_until(has_all, f"{count} messages of {topic}", SECONDS_MAX)
    finally:
        consumer.close()
    return found
