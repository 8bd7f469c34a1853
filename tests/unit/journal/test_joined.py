"""Several stores as one: names that do not collide, and what each store knows as it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigurationError
from penstock.journal import Collection, first_of_joined, open_readable, open_store
from penstock.journal.documents import read_documents
from penstock.journal.errors import UnknownCollectionError, UnknownJournalError
from penstock.journal.joined import JoinedAddress, JoinedStore
from penstock.journal.names import Selector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.file.store import FileStore


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[FileStore, FileStore]]:
    """Both have `orders`, by region; and the first one's transactions reach `more`, too."""
    with open_store(tmp_path / "first") as first, open_store(tmp_path / "second") as second:
        for store in (first, second):
            for name in ("orders", "more"):
                made = Collection.define(name, "id BIGINT, region STRING", "id", "region")
                store.create(made)
        yield first, second


@pytest.fixture
def joined(stores: tuple[FileStore, FileStore]) -> Iterator[JoinedStore]:
    first, second = stores
    address = JoinedAddress(
        ((first.url, {"orders": "orders", "more": "more"}), (second.url, {"orders-2": "orders"}))
    )
    with open_readable(address.text) as store:
        assert isinstance(store, JoinedStore)
        assert store.address == address.text
        yield store


def written(store: FileStore, first_id: int) -> None:
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": first_id, "region": "eu"}])
        transaction.append("more", [{"id": first_id + 1, "region": "us"}])


def ids(store: JoinedStore, *collections: str, as_of: Any = None) -> list[int]:
    def listed() -> list[str]:
        return [one.name for name in collections for one in store.journals(name)]

    return sorted(
        row["id"]
        for cut in store.cut(listed, as_of)
        for found in read_documents(store, cut)
        for row in found.documents.to_pylist()
    )


def test_each_collection_is_that_of_its_store(
    stores: tuple[FileStore, FileStore], joined: JoinedStore
) -> None:
    first, second = stores
    written(first, 10)
    written(second, 20)
    assert joined.collections() == ["more", "orders", "orders-2"]
    assert joined.collection("orders-2").name == "orders-2"
    assert ids(joined, "orders") == [10]
    assert ids(joined, "orders-2") == [20]
    assert ids(joined, "more", "orders-2", "orders") == [10, 11, 20]
    assert joined.holding("orders-2").url == second.url
    assert joined.holding("more/region=us/000").url == first.url
    assert joined.url == f"{first.url},{second.url}"
    assert first_of_joined(joined.address) == first.url


def test_journals_are_called_as_their_collections_are_here(
    stores: tuple[FileStore, FileStore], joined: JoinedStore
) -> None:
    first, second = stores
    written(first, 10)
    written(second, 20)
    (journal,) = joined.journals("orders-2", Selector.parse("region=eu", ("region",)))
    assert (journal.name, journal.collection) == ("orders-2/region=eu/000", "orders-2")
    assert journal.identity == second.journals("orders")[0].identity
    names = ["orders/region=eu/000", journal.name, "orders-2/region=xx/000"]
    assert joined.probes(names).keys() == set(names[:2])
    assert joined.wait(journal.name, 0, 1.0) == joined.probe(journal.name).write_head
    assert [one.journal for one in joined.ranges(journal.name, 0, 2)] == [journal.name]
    assert joined.states(journal.name, 0)[0] == 0
    # Hints name journals that are read here, as they are called here.
    (batch,) = joined.read("more/region=us/000", 0)
    assert batch.journal == "more/region=us/000"
    assert set().union(*batch.hints.values()) == {"orders/region=eu/000"}
    (batch,) = joined.read(journal.name, 0)
    assert not set().union(*batch.hints.values()), "nobody reads `more` of that store"


def test_a_frontier_names_the_same_documents_for_ever(
    stores: tuple[FileStore, FileStore], joined: JoinedStore
) -> None:
    first, second = stores
    written(first, 10)
    written(second, 20)
    frontier = joined.frontier("orders", "orders-2")
    written(first, 30)
    written(second, 40)
    assert ids(joined, "orders", "orders-2", as_of=frontier) == [10, 20]
    assert ids(joined, "orders", "orders-2") == [10, 20, 30, 40]


def test_what_is_not_there(joined: JoinedStore) -> None:
    with pytest.raises(UnknownCollectionError):
        joined.collection("strange")
    with pytest.raises(UnknownCollectionError):
        joined.journals("strange")
    with pytest.raises(UnknownJournalError):
        joined.probe("strange/000")
    with pytest.raises(UnknownJournalError):
        joined.cut(["orders/region=xx/000"])
    with pytest.raises(ConfigurationError, match="made by Penstock"):
        open_readable("joined://nobody")
