"""The demo's own judges: the true answer, and the comparison of documents."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.demo.answers import CategoryAnswer, answer, same_documents, true_offers
from penstock.demo.nexmark import generate

MOMENT = pa.timestamp("us", tz="UTC")


def _auctions() -> pa.Table:
    return pa.table(
        {
            "id": [7, 5, 6],
            "category": [10, 10, 11],
            "date_time": pa.array([0, 0, 0], MOMENT),
            "expires": pa.array([100, 100, 100], MOMENT),
        }
    )


def _bids(auctions: list[int], prices: list[int], moments: list[int]) -> pa.Table:
    return pa.table(
        {
            "id": list(range(len(auctions))),
            "auction": auctions,
            "price": prices,
            "date_time": pa.array(moments, MOMENT),
        }
    )


def _true_answer(auctions: pa.Table, bids: pa.Table) -> list[CategoryAnswer]:
    return answer(true_offers(auctions, bids))


def test_the_highest_bid_of_each_auction_is_summed_by_category() -> None:
    bids = _bids([5, 5, 7, 6], [100, 300, 50, 20], [1, 2, 3, 4])
    assert _true_answer(_auctions(), bids) == [
        CategoryAnswer(10, bids=3, offered_cents=450, auctions=2, won_cents=350),
        CategoryAnswer(11, bids=1, offered_cents=20, auctions=1, won_cents=20),
    ]


def test_bids_outside_of_their_auctions_time_or_on_none_do_not_count() -> None:
    bids = _bids([5, 5, 99, 1], [100, 300, 50, 20], [100, 101, 3, 4])
    assert _true_answer(_auctions(), bids) == [
        CategoryAnswer(10, bids=1, offered_cents=100, auctions=1, won_cents=100)
    ]


def test_documents_are_the_same_in_any_order() -> None:
    bids = generate(1, 0, 500).bids
    assert same_documents(bids, bids.take(list(range(len(bids)))[::-1]))


def test_a_repeated_document_in_place_of_another_is_noticed() -> None:
    bids = generate(1, 0, 500).bids
    other = pa.concat_tables([bids.slice(1), bids.slice(5, 1)])
    assert len(other) == len(bids)
    assert not same_documents(bids, other)


def test_a_missing_document_is_noticed() -> None:
    bids = generate(1, 0, 500).bids
    assert not same_documents(bids, bids.slice(1))


def test_one_changed_value_is_noticed() -> None:
    bids = generate(1, 0, 500).bids
    prices: Any = bids["price"].to_pylist()
    prices[3] += 1
    place = bids.column_names.index("price")
    assert not same_documents(bids, bids.set_column(place, "price", pa.array(prices)))
