"""What a binding says of its topics: which they are, and where reading them begins."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.journal.kafka.address import BOOTSTRAP, KafkaAddress, Subscription
from penstock.journal.kafka.client.offsets import Bounds
from penstock.journal.kafka.edges import EARLIEST, LATEST, Edge
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.subscribing import SubscribingError, edge_of, subscription_of

ORDERS = Subscription(("orders",))
BOTH = Subscription(("orders", "payments"))
MOMENT_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Subscription(("orders",), is_topic=True)),
        ('subscribe = ["orders", "payments", "orders"]', BOTH),
        ('subscribe = "orders, payments"', BOTH),
        ('subscribe_pattern = "or.*"', Subscription(pattern="or.*")),
        ("assign = {orders = [0, 2]}", Subscription(assigned={"orders": (0, 2)})),
    ],
)
def test_which_topics_are_read(text: str, expected: Subscription) -> None:
    assert subscription_of(tomllib.loads(text), "orders") == expected


@pytest.mark.parametrize(
    ("text", "topics", "expected"),
    [
        ("", ORDERS, None),
        ('starting_offsets = "latest"', BOTH, Edge(LATEST)),
        ('starting_offsets = "Earliest"', BOTH, Edge(EARLIEST)),
        (
            'starting_offsets = {0 = 23, 1 = "latest", 2 = -2}',
            ORDERS,
            Edge(each={"orders": {"0": 23, "1": LATEST, "2": EARLIEST}}),
        ),
        (
            "starting_offsets = {orders = {0 = 23}, payments = {0 = 0}}",
            BOTH,
            Edge(each={"orders": {"0": 23}, "payments": {"0": 0}}),
        ),
        ("starting_timestamp = 17", BOTH, Edge(17, is_time=True)),
        ("starting_timestamp = 2026-01-31T12:00:00Z", BOTH, Edge(MOMENT_MS, is_time=True)),
        (
            "starting_offsets_by_timestamp = {0 = 2026-01-31T13:00:00+01:00, 1 = 5}\n"
            'starting_offsets_by_timestamp_strategy = "latest"',
            ORDERS,
            Edge(each={"orders": {"0": MOMENT_MS, "1": 5}}, is_time=True, falls_to_latest=True),
        ),
    ],
)
def test_where_reading_begins(text: str, topics: Subscription, expected: Edge | None) -> None:
    found = edge_of(tomllib.loads(text), topics)
    assert found == expected
    address = KafkaAddress({BOOTSTRAP: "b:1"}, {"them": Subscription(("a",), starting=found)})
    assert KafkaAddress.parse(address.text) == address


@pytest.mark.parametrize(
    ("text", "setting", "said"),
    [
        ("subscribe = []", "subscribe", "names no topic"),
        ("subscribe = [3]", "subscribe", "not a list of topics"),
        ('subscribe = "a"\nassign = {a = [0]}', "assign", "one of them says it all"),
        ('subscribe_pattern = "("', "subscribe_pattern", "no regular expression"),
        ('assign = {a = ["0"]}', "assign", "not a table of topics"),
        ("assign = {a = 0}", "assign", "not a table of topics"),
        ('starting_offsets = "soon"', "starting_offsets", '"earliest", "latest"'),
        ("starting_offsets = {}", "starting_offsets", '"earliest", "latest"'),
        ('starting_offsets = {0 = "soon"}', "starting_offsets", '"earliest", "latest"'),
        ("starting_offsets = {0 = -3}", "starting_offsets", '"earliest", "latest"'),
        ("starting_offsets = {0 = true}", "starting_offsets", '"earliest", "latest"'),
        ("starting_offsets = {a = 3}", "starting_offsets", '"earliest", "latest"'),
        ("starting_timestamp = 2026-01-31T12:00:00", "starting_timestamp", "12:00:00Z"),
        ('starting_timestamp = "now"', "starting_timestamp", "12:00:00Z"),
        (
            'starting_timestamp = 1\nstarting_offsets = "latest"',
            "starting_timestamp",
            "starting_offsets says already",
        ),
        (
            'starting_offsets_by_timestamp_strategy = "latest"',
            "starting_offsets_by_timestamp_strategy",
            "none is given",
        ),
    ],
)
def test_what_cannot_be_is_said_by_its_setting(text: str, setting: str, said: str) -> None:
    settings = tomllib.loads(text)
    is_start = next(iter(settings)).startswith("starting")
    with pytest.raises(SubscribingError, match=said) as caught:
        edge_of(settings, ORDERS) if is_start else subscription_of(settings, "orders")
    assert caught.value.setting == setting


def test_of_several_topics_a_table_names_each() -> None:
    with pytest.raises(SubscribingError, match="write a table for each"):
        edge_of({"starting_offsets": {"0": 1}}, BOTH)


def test_an_option_is_divided_among_those_that_read_what_it_names() -> None:
    edge = Edge(each={"a": {"0": 1, "1": 2}, "b": {"0": 3}}, option="startingOffsets")
    assert edge.of([Partition("a", 1), Partition("c", 0)]) == Edge(each={"a": {"1": 2}})
    assert Edge(LATEST).of([Partition("a", 1)]) == Edge(LATEST)
    assert edge.named == {Partition("a", 0), Partition("a", 1), Partition("b", 0)}


def test_errors_name_what_the_user_wrote() -> None:
    bounds: Any = {Partition("a", 0): Bounds(0, 10), Partition("a", 1): Bounds(0, 10)}
    edge = Edge(each={"a": {"0": 1}}, option="starting_offsets")
    with pytest.raises(ConfigurationError, match="'starting_offsets' does not name a-1"):
        edge.resolved(bounds, dict)
