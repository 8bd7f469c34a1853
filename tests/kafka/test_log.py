"""A cluster's partitions are listed, probed and read, on one broker that goes and comes back."""

from __future__ import annotations

import json
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.journal.errors import OffsetDroppedError
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.configs import topic_settings
from penstock.journal.kafka.client.fetching import Want, fetch
from penstock.journal.kafka.client.transactions import (
    abort_in_partition,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import (
    BrokersUnavailableError,
    LogTruncatedError,
    TopicMadeAgainError,
    UnknownTopicError,
)
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.reading import read_up_to
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.settings import kafka_settings
from penstock.testing.kafka import KafkaCluster
from penstock.testing.kafka.machine import wait_until
from tests.kafka.broker import require_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal.kafka.settings import KafkaSettings

pytestmark = pytest.mark.slow

SECONDS_MAX = 60.0


def soon(seconds: float = SECONDS_MAX) -> Deadline:
    return Deadline.after(seconds)


def settings_of(kafka: KafkaCluster, **others: str) -> KafkaSettings:
    given = {name.replace("_", "."): value for name, value in others.items()}
    return kafka_settings({"kafka.bootstrap.servers": kafka.bootstrap_servers, **given})


@pytest.fixture
def log(kafka: KafkaCluster) -> Iterator[KafkaLog]:
    with KafkaLog(settings_of(kafka)) as opened:
        yield opened


def send(
    kafka: KafkaCluster, topic: str, values: list[bytes], partition: int = 0, **more: str
) -> None:
    send_all(kafka, topic, {partition: values}, **more)


def send_all(kafka: KafkaCluster, topic: str, values: dict[int, list[bytes]], **more: str) -> None:
    """To each of the partitions, by one producer: one takes a third of a second to begin."""
    given = {name.replace("_", "."): value for name, value in more.items()}
    # Without idempotence a batch that is sent again may come behind the next one.
    ordered = {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": "true"}
    producer = Producer({**ordered, **given})
    for partition, of_it in values.items():
        for value in of_it:
            producer.produce(
                topic, value, key=value[:2], partition=partition, headers=[("n", b"1")]
            )
    assert producer.flush(SECONDS_MAX) == 0


def values_of(log: KafkaLog, partition: Partition, want: Want, end: int) -> list[Any]:
    values: list[Any] = []
    while want.offset < end:
        read = log.read(partition, want, soon(), wait_ms=100)
        decoded, want = read.decoded, read.behind
        values += decoded.rows["value"].to_pylist()
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_sent_is_read(kafka: KafkaCluster, topic: str, log: KafkaLog, codec: str) -> None:
    kafka.topics.create(topic, 2)
    sent = [json.dumps({"id": n, "text": "x" * (n % 50)}).encode() for n in range(3_000)]
    send(kafka, topic, sent, partition=1, compression_type=codec, batch_num_messages="700")
    made = log.topics(soon(), [topic, "not-there"])
    assert made.keys() == {topic}
    first, second = made[topic].partitions()
    probed = log.probe([first, second], soon())
    assert (probed[first].earliest, probed[first].high_watermark) == (0, 0)
    assert (probed[second].earliest, probed[second].high_watermark) == (0, 3_000)
    want = Want(0, topic_id=made[topic].id, bytes_max=20_000)
    assert values_of(log, second, want, 3_000) == sent
    read = log.read(second, Want(2_990), soon(), with_headers=True)
    decoded, behind = read.decoded, read.behind
    assert decoded.rows["offset"].to_pylist() == list(range(2_990, 3_000))
    assert decoded.rows["headers"].to_pylist()[0] == [{"key": "n", "value": b"1"}]
    assert (behind.offset, behind.read_epoch) == (3_000, 0)
    again = log.read(second, behind, soon())
    nothing, same = again.decoded, again.behind
    assert (nothing.rows.num_rows, same) == (0, behind)


def test_offsets_of_times(kafka: KafkaCluster, topic: str, log: KafkaLog) -> None:
    kafka.topics.create(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(5):
        producer.produce(topic, b"x", timestamp=1_000_000 + n)
        producer.flush(SECONDS_MAX)
    only = Partition(topic, 0)
    assert log.offsets_for_times({only: 1_000_003}, soon()) == {only: 3}
    assert log.offsets_for_times({only: 2_000_000}, soon()) == {only: None}


def test_many_partitions_are_read_up_to_their_ends(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic, 20)
    send_all(kafka, topic, {number: [b"%d" % n for n in range(number)] for number in range(20)})
    cluster = Cluster(settings_of(kafka, kafka_fetch_max_bytes="300"))
    partitions = cluster.topic(topic, soon()).partitions()
    wants = {each: Want(0) for each in partitions}
    counts = dict.fromkeys(partitions, 0)
    for partition, decoded in read_up_to(cluster, wants, {p: p.number for p in partitions}, soon()):
        counts[partition] += decoded.rows.num_rows
    assert {each.number: count for each, count in counts.items()} == {n: n for n in range(20)}
    cluster.close()


def test_an_open_transaction_is_described_and_aborted(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"of-{topic}"}
    )
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(SECONDS_MAX)
    cluster, only = Cluster(settings_of(kafka)), Partition(topic, 0)
    listed = {each.transactional_id: each for each in list_transactions(cluster, soon())}
    assert listed[f"of-{topic}"].state == "Ongoing"
    described = describe_transaction(cluster, f"of-{topic}", soon())
    assert described is not None
    assert (described.state, described.partitions) == ("Ongoing", (only,))
    assert describe_transaction(cluster, "nobody's", soon()) is None
    (open_one,) = describe_producers(cluster, [only], soon())[only]
    assert (open_one.producer_id, open_one.transaction_begin) == (described.producer_id, 0)
    abort_in_partition(cluster, only, open_one, soon())
    (closed,) = describe_producers(cluster, [only], soon())[only]
    assert closed.transaction_begin is None
    cluster.close()


def test_settings_of_a_topic(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic, settings={"retention.ms": "12345"})
    cluster = Cluster(settings_of(kafka))
    assert topic_settings(cluster, topic, ["retention.ms"], soon()) == {"retention.ms": "12345"}
    cluster.close()


def test_a_topic_that_is_deleted_and_made_again(
    kafka: KafkaCluster, topic: str, log: KafkaLog
) -> None:
    kafka.topics.create(topic)
    send(kafka, topic, [b"a", b"b"])
    only, old = Partition(topic, 0), log.topics(soon(), [topic])[topic]
    want = log.read(only, Want(0, topic_id=old.id), soon()).behind
    kafka.topics.delete(topic)
    with pytest.raises(UnknownTopicError, match=topic):
        log.read(only, want, soon())
    with pytest.raises(UnknownTopicError, match=topic):
        log.probe([only], soon())
    kafka.topics.create(topic)
    with pytest.raises(TopicMadeAgainError, match=f"{old.id} and is "):
        log.read(only, want, soon())


def test_a_partition_that_there_is_not(kafka: KafkaCluster, topic: str, log: KafkaLog) -> None:
    kafka.topics.create(topic)
    with pytest.raises(UnknownTopicError, match="has no partition 7"):
        log.probe([Partition(topic, 7)], soon())
    kafka.topics.grow(topic, 8)
    assert log.probe([Partition(topic, 7)], soon())[Partition(topic, 7)].high_watermark == 0


def test_rows_that_retention_dropped(kafka: KafkaCluster, topic: str, log: KafkaLog) -> None:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - a name that only this test has

    kafka.topics.create(topic)
    send(kafka, topic, [b"%d" % n for n in range(10)])
    topics = kafka.topics
    deleted = topics.admin.delete_records([TopicPartition(topic, 0, 6)])
    for future in deleted.values():
        future.result(SECONDS_MAX)
    with pytest.raises(OffsetDroppedError) as dropped:
        log.read(Partition(topic, 0), Want(2), soon())
    assert (dropped.value.asked, dropped.value.first_kept) == (2, 6)
    with pytest.raises(LogTruncatedError, match="before offset 11"):
        log.read(Partition(topic, 0), Want(11), soon())


def test_an_epoch_that_the_log_does_not_have(
    kafka: KafkaCluster, topic: str, log: KafkaLog
) -> None:
    """As after an unclean election: rows were read of a leader whose rows are gone."""
    kafka.topics.create(topic)
    send(kafka, topic, [b"a", b"b", b"c"])
    only = Partition(topic, 0)
    want = log.read(only, Want(0), soon()).behind
    log.check_not_truncated({only: (want.offset, want.read_epoch)}, soon())
    with pytest.raises(LogTruncatedError, match=f"{topic}-0"):
        log.read(only, Want(3, read_epoch=5), soon())
    with pytest.raises(LogTruncatedError, match=f"{topic}-0"):
        log.check_not_truncated({only: (7, 0)}, soon())


def test_all_brokers_gone_and_back() -> None:
    require_kafka()
    with KafkaCluster() as cluster, KafkaLog(settings_of(cluster)) as log:
        cluster.topics.create("orders")
        send(cluster, "orders", [b"a"])
        only = Partition("orders", 0)
        want = log.read(only, Want(0), soon()).behind
        cluster.kill(1)
        with pytest.raises(
            BrokersUnavailableError, match=r"could not read orders-0 within 2 s: br"
        ) as gone:
            log.read(only, want, soon(2))
        assert str(pickle.loads(pickle.dumps(gone.value))) == str(gone.value)
        with pytest.raises(
            BrokersUnavailableError,
            match="could not get the offset of the beginning of orders-0 within 1 s",
        ):
            log.probe([only], soon(1))
        start = threading.Thread(target=cluster.start)
        start.start()
        probed = log.probe([only], soon())
        start.join()
        assert probed[only].high_watermark == 1
        send(cluster, "orders", [b"b"])
        decoded = log.read(only, want, soon(), wait_ms=10_000).decoded
        assert decoded.rows["value"].to_pylist() == [b"b"]


def test_a_broker_that_is_paused_is_an_error_in_time(topic: str) -> None:
    require_kafka()
    with KafkaCluster() as cluster, KafkaLog(settings_of(cluster)) as log:
        cluster.topics.create(topic)
        only = Partition(topic, 0)
        log.probe([only], soon())
        cluster.pause(1)
        with pytest.raises(BrokersUnavailableError, match="took too long to answer"):
            log.probe([only], soon(1))
        cluster.resume(1)
        assert log.probe([only], soon())[only].high_watermark == 0


def test_leaders_that_die_are_followed(topic: str) -> None:
    require_kafka()
    with KafkaCluster(3) as three, KafkaLog(settings_of(three)) as log:
        three.topics.create(topic, 3)
        partitions = [Partition(topic, number) for number in range(3)]
        for each in partitions:
            send(three, topic, [b"a"], partition=each.number)
        wants = {each: log.read(each, Want(0), soon()).behind for each in partitions}
        killed = three.topics.leaders(topic)[0]
        three.kill(killed)
        probed = log.probe(partitions, soon())
        assert [each.high_watermark for each in probed.values()] == [1, 1, 1]
        for each in partitions:
            send(three, topic, [b"b"], partition=each.number)
            decoded = log.read(each, wants[each], soon(), wait_ms=30_000).decoded
            assert decoded.rows["value"].to_pylist() == [b"b"]
            assert decoded.batches.leader_epoch[0] >= wants[each].read_epoch


def test_partitions_that_nobody_leads_hold_up_nobody(topic: str) -> None:
    require_kafka()
    with KafkaCluster(3) as three:
        three.topics.create(topic, 3, replication=1)
        leaders = three.topics.leaders(topic)
        for number in leaders:
            send(three, topic, [b"a"], partition=number)
        cluster = Cluster(settings_of(three))
        wants = {Partition(topic, number): Want(0) for number in leaders}
        fetch(cluster, wants, soon())
        lost = {Partition(topic, number) for number in leaders if leaders[number] == leaders[0]}
        three.kill(leaders[0])
        wait_until(lambda: len(three.topics.leaders(topic)) < 3, "no leader", SECONDS_MAX)
        for _ in range(3):
            result = fetch(cluster, wants, soon(), wait_ms=0)
            assert result.found.keys() == wants.keys() - lost
            assert result.waiting.keys() == lost
        three.start(leaders[0])
        back: dict[Partition, Any] = {}

        def are_all_back() -> bool:
            back.update(fetch(cluster, wants, soon()).found)
            return back.keys() == wants.keys()

        wait_until(are_all_back, "all partitions", SECONDS_MAX)
        cluster.close()


def test_a_fetch_tells_apart_what_failed(kafka: KafkaCluster, topic: str) -> None:
    """One bad partition takes nothing else away."""
    kafka.topics.create(topic, 2)
    send(kafka, topic, [b"a"])
    cluster = Cluster(settings_of(kafka))
    good, bad = Partition(topic, 0), Partition(topic, 1)
    result = fetch(cluster, {good: Want(0), bad: Want(99)}, soon(), wait_ms=0)
    assert result.found.keys() == {good}
    assert not result.waiting
    assert isinstance(result.failed[bad], LogTruncatedError)
    cluster.close()
