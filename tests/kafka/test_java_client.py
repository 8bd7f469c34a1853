"""The Java client's transactions, by version: what its batches and its markers bear."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from penstock.testing.kafka import JavaClientError, JavaGatewayProcess, JavaProducer, KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka
from tests.kafka.segments import Batch, batches

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process() -> Iterator[JavaGatewayProcess]:
    require_kafka()
    it = JavaGatewayProcess()
    yield it
    it.close()


def with_markers(kafka: KafkaCluster, topic: str, count: int) -> list[Batch]:
    """The batches of partition 0, once it has this many markers: they come behind a commit."""
    found: list[Batch] = []

    def has_them() -> bool:
        found[:] = batches(kafka, topic, 0)
        return sum(each.marker is not None for each in found) >= count

    wait_until(has_them, f"{count} markers in {topic}", 60.0)
    return found


def three_transactions(kafka: KafkaCluster, topic: str, process: JavaGatewayProcess) -> list[Batch]:
    kafka.topics.create(topic)
    with JavaProducer(kafka.bootstrap_servers, topic, process=process) as producer:
        producer.init()
        for number in range(3):
            producer.begin()
            producer.send(topic, b"a", key=b"k", partition=0, headers={"kind": b"one"})
            producer.flush()
            if number == 1:
                producer.abort()
            else:
                producer.commit()
        return with_markers(kafka, topic, 3)


def test_markers_of_version_2_have_the_next_epoch(
    kafka: KafkaCluster, topic: str, process: JavaGatewayProcess
) -> None:
    found = three_transactions(kafka, topic, process)
    assert [each.marker for each in found] == [None, "COMMIT", None, "ABORT", None, "COMMIT"]
    assert all(each.is_transactional for each in found)
    assert len({each.producer for each in found}) == 1
    first = found[0].epoch
    assert [each.epoch for each in found] == [first + n for n in (0, 1, 1, 2, 2, 3)]
    assert [each.sequence for each in found if each.marker is None] == [0, 0, 0]


def test_markers_of_version_1_have_the_epoch_of_their_data(
    topic: str, process: JavaGatewayProcess
) -> None:
    with KafkaCluster(transaction_version=1) as kafka:
        found = three_transactions(kafka, topic, process)
    assert [each.marker for each in found] == [None, "COMMIT", None, "ABORT", None, "COMMIT"]
    assert len({each.epoch for each in found}) == 1
    assert [each.sequence for each in found if each.marker is None] == [0, 1, 2]


def test_a_producer_that_was_taken_over_is_refused(
    kafka: KafkaCluster, topic: str, process: JavaGatewayProcess
) -> None:
    kafka.topics.create(topic)
    with (
        JavaProducer(kafka.bootstrap_servers, topic, process=process) as old,
        JavaProducer(kafka.bootstrap_servers, topic, process=process) as new,
    ):
        old.init()
        new.init()
        old.begin()
        with pytest.raises(JavaClientError, match=r"ProducerFenced|InvalidProducerEpoch") as raised:
            commit_one(old, topic)
    assert pickle.loads(pickle.dumps(raised.value)).kind == raised.value.kind


def commit_one(producer: JavaProducer, topic: str) -> None:
    producer.send(topic, b"a")
    producer.commit()


def test_a_killed_producer_leaves_its_transaction_open(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    settings = {"transaction.timeout.ms": "5000"}
    with JavaProducer(kafka.bootstrap_servers, topic, settings=settings) as producer:
        producer.init()
        producer.begin()
        producer.send(topic, b"a")
        producer.flush()
        producer.kill()
        with pytest.raises(JavaClientError, match="process is gone"):
            producer.commit()
        assert [each.marker for each in batches(kafka, topic, 0)] == [None]
        # Nobody ends it but the broker, when its time is up.
        assert with_markers(kafka, topic, 1)[-1].marker == "ABORT"


def test_what_could_not_be_sent_is_an_error(
    kafka: KafkaCluster, topic: str, process: JavaGatewayProcess
) -> None:
    kafka.topics.create(topic, settings={"max.message.bytes": "100"})
    with JavaProducer(kafka.bootstrap_servers, process=process) as producer:
        producer.send(topic, bytes(1000))
        with pytest.raises(JavaClientError, match="RecordTooLarge"):
            producer.flush()
