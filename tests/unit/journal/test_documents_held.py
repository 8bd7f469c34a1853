"""A range is read a piece at a time: only what an open transaction may still change is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.journal import Collection, open_store
from penstock.journal.cut import JournalCut
from penstock.journal.documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore
    from penstock.journal.store import JournalBatch

COUNT = 40


class Counted:
    """A store that gives a row at a time, and counts them."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.batches = 0

    def read(self, *arguments: Any, **named: Any) -> Iterator[JournalBatch]:
        for batch in self._store.read(*arguments, **named):
            for row in range(batch.rows):
                self.batches += 1
                yield batch.part(row, row + 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def events(number: int) -> list[dict[str, int]]:
    return [{"id": number}]


def walked(store: OpenStore) -> list[tuple[Any, int]]:
    """Each document with how many batches were read by the time it came."""
    (journal,) = store.journals("events")
    probe = store.probe(journal.name)
    counted: Any = Counted(store)
    cut = JournalCut(journal.name, probe.first_kept, probe.write_head)
    return [
        (number, counted.batches)
        for found in read_documents(counted, cut)
        for number in found.documents.column("id").to_pylist()
    ]


def opened(folder: Path) -> OpenStore:
    store = open_store(folder, durability="buffered")
    store.create(Collection.define("events", "id BIGINT NOT NULL", key="id"))
    return store


def test_what_is_committed_by_itself_is_not_held(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.producer() as producer:
        for number in range(COUNT):
            producer.append("events", events(number))
    assert walked(store) == [(number, number + 1) for number in range(COUNT)]


def test_from_an_open_span_on_rows_are_held_until_it_ends(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.producer() as plain, store.producer() as other:
        for number in range(COUNT):
            plain.append("events", events(number))
        transaction = other.transaction()
        transaction.append("events", events(1_000))
        for number in range(COUNT, 2 * COUNT):
            plain.append("events", events(number))
        transaction.commit()
        for number in range(2 * COUNT, 3 * COUNT):
            plain.append("events", events(number))
    found = walked(store)
    order = [*range(COUNT), 1_000, *range(COUNT, 3 * COUNT)]
    assert [number for number, _ in found] == order
    when = dict(found)
    assert when[COUNT - 1] == COUNT
    ended = 2 * COUNT + 2  # the span's row, and its end
    assert {when[number] for number in (1_000, COUNT, 2 * COUNT - 1)} == {ended}
    assert when[3 * COUNT - 1] == 3 * COUNT + 2


def test_a_span_that_is_open_at_the_end_is_not_shown(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.producer() as plain, store.producer() as other:
        transaction = other.transaction()
        transaction.append("events", events(1_000))
        plain.append("events", events(1))
        assert [number for number, _ in walked(store)] == [1]
        transaction.rollback()
        plain.append("events", events(2))
        assert [number for number, _ in walked(store)] == [1, 2]
