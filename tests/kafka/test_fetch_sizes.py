"""A read of a partition fetches about what its reader takes, and tells what the partition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.store import open_kafka

if TYPE_CHECKING:
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

ROWS = 4_000
BATCH_ROWS = 100
VALUE = bytes(range(256)) * 4


def test_a_read_fetches_no_more_than_its_reader_takes(kafka: KafkaCluster, topic: str) -> None:
    _fill(kafka, topic)
    store = open_kafka(f"kafka://{kafka.bootstrap_servers}")
    try:
        (journal,) = store.journals(topic)
        at_once = list(store.read(journal.name, 0))
        in_parts = list(store.read(journal.name, 0, fetch_bytes=3 * BATCH_ROWS * len(VALUE)))
        probe = store.probe(journal.name)
    finally:
        store.close()
    for batches in (at_once, in_parts):
        assert [n for batch in batches for n in batch.offsets.tolist()] == list(range(ROWS))
    assert max(batch.rows for batch in in_parts) < min(batch.rows for batch in at_once[:-1])
    assert all(batch.probe == probe for batch in (*at_once, *in_parts))
    assert {each.probe.identity for each in in_parts if each.probe} == {journal.identity}


def _fill(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "batch.num.messages": BATCH_ROWS,
            "linger.ms": 100,
        }
    )
    for number in range(ROWS):
        producer.produce(topic, VALUE, b"%d" % number)
    assert producer.flush(60) == 0
