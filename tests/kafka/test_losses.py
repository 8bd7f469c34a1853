"""Rows that are gone in mid-stream, as the reader of a partition finds it out."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest

from penstock.journal.kafka.address import KafkaAddress, Subscription
from penstock.journal.kafka.store import KafkaStore
from penstock.shuffle.slice import fetching
from penstock.shuffle.slice.events import Fetch, Fetched, Lost, Probe, Probed, SliceEvent, Vanished
from penstock.shuffle.slice.fetching import Fetcher
from tests.kafka.side_by_side import SECONDS_MAX, fill
from tests.kafka.test_spark_losses import drop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


class Reader:
    """One partition of ten rows, with what its Slice is told."""

    def __init__(self, kafka: KafkaCluster, topic: str, **given: Any) -> None:
        kafka.topics.create(topic, 1)
        fill(kafka, topic, 0, 10, partitions=1)
        settings = {"bootstrap.servers": kafka.bootstrap_servers}
        self.store = KafkaStore(KafkaAddress(settings, **given))
        (self._journal,) = self.store.journals(topic)
        self._told: queue.SimpleQueue[SliceEvent | BaseException] = queue.SimpleQueue()
        self._fetcher = Fetcher(self.store, "test", self._told.put, self._told.put)

    def fetch(self, offset: int) -> SliceEvent | BaseException:
        journal = self._journal
        self._fetcher.submit(Fetch(7, journal.name, offset, 1 << 20, journal.identity))
        return self._told.get(timeout=SECONDS_MAX)

    def probe(self, offset: int) -> SliceEvent | BaseException:
        self._fetcher.submit(Probe(7, self._journal.name, offset, self._journal.identity))
        return self._told.get(timeout=SECONDS_MAX)

    def close(self) -> None:
        self._fetcher.close()
        self.store.close()


@pytest.fixture(params=[True, False], ids=["fails", "goes-on"])
def fails(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def reader(kafka: KafkaCluster, topic: str, fails: bool) -> Iterator[Reader]:
    made = Reader(kafka, topic, fail_on_data_loss=fails)
    yield made
    made.close()


def test_retention_overtakes_a_reader(
    kafka: KafkaCluster, topic: str, reader: Reader, fails: bool
) -> None:
    assert isinstance(reader.fetch(3), Fetched)
    drop(kafka, topic, 0, 6)
    found = reader.fetch(3)
    if fails:
        assert isinstance(found, Lost)
        assert (found.begin, found.end) == (3, 6)
        assert "offsets 3 to 5 were dropped" in found.reason
    else:
        assert found == Probed(7, 6, 10)
    assert reader.probe(0) == Probed(7, 6, 10)  # who begins takes what is there


def test_where_to_begin_was_said_and_is_gone(kafka: KafkaCluster, topic: str) -> None:
    reader = Reader(
        kafka, topic, subscriptions={topic: Subscription((topic,), starts={topic: {"0": 4}})}
    )
    try:
        assert reader.probe(0) == Probed(7, 4, 10)
        drop(kafka, topic, 0, 6)
        found = reader.probe(0)
        assert isinstance(found, Lost)
        assert (found.begin, found.end) == (4, 6)
    finally:
        reader.close()


def test_a_topic_is_made_again(
    kafka: KafkaCluster, topic: str, reader: Reader, fails: bool
) -> None:
    assert isinstance(reader.fetch(0), Fetched)
    kafka.topics.delete(topic)
    kafka.topics.create(topic, 1)
    found = reader.fetch(10)
    if fails:
        assert isinstance(found, Lost)
        assert "deleted, or made again; it was read up to offset 10" in found.reason
    else:
        assert found == Vanished(7)


def test_a_log_that_is_shorter_than_what_was_read(
    kafka: KafkaCluster, topic: str, reader: Reader, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an unclean election leaves it. Who goes on waits for rows behind those offsets."""
    monkeypatch.setattr(fetching, "SHORT_SECONDS", 0.2)
    if not fails:
        assert list(reader.store.read(reader.store.journals(topic)[0].name, 15)) == []
        fill(kafka, topic, 10, 10, partitions=1)
        found = reader.fetch(15)
        assert isinstance(found, Fetched)
        assert found.batches[0].offsets.tolist() == [15, 16, 17, 18, 19]
        return
    lost = reader.fetch(15)
    assert isinstance(lost, Lost)
    assert (lost.begin, lost.end) == (10, 15)
    assert "unclean leader election" in lost.reason
