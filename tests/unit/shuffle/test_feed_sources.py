"""Feeds resolved: which store their bindings are in, and what their collections are called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.journal import open_readable, open_store
from penstock.journal.joined import JoinedAddress
from penstock.journal.kafka.address import KafkaAddress
from penstock.journal.kafka.edges import LATEST, Edge
from penstock.shuffle.feed import BindingError
from penstock.shuffle.feed_file import FeedFileError, parse_feed
from penstock.shuffle.feed_sources import described, resolved
from penstock.shuffle.plan import make_plan

if TYPE_CHECKING:
    from pathlib import Path

KAFKA = "kafka://broker:9092"
PAYMENTS = f"""
    [[binding]]
    store = "{KAFKA}"
    collection = "payments"
    format = "json"
    schema = "id BIGINT, writer STRING, number BIGINT"
    key = ["header:tenant", "id"]
    identity = {{producer = "writer", sequence = "number"}}
"""
ORDERS = '[[binding]]\ncollection = "orders"\n'


def test_a_plain_feed_stays_as_it_is() -> None:
    feed = parse_feed(ORDERS)
    assert resolved(feed, "file:///data") == (feed, "file:///data")
    assert described(feed) == [
        {
            "collection": "orders",
            "key": [],
            "partitions": "",
            "priority": 0,
            "read_delay_seconds": 0.0,
            "not_before": None,
            "not_after": None,
        }
    ], "as releases before had it: their queries go on"


def test_topics_become_subscriptions() -> None:
    feed, address = resolved(parse_feed(PAYMENTS + ORDERS), KAFKA, {"client.id": "us"})
    assert [one.collection for one in feed.bindings] == ["payments", "orders"]
    assert all(one.source is None for one in feed.bindings)
    found = KafkaAddress.parse(address)
    assert found.options == {"client.id": "us", "bootstrap.servers": "broker:9092"}
    payments = found.subscriptions["payments"]
    assert payments.topics == ("payments",)
    assert payments.headers == ("tenant",)
    assert payments.identity == {"producer": "writer", "sequence": "number"}
    assert payments.values["format"] == "json"
    assert found.subscriptions["orders"].values == {}


def test_sources_that_differ_have_names_of_their_own() -> None:
    raw = f'[[binding]]\nstore = "{KAFKA}"\ncollection = "payments"\n'
    embedded = '[[binding]]\nstore = "/data"\ncollection = "payments"\n'
    feed, address = resolved(parse_feed(PAYMENTS + raw + embedded + raw + PAYMENTS), "")
    names = [one.collection for one in feed.bindings]
    assert names == ["payments", "payments-2", "payments-3", "payments-2", "payments"]
    (kafka, of_kafka), (file, of_file) = JoinedAddress.parse(address).parts
    assert of_kafka == {"payments": "payments", "payments-2": "payments-2"}
    assert KafkaAddress.parse(kafka).subscriptions.keys() == of_kafka.keys()
    assert (file, of_file) == ("file:///data", {"payments-3": "payments"})


def test_a_store_is_one_however_it_is_written() -> None:
    other = '[[binding]]\nstore = "/data/x/"\ncollection = "others"\n'
    feed, address = resolved(parse_feed(ORDERS + other), "file:///data/x")
    assert address == "file:///data/x"
    assert [one.collection for one in feed.bindings] == ["orders", "others"]


def test_secrets_of_the_readers_own_store_go_with_its_topics() -> None:
    secret = KafkaAddress({"bootstrap.servers": "broker:9092", "sasl.password": "sesame"}).text
    feed = parse_feed(PAYMENTS)
    _, address = resolved(feed, secret)
    assert KafkaAddress.parse(address).options["sasl.password"] == "sesame"
    assert "sesame" not in json.dumps(described(feed))
    _, address = resolved(feed, "", {"sasl.password": "sesame"})
    assert KafkaAddress.parse(address).options["sasl.password"] == "sesame"


def test_the_registrys_secret_stands_in_no_feed_file() -> None:
    text = PAYMENTS.replace("format", '"schema.registry.basic.auth.user.info" = "a:b"\nformat')
    with pytest.raises(FeedFileError, match="a secret does not stand in a feed file"):
        parse_feed(text)
    registered = """
        store = "kafka://broker:9092"
        [[binding]]
        collection = "payments"
        format = "avro"
        schema.registry.url = "http://me:sesame@registry"
    """
    feed = parse_feed(registered)
    source = feed.bindings[0].source
    assert source is not None
    assert source.values["schema.registry.url"] == "http://me:sesame@registry"
    assert "sesame" not in json.dumps(described(feed))
    assert "sesame" not in repr(feed)


def test_identities_are_described() -> None:
    one, other = (
        described(parse_feed(text)) for text in (PAYMENTS, PAYMENTS.replace('"number"}', '"id"}'))
    )
    assert one != other


@pytest.mark.parametrize(
    ("text", "setting", "said"),
    [
        (PAYMENTS.replace(KAFKA, "/data"), "identity", "goes with topics of Kafka"),
        (ORDERS + 'key = ["header:tenant"]', "key", "goes with topics of Kafka"),
        (ORDERS + 'format = "json"', "format", "goes with topics of Kafka"),
        (PAYMENTS.replace('"json"', '"xml"'), "format", "raw, json, avro, protobuf"),
        (PAYMENTS.replace("sequence", "number"), "identity", "no 'number' of an identity"),
        (PAYMENTS + PAYMENTS.replace("broker", "other"), "store", "another Kafka cluster"),
    ],
)
def test_what_cannot_be_is_said_with_its_binding(text: str, setting: str, said: str) -> None:
    with pytest.raises(BindingError, match=said) as caught:
        resolved(parse_feed(text), "file:///data")
    assert caught.value.setting == setting


def test_what_no_binding_says() -> None:
    with pytest.raises(BindingError, match="say where the collection is"):
        resolved(parse_feed(ORDERS + 'format = "json"'), "")
    with pytest.raises(ConfigurationError, match="nothing is read from Kafka"):
        resolved(parse_feed(ORDERS), "/data", {"client.id": "us"})
    for wrong in ("identity = 3", "identity = 'id'", "store = 3"):
        with pytest.raises(FeedFileError):
            parse_feed(ORDERS + wrong)


def test_a_feed_that_is_not_resolved_is_not_run(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        own: Any = open_readable(store.url)
        with own, pytest.raises(LocalProtocolError, match="was not resolved"):
            make_plan(parse_feed(PAYMENTS), own)


MONEY = f"""
    [[binding]]
    store = "{KAFKA}"
    subscribe = ["debits", "credits"]
    starting_offsets = "latest"
