"""Options of a streaming read: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.shuffle.feed import Binding
from penstock.spark.streaming.options import MEMBERS_DEFAULT, StreamOptions, is_streaming

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {"store": "file:///data", "collection": "orders"}


def test_a_collection_is_a_feed_of_one_binding() -> None:
    options = StreamOptions.parse(PLAIN)
    assert options.feed.bindings == (Binding("orders"),)
    assert (options.members, options.splits, options.cluster) == (MEMBERS_DEFAULT, 1, "")
    assert (options.max_documents, options.max_bytes) == (None, None)


def test_every_setting_of_a_binding_is_an_option() -> None:
    given = {
        "Key": "customer, region",
        "PARTITIONS": "region=eu",
        "priority": "-3",
        "read_delay": "1.5m",
        "not_before": "2026-01-01T00:00:00Z",
        "not_after": "2026-02-01T00:00:00+01:00",
    }
    (binding,) = StreamOptions.parse(PLAIN | given).feed.bindings
    assert binding == Binding(
        "orders",
        ("customer", "region"),
        "region=eu",
        -3,
        90.0,
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 31, 23, tzinfo=datetime.UTC),
    )


def test_a_feed_file_stands_in_place_of_a_binding(tmp_path: Path) -> None:
    path = tmp_path / "both.toml"
    path.write_text('[[binding]]\ncollection = "a"\n[[binding]]\ncollection = "b"\npriority = 1\n')
    options = StreamOptions.parse({"store": "s", "feed": str(path)})
    assert options.feed.name == "both"
    assert [each.collection for each in options.feed.bindings] == ["a", "b"]
    with pytest.raises(ConfigurationError, match="'key' does not go with 'feed'"):
        StreamOptions.parse({"store": "s", "feed": str(path), "key": "id"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"as_of": "now"}, "no option 'as_of' of a streaming read"),
        ({"members": "257"}, "from 1 to 256, not '257'"),
        ({"splits": "many"}, "option 'splits'"),
        ({"max_documents": "0"}, "option 'max_documents'"),
        ({"priority": "high"}, "option 'priority': 'high' is not a whole number"),
        ({"read_delay": "-1"}, "option 'read_delay': -1 seconds is not a time to wait"),
        ({"read_delay": "2e12"}, "option 'read_delay': .* seconds is longer than"),
        ({"read_delay": "soon"}, "option 'read_delay': 'soon' is not a time"),
        ({"not_before": "yesterday"}, "option 'not_before': 'yesterday' is not a moment"),
        ({"not_before": "2026-01-01"}, "option 'not_before': .* has no time zone"),
        ({"collection": ""}, "option 'collection' is missing"),
        ({"store": " "}, "option 'store' is missing"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        StreamOptions.parse(PLAIN | given)


def test_options_that_fit_both_kinds_of_read_do_not_tell_which_it_is() -> None:
    assert not is_streaming(PLAIN | {"partitions": "region=eu"})
    assert not is_streaming(PLAIN | {"as_of": "2026-01-01T00:00:00Z"})
    assert is_streaming(PLAIN | {"KEY": "id"})
    assert is_streaming(PLAIN | {"members": "3"})
    assert is_streaming({"store": "s", "feed": "f.toml"})
