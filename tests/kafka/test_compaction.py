"""Compaction takes the markers of transactions away. A reader that counts markers has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.address import KafkaAddress
from penstock.journal.kafka.store import KafkaStore
from penstock.journal.markers import MarkersSought, markers_again
from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.segments import batches

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SECONDS_MAX = 120.0
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "200",
}
TRANSACTIONS = 8


@pytest.fixture
def cleaning() -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(settings={"log.cleaner.backoff.ms": "200"}) as cluster:
        yield cluster


def test_a_marker_that_compaction_took_is_told(cleaning: KafkaCluster) -> None:
    """Whose rows were all written again, its marker goes: of eight transactions of one producer and
    epoch fewer markers are left. Where they were, the reader is told that rows are lost."""
    topic = cleaning.topics.create("prices", settings=COMPACTED)
    producer = Producer(
        {"bootstrap.servers": cleaning.bootstrap_servers, "transactional.id": "clerk"}
    )
    producer.init_transactions(SECONDS_MAX)

    def commit() -> None:
        producer.begin_transaction()
        producer.produce(topic, b"1", b"bread")
        producer.commit_transaction(SECONDS_MAX)

    for _ in range(TRANSACTIONS):
        commit()
    written = TRANSACTIONS

    def are_gone() -> bool:
        nonlocal written
        commit()  # a segment is closed when something is written behind it
        written += 1
        left = sum(one.marker is not None for one in batches(cleaning, topic, 0))
        return left < written - 2

    wait_until(are_gone, "markers to be compacted away", SECONDS_MAX)
    store = KafkaStore(KafkaAddress({"bootstrap.servers": cleaning.bootstrap_servers}))
    try:
        (journal,) = store.journals(topic)
        end = store.probe(journal.name).write_head
        found = list(markers_again(store, (journal.name, 0), MarkersSought(0, 0, end)))
    finally:
        store.close()
    left = [one for one in found if not one.is_lost]
    assert len(left) < written
    assert {one.epoch for one in left} == {left[0].epoch}
    ends = [-1, *(one.offset for one in left)]
    for before, one in zip(ends, left, strict=False):
        # A transaction is a row and a marker: where more is between two markers, one was lost.
        is_told = any(before < lost.offset <= one.offset for lost in found if lost.is_lost)
        assert is_told or one.offset - before <= 2
