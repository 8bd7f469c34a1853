"""What a node is told, as Kafka reads it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.kafka.settings import (
    CLIENT,
    CONTROLLER,
    INTERNAL,
    Listener,
    Voter,
    node_settings,
    properties_text,
    replication,
)

LISTENERS = [
    Listener(CLIENT, "127.0.0.1:1", "127.0.0.1:1"),
    Listener(INTERNAL, "127.0.0.1:2", "127.0.0.1:9"),
    Listener(CONTROLLER, "127.0.0.1:3", "127.0.0.1:3"),
    Listener("TLS", "127.0.0.1:4", "127.0.0.1:4", "SSL"),
]


def test_others_are_sent_to_the_advertised_address_and_never_to_the_controller() -> None:
    told = node_settings(1, "data", LISTENERS, [Voter(1, "127.0.0.1:3")], {})
    assert "INTERNAL://127.0.0.1:2" in told["listeners"].split(",")
    assert told["advertised.listeners"].split(",") == [
        "CLIENT://127.0.0.1:1",
        "INTERNAL://127.0.0.1:9",
        "TLS://127.0.0.1:4",
    ]
    assert told["listener.security.protocol.map"].endswith("TLS:SSL")


def test_what_is_given_wins() -> None:
    voters = [Voter(1, "127.0.0.1:3"), Voter(2, "127.0.0.1:5"), Voter(3, "127.0.0.1:6")]
    given_settings = {"min.insync.replicas": "1", "log.segment.bytes": "1048576"}
    told = node_settings(2, "data", LISTENERS, voters, given_settings)
    assert told["min.insync.replicas"] == "1"
    assert told["log.segment.bytes"] == "1048576"
    assert told["transaction.state.log.min.isr"] == "2"
    assert told["controller.quorum.voters"] == "1@127.0.0.1:3,2@127.0.0.1:5,3@127.0.0.1:6"


@pytest.mark.parametrize(
    ("nodes", "copies", "needed"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_of_three_copies_one_may_be_missing(nodes: int, copies: int, needed: int) -> None:
    told = replication(nodes)
    assert told["transaction.state.log.replication.factor"] == str(copies)
    assert told["transaction.state.log.min.isr"] == str(needed)


def as_java_reads(text: str) -> dict[str, str]:
    """The part of java.util.Properties that our files use."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        found[name] = re.sub(r"\\(.)", lambda it: "\n" if it[1] == "n" else it[1], value)
    return found


VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126) | st.sampled_from("\n\\"))


@given(st.dictionaries(st.from_regex(r"[a-z]+(\.[a-z]+)*", fullmatch=True), VALUES))
def test_a_file_is_read_as_it_was_written(settings: dict[str, str]) -> None:
    assert as_java_reads(properties_text(settings)) == settings
