"""What every store of ours does for those who write into it, beside what producers do: it makes
collections, recovers, and drops rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigurationError
from penstock.journal import Collection
from penstock.journal.errors import OffsetDroppedError, ProducerFencedError
from tests.conformance.writing.places import documents, journal_of, seen

if TYPE_CHECKING:
    from penstock.journal import OpenStore
    from tests.conformance.writing.places import Place


def test_a_collection_is_created_once_and_evolves(store: OpenStore) -> None:
    same = store.collection("orders")
    assert store.create(same).to_json() == same.to_json()
    with pytest.raises(ConfigurationError, match="is different"):
        store.create(Collection.define("orders", "id BIGINT NOT NULL, x INT", "id"))
    assert store.evolve("orders", "id BIGINT NOT NULL, more INT").version == 2
    with pytest.raises(ConfigurationError):
        store.evolve("orders", "more INT")


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
