"""Options of Spark's Kafka source: what they become, and the words for what is refused."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.journal.kafka.address import KafkaAddress, Subscription
from penstock.journal.kafka.edges import EARLIEST, LATEST, Edge
from penstock.spark.feed_batch import FeedRead
from penstock.spark.kafka_options import parse_kafka
from penstock.spark.options import Order, ReadOptions
from penstock.spark.streaming.options import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9092"}
ORDERS = {**SERVERS, "subscribe": "orders"}


@pytest.mark.parametrize(
    ("given", "subscription"),
    [
        ({"subscribe": "orders, payments,orders"}, Subscription(("orders", "payments"))),
        ({"subscribePattern": "or.*"}, Subscription(pattern="or.*")),
        ({"assign": '{"orders": [0, 2]}'}, Subscription(assigned={"orders": (0, 2)})),
    ],
)
def test_what_is_read(given: Mapping[str, str], subscription: Subscription) -> None:
    read, rest = parse_kafka({**SERVERS, **given, "members": "3"})
    assert read.address.subscriptions == {read.collection: subscription}
    assert rest == {"members": "3"}
    assert KafkaAddress.parse(read.address.text) == read.address


@pytest.mark.parametrize(
    ("given", "starting", "ending"),
    [
        ({}, None, None),
        ({"startingOffsets": "Earliest"}, Edge(EARLIEST), None),
        ({"startingOffsets": "latest", "endingOffsets": "latest"}, Edge(LATEST), Edge(LATEST)),
        (
            {"startingOffsets": '{"orders": {"0": 5, "1": -2}}'},
            Edge(each={"orders": {"0": 5, "1": -2}}),
            None,
        ),
        (
            {"startingTimestamp": "17", "startingOffsets": "latest"},
            Edge(17, is_time=True),
            None,
        ),
        (
            {"startingTimestamp": "17", "startingOffsetsByTimestampStrategy": "latest"},
            Edge(17, is_time=True, falls_to_latest=True),
            None,
        ),
        ({"endingTimestamp": "17"}, None, Edge(17, is_time=True, falls_to_latest=True)),
    ],
)
def test_where_it_begins_and_ends(
    given: Mapping[str, str], starting: Edge | None, ending: Edge | None
) -> None:
    read, _ = parse_kafka({**ORDERS, **given})
    assert (read.starting, read.ending) == (starting, ending)


def test_a_stream_has_limits_and_tasks_by_spark_s_names() -> None:
    given = {**ORDERS, "maxOffsetsPerTrigger": "500", "minPartitions": "5", "members": "2"}
    options = StreamOptions.parse(given)
    assert (options.max_documents, options.members, options.splits) == (500, 2, 3)
    assert options.feed.bindings[0].collection == "orders"
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_batch_read() -> None:
    options = ReadOptions.parse({**ORDERS, "endingOffsets": "latest", "order": "offset"})
    assert options.kafka is not None
    assert options.kafka.ending == Edge(LATEST)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "orders"}, "kafka.bootstrap.servers"),
        (SERVERS, "none is given"),
        ({**ORDERS, "assign": '{"orders": [0]}'}, "subscribe and assign"),
        ({**SERVERS, "assign": "orders"}, "'assign' is JSON like"),
        ({**SERVERS, "subscribePattern": "("}, "no regular expression"),
        ({**ORDERS, "minOffsetsPerTrigger": "5"}, "trigger interval"),
        ({**ORDERS, "startingOffsets": "[]"}, "startingoffsets"),
        ({**ORDERS, "endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({**ORDERS, "startingTimestamp": "soon"}, "startingtimestamp"),
        ({**ORDERS, "maxOffsetsPerTrigger": "0"}, "above 0"),
        ({**ORDERS, "store": "file:///data"}, "do not go with store"),
    ],
)
def test_what_is_refused(given: Mapping[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_kafka(given)
    assert words in str(refused.value)


def test_what_fits_one_kind_of_read_only() -> None:
    with pytest.raises(ConfigurationError, match="batch read only"):
        StreamOptions.parse({**ORDERS, "endingTimestamp": "5"})
    with pytest.raises(ConfigurationError, match="cannot be 'latest'"):
        ReadOptions.parse({**ORDERS, "startingOffsets": "latest"})
    with pytest.raises(ConfigurationError, match="'collection' does not go"):
        ReadOptions.parse({**ORDERS, "collection": "orders"})


def test_secrets_are_shown_by_nothing() -> None:
    given = {**ORDERS, "kafka.sasl.jaas.config": 'X required password="hidden-word";'}
    read, _ = parse_kafka(given)
    assert "hidden-word" in json.dumps(dict(read.address.options))
    encoded = read.address.text.partition("#")[2]
    for shown in (read, read.address, StreamOptions.parse(given), ReadOptions.parse(given)):
        assert "hidden-word" not in repr(shown)
        assert encoded not in repr(shown)
    assert read.address.url == "kafka://a:9092,b:9092"


def test_a_pattern_matches_anywhere_in_a_name() -> None:
    pattern = Subscription(pattern="orders(-eu)?$")
    found = [name for name in ("orders", "old-orders-eu", "orders-us") if pattern.has(name, 0)]
    assert found == ["orders", "old-orders-eu"]


@pytest.fixture
def feed_file(tmp_path: Path) -> str:
    path = tmp_path / "money.toml"
    path.write_text('[[binding]]\ncollection = "debits"\nstore = "kafka://a:9092"\n')
    return str(path)


def test_what_goes_with_a_feed_file(feed_file: str) -> None:
    beside = {"startingOffsets": "latest", "maxOffsetsPerTrigger": "500", "minPartitions": "5"}
    headers = {"includeHeaders": "true", "failOnDataLoss": "false"}
    options = StreamOptions.parse({"feed": feed_file, **beside, **headers})
    assert (options.max_documents, options.members, options.splits) == (500, 2, 3)
    address = KafkaAddress.parse(options.store)
    assert address.subscriptions["debits"].starting == Edge(LATEST)
    assert (address.with_headers, address.fail_on_data_loss) == (True, False)
    batch = FeedRead.parse({"feed": feed_file, "order": "clock", **beside})
    assert batch.order is Order.CLOCK
    assert batch.feed.max_documents == 500
    with pytest.raises(ConfigurationError, match="no option 'order' of a streaming read"):
        StreamOptions.parse({"feed": feed_file, "order": "clock"})


@pytest.mark.parametrize("option", ["subscribe", "assign", "endingOffsets", "endingTimestamp"])
def test_what_does_not_go_with_a_feed_file(feed_file: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match="does not go with 'feed'"):
        StreamOptions.parse({"feed": feed_file, option: "1"})


def test_a_topic_may_have_a_name_that_a_feed_may_not() -> None:
    for topic in ("_orders", "..orders", "x" * 150):
        options = StreamOptions.parse({**SERVERS, "subscribe": topic})
        assert options.feed.bindings[0].collection == topic
        assert options.feed.name in ("orders", "x" * 100)
        plain = StreamOptions.parse({"store": "kafka://a:9092", "collection": topic})
        assert plain.feed.bindings[0].collection == topic


def test_a_stream_begins_at_the_latest_unless_it_says_so() -> None:
    for given, expected in (({}, LATEST), ({"startingOffsets": "earliest"}, EARLIEST)):
        address = KafkaAddress.parse(StreamOptions.parse({**ORDERS, **given}).store)
        assert address.subscriptions["orders"].starting == Edge(expected)
