"""What every store does for those who read it."""

from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.journal.documents import read_documents
from penstock.journal.errors import (
    OffsetDroppedError,
    UnknownCollectionError,
    UnknownJournalError,
)
from penstock.journal.names import Selector
from penstock.sequence import sequence_rows
from tests.conformance.reading.logs import COLLECTIONS, COLUMNS, PARTS
from tests.conformance.waiting import WAIT_SECONDS_MAX

if TYPE_CHECKING:
    from penstock.journal.cut import AsOf
    from penstock.journal.store import JournalBatch, ReadableStore
    from tests.conformance.reading.logs import Log


def filled(log: Log, *, seed: int = 1, count: int = 120) -> str:
    """The name of a journal with documents, transactions that are over, and one that is open."""
    rng, number = random.Random(seed), 0
    while number < count:
        ids = range(number, number := number + rng.randint(1, 9))
        if rng.random() < 0.4:
            log.append("orders", 0, ids)
        else:
            writing = log.begin()
            writing.append("orders", 0, ids)
            (writing.commit if rng.random() < 0.7 else writing.roll_back)()
    return log.journal("orders", 0)


def all_of(store: ReadableStore, journal: str) -> list[JournalBatch]:
    return list(store.read(journal, store.probe(journal).first_kept))


def places(batches: list[JournalBatch]) -> list[tuple[int, int]]:
    """Offset and end of each row."""
    return [
        place
        for batch in batches
        for place in zip(batch.offsets.tolist(), batch.ends.tolist(), strict=True)
    ]


def ids_of(store: ReadableStore, as_of: AsOf = None) -> dict[str, list[int]]:
    """By journal, the documents of one cut; journals without any are left out."""
    found: dict[str, list[int]] = {}
    for cut in store.cut(
        lambda: [one.name for name in COLLECTIONS for one in store.journals(name)], as_of
    ):
        for part in read_documents(store, cut, ["id"]):
            numbers = part.documents.column("id").to_numpy().tolist()
            found[cut.journal] = [*found.get(cut.journal, []), *numbers]
    return found


# Listing and probes


def test_collections_and_journals_are_listed_by_name(log: Log, store: ReadableStore) -> None:
    for name in COLLECTIONS:
        for part in PARTS:
            log.append(name, part, [part])
    assert set(COLLECTIONS) <= set(store.collections())
    for name in COLLECTIONS:
        found = store.journals(name)
        assert [one.name for one in found] == sorted(log.journal(name, part) for part in PARTS)
        assert {one.collection for one in found} == {name}
        assert all(one.identity for one in found)
        assert set(COLUMNS) <= set(store.collection(name).schema.names)
    with pytest.raises(UnknownCollectionError):
        store.journals("strange")
    with pytest.raises(UnknownCollectionError):
        store.collection("strange")


def test_a_selector_chooses_journals(log: Log, store: ReadableStore) -> None:
    for part in PARTS:
        log.append("orders", part, [part])
    columns = store.collection("orders").partition_by
    for part in PARTS:
        selector = Selector.parse(f"{columns[-1]}={part}", columns)
        names = [one.name for one in store.journals("orders", selector)]
        assert names == [log.journal("orders", part)]


def test_probes_of_many_journals_leave_out_those_that_are_missing(
    log: Log, store: ReadableStore
) -> None:
    log.append("orders", 0, range(5))
    log.append("orders", 1, range(3))
    names = [log.journal("orders", part) for part in PARTS]
    missing = log.journal("orders", 77)
    found = store.probes([*names, missing])
    assert set(found) == set(names)
    assert found == {name: store.probe(name) for name in names}
    identities = {one.name: one.identity for one in store.journals("orders")}
    assert {name: probe.identity for name, probe in found.items()} == identities
    for name, probe in found.items():
        assert probe.write_head >= places(all_of(store, name))[-1][1]
    with pytest.raises(UnknownJournalError):
        store.probe(missing)
    assert store.probes([]) == {}


def test_a_journal_that_is_made_again_has_another_identity(log: Log) -> None:
    if not log.can_remove:
        pytest.skip("journals of this kind are not deleted")
    log.append("orders", 0, range(5))
    name = log.journal("orders", 0)
    with log.open() as before:
        first = before.probe(name).identity
    log.remove("orders", 0)
    with log.open() as store:
        assert name not in store.probes([name])
        assert all(one.name != name for one in store.journals("orders"))
    log.append("orders", 0, range(2))
    with log.open() as store:
        assert store.probe(name).identity != first
        assert ids_of(store)[name] == [0, 1]


# Reading


def test_rows_ascend_and_batches_follow_each_other(log: Log, store: ReadableStore) -> None:
    journal = filled(log)
    at = store.probe(journal).first_kept
    for batch in store.read(journal, at):
        assert batch.journal == journal
        assert batch.next_offset > at
        columns = (batch.ends, batch.producers, batch.clocks, batch.times, batch.flags)
        assert all(len(column) == batch.rows for column in columns)
        assert batch.documents.num_rows == batch.rows
        for offset, end in places([batch]):
            assert at <= offset < end <= batch.next_offset
            at = end
        at = batch.next_offset
        assert (batch.times is batch.clocks) or store.is_timed
    assert at == store.probe(journal).write_head


def test_a_read_begins_at_any_offset_and_ends_at_any(log: Log, store: ReadableStore) -> None:
    """Also between rows: at every offset that there is, and some beyond the head."""
    journal = filled(log)
    probe, every = store.probe(journal), places(all_of(store, journal))
    rng = random.Random(3)
    for _ in range(60):
        begin, end = sorted(rng.randint(probe.first_kept, probe.write_head + 5) for _ in range(2))
        expected = [place for place in every if begin <= place[0] < end]
        assert places(list(store.read(journal, begin, end))) == expected
    assert list(store.read(journal, probe.write_head)) == []
    assert list(store.read(journal, probe.write_head + 100)) == []


