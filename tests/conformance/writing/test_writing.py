"""What every store does for those who write into it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.journal import Collection
from penstock.journal.documents import read_documents
from penstock.journal.errors import OffsetDroppedError, ProducerFencedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.journal import OpenStore
    from penstock.journal.cut import AsOf
    from tests.conformance.writing.places import Place

BOTH = ("orders", "payments")


def documents(numbers: Iterable[int]) -> list[dict[str, int]]:
    return [{"id": number} for number in numbers]


def journal_of(store: OpenStore, collection: str) -> str:
    (found,) = store.journals(collection)
    return found.name


def seen(store: OpenStore, as_of: AsOf = None) -> dict[str, list[int]]:
    """By collection, the documents of one cut."""
    found: dict[str, list[int]] = {name: [] for name in BOTH}
    journals = {one.name: name for name in BOTH for one in store.journals(name)}
    for cut in store.cut(list(journals), as_of):
        for part in read_documents(store, cut):
            found[journals[cut.journal]] += part.documents.column("id").to_numpy().tolist()
    return found


def test_a_collection_is_created_once_and_evolves(store: OpenStore) -> None:
    same = store.collection("orders")
    assert store.create(same).to_json() == same.to_json()
    with pytest.raises(ConfigurationError, match="is different"):
        store.create(Collection.define("orders", "id BIGINT NOT NULL, x INT", "id"))
    assert store.evolve("orders", "id BIGINT NOT NULL, more INT").version == 2
    with pytest.raises(ConfigurationError):
        store.evolve("orders", "more INT")


def test_what_an_append_returned_for_is_seen_by_everybody(place: Place, store: OpenStore) -> None:
    with store.producer() as producer, place.open() as other:
        producer.append("orders", documents([1, 2]))
        assert seen(other) == {"orders": [1, 2], "payments": []}


def test_a_transaction_is_seen_whole_or_not_at_all(place: Place, store: OpenStore) -> None:
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


def test_a_name_fences_its_earlier_producer(place: Place, store: OpenStore) -> None:
    first = store.producer("loader")
    open_ = first.transaction()
    open_.__enter__()
    open_.append("orders", documents([1]))
    with place.open() as other, other.producer("loader") as second:
        second.append("orders", documents([2]))
        with pytest.raises(ProducerFencedError):
            open_.append("orders", documents([3]))
        assert seen(other)["orders"] == [2]


def test_a_name_knows_the_position_that_was_committed_with_its_documents(
    place: Place, store: OpenStore
) -> None:
    with store.producer("loader") as first:
        with first.transaction() as transaction:
            transaction.append("orders", documents([1]))
            transaction.position("1")
        left_open = first.transaction()
        left_open.append("orders", documents([2]))
        left_open.position("2")
        with place.open() as other, other.producer("loader") as second:
            assert (second.position, seen(other)["orders"]) == ("1", [1])


def test_an_abort_by_hand_rolls_back_and_is_on_record(place: Place, store: OpenStore) -> None:
    producer = store.producer()
    open_ = producer.transaction()
    open_.__enter__()
    open_.append("orders", documents([1]))
    with place.open() as other:
        assert dict(other.open_transactions()) == {journal_of(other, "orders"): 1}
        found = other.abort(producer.id, "a person")
        assert found.outcome == "rolled back"
        assert [one.producer for one in other.aborts()] == [producer.id]
        assert not other.open_transactions()
        assert seen(other)["orders"] == []
    with pytest.raises(ProducerFencedError):
        open_.append("orders", documents([2]))


def test_recovery_of_nothing_finds_nothing(store: OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", documents([1]))
        assert store.recover() == []
    assert store.recover() == []


def test_retention_drops_whole_rows_from_the_front(place: Place, store: OpenStore) -> None:
    with store.producer() as producer, place.open() as other:
        for first in range(0, 400, 10):
            producer.append("orders", documents(range(first, first + 10)))
        journal = journal_of(store, "orders")
        kept = store.drop_before(journal, 200)
        assert 0 < kept <= 200
        assert other.probe(journal).first_kept == kept
        assert seen(other)["orders"] == list(range(400 - (400 - kept), 400))
        assert store.drop_before(journal, 0) == kept, "what is dropped is not back"
        with pytest.raises(OffsetDroppedError):
            next(iter(other.read(journal, 0)))


def test_a_suspended_journal_is_empty_and_goes_on_at_its_head(
    place: Place, store: OpenStore
) -> None:
    with store.producer() as producer, place.open() as other:
        producer.append("orders", documents(range(50)))
        journal = journal_of(store, "orders")
        head = other.probe(journal).write_head
        store.suspend(journal)
        probe = other.probe(journal)
        assert (probe.first_kept, probe.write_head, probe.suspended) == (head, head, True)
        assert seen(other)["orders"] == []
        producer.append("orders", documents([50]))
        assert not other.probe(journal).suspended
        assert seen(other)["orders"] == [50]
