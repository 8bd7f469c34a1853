"""People, auctions and bids after the Nexmark benchmark, as a pure function of event numbers.

Every value is a hash of (seed, event number, purpose), so any slice of the events can be generated
anywhere, by any process, in any order, and is the same each time. The parameters are those that
the benchmark publishes: of each 50 events one is a person, three are auctions and 46 are bids, ids
start at 1,000, and some sellers, auctions, bidders and channels are hot. Two things are ours: a
bid has an id (its event number), and the benchmark's 10,000 rare channels are one, `other`, so
that bids can be partitioned by channel.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PEOPLE_PER_EPOCH: Final = 1
AUCTIONS_PER_EPOCH: Final = 3
BIDS_PER_EPOCH: Final = 46
EVENTS_PER_EPOCH: Final = PEOPLE_PER_EPOCH + AUCTIONS_PER_EPOCH + BIDS_PER_EPOCH
"""Within an epoch of 50 events the person comes first, then the auctions, then the bids."""

FIRST_ID: Final = 1_000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
ACTIVE_PEOPLE_MAX: Final = 1_000
"""Only the latest so many people sell and bid."""
AUCTIONS_IN_FLIGHT: Final = 100
"""Bids go to the latest so many auctions, and an auction stays open for about as long."""
ID_LEAD: Final = 10
"""Bids and sellers may name people and auctions that come up to so many later."""
HOT_SELLER_RATIO: Final = 4
HOT_AUCTION_RATIO: Final = 2
HOT_BIDDER_RATIO: Final = 4
HOT_CHANNEL_RATIO: Final = 2
"""A ratio of N sends N - 1 of N to the hot ones."""
HOT_EVERY: Final = 100
"""One person or auction of so many is hot."""
EVENTS_PER_SECOND: Final = 10_000
BEGIN: Final = datetime.datetime(2015, 7, 15, tzinfo=datetime.UTC)

HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS: Final = (*HOT_CHANNELS, "other")
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES: Final = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
LAST_NAMES: Final = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
ITEMS: Final = ("lamp", "clock", "bicycle", "violin", "atlas", "teapot", "camera", "chair")
ADJECTIVES: Final = ("old", "rare", "mended", "unused", "painted", "broken", "French")

PEOPLE_SCHEMA: Final = (
    "id BIGINT NOT NULL, name STRING, email STRING, credit_card STRING, city STRING, "
    "state STRING, date_time TIMESTAMP"
)
AUCTIONS_SCHEMA: Final = (
    "id BIGINT NOT NULL, item_name STRING, description STRING, initial_bid BIGINT, "
    "reserve BIGINT, date_time TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT"
)
BIDS_SCHEMA: Final = (
    "id BIGINT NOT NULL, auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, "
    "channel STRING NOT NULL, url STRING, date_time TIMESTAMP"
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Column = Any
"""An Arrow array: the type stubs know its kinds better than we do here."""
UInt64s = np.ndarray[Any, np.dtype[np.uint64]]

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_BEGIN_US: Final = int(BEGIN.timestamp()) * 1_000_000
_EVENT_US: Final = 1_000_000 // EVENTS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Events:
    """A slice of the event sequence, by collection."""

    people: pa.Table
    auctions: pa.Table
    bids: pa.Table

    @property
    def rows(self) -> int:
        return len(self.people) + len(self.auctions) + len(self.bids)

    def tables(self) -> dict[str, pa.Table]:
        return {"people": self.people, "auctions": self.auctions, "bids": self.bids}


def generate(seed: int, first: int, count: int) -> Events:
    """Events `first` up to, not with, `first + count`."""
    events = np.arange(first, first + count, dtype=np.int64)
    place = events % EVENTS_PER_EPOCH
    is_person = place < PEOPLE_PER_EPOCH
    is_bid = place >= PEOPLE_PER_EPOCH + AUCTIONS_PER_EPOCH
    return Events(
        people=_people(seed, events[is_person]),
        auctions=_auctions(seed, events[~is_person & ~is_bid]),
        bids=_bids(seed, events[is_bid]),
    )


def last_person(events: Int64s) -> Int64s:
    """The number, from 0, of the newest person at or before each event."""
    return events // EVENTS_PER_EPOCH


def last_auction(events: Int64s) -> Int64s:
    """The number, from 0, of the newest auction at or before each event; -1 before the first."""
    epoch, place = events // EVENTS_PER_EPOCH, events % EVENTS_PER_EPOCH
    begun = np.clip(place - PEOPLE_PER_EPOCH + 1, 0, AUCTIONS_PER_EPOCH)
    return epoch * AUCTIONS_PER_EPOCH + begun - 1


def _people(seed: int, events: Int64s) -> pa.Table:
    draw = _Draws(seed, events)
    first = draw.one_of("first name", FIRST_NAMES)
    last = draw.one_of("last name", LAST_NAMES)
    names = _joined(first, " ", last)
    digits = [draw.below(f"card {part}", 10_000) for part in range(4)]
    cards = [" ".join(f"{part:04d}" for part in card) for card in zip(*digits, strict=True)]
    return _table(
        {
            "id": FIRST_ID + last_person(events),
            "name": names,
            "email": _joined(first, ".", last, "@example.com"),
            "credit_card": pa.array(cards, pa.string()),
            "city": draw.one_of("city", CITIES),
            "state": draw.one_of("state", STATES),
            "date_time": _moments(events),
        }
    )


def _auctions(seed: int, events: Int64s) -> pa.Table:
    draw = _Draws(seed, events)
    initial = draw.prices("initial bid")
    newest = last_person(events)
    hot_seller = newest // HOT_EVERY * HOT_EVERY
    seller = np.where(
        draw.below("hot seller", HOT_SELLER_RATIO) > 0, hot_seller, _recent_person(draw, newest)
    )
    item = _joined(draw.one_of("adjective", ADJECTIVES), " ", draw.one_of("item", ITEMS))
    return _table(
        {
            "id": FIRST_ID + last_auction(events),
            "item_name": item,
            "description": _joined(item, " from ", draw.one_of("origin", CITIES)),
            "initial_bid": initial,
            "reserve": initial + draw.prices("reserve"),
            "date_time": _moments(events),
            "expires": _moments(events, later_us=_auction_length_us(draw)),
            "seller": FIRST_ID + seller,
            "category": FIRST_CATEGORY + draw.below("category", CATEGORIES),
        }
    )


def _bids(seed: int, events: Int64s) -> pa.Table:
    draw = _Draws(seed, events)
    newest_auction, newest_person = last_auction(events), last_person(events)
    hot_auction = newest_auction // HOT_EVERY * HOT_EVERY
    oldest = np.maximum(newest_auction - AUCTIONS_IN_FLIGHT, 0)
    recent_auction = oldest + draw.below("auction", newest_auction - oldest + 1 + ID_LEAD)
    auction = np.where(
        draw.below("hot auction", HOT_AUCTION_RATIO) > 0, hot_auction, recent_auction
    )
    # One beside the hot seller, so that who sells most does not also bid most.
    hot_bidder = newest_person // HOT_EVERY * HOT_EVERY + 1
    bidder = np.where(
        draw.below("hot bidder", HOT_BIDDER_RATIO) > 0,
        hot_bidder,
        _recent_person(draw, newest_person),
    )
    is_hot = draw.below("hot channel", HOT_CHANNEL_RATIO) > 0
    channel = np.where(is_hot, draw.below("channel", len(HOT_CHANNELS)), len(HOT_CHANNELS))
    channels = _chosen(CHANNELS, channel)
    path = pa.array(draw.below("url", 2**40)).cast(pa.string())
    return _table(
        {
            "id": events,
            "auction": FIRST_ID + auction,
            "bidder": FIRST_ID + bidder,
            "price": draw.prices("price"),
            "channel": channels,
            "url": _joined("https://www.example.com/", channels, "/item?", path),
            "date_time": _moments(events),
        }
    )


def _recent_person(draw: _Draws, newest: Int64s) -> Int64s:
    active = np.minimum(newest + 1, ACTIVE_PEOPLE_MAX)
    return newest + 1 - active + draw.below("person", active + ID_LEAD)


def _auction_length_us(draw: _Draws) -> Int64s:
    """Long enough that about AUCTIONS_IN_FLIGHT are open at any moment: up to twice the time in
    which so many begin."""
    horizon_us = AUCTIONS_IN_FLIGHT * EVENTS_PER_EPOCH // AUCTIONS_PER_EPOCH * _EVENT_US
    return 1_000 + draw.below("length", horizon_us * 2)


def _moments(events: Int64s, later_us: Int64s | int = 0) -> Column:
    return pa.array(_BEGIN_US + events * _EVENT_US + later_us).cast(_TIMESTAMP)


class _Draws:
    """Random numbers for some events: each purpose has its own, whatever else is drawn."""

    def __init__(self, seed: int, events: Int64s) -> None:
        self._seed = seed
        self._events = events.astype(np.uint64)

    def bits(self, purpose: str) -> UInt64s:
        """64 random bits for each event: splitmix64 over the seed, the purpose and the event."""
        words = int.from_bytes(purpose.encode(), "big") % (2**64 - 59)
        stream = _mixed(np.array([self._seed % 2**64], np.uint64) + _GOLDEN)
        stream = _mixed(stream ^ np.uint64(words))
        return _mixed(stream + (self._events + np.uint64(1)) * _GOLDEN)

    def fractions(self, purpose: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """In [0, 1), of 53 bits."""
        return (self.bits(purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, purpose: str, limit: int | Int64s) -> Int64s:
        """Whole numbers from 0 up to, not with, the limit."""
        return (self.fractions(purpose) * limit).astype(np.int64)

    def prices(self, purpose: str) -> Int64s:
        """In cents, from 1 to 1,000,000 whole units, evenly over the powers of ten."""
        return np.rint(10.0 ** (self.fractions(purpose) * 6) * 100).astype(np.int64)

    def one_of(self, purpose: str, choices: tuple[str, ...]) -> Column:
        return _chosen(choices, self.below(purpose, len(choices)))


_GOLDEN: Final = np.uint64(0x9E37_79B9_7F4A_7C15)


def _mixed(words: UInt64s) -> UInt64s:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))


def _chosen(choices: tuple[str, ...], index: Int64s) -> Column:
    column: Column = pa.array(choices)
    return column.take(pa.array(index))


def _joined(*parts: Column | str) -> Column:
    join: Any = pc.binary_join_element_wise
    return join(*parts, "")


def _table(columns: dict[str, Column]) -> pa.Table:
    return pa.table(columns)