def test_what_is_below_the_first_kept_offset_is_refused(log: Log, store: ReadableStore) -> None:
    if not log.can_drop:
        pytest.skip("nothing of this kind is dropped")
    journal = filled(log, count=400)
    head = store.probe(journal).write_head
    kept = log.drop_before("orders", 0, head // 2)
    assert 0 < kept <= head // 2
    assert store.probe(journal).first_kept == kept
    with pytest.raises(OffsetDroppedError):
        list(store.read(journal, kept - 1))
    begin, _ = store.states(journal, kept)
    assert begin == kept, "where producers stand at the first kept offset is known"
    assert places(list(store.read(journal, kept)))[0][0] >= kept


def test_columns_are_selected(log: Log, store: ReadableStore) -> None:
    journal = filled(log)
    for columns in (("id",), (), None):
        batches = list(store.read(journal, 0, None, columns))
        names = {name for batch in batches for name in batch.documents.schema.names}
        every = store.collection("orders").schema.names
        assert names == set(every if columns is None else columns)
        assert places(batches) == places(all_of(store, journal))


def test_older_documents_have_nothing_in_a_later_column(log: Log, store: ReadableStore) -> None:
    if not log.can_evolve:
        pytest.skip("collections of this kind do not evolve")
    log.append("orders", 0, [1, 2])
    log.add_column("orders", "more")
    log.append("orders", 0, [3])
    found: list[Any] = []
    for batch in all_of(store, log.journal("orders", 0)):
        found += batch.documents.column("more").to_pylist()
    assert found == [None, None, 3]


def test_waiting_ends_with_a_row_or_when_time_is_up(log: Log, store: ReadableStore) -> None:
    log.append("orders", 0, [1])
    journal = log.journal("orders", 0)
    head = store.probe(journal).write_head
    assert store.wait(journal, head, 0.01) == head
    assert store.wait(journal, head - 1, WAIT_SECONDS_MAX) == head
    threading.Timer(0.05, log.append, ("orders", 0, [2])).start()
    assert store.wait(journal, head, WAIT_SECONDS_MAX) > head


# Sequencing


def test_states_at_ranges_are_those_of_a_walk_over_all_rows(log: Log, store: ReadableStore) -> None:
    journal = filled(log, count=300)
    probe, batches = store.probe(journal), all_of(store, journal)
    rows = [
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("offsets", "ends", "producers", "clocks", "flags")
    ]
    ranges = store.ranges(journal, probe.first_kept, probe.write_head)
    assert (ranges[0].begin, ranges[-1].end) == (probe.first_kept, probe.write_head)
    for before, after in itertools.pairwise(ranges):
        assert before.end == after.begin
    for part in ranges:
        at, states = store.states(journal, part.begin)
        assert at == part.begin
        offsets, ends, producers, clocks, flags = (column[rows[0] < at] for column in rows)
        walked = sequence_rows(offsets, ends, producers, clocks, flags, {}).states
        known = {
            who: state for _, gone in store.departures(journal, at) for who, state in gone.items()
        }
        assert known | states == walked


# Cuts


def test_a_cut_shows_committed_documents_and_no_others(log: Log, store: ReadableStore) -> None:
    log.append("orders", 0, [1])
    kept, dropped, still_open = log.begin(), log.begin(), log.begin()
    for name, part in (("orders", 0), ("payments", 1)):
        kept.append(name, part, [2])
        dropped.append(name, part, [3])
        still_open.append(name, part, [4])
    kept.commit()
    dropped.roll_back()
    log.append("orders", 0, [5])
    journals = log.journal("orders", 0), log.journal("payments", 1)
    expected = {journals[0]: [1, 2, 5], journals[1]: [2]}
    assert ids_of(store) == expected
    others = {one.name for name in COLLECTIONS for one in store.journals(name)} - set(journals)
    assert others.isdisjoint(store.open_transactions())
    frontier = store.frontier(*COLLECTIONS)
    still_open.commit()
    log.append("payments", 1, [6])
    assert ids_of(store, frontier) == expected, "a frontier names the same documents for ever"
    assert ids_of(store) == {journals[0]: [1, 2, 4, 5], journals[1]: [2, 4, 6]}


def test_a_cut_of_named_journals_needs_all_of_them(log: Log, store: ReadableStore) -> None:
    log.append("orders", 0, [1])
    names = [log.journal("orders", 0), log.journal("orders", 77)]
    with pytest.raises(UnknownJournalError):
        store.cut(names)
    (cut,) = store.cut(lambda: names)
    assert cut.journal == names[0]


def test_no_cut_has_a_part_of_a_transaction_while_writers_go_on(
    log: Log, store: ReadableStore
) -> None:
    places_ = [(name, part) for name in COLLECTIONS for part in PARTS]
    over = threading.Event()
    failed: list[BaseException] = []

    def write(first: int) -> None:
        number = first
        try:
            while not over.is_set():
                writing = log.begin()
                for name, part in places_:
                    writing.append(name, part, [number])
                writing.commit() if number % 5 else writing.roll_back()
                number += 1
        except BaseException as error:  # noqa: BLE001 - the test tells it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(first,)) for first in (1, 1_000_001)]
    for thread in threads:
        thread.start()
    shown = 0
    try:
        while shown < 20 and not failed:
            found = [set(ids) for ids in ids_of(store).values()]
            assert all(ids == found[0] for ids in found)
            assert all(number % 5 for ids in found for number in ids)
            assert not found or len(found) == len(places_) or not any(found)
            shown = len(found[0]) if found else 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed
