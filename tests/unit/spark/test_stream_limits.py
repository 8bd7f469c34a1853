"""How much a batch reads, over real queues."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.spark.streaming.limits import Limits, measure
from tests.conformance.waiting import WAIT_SECONDS_MAX, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTS = (10, 20, 5)


@pytest.fixture
def outlet(tmp_path: Path) -> Iterator[Outlet]:
    """With an epoch for each of the counts."""
    store = ps.open_store(tmp_path / "store", durability="buffered")
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL", "id"))
    feed = Feed("orders", (Binding("orders"),))
    outlet = Outlet(EmbeddedShuffle(feed, store, tmp_path / "feed", members=2), store, feed)
    newest = 0
    with store.producer() as producer:
        for count in COUNTS:
            with producer.transaction() as transaction:
                transaction.append("orders", [{"id": number} for number in range(count)])
            outlet.set_target()
            found = outlet.wait_epoch(newest, WAIT_SECONDS_MAX)
            assert found is not None
            reached = functools.partial(outlet.has_reached, found)
            eventually(reached, "all that was written is in the epoch")
            newest = found.number
    yield outlet
    outlet.close()


def test_as_many_epochs_as_fit_and_one_in_any_case(outlet: Outlet) -> None:
    numbers = outlet.numbers(0)
    assert len(numbers) == len(COUNTS)
    spans = list(zip([0, *numbers], numbers, strict=False))
    measured = [measure(outlet, *span) for span in spans]
    assert tuple(each.documents for each in measured) == COUNTS
    assert measure(outlet, 0, numbers[-1]).documents == sum(COUNTS)

    def last(documents: int | None, size_bytes: int | None = None, start: int = 0) -> int:
        limits = Limits(documents, size_bytes)
        found = [limits.last_within(outlet, start, outlet.newest()).number for _ in range(2)]
        assert found[0] == found[1]  # remembered or not
        return found[0]

    assert last(1) == numbers[0]
    assert last(10) == numbers[0]
    assert last(29) == numbers[0]
    assert last(30) == numbers[1]
    assert last(1_000) == numbers[2]
    assert last(1, start=numbers[0]) == numbers[1]
    assert last(None, measured[0].bytes) == numbers[0]
    assert last(None, measured[0].bytes + measured[1].bytes) == numbers[1]
    assert last(1_000, 1) == numbers[0]
    assert last(1, 1_000_000) == numbers[0]
