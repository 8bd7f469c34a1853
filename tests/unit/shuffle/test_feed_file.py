"""Feeds from TOML: what is read, and which line is named when something is wrong."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from penstock.shuffle.feed import LANES_MAX, Binding, BindingError, Feed
from penstock.shuffle.feed_file import FeedFileError, load_feed, parse_feed

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """
name = "orders-by-customer"

[[binding]]
collection = "orders"
key = ["customer", "region"]
partitions = "region=eu,!tier=2"
priority = 1
read_delay = "5m"
not_before = 2026-01-01T00:00:00Z

[[binding]]
collection = "refunds"
key = "customer"
not_after = 2026-06-01T02:00:00+02:00
"""


def test_every_setting_is_read() -> None:
    january = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    june = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    assert parse_feed(WHOLE) == Feed(
        "orders-by-customer",
        (
            Binding(
                "orders", ("customer", "region"), "region=eu,!tier=2", 1, 300.0, not_before=january
            ),
            Binding("refunds", ("customer",), not_after=june),
        ),
    )


def test_a_feed_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "refunds.toml"
    path.write_text('[[binding]]\ncollection = "refunds"\n')
    assert load_feed(path) == Feed("refunds", (Binding("refunds"),))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0.0),
        ("2.5", 2.5),
        ('"90s"', 90.0),
        ('"250ms"', 0.25),
        ('"1.5h"', 5400.0),
        ('"2d"', 172800.0),
    ],
)
def test_delays(written: str, seconds: float) -> None:
    text = f'[[binding]]\ncollection = "orders"\nread_delay = {written}\n'
    assert parse_feed(text).bindings[0].read_delay_seconds == seconds


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('name = "a b"\n[[binding]]\ncollection = "x"', 1, "name"),
        ("name = 3\n", 1, "not a text"),
        ('name = "x"\n', 1, "reads at least one"),
        ('nam = "x"\n', 1, "no such setting"),
        ('name = "x"\n\n[binding]\ncollection = "x"', 3, "[[binding]]"),
        ('[[binding]]\nkey = "a"', 1, "it is missing"),
        ('[[binding]]\ncollection = "x"\n\n[[binding]]\nkey = "a"', 4, "it is missing"),
        ('[[binding]]\ncollection = ""', 2, "it is empty"),
        ('[[binding]]\ncollection = "x"\nkey = 3', 3, "list of columns"),
        ('[[binding]]\ncollection = "x"\nkey = ["a", "a"]', 3, "twice"),
        ('[[binding]]\ncollection = "x"\npriority = true', 3, "whole number"),
        ('[[binding]]\ncollection = "x"\npriority = 3000000000', 3, "32-bit"),
        ('[[binding]]\ncollection = "x"\nread_delay = "soon"', 3, "90s"),
        ('[[binding]]\ncollection = "x"\nread_delay = -1', 3, "time to wait"),
        ('[[binding]]\ncollection = "x"\nread_delay = nan', 3, "time to wait"),
        ('[[binding]]\ncollection = "x"\nnot_before = "today"', 3, "moment"),
        ('[[binding]]\ncollection = "x"\nnot_after = 2026-01-01T00:00:00', 3, "time zone"),
        (
            '[[binding]]\ncollection = "x"\n[[binding]]\ncollection = "y"\n\n'
            "not_before = 2026-01-02T00:00:00Z\nnot_after = 2026-01-01T00:00:00Z",
            7,
            "nothing would be read",
        ),
        ('[[binding]]\ncollection = "x"\n# priority = 1\npriorty = 1', 4, "no such setting"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(FeedFileError) as caught:
        parse_feed(text, "orders.toml")
    assert f"orders.toml, line {line}: " in str(caught.value)
    assert problem in str(caught.value)


def test_what_is_no_toml_is_told_with_its_line() -> None:
    with pytest.raises(FeedFileError, match=r"orders\.toml: not TOML: .*line 2"):
        parse_feed('name = "x"\nkey = = 3\n', "orders.toml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FeedFileError, match="cannot be read"):
        load_feed(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FeedFileError, match="not UTF-8"):
        load_feed(tmp_path / "bytes.toml")


def test_cohorts_and_lanes() -> None:
    settings = [(0, 0.0), (5, 0.0), (0, 60.0), (0, 0.0), (-1, 0.0), (5, 0.0)]
    feed = Feed(
        "f",
        tuple(
            Binding("c", priority=priority, read_delay_seconds=delay)
            for priority, delay in settings
        ),
    )
    assert feed.cohorts == (0, 1, 2, 0, 3, 1)
    assert feed.lanes == (5, 0, -1)
    assert [feed.lane_of(place) for place in range(6)] == [1, 0, 1, 1, 2, 0]


def test_lanes_are_limited() -> None:
    bindings = tuple(Binding("c", priority=number) for number in range(LANES_MAX + 1))
    assert len(Feed("f", bindings[:-1]).lanes) == LANES_MAX
    with pytest.raises(BindingError, match="priority"):
        Feed("f", bindings)
