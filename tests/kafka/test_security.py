"""Secured listeners let the right clients in, keep the wrong ones out, and ACLs hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from penstock.errors import ConfigurationError
from penstock.testing.kafka import KafkaCluster, Users
from penstock.testing.kafka.machine import wait_until
from penstock.testing.kafka.security import CLIENT_PRINCIPAL, MECHANISMS
from tests.kafka.broker import require_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

TRANSACTION_LOG = "__transaction_state"
SECONDS_MAX = 60.0
REFUSAL_SECONDS_MAX = 30.0
GROUP = "readers"
"""A consumer of librdkafka wants one, whether it uses it or not."""

Settings = dict[str, str | bool]


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    require_kafka()
    users = Users({"reader": "reader-secret", "other": "other-secret"}, by_acl=True)
    with KafkaCluster(users=users) as cluster:
        for principal in ("User:reader", "User:other", CLIENT_PRINCIPAL):
            cluster.topics.allow(principal, "group", GROUP, "read")
        yield cluster


def sees_brokers(settings: Settings) -> bool:
    """Whether a client with these settings is let in."""
    return bool(AdminClient({**settings}).list_topics(timeout=SECONDS_MAX).brokers)


def expect_refusal(settings: Settings, reason: str) -> None:
    """Waits for the error by which the client tells that it is not let in, or does not want to."""
    told: list[str] = []

    def note(error: KafkaError) -> None:
        told.append(error.str())

    given: dict[str, Any] = {**settings, "error_cb": note}
    client = AdminClient(given)

    def is_refused() -> bool:
        client.poll(0.1)
        return any(re.search(reason, each) for each in told)

    wait_until(is_refused, f"the error {reason!r}", REFUSAL_SECONDS_MAX, lambda: "\n".join(told))
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL", "SASL_TLS"])
def test_every_mechanism_lets_a_user_in(
    secured: KafkaCluster, listener: str, mechanism: str
) -> None:
    assert sees_brokers(secured.client_settings(listener, user="reader", mechanism=mechanism))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(secured: KafkaCluster, mechanism: str) -> None:
    settings = secured.client_settings("SASL", user="reader", mechanism=mechanism)
    expect_refusal({**settings, "sasl.password": "other-secret"}, "Authentication failed")


def test_tls_with_and_without_a_certificate_of_the_client(secured: KafkaCluster) -> None:
    mutual = secured.client_settings("MUTUAL_TLS")
    assert sees_brokers(secured.client_settings("TLS"))
    assert sees_brokers(mutual)
    bare = {
        name: mutual[name] for name in mutual if "certificate" not in name and "key" not in name
    }
    assert len(bare) == len(mutual) - 2
    expect_refusal(bare, "alert (bad certificate|certificate required)")  # Java 17, Java 25


@pytest.mark.parametrize("listener", ["SASL_TLS", "TLS"])
def test_a_client_that_trusts_others_does_not_come_in(secured: KafkaCluster, listener: str) -> None:
    settings = secured.client_settings(listener, user="reader")
    del settings["ssl.ca.location"]  # then the machine's own authorities
    expect_refusal(settings, "certificate verify failed")


def first_value(settings: Settings, topic: str) -> object:
    """The value of the first message in the topic's partitions."""
    consumer = Consumer({**settings, "group.id": GROUP, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, SECONDS_MAX).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    found: list[Message] = []

    def has_one() -> bool:
        found.extend(consumer.consume(1, timeout=0.1))
        return bool(found)

    try:
        wait_until(has_one, f"a message of {topic}", SECONDS_MAX)
    finally:
        consumer.close()
    assert found[0].error() is None, found[0].error()
    return found[0].value()


def is_denied(settings: Settings, topic: str) -> bool:
    """Whether the cluster refuses even to describe the topic to this client."""
    described = AdminClient({**settings}).list_topics(topic, timeout=SECONDS_MAX).topics[topic]
    if described.error is None:
        return False
    assert described.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return True


def test_a_user_reads_what_it_has_rights_to(secured: KafkaCluster, topic: str) -> None:
    """And no transaction log, which the reader of somebody's cluster may well be denied."""
    topics = secured.topics
    topics.create(topic)
    commit_one(secured, topic)
    reader = secured.client_settings("SASL_TLS", user="reader", mechanism="SCRAM-SHA-256")
    assert is_denied(reader, topic)
    topics.allow("User:reader", "topic", topic, "read")
    assert first_value(reader, topic) == b"paid"
    assert is_denied(reader, TRANSACTION_LOG)
    topics.allow("User:reader", "topic", TRANSACTION_LOG, "read")
    assert first_value(reader, TRANSACTION_LOG)
    assert is_denied(secured.client_settings("SASL_TLS", user="other"), topic)


def test_a_certificate_names_its_client(secured: KafkaCluster, topic: str) -> None:
    secured.topics.create(topic)
    commit_one(secured, topic)
    client = secured.client_settings("MUTUAL_TLS")
    assert is_denied(client, topic)
    secured.topics.allow(CLIENT_PRINCIPAL, "topic", topic, "read")
    assert first_value(client, topic) == b"paid"


def commit_one(kafka: KafkaCluster, topic: str) -> None:
    writer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    writer.init_transactions(SECONDS_MAX)
    writer.begin_transaction()
    writer.produce(topic, b"paid")
    writer.commit_transaction(SECONDS_MAX)


def test_what_cannot_be_asked_for_is_refused(secured: KafkaCluster) -> None:
    with pytest.raises(ConfigurationError, match="no secured listener 'CLIENT'"):
        secured.client_settings("CLIENT")
    with pytest.raises(ConfigurationError, match="needs a user"):
        secured.client_settings("SASL")
    with pytest.raises(ConfigurationError, match="quotes"):
        Users({"reader": 'a"b'})
