"""`store.producer()` on a real broker: what rows become, processes that die, pause or fork at every
step, and refusals."""

from __future__ import annotations

import datetime
import os
import secrets
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    ConfigurationError,
    LocalProtocolError,
    PeerUnavailableError,
)
from penstock.journal.errors import BadRowsError
from penstock.journal.kafka import positions
from penstock.journal.kafka import producer as producing
from penstock.journal.kafka.errors import (
    KafkaAccessError,
    KafkaFencedError,
    KafkaSettingError,
    NoSuchTopicError,
    RecordsTooLargeError,
)
from penstock.journal.kafka.producer import PREFIX, Step
from penstock.testing.kafka import KafkaCluster, Users
from penstock.testing.kafka.machine import wait_until
from penstock.testing.kafka.security import SASL
from penstock.testing.sinks import ended, is_stopped
from tests.kafka.broker import require_kafka
from tests.kafka.committed import SECONDS_MAX, committed, states
from tests.kafka.test_sink import forked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal.kafka.store import KafkaStore

pytestmark = pytest.mark.slow

TOTAL = 14
PASSWORD = "not-for-any-log"


class Loading:
    """A program that writes its numbers into two topics, each in a transaction."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self.kafka = kafka
        self.topics = [kafka.topics.create(f"{topic}-{one}", partitions=2) for one in "ab"]
        self.name = f"loader-{secrets.token_hex(4)}"

    def open(self, **options: str) -> KafkaStore:
        return penstock.open_kafka(self.kafka.bootstrap_servers, options=options)

    def load(self, end: int) -> None:
        """On from where the name stands."""
        with self.open() as store, store.producer(self.name) as producer:
            for number in range(int(producer.position or 0), end):
                with producer.transaction() as transaction:
                    for topic in self.topics:
                        transaction.append(topic, {"key": str(number), "value": str(number)})
                    transaction.position(str(number + 1))

    def position(self) -> int:
        with self.open() as store, store.producer(self.name) as producer:
            return int(producer.position or 0)

    def seen(self) -> list[Counter[int]]:
        found = committed(self.kafka, *self.topics)
        return [
            Counter(int(each.value() or b"") for each in found if each.topic() == topic)
            for topic in self.topics
        ]


@pytest.fixture
def loading(kafka: KafkaCluster, topic: str) -> Loading:
    return Loading(kafka, topic)


@pytest.fixture
def store(kafka: KafkaCluster) -> Iterator[KafkaStore]:
    with penstock.open_kafka(f"kafka://{kafka.bootstrap_servers}") as opened:
        yield opened


def test_after_a_crash_at_any_step_the_position_is_that_of_the_rows(loading: Loading) -> None:
    for step in Step:
        for times in (1, 2):
            child = forked(lambda: loading.load(TOTAL), producing, step, signal.SIGKILL, times)
            died = ended(child) == -signal.SIGKILL
            assert died or step is Step.TAKEN, f"{step} was reached {times} times"
            expected = Counter(range(loading.position()))
            assert loading.seen() == [expected, expected], f"killed at {step}, time {times}"
            if step is Step.TAKEN:
                break  # it takes the name once
    loading.load(TOTAL)
    assert loading.seen() == [Counter(range(TOTAL))] * 2


@pytest.mark.parametrize("step", [Step.OPENED, Step.SENT, Step.POSITIONED], ids=str)
def test_a_paused_producer_that_comes_back_writes_nothing(loading: Loading, step: Step) -> None:
    loading.load(1)
    child = forked(lambda: loading.load(5), producing, step, signal.SIGSTOP)
    assert is_stopped(child)
    loading.load(3)
    os.kill(child, signal.SIGCONT)
    assert ended(child) == 3, "it is told that its place was taken"
    loading.load(4)
    assert loading.seen() == [Counter(range(4))] * 2
    assert loading.position() == 4


def test_a_named_producer_that_was_paused_does_not_append_either(loading: Loading) -> None:
    with loading.open() as store:
        first = store.producer(loading.name)
        assert first.append(loading.topics[0], {"value": b"0"}) == 1
        with store.producer(loading.name) as second:
            second.append(loading.topics[0], {"value": b"1"})
            with pytest.raises(KafkaFencedError, match=PREFIX + loading.name):
                first.append(loading.topics[0], {"value": b"2"})
            with pytest.raises(LocalProtocolError, match="is closed"):
                first.transaction()
        first.close()
    assert loading.seen()[0] == Counter([0, 1])


def test_a_transaction_that_takes_too_long_is_ended_by_its_coordinator(loading: Loading) -> None:
    own = f"{PREFIX}{loading.name}"
    with loading.open(**{"transaction.timeout.ms": "4000"}) as store:
        producer = store.producer(loading.name)
        transaction = producer.transaction()
        transaction.append(loading.topics[0], {"value": b"1"})
        wait_until(
            lambda: states(loading.kafka)[own] == "CompleteAbort", "the coordinator", SECONDS_MAX
        )
        with pytest.raises(KafkaFencedError, match="open for longer than 4000 ms"):
            transaction.commit()
    loading.load(1)
    assert loading.seen()[0] == Counter([0])


def test_a_lost_answer_to_a_commit_is_a_doubt_that_the_position_resolves(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"delivery.timeout.ms": "2500", "request.timeout.ms": "1000"}
    loading.load(1)
    with loading.open(**options) as store:
        producer = store.producer(loading.name)
        transaction = producer.transaction()
        transaction.append(loading.topics[0], {"value": b"1"})
        transaction.append(loading.topics[1], {"value": b"1"})
        transaction.position("2")

        def reached(at: Step) -> None:
            if at is Step.POSITIONED:
                loading.kafka.pause(1)

        monkeypatch.setattr(producing, "reached", reached)
        try:
            with pytest.raises(CommitStateUnknownError, match=f"another producer '{loading.name}'"):
                transaction.commit()
        finally:
            loading.kafka.resume(1)
        with pytest.raises(LocalProtocolError, match="is closed"):
            producer.append(loading.topics[0], {"value": b"2"})
    expected = Counter(range(loading.position()))
    assert loading.seen() == [expected, expected]


def test_a_refused_row_spoils_nothing_and_a_lost_broker_is_told(loading: Loading) -> None:
    options = {"delivery.timeout.ms": "2500", "request.timeout.ms": "1000"}
    with loading.open(**options) as store, store.producer(loading.name) as producer:
        with producer.transaction() as transaction:
            with pytest.raises(RecordsTooLargeError, match="a row is larger"):
                transaction.append(loading.topics[0], {"value": b"x" * (1 << 20)})
            transaction.append(loading.topics[0], {"value": b"0"})
        spoiled = producer.transaction()
        spoiled.append(loading.topics[0], {"value": b"1"})
        loading.kafka.pause(1)
        try:
            with pytest.raises(PeerUnavailableError, match="Check that the brokers run"):
                spoiled.append(loading.topics[0], {"value": b"2"})
        finally:
            loading.kafka.resume(1)
        with pytest.raises(LocalProtocolError, match="failed halfway"):
            spoiled.append(loading.topics[0], {"value": b"3"})
        with pytest.raises(CommitFailedError, match="failed halfway; it is rolled back"):
            spoiled.commit()
        with producer.transaction() as transaction:
            transaction.append(loading.topics[0], {"value": b"4"})
    assert loading.seen()[0] == Counter([0, 4])


def test_columns_become_records_that_other_clients_read(
    kafka: KafkaCluster, store: KafkaStore, topic: str
) -> None:
    kafka.topics.create(topic, partitions=3)
    moment = datetime.datetime(2020, 2, 3, 4, 5, 6, 7_000, tzinfo=datetime.UTC)
    long_ago = datetime.datetime(1971, 1, 1, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"key": "k", "value": "text", "partition": 2, "timestamp": moment},
        {"key": b"\x00\xff", "value": None, "timestamp": moment + datetime.timedelta(days=900)},
        {"value": b"", "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]},
        {
            "key": "k",
            "value": b"far back",
            "partition": 2,
            "timestamp": long_ago,
        },
    ]
    with store.producer() as producer:
        assert producer.append(topic, rows) == 4
        with producer.transaction() as transaction:
            transaction.append(topic, pa.Table.from_pylist(rows[:1]).to_pandas())
    found = committed(kafka, topic)
    assert Counter((one.key(), one.value()) for one in found) == Counter(
        [(b"k", b"text"), (b"\x00\xff", None), (None, b""), (b"k", b"far back"), (b"k", b"text")]
    )
    by_value = {one.value(): one for one in found}
    assert by_value[b""].headers() == [("h", b"1"), ("h", None)]
    assert by_value[b"text"].timestamp()[1] == int(moment.timestamp() * 1000)
    assert by_value[None].timestamp()[1] - by_value[b"text"].timestamp()[1] == 900 * 86_400_000
    assert by_value[b"far back"].timestamp()[1] == 365 * 86_400_000
    assert {one.partition() for one in found if one.key() == b"k"} == {2}


def test_rows_of_one_topic_can_be_written_to_another(
    kafka: KafkaCluster, store: KafkaStore, topic: str
) -> None:
    first, second = (kafka.topics.create(f"{topic}-{one}", partitions=2) for one in "ab")
    with store.producer() as producer:
        producer.append(
            first, [{"key": str(n), "value": f"v{n}", "partition": n % 2} for n in range(9)]
        )
        for journal in store.journals(first):
            for batch in store.read(journal.name, 0):
                producer.append(second, batch.documents)
    assert content(committed(kafka, first)) == content(committed(kafka, second))


def content(messages: list[Any]) -> Counter[Any]:
    return Counter((m.partition(), m.key(), m.value(), m.timestamp()) for m in messages)


AVRO = """{"type": "record", "name": "R", "fields": [
    {"name": "id", "type": "long"},
    {"name": "tags", "type": {"type": "array", "items": "string"}}]}"""
PROTOBUF = 'syntax = "proto3"; message R { int64 id = 1; repeated string tags = 2; }'


@pytest.mark.parametrize(
    ("format_", "schema"),
    [("json", "id BIGINT, tags ARRAY<STRING>"), ("avro", AVRO), ("protobuf", PROTOBUF)],
)
def test_values_in_a_format(kafka: KafkaCluster, topic: str, format_: str, schema: str) -> None:
    kafka.topics.create(topic)
    formats = {topic: {"format": format_, "schema": schema}}
    rows = [{"id": 1, "tags": ["é", "b"], "key": b"k"}, {"id": 2, "tags": [], "key": None}]
    with penstock.open_kafka(kafka.bootstrap_servers, formats=formats) as store:
        with store.producer() as producer:
            producer.append(topic, rows)
        (journal,) = store.journals(topic)
        read = [row for batch in store.read(journal.name, 0) for row in batch.documents.to_pylist()]
    assert read == rows
    assert [message.key() for message in committed(kafka, topic)] == [b"k", None]


def test_json_values_of_all_kinds(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    schema = "id BIGINT, price DECIMAL(9, 2), at TIMESTAMP, tags ARRAY<STRING>, raw BINARY"
    row = {
        "id": 1,
        "price": None,
        "at": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
        "tags": ["é", None],
        "raw": b"\x00",
        "key": b"k",
    }
    formats = {topic: {"format": "json", "schema": schema}}
    with penstock.open_kafka(kafka.bootstrap_servers, formats=formats) as store:
        with store.producer() as producer:
            producer.append(topic, pa.RecordBatch.from_pylist([row]))
        (journal,) = store.journals(topic)
        (batch,) = store.read(journal.name, 0)
    assert batch.documents.to_pylist() == [row]


def test_values_that_only_others_write_are_refused(kafka: KafkaCluster, topic: str) -> None:
    kafka.topics.create(topic)
    changes = {topic: {"format": "debezium", "schema": "id BIGINT"}}
    with (
        penstock.open_kafka(kafka.bootstrap_servers, formats=changes) as store,
        store.producer() as producer,
        pytest.raises(ConfigurationError, match="debezium's envelopes"),
    ):
        producer.append(topic, {"id": 1})


def test_what_cannot_be_written_is_refused(
    kafka: KafkaCluster, store: KafkaStore, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.topics.create(topic, partitions=2)
    with store.producer() as producer:
        with pytest.raises(NoSuchTopicError, match=rf"no topic '{topic}x'.*did you mean {topic}"):
            producer.append(f"{topic}x", {"value": b"1"})
        with pytest.raises(BadRowsError, match=r"'vlaue'.*no such column"):
            producer.append(topic, {"vlaue": b"1"})
        with pytest.raises(ConfigurationError, match=r"'partition' is 2, .* 2 partitions"):
            producer.append(topic, {"value": b"1", "partition": 2})
        with pytest.raises(BadRowsError, match="a header has no key"):
            producer.append(topic, {"headers": [{"key": None, "value": b""}]})
        child = os.fork()
        if not child:
            try:
                producer.append(topic, {"value": b"of a child"})
            except LocalProtocolError:
                os._exit(7)
            os._exit(0)
        assert ended(child) == 7, "connections are those of the process that opened them"
    assert not committed(kafka, topic)
    for setting, value in (("transactional.id", "mine"), ("acks", "1"), ("no.such.setting", "1")):
        with pytest.raises(KafkaSettingError, match=setting):
            penstock.open_kafka(kafka.bootstrap_servers, options={setting: value})
    with pytest.raises(ConfigurationError, match="opened by open_kafka"):
        penstock.open_store(f"kafka://{kafka.bootstrap_servers}")
    lost = kafka.topics.create(f"{topic}-positions", settings={"cleanup.policy": "delete"})
    monkeypatch.setattr(positions, "TOPIC", lost)
    with (
        store.producer(f"loader-{topic[-8:]}") as named,
        pytest.raises(ConfigurationError, match=r"cleanup\.policy=delete: positions would be lost"),
    ):
        _ = named.position


def test_the_last_position_is_found_among_many(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind others', further back than one look, and behind one that was rolled back."""
    monkeypatch.setattr(positions, "LOOK_ROWS", 3)
    with loading.open() as store:
        with store.producer(loading.name) as producer:
            for number in range(3):
                with producer.transaction() as transaction:
                    transaction.position(f"far back {number}")
            rolled_back = producer.transaction()
            rolled_back.position("never")
            rolled_back.rollback()
        with store.producer(f"{loading.name}-other") as other:
            for number in range(20):
                with other.transaction() as transaction:
                    transaction.position(str(number))
        for name, expected in ((loading.name, "far back 2"), (f"{loading.name}-other", "19")):
            with store.producer(name) as producer:
                assert producer.position == expected


