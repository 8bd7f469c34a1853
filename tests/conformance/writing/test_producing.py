"""What producers do to any store that can be written to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, LocalProtocolError
from tests.conformance.writing.places import BOTH, documents, seen

if TYPE_CHECKING:
    from penstock.journal import ProducingStore
    from tests.conformance.writing.places import ProducingPlace


@pytest.fixture
def place(producing_place: ProducingPlace) -> ProducingPlace:
    return producing_place


@pytest.fixture
def store(producing_store: ProducingStore) -> ProducingStore:
    return producing_store


def test_what_an_append_returned_for_is_seen_by_everybody(
    place: ProducingPlace, store: ProducingStore
) -> None:
    with store.producer() as producer, place.open() as other:
        producer.append("orders", documents([1, 2]))
        assert seen(other) == {"orders": [1, 2], "payments": []}


def test_a_transaction_is_seen_whole_or_not_at_all(
    place: ProducingPlace, store: ProducingStore
) -> None:
    with store.producer() as producer, place.open() as other:
        with producer.transaction() as transaction:
            for name in BOTH:
                transaction.append(name, documents([1]))
            assert seen(other) == {"orders": [], "payments": []}
        assert seen(other) == {"orders": [1], "payments": [1]}
        given_up = producer.transaction()
        with contextlib.suppress(ZeroDivisionError), given_up as transaction:
            for name in BOTH:
                transaction.append(name, documents([2]))
            _ = 1 // 0
        producer.append("orders", documents([3]))
        assert seen(other) == {"orders": [1, 3], "payments": [1]}


def test_a_name_fences_its_earlier_producer(place: ProducingPlace, store: ProducingStore) -> None:
    first = store.producer(place.named("loader"))
    open_ = first.transaction()
    open_.__enter__()
    open_.append("orders", documents([1]))
    with place.open() as other, other.producer(place.named("loader")) as second:
        second.append("orders", documents([2]))
        with pytest.raises(LocalProtocolError):
            open_.append("orders", documents([3]))
        assert seen(other)["orders"] == [2]


def test_a_name_knows_the_position_that_was_committed_with_its_documents(
    place: ProducingPlace, store: ProducingStore
) -> None:
    with store.producer(place.named("loader")) as first:
        with first.transaction() as transaction:
            transaction.append("orders", documents([1]))
            transaction.position("1")
        left_open = first.transaction()
        left_open.append("orders", documents([2]))
        left_open.position("2")
        with place.open() as other, other.producer(place.named("loader")) as second:
            assert (second.position, seen(other)["orders"]) == ("1", [1])


def test_positions_outlive_producers_and_transactions_without_one(
    place: ProducingPlace, store: ProducingStore
) -> None:
    with store.producer(place.named("loader")) as first:
        assert first.position is None
        with first.transaction() as transaction:
            transaction.position("a")
            transaction.position("b")
        assert first.position == "b"
        first.append("orders", documents([1]))
        with contextlib.suppress(ZeroDivisionError), first.transaction() as transaction:
            transaction.append("orders", documents([2]))
            transaction.position("c")
            _ = 1 // 0
        assert first.position == "b"
    with place.open() as other:
        with (
            other.producer(place.named("loader")) as second,
            other.producer(place.named("another")) as stranger,
        ):
            assert (second.position, stranger.position) == ("b", None)
        assert seen(other)["orders"] == [1]


def test_a_position_needs_a_name_and_is_a_text(
    place: ProducingPlace, store: ProducingStore
) -> None:
    with store.producer() as unnamed, unnamed.transaction() as transaction:
        assert unnamed.position is None
        with pytest.raises(LocalProtocolError, match="a position belongs to a name"):
            transaction.position("1")
    with store.producer(place.named("loader")) as named, named.transaction() as transaction:
        with pytest.raises(ConfigurationError, match="a position is a text"):
            transaction.position(1)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="is above 1,048,576"):
            transaction.position("x" * (1 << 21))
        transaction.append("orders", documents([1]))
    assert seen(store)["orders"] == [1], "what is refused leaves the transaction as it was"


def test_rows_come_as_arrow_pandas_or_dicts(store: ProducingStore) -> None:
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", {"id": 1})
        transaction.append("orders", documents([2]))
        transaction.append("orders", pa.table({"id": [3, 4]}))
        transaction.append("orders", pa.record_batch({"id": pa.array([5], pa.int32())}))
        assert transaction.append("orders", pd.DataFrame({"id": [6, 7]})) == 2
        assert transaction.append("orders", []) == 0
        with pytest.raises(ConfigurationError, match="no_such"):
            transaction.append("orders", {"no_such": 1})
        with pytest.raises(ConfigurationError, match=r"rows refused.*row 1.*'id'"):
            transaction.append("orders", [{"id": 8}, {"id": "eight"}])
        with pytest.raises(ConfigurationError, match=r"no (collection|topic) 'missing'"):
            transaction.append("missing", documents([9]))
    assert seen(store) == {"orders": [1, 2, 3, 4, 5, 6, 7], "payments": []}


def test_one_transaction_of_a_producer_at_a_time(store: ProducingStore) -> None:
    producer = store.producer()
    first = producer.transaction()
    with pytest.raises(LocalProtocolError, match="a transaction"):
        producer.transaction()
    with pytest.raises(LocalProtocolError, match="a transaction of this producer is open"):
        producer.append("orders", documents([1]))
    first.append("orders", documents([2]))
    first.commit()
    with pytest.raises(LocalProtocolError, match="this transaction is over"):
        first.append("orders", documents([3]))
    left_open = producer.transaction()
    left_open.append("orders", documents([4]))
    producer.close()
    with pytest.raises(LocalProtocolError):
        producer.append("orders", documents([5]))
    with store.producer() as other:
        other.append("orders", documents([6]))
    assert seen(store)["orders"] == [2, 6]
