"""A read of a partition fetches about what its reader takes, and tells what the partition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.journal.kafka.store import open_kafka

if TYPE_CHECKING:
    from penstock.journal.kafka.store import KafkaStore
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

ROWS = 4_000
PARTITIONS = 12
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


def test_many_partitions_are_read_by_one_request_and_a_little_at_a_time(
    kafka: KafkaCluster, topic: str
) -> None:
    """Each fetch takes a tenth of a producer's batch: nothing is lost, and nothing comes twice."""
    kafka.topics.create(topic, partitions=PARTITIONS)
    _fill(kafka, topic, create=False)
    store = open_kafka(f"kafka://{kafka.bootstrap_servers}")
    requests = _counted(store)
    try:
        at = {journal.name: 0 for journal in store.journals(topic)}
        assert len(at) == PARTITIONS
        came: dict[str, list[int]] = {name: [] for name in at}
        fetch_bytes = BATCH_ROWS // 10 * len(VALUE)
        rounds, alone, left = 0, 0, set(at)
        while left:
            rounds += 1
            found = store.read_together({name: (at[name], fetch_bytes) for name in left})
            for name in left - found.keys():  # its next batch is larger than those before
                (first, *_) = store.read(name, at[name], fetch_bytes=fetch_bytes)
                at[name], alone = first.next_offset, alone + 1
                came[name] += first.offsets.tolist()
            for name, rows in found.items():
                if rows.batch is None:
                    assert rows.probe.write_head == at[name]
                    left.discard(name)
                    continue
                assert rows.batch.documents.get_total_buffer_size() < 3 * fetch_bytes
                at[name] = rows.batch.next_offset
                came[name] += rows.batch.offsets.tolist()
    finally:
        store.close()
    assert sum(map(len, came.values())) == ROWS
    assert all(offsets == list(range(len(offsets))) for offsets in came.values())
    assert rounds > ROWS // PARTITIONS // BATCH_ROWS
    assert alone <= PARTITIONS, "sizes are learned"
    assert len(requests) < 2 * rounds


def _counted(store: KafkaStore) -> list[int]:
    """A number for each request for rows."""
    sent: list[int] = []
    cluster = store._log._reading
    ask_all = cluster.ask_all

    def counting(requests: Any, *more: Any) -> Any:
        sent.extend(map(len, requests.values()))
        return ask_all(requests, *more)

    cluster.ask_all = counting  # type: ignore[method-assign, assignment]
    return sent


def _fill(kafka: KafkaCluster, topic: str, *, create: bool = True) -> None:
    if create:
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