"""


def test_several_topics_are_one_collection() -> None:
    single = MONEY.replace('["debits", "credits"]', '["_debits"]')
    pattern = MONEY.replace('subscribe = ["debits", "credits"]', 'subscribe_pattern = "x"')
    feed, address = resolved(parse_feed(MONEY + single + pattern + MONEY), "")
    assert [one.collection for one in feed.bindings] == ["kafka", "_debits", "kafka-2", "kafka"]
    found = KafkaAddress.parse(address).subscriptions
    assert found["kafka"].topics == ("debits", "credits")
    assert found["kafka-2"].pattern == "x"
    assert all(one.starting == Edge(LATEST) for one in found.values())


def test_a_binding_begins_where_it_says_and_others_where_the_option_says() -> None:
    text = MONEY + PAYMENTS
    _, address = resolved(parse_feed(text), "", starting=Edge(17, is_time=True))
    found = KafkaAddress.parse(address).subscriptions
    assert found["kafka"].starting == Edge(LATEST)
    assert found["payments"].starting == Edge(17, is_time=True)
    _, address = resolved(parse_feed(ORDERS), KAFKA, starting=Edge(LATEST))
    assert KafkaAddress.parse(address).subscriptions["orders"].starting == Edge(LATEST)
    with pytest.raises(ConfigurationError, match="nothing is read from there"):
        resolved(parse_feed(ORDERS), "file:///data", starting=Edge(LATEST))


def test_where_to_begin_is_asked_for_once_and_topics_are_kept() -> None:
    """A query whose feed file says later that it begins elsewhere goes on; one with other topics
    does not."""
    later = MONEY.replace("latest", "earliest")
    others = MONEY.replace("credits", "refunds")
    one, same, other = (described(parse_feed(text)) for text in (MONEY, later, others))
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MONEY + 'collection = "money"', "subscribe: collection names the one topic"),
        (
            '[[binding]]\nstore = "x"',
            "name the collection to read, or topics of Kafka by subscribe",
        ),
        (MONEY.replace("starting_offsets", "startingOffsets"), "write starting_offsets"),
    ],
)
def test_what_a_feed_file_cannot_say_of_topics(text: str, said: str) -> None:
    with pytest.raises(FeedFileError, match=said):
        parse_feed(text)


def test_topics_need_a_cluster_and_several_a_subject() -> None:
    with pytest.raises(BindingError, match="goes with topics of Kafka"):
        resolved(parse_feed(MONEY.replace(KAFKA, "/data")), "")
    registered = f'{MONEY}\nformat = "avro"\nschema.registry.url = "http://registry"\n'
    with pytest.raises(BindingError, match="'subject' is missing"):
        resolved(parse_feed(registered), "")
