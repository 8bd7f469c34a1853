"""The generator: pure, in the benchmark's proportions, and with its hot keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.ddl import schema_from_ddl
from penstock.demo import nexmark
from penstock.demo.nexmark import FIRST_ID, generate

EVENTS = 50_000


@pytest.fixture(scope="module")
def events() -> nexmark.Events:
    return generate(seed=7, first=0, count=EVENTS)


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids(
    events: nexmark.Events,
) -> None:
    epochs = EVENTS // 50
    assert (len(events.people), len(events.auctions), len(events.bids)) == (
        epochs,
        3 * epochs,
        46 * epochs,
    )
    assert events.rows == EVENTS


def test_ids_start_at_a_thousand_and_have_no_gaps(events: nexmark.Events) -> None:
    for table in (events.people, events.auctions):
        ids = table["id"].to_pylist()
        assert ids == list(range(FIRST_ID, FIRST_ID + len(table)))


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    assert generate(3, 100, 500) == generate(3, 100, 500)
    assert not generate(3, 100, 500).bids.equals(generate(4, 100, 500).bids)


@pytest.mark.parametrize("cut", [1, 49, 50, 51, 777, 1_999])
def test_any_slice_is_the_same_slice_of_the_whole(cut: int) -> None:
    whole, head, tail = generate(5, 0, 2_000), generate(5, 0, cut), generate(5, cut, 2_000 - cut)
    for name, table in whole.tables().items():
        parts = [*head.tables()[name].to_pylist(), *tail.tables()[name].to_pylist()]
        assert parts == table.to_pylist()


def test_half_of_the_bids_go_to_the_hot_auction_of_their_moment(events: nexmark.Events) -> None:
    numbers = events.bids["id"].to_numpy()
    hot = nexmark.last_auction(numbers) // 100 * 100
    share = np.mean(events.bids["auction"].to_numpy() - FIRST_ID == hot)
    assert 0.49 < share < 0.53


def test_three_of_four_bids_are_of_the_hot_bidder_of_their_moment(events: nexmark.Events) -> None:
    numbers = events.bids["id"].to_numpy()
    hot = nexmark.last_person(numbers) // 100 * 100 + 1
    share = np.mean(events.bids["bidder"].to_numpy() - FIRST_ID == hot)
    assert 0.74 < share < 0.77


def test_three_of_four_auctions_are_of_the_hot_seller_of_their_moment(
    events: nexmark.Events,
) -> None:
    newest = (events.auctions["id"].to_numpy() - FIRST_ID) // 3
    share = np.mean(events.auctions["seller"].to_numpy() - FIRST_ID == newest // 100 * 100)
    assert 0.72 < share < 0.79


def test_bids_and_auctions_name_only_what_is_there_or_comes_very_soon(
    events: nexmark.Events,
) -> None:
    numbers = events.bids["id"].to_numpy()
    auction = events.bids["auction"].to_numpy() - FIRST_ID
    newest = nexmark.last_auction(numbers)
    assert (auction >= 0).all()
    assert (auction <= newest + nexmark.ID_LEAD).all()
    assert (auction >= newest - nexmark.AUCTIONS_IN_FLIGHT).all()
    bidder = events.bids["bidder"].to_numpy() - FIRST_ID
    assert (bidder >= 0).all()
    assert (bidder <= nexmark.last_person(numbers) + nexmark.ID_LEAD).all()


def test_auctions_expire_after_they_begin_and_prices_span_the_powers_of_ten(
    events: nexmark.Events,
) -> None:
    begins, ends = (
        events.auctions[name].cast(pa.int64()).to_numpy() for name in ("date_time", "expires")
    )
    assert (ends > begins).all()
    # On average as long as it takes for a hundred auctions to begin.
    assert 0.9 < np.mean(ends - begins) / (100 * 50 / 3 * 100) < 1.1
    prices = events.bids["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    by_power = np.bincount(np.log10(prices / 100).astype(int).clip(0, 5)) / len(prices)
    assert by_power == pytest.approx([1 / 6] * 6, abs=0.01)


def test_half_of_the_bids_come_through_the_four_hot_channels(events: nexmark.Events) -> None:
    channels: Any = events.bids["channel"]
    entries = channels.value_counts().to_pylist()
    counts = {entry["values"]: entry["counts"] for entry in entries}
    assert set(counts) == set(nexmark.CHANNELS)
    assert counts["other"] / len(events.bids) == pytest.approx(0.5, abs=0.01)
    for channel in nexmark.HOT_CHANNELS:
        assert counts[channel] / len(events.bids) == pytest.approx(0.125, abs=0.01)


def test_the_tables_have_the_columns_of_their_collections(events: nexmark.Events) -> None:
    schemas = (nexmark.PEOPLE_SCHEMA, nexmark.AUCTIONS_SCHEMA, nexmark.BIDS_SCHEMA)
    for table, ddl in zip(events.tables().values(), schemas, strict=True):
        schema = schema_from_ddl(ddl)
        assert table.schema.names == schema.names
        assert table.schema.types == schema.types
