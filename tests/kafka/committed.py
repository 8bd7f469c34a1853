"""What a plain `read_committed` consumer of another client sees of topics now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.transactions import list_transactions
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.settings import kafka_settings
from penstock.testing.kafka.machine import wait_until

if TYPE_CHECKING:
    from confluent_kafka import Message

    from penstock.testing.kafka import KafkaCluster

SECONDS_MAX = 60.0
DECIDED = ("PrepareCommit", "PrepareAbort")
"""States of a transaction that is decided, and not yet carried out in all partitions."""


def committed(kafka: KafkaCluster, *topics: str) -> list[Message]:
    """All rows up to the last stable offset of each partition, in the order of offsets there."""
    wait_for_markers(kafka)
    waiting = {(topic, number) for topic in topics for number in led_partitions(kafka, topic)}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[Message] = []
    try:
        consumer.assign([TopicPartition(*each, 0) for each in waiting])
        while waiting:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"the consumer stands still before the ends of {waiting}"
            error = message.error()
            if error is None:
                found.append(message)
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            waiting.discard((str(message.topic()), int(message.partition() or 0)))
    finally:
        consumer.close()
    return found


def led_partitions(kafka: KafkaCluster, topic: str) -> list[int]:
    """All partitions, once each of them has a leader: a broker that was paused leads none for a
    moment, and a topic without leaders would pass for an empty one."""
    known = kafka.topics.admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions
    wait_until(lambda: len(kafka.topics.leaders(topic)) == len(known), "leaders", SECONDS_MAX)
    return sorted(known)


def states(kafka: KafkaCluster) -> dict[str, str]:
    """The states of all transactional ids."""
    cluster = Cluster(kafka_settings({"bootstrap.servers": kafka.bootstrap_servers}))
    try:
        listed = list_transactions(cluster, Deadline.after(SECONDS_MAX))
        return {each.transactional_id: each.state for each in listed}
    finally:
        cluster.close()


def wait_for_markers(kafka: KafkaCluster) -> None:
    """Until every transaction that is decided shows, or does not, in all of its partitions."""
    wait_until(
        lambda: not any(state in DECIDED for state in states(kafka).values()),
        "decided transactions to be carried out",
        SECONDS_MAX,
    )
