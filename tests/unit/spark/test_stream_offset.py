"""What Spark keeps of where a query is."""

from __future__ import annotations

import json

import pytest

from penstock.errors import CorruptStorageError
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import CLOCK_MAX, Producer
from penstock.shuffle.resume import Epoch
from penstock.spark.streaming.offset import Offset, new_feed_name


def epoch(commit: int, number: int = 3, watermark: int | None = CLOCK_MAX) -> Epoch:
    producer = ProducerFrontier(Producer.from_hex("010203040506"), commit, 0, -7)
    return Epoch(number, Frontier.of([JournalFrontier("a/000", 0, (producer,))]), watermark)


def test_an_offset_comes_back_from_json_as_it_was() -> None:
    offset = Offset.of("feed", epoch(5))
    assert Offset.parse(json.loads(json.dumps(offset.to_dict()))) == offset
    assert int(offset.watermark) == CLOCK_MAX  # JSON's numbers would have lost digits
    assert Offset.of("feed", epoch(5, watermark=None)).watermark == ""


def test_it_is_small_whatever_the_frontier_is() -> None:
    producers = tuple(
        ProducerFrontier(Producer.from_int64(number << 16), 10 + number) for number in range(1000)
    )
    large = Epoch(1, Frontier.of([JournalFrontier("a/000", 0, producers)]), CLOCK_MAX)
    assert len(json.dumps(Offset.of(new_feed_name(), large).to_dict())) < 200


def test_an_epoch_with_another_frontier_is_another_one() -> None:
    offset = Offset.of("feed", epoch(5))
    offset.check(epoch(5))
    with pytest.raises(CorruptStorageError, match="is not the one that Spark's checkpoint means"):
        offset.check(epoch(6))


def test_a_foreign_offset_is_refused() -> None:
    with pytest.raises(CorruptStorageError, match="has no 'feed': it is of another source"):
        Offset.parse({"index": 3})


def test_names_of_feeds_differ() -> None:
    assert len({new_feed_name() for _ in range(100)}) == 100
