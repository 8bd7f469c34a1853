"""What happens to topics, producers and brokers, as a feed over them delivers and explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from penstock.journal.errors import DataLossError
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.transactions import describe_transaction
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.settings import kafka_settings
from penstock.testing.kafka.machine import wait_until
from tests.kafka.segments import batches
from tests.kafka.test_spark_losses import drop
from tests.kafka.test_transaction_log import hasty, transactional
from tests.kafka.topic_feed import SECONDS_MAX, TopicFeed, is_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from confluent_kafka import Producer

    from penstock.testing.kafka import KafkaCluster

__all__ = ["hasty"]
"""A broker of this module: its last test kills it, and starts it again."""

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(hasty: KafkaCluster, topic: str, tmp_path: Path) -> Iterator[Callable[[], TopicFeed]]:
    """Opens a feed over the test's topic. The next one goes on where the last one ended."""
    feeds: list[TopicFeed] = []

    def open_next() -> TopicFeed:
        last = {"last": feeds[-1].last} if feeds else {}
        feeds.append(TopicFeed(hasty, tmp_path / "feed", topic, **last))
        return feeds[-1]

    yield open_next
    for feed in feeds:
        feed.close()


def begin(producer: Producer, topic: str, value: str) -> None:
    """In both partitions, which the broker has then."""
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def commit(producer: Producer, topic: str, value: str) -> None:
    begin(producer, topic, value)
    producer.commit_transaction(SECONDS_MAX)


def test_a_transaction_that_times_out_and_a_producer_that_is_fenced(
    hasty: KafkaCluster, topic: str, opened: Callable[[], TopicFeed]
) -> None:
    hasty.topics.create(topic, 2)
    feed, other = opened(), transactional(hasty, f"{topic}-other")
    late = transactional(hasty, topic, timeout_ms=4_000)
    begin(late, topic, "late")
    commit(other, topic, "first")
    feed.wait_for("first", "first")  # nobody else waits for the open one
    told = feed.wait_until(is_waiting("open_transaction"), "an open transaction")
    assert "hidden until it commits" in " ".join(told.explanation)
    feed.wait_until(lambda state: not is_waiting("open_transaction")(state), "its end")
    with pytest.raises(KafkaException):
        late.commit_transaction(SECONDS_MAX)
    old = transactional(hasty, f"{topic}-fenced")
    begin(old, topic, "fenced")
    commit(transactional(hasty, f"{topic}-fenced"), topic, "second")
    with pytest.raises(KafkaException):
        old.commit_transaction(SECONDS_MAX)
    commit(transactional(hasty, f"{topic}-other"), topic, "third")  # the first one has expired
    feed.wait_for("first", "first", "second", "second", "third", "third")
    assert feed.state.verdict == "healthy"


def test_a_transactional_id_expires_and_is_used_again(
    hasty: KafkaCluster, topic: str, opened: Callable[[], TopicFeed]
) -> None:
    hasty.topics.create(topic, 2)
    feed = opened()
    commit(transactional(hasty, topic), topic, "before")
    feed.wait_for("before", "before")
    client = Cluster(kafka_settings({"bootstrap.servers": hasty.bootstrap_servers}))
    try:
        wait_until(
            lambda: describe_transaction(client, topic, Deadline.after(SECONDS_MAX)) is None,
            "the id to expire",
            SECONDS_MAX,
        )
    finally:
        client.close()
    commit(transactional(hasty, topic), topic, "after")
    feed.wait_for("before", "before", "after", "after")


def test_a_topic_is_compacted_before_it_is_read(
    hasty: KafkaCluster, topic: str, opened: Callable[[], TopicFeed]
) -> None:
    """Offsets have gaps, and transactions lack rows: what is left comes, and comes once."""
    hasty.topics.create(topic, 2, settings={"cleanup.policy": "compact"})
    producer = transactional(hasty, topic)
    newest: dict[int, str] = {}
    written: list[str] = []

    def is_compacted() -> bool:
        """Kafka compacts what lies before the segment that is written: so more is written."""
        producer.begin_transaction()
        for partition in range(2):
            value = f"{partition}-{len(written)}"
            producer.produce(topic, value.encode(), b"key", partition=partition)
            newest[partition] = value
            written.append(value)
        producer.commit_transaction(SECONDS_MAX)
        kept = [each.count for each in batches(hasty, topic, 0) if each.marker is None]
        return len(written) > 20 and sum(kept) < len(written) // 4

    wait_until(is_compacted, "the cleaner to go over the topic", SECONDS_MAX)
    feed = opened()
    feed.wait_until(lambda _: set(newest.values()) <= set(feed.values), "the newest rows")
    assert set(feed.values) < set(written)
    assert len(feed.values) == len(set(feed.values))


def drop_unread(kafka: KafkaCluster, topic: str) -> None:
    commit(transactional(kafka, topic), topic, "unread")
    for partition in range(2):
        drop(kafka, topic, partition, 3)


def delete(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.delete(topic)


def make_again(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.delete(topic)
    kafka.topics.create(topic, 2)


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (drop_unread, "offsets 2 to 2 were dropped by retention before they were read"),
        (delete, "not there any more"),
        (make_again, "deleted, and another one was made under its name"),
    ],
    ids=["retention", "deleted", "made-again"],
)
def test_rows_that_went_while_the_feed_was_down_are_explained(
    hasty: KafkaCluster,
    topic: str,
    opened: Callable[[], TopicFeed],
    lose: Callable[[KafkaCluster, str], None],
    said: str,
) -> None:
    hasty.topics.create(topic, 2)
    feed = opened()
    commit(transactional(hasty, topic), topic, "read")
    feed.wait_for("read", "read")
    feed.close()
    lose(hasty, topic)
    again = opened()
    with pytest.raises(DataLossError, match=said):
        again.read_until_it_fails()
    _is_explained(again, topic, said)


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made-again"])
def test_a_topic_that_goes_in_mid_stream_is_explained(
    hasty: KafkaCluster,
    topic: str,
    opened: Callable[[], TopicFeed],
    lose: Callable[[KafkaCluster, str], None],
) -> None:
    hasty.topics.create(topic, 2)
    feed = opened()
    commit(transactional(hasty, topic), topic, "read")
    feed.wait_for("read", "read")
    lose(hasty, topic)
    with pytest.raises(DataLossError, match="was deleted, or made again"):
        feed.read_until_it_fails()
    _is_explained(feed, topic, "was deleted, or made again")


def _is_explained(feed: TopicFeed, topic: str, said: str) -> None:
    explained = feed.wait_until_down()
    assert said in explained
    assert f"topic {topic}" in explained
    assert "failOnDataLoss" in explained


def test_all_brokers_are_gone_and_come_back(
    hasty: KafkaCluster, topic: str, opened: Callable[[], TopicFeed]
) -> None:
    """The last test of this broker: its producers are gone with it."""
    hasty.topics.create(topic, 2)
    feed = opened()
    commit(transactional(hasty, topic), topic, "before")
    feed.wait_for("before", "before")
    hasty.kill(1)
    told = feed.wait_until(is_waiting("store_silent"), "a word of the broker")
    assert told.verdict == "waiting"
    explained = " ".join(told.explanation)
    assert f"for an answer of kafka://{hasty.bootstrap_servers}: could not" in explained
    assert "Connection refused" in explained
    assert any("See whether the brokers run" in advice for advice in told.advice)
    hasty.start(1)
    commit(transactional(hasty, topic), topic, "after")
    feed.wait_for("before", "before", "after", "after")
    feed.wait_until(lambda state: not is_waiting("store_silent")(state), "an answer")
    assert feed.state.restarts.count == 0
