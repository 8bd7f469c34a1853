"""The Kafka sink on a real broker: what rows become, drivers that die or pause, and refusals."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer

from penstock.errors import CommitStateUnknownError, ConfigurationError
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.producing import committed_offsets
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import (
    BrokersUnavailableError,
    KafkaAccessError,
    RecordsTooLargeError,
    UnknownTopicError,
)
from penstock.journal.kafka.records.encoding import CODECS
from penstock.journal.kafka.settings import kafka_settings
from penstock.sinks import batches
from penstock.sinks import kafka as kafka_sink
from penstock.sinks.batches import commit_batch
from penstock.sinks.kafka import KafkaSink
from penstock.sinks.two_phase import Batch
from penstock.testing.kafka import KafkaCluster, Users
from penstock.testing.kafka.machine import wait_until
from penstock.testing.sinks import ended, is_stopped
from tests.kafka.broker import require_kafka
from tests.kafka.committed import SECONDS_MAX, committed, states

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable
    from pathlib import Path

    from penstock.journal.kafka.client.producing import CommittedOffset

pytestmark = pytest.mark.slow

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
PRINCIPAL = "User:writer"
PASSWORD = "not-for-any-file"


class Writing:
    """A query that writes values to a topic."""

    def __init__(self, kafka: KafkaCluster, folder: Path, topic: str, **given: Any) -> None:
        self.kafka, self.folder, self.topic, self.given = kafka, folder, topic, given
        self.query = query_of(topic)

    def sink(self) -> KafkaSink:
        options = {"bootstrap.servers": self.kafka.bootstrap_servers}
        return KafkaSink(options, str(self.folder), self.topic, **self.given)

    def write(self, number: int, *tasks: list[int]) -> None:
        sink, batch = self.sink(), Batch(self.query, number)
        parts = [sink.stage(batch, place, iter([values(ids)])) for place, ids in enumerate(tasks)]
        commit_batch(sink, batch, [part for part in parts if part is not None])

    def proofs(self) -> tuple[CommittedOffset, ...]:
        cluster = Cluster(kafka_settings({"bootstrap.servers": self.kafka.bootstrap_servers}))
        try:
            deadline = Deadline.after(SECONDS_MAX)
            group = f"penstock-{self.query}"
            return committed_offsets(cluster, group, deadline, are_stable=True)
        finally:
            cluster.close()

    def seen(self) -> Counter[int]:
        return Counter(int(each.value() or b"") for each in committed(self.kafka, self.topic))


def query_of(topic: str) -> str:
    """An id that no other test's query has: a topic's name may be too long for one."""
    return f"query-{'-'.join(topic.split('-')[-2:])}"


def values(ids: list[int]) -> pa.RecordBatch:
    texts = [str(each) for each in ids]
    return pa.record_batch({"key": texts, "value": texts})


def forked(
    work: Callable[[], None], module: Any, step: enum.Enum, ending: signal.Signals, times: int = 1
) -> int:
    """Does the work in a process that gets the signal when it comes to the step so many times."""
    child = os.fork()
    if child:
        return child
    left = times

    def reached(at: enum.Enum) -> None:
        nonlocal left
        left -= at is step
        if at is step and not left:
            os.kill(os.getpid(), ending)

    module.reached = reached
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the parent is told by the exit code
        os._exit(3 if "transactional id" in str(error) else 1)
    os._exit(0)


@pytest.fixture
def writing(kafka: KafkaCluster, tmp_path: Path, topic: str) -> Writing:
    kafka.topics.create(topic, partitions=3)
    return Writing(kafka, tmp_path, topic)


def test_a_dead_driver_leaves_nothing_open_behind_its_successor(writing: Writing) -> None:
    """Not for the minute that its transaction has: others who wrote behind it are read at once."""
    writing.write(0, [0])
    child = forked(
        lambda: writing.write(1, [1, 2], [3]), kafka_sink, kafka_sink.Step.PROVEN, signal.SIGKILL
    )
    assert ended(child) == -signal.SIGKILL
    producer = Producer({"bootstrap.servers": writing.kafka.bootstrap_servers})
    for partition in range(3):
        producer.produce(writing.topic, b"100", partition=partition)
    assert producer.flush(SECONDS_MAX) == 0
    own = f"penstock-{writing.query}"
    assert states(writing.kafka)[own] == "Ongoing"
    assert writing.seen()[100] < 3, "the open transaction hides what is behind it"
    writing.write(1, [1], [2, 3])
    assert states(writing.kafka)[own] != "Ongoing"
    assert writing.seen() == Counter([0, 1, 2, 3, 100, 100, 100])


@pytest.mark.parametrize("step", [kafka_sink.Step.SENT, kafka_sink.Step.PROVEN], ids=str)
def test_a_paused_driver_that_comes_back_writes_nothing(
    writing: Writing, step: kafka_sink.Step
) -> None:
    writing.write(0, [0])
    child = forked(lambda: writing.write(1, [1, 2]), kafka_sink, step, signal.SIGSTOP)
    assert is_stopped(child)
    writing.write(1, [1, 2])
    writing.write(2, [3])
    os.kill(child, signal.SIGCONT)
    assert ended(child) == 3, "it is told that its place was taken"
    writing.write(3, [4])
    assert writing.seen() == Counter(range(5))


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_batch_of_several_transactions_has_each_part_once(
    kafka: KafkaCluster, tmp_path: Path, topic: str, killed_at: int
) -> None:
    kafka.topics.create(topic, partitions=2)
    writing = Writing(kafka, tmp_path, topic, transaction_bytes=1)
    writing.write(0, [0])
    tasks = [[1, 2], [3], [4, 5]]
    child = forked(
        lambda: writing.write(1, *tasks),
        kafka_sink,
        kafka_sink.Step.ENDED,
        signal.SIGKILL,
        killed_at,
    )
    assert ended(child) == -signal.SIGKILL
    first = [each for task in tasks[:killed_at] for each in task]
    assert writing.seen() == Counter([0, *first]), "whole parts, in their order"
    writing.write(1, [5], [4, 3, 2], [1])
    assert writing.seen() == Counter(range(6))


def test_without_its_proof_a_decided_batch_is_not_written_again(writing: Writing) -> None:
    writing.write(0, [0])
    child = forked(lambda: writing.write(1, [1]), batches, batches.Step.DECIDED, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    writing.kafka.topics.delete(writing.topic)
    wait_until(lambda: not writing.proofs(), "offsets to go with their topic", SECONDS_MAX)
    writing.kafka.topics.create(writing.topic, partitions=3)
    kafka_sink._HELD.clear()  # another process
    with pytest.raises(CommitStateUnknownError, match="has no offset in"):
        writing.write(1, [1])
    assert not writing.seen()


def test_columns_become_records_that_other_clients_read(
    kafka: KafkaCluster, tmp_path: Path, topic: str
) -> None:
    topics = [kafka.topics.create(f"{topic}-{letter}", partitions=4) for letter in "ab"]
    keys = [None, b"", b"k", b"key-2", b"\xff\x00" * 9] * 20
    columns: dict[str, Any] = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array([None if n % 9 == 0 else b"v%d" % n for n in range(100)], pa.binary()),
        "headers": pa.array(
            [
                None if n % 3 == 0 else [{"key": "h", "value": None}, {"key": "é", "value": b"1"}]
                for n in range(100)
            ],
            HEADERS,
        ),
        "topic": [topics[n % 2] for n in range(100)],
        "partition": pa.array([3 if n % 10 == 7 else None for n in range(100)], pa.int32()),
    }
    rows = pa.record_batch(columns)
    for number, codec in enumerate(CODECS):
        options = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": codec,
            "batch.size": "400",
        }
        sink, batch = KafkaSink(options, str(tmp_path)), Batch(query_of(topic), number)
        sink.check(rows.schema)
        part = sink.stage(batch, 0, iter([rows]))
        assert part is not None
        assert part.rows == 100
        commit_batch(sink, batch, [part])
    expected = Counter(
        (row["topic"], row["key"], row["value"], header_items(row["headers"]))
        for row in rows.to_pylist()
        for _ in CODECS
    )
    found = committed(kafka, *topics)
    assert expected == Counter(
        (one.topic(), one.key(), one.value(), tuple(one.headers() or ())) for one in found
    )
    chosen = {(one.topic(), one.partition()) for one in found if one.key() is None}
    assert chosen == {(name, number) for name in topics for number in range(4)}


def header_items(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, Any], ...]:
    return tuple((each["key"], each["value"]) for each in headers or ())


def test_keys_meet_those_of_other_producers(writing: Writing) -> None:
    writing.write(0, list(range(200)))
    other = {
        "bootstrap.servers": writing.kafka.bootstrap_servers,
        "partitioner": "murmur2_random",  # what Java's default is called there
    }
    producer = Producer(other)
    for number in range(200):
        producer.produce(writing.topic, b"", b"%d" % number)
    assert producer.flush(SECONDS_MAX) == 0
    found = committed(writing.kafka, writing.topic)
    assert len(found) == 400
    assert len({(each.key(), each.partition()) for each in found}) == 200
    consumer = KafkaConsumer(
        writing.topic,
        bootstrap_servers=writing.kafka.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1000,
    )
    try:
        others = Counter((one.key, one.value) for one in (next(consumer) for _ in found))
    finally:
        consumer.close()
    assert others == Counter((each.key(), each.value()) for each in found), "as kafka-python reads"


def test_what_cannot_be_written_is_told_before_anything_is_decided(writing: Writing) -> None:
    sink, batch = writing.sink(), Batch(writing.query, 0)

    def stage(sink: KafkaSink, **columns: Any) -> None:
        rows: Any = pa.record_batch({name: pa.array(each) for name, each in columns.items()})
        sink.stage(batch, 0, iter([rows]))

    missing = Writing(writing.kafka, writing.folder, f"{writing.topic}-missing").sink()
    with pytest.raises(UnknownTopicError, match=r"has no topic '.*-missing': create it"):
        missing.check(values([1]).schema)
    with pytest.raises(RecordsTooLargeError, match=r"larger than kafka\.max\.request\.size"):
        stage(sink, value=["x" * 2_000_000])
    small = writing.kafka.topics.create(
        f"{writing.topic}-small", settings={"max.message.bytes": "1000"}
    )
    with pytest.raises(RecordsTooLargeError, match=r"max\.message\.bytes is 1000"):
        stage(Writing(writing.kafka, writing.folder, small).sink(), value=["x" * 2000])
    fitting = Writing(writing.kafka, writing.folder, small)
    fitting.write(0, list(range(500)))
    assert fitting.seen() == Counter(range(500)), "batches are as small as the topic wants them"
    with pytest.raises(ConfigurationError, match=r"is 3, and topic .* has 3 partitions"):
        stage(sink, value=["x"], partition=[3])
    options = {"bootstrap.servers": writing.kafka.bootstrap_servers}
    nowhere: Any = pa.array([None], pa.string())
    with pytest.raises(ConfigurationError, match="a row has no topic"):
        stage(KafkaSink(options, str(writing.folder)), value=["x"], topic=nowhere)
    longest = {**options, "transaction.timeout.ms": "2000000000"}
    bold = KafkaSink(longest, str(writing.folder), writing.topic)
    part = bold.stage(batch, 0, iter([values([1])]))
    assert part is not None
    with pytest.raises(ConfigurationError, match=r"'kafka\.transaction\.timeout\.ms' cannot be"):
        commit_batch(bold, batch, [part])
    assert not list((writing.folder / "decisions" / writing.query).rglob("*"))


def test_delivery_timeout_is_how_long_brokers_are_asked(tmp_path: Path) -> None:
    nobody = {"bootstrap.servers": "127.0.0.1:1", "delivery.timeout.ms": "300"}
    with pytest.raises(BrokersUnavailableError, match=r"0\.3 s"):
        KafkaSink(nobody, str(tmp_path), "out").check(values([1]).schema)


def test_rights_are_named_and_secrets_are_in_no_file(tmp_path: Path) -> None:
    require_kafka()
    with KafkaCluster(users=Users({"writer": PASSWORD}, by_acl=True)) as kafka:
        kafka.topics.create("out", partitions=2)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        options = {
            "bootstrap.servers": kafka.addresses("SASL"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="writer" password="{PASSWORD}";',
        }

        def write() -> None:
            sink, batch = KafkaSink(options, str(tmp_path), "out"), Batch("q", 0)
            part = sink.stage(batch, 0, iter([values([1, 2])]))
            assert part is not None
            commit_batch(sink, batch, [part])

        for words, kind, name, rights in (
            ("topic", "topic", "out", ("describe",)),
            ("group 'penstock-q'", "group", "penstock-q", ("read",)),
            ("transactional id 'penstock-q'", "transactional_id", "penstock-q", ("write",)),
            ("right to Read the topic", "topic", "out", ("read",)),
            ("Write and Describe the topic", "topic", "out", ("write",)),
        ):
            with pytest.raises((KafkaAccessError, UnknownTopicError), match=words):
                write()
            kafka.topics.allow(PRINCIPAL, kind, name, *rights)
        write()
        assert Counter(each.value() for each in committed(kafka, "out")) == Counter([b"1", b"2"])
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