def test_rights_are_named(topic: str) -> None:
    require_kafka()
    with KafkaCluster(users=Users({"writer": PASSWORD}, by_acl=True)) as kafka:
        kafka.topics.create(topic)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="writer" password="{PASSWORD}";',
        }

        def write() -> None:
            with penstock.open_kafka(kafka.addresses(SASL), options=options) as store:
                assert PASSWORD not in repr(vars(store))
                with store.producer("loader") as producer, producer.transaction() as transaction:
                    transaction.append(topic, {"value": b"1"})
                    transaction.position("1")

        own = f"{PREFIX}loader"
        for words, kind, name, rights in (
            (f"transactional id '{own}'", "transactional_id", own, ("write",)),
            ("right to Describe", "topic", topic, ("describe",)),
            ("Write and Describe the topic", "topic", topic, ("write",)),
            (f"see the topic '{positions.TOPIC}'", "topic", positions.TOPIC, ("describe",)),
            ("right to Create the topic", "topic", positions.TOPIC, ("create",)),
            ("Write and Describe the topic", "topic", positions.TOPIC, ("write",)),
        ):
            with pytest.raises(
                (KafkaAccessError, NoSuchTopicError, CommitFailedError), match=words
            ):
                write()
            kafka.topics.allow("User:writer", kind, name, *rights)
        write()
        assert [one.value() for one in committed(kafka, topic)] == [b"1"]
