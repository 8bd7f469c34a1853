"""A batch is judged by itself: whole transfers, parts of some, repetitions; and what adds up."""

from __future__ import annotations

import random

from penstock.demo.kafka.books import Books, page_of
from penstock.demo.kafka.transfers import PARTITIONS, Topics, transfer
from penstock.demo.kafka.waits import Opened, Waits, waits_of

TOPICS = Topics()


def values(name: str, seed: int = 1) -> list[bytes]:
    return [posting.value for posting in transfer(name, TOPICS, random.Random(seed))]


def test_a_transfer_adds_up_to_nothing_over_both_topics() -> None:
    for seed in range(200):
        postings = transfer("one", TOPICS, random.Random(seed))
        assert {posting.topic for posting in postings} == set(TOPICS.names)
        assert all(posting.partition < PARTITIONS for posting in postings)
        assert page_of(posting.value for posting in postings).cents == 0


def test_a_part_of_a_transfer_is_torn_and_does_not_balance() -> None:
    one, other = values("one"), values("other", 2)
    whole = page_of([*one, *other])
    assert (whole.is_whole, whole.cents) == (True, 0)
    part = page_of([*one, *other[1:]])
    assert part.torn == {"other"}
    assert part.cents != 0


def test_a_transfer_counts_when_all_of_it_has_come() -> None:
    one, other = values("one"), values("other", 2)
    books = Books()
    assert books.add(page_of([*one, other[0]])) == {"one"}
    assert not books.add(page_of([]))
    assert books.add(page_of(other[1:])) == {"other"}
    assert (books.batches, books.torn_batches, books.unbalanced_batches) == (2, 2, 2)
    assert books.postings == len(one) + len(other)
    assert not books.repeated


def test_what_comes_again_is_told() -> None:
    one = values("one")
    books = Books()
    books.add(page_of(one))
    books.add(page_of(one[:1]))
    assert books.repeated == {"one"}
    books = Books()
    books.add(page_of([*one, one[0]]))
    assert books.repeated == {"one"}
    books = Books()
    books.add(page_of(one[:-1]))
    books.add(page_of(one[-2:]))
    assert books.repeated == {"one"}


def test_waits_are_counted_from_the_commit() -> None:
    opened = Opened("open", 10.0, 20.0)
    committed = {"before": 9.0, "early": 11.0, "late": 19.0, "open": 20.5, "never": 12.0}
    seen = {"before": 9.5, "early": 12.0, "late": 20.0, "open": 21.0}
    assert waits_of(committed, seen, opened, 30.0) == Waits(1.0, 18.0, during=2, hidden=1)
    assert waits_of({}, {}, None, 1.0) == Waits(0.0, 0.0, 0, 0)
    still = Opened("open", 10.0)
    assert waits_of({"early": 11.0}, {"early": 12.0}, still, 13.0).hidden == 0
    assert waits_of({"early": 11.0}, {}, still, 13.0).hidden == 1
