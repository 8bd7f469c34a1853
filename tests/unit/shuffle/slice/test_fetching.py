"""The Slice's hands, on a journal of a real store."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.journal import Collection, open_store
from penstock.journal.store import NextRows
from penstock.shuffle.slice.events import Fetch, Fetched, Probe, Probed
from penstock.shuffle.slice.fetching import (
    GATHER_SECONDS,
    GOING_ON_MAX,
    LOOK_SECONDS,
    READERS,
    TOGETHER_READS_MAX,
    Fetcher,
)
from tests.counting import CountingStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore


class Watched:
    """A store that says when a fetch has read: it probes the journal then."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.has_read = threading.Event()

    def probe(self, journal: str) -> Any:
        found = self._store.probe(journal)
        self.has_read.set()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_is_written_bit_by_bit_is_read_together(tmp_path: Path) -> None:
    store = open_store(tmp_path, durability="buffered")
    store.create(Collection.define("events", "id BIGINT NOT NULL", key="id"))
    watched: Any = Watched(store)
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetcher = Fetcher(watched, "test", came.put, came.put)
    with store.producer() as producer:
        producer.append("events", [{"id": 1}])
        (journal,) = store.journals("events")
        try:
            begun = time.monotonic()
            fetcher.submit(Fetch(1, journal.name, 1, 1 << 20, journal.identity))
            assert watched.has_read.wait(60), "it finds nothing yet"
            producer.append("events", [{"id": 2}])
            found = came.get(timeout=60)
        finally:
            fetcher.close()
    assert isinstance(found, Fetched)
    assert [batch.documents.column("id").to_pylist() for batch in found.batches] == [[2]]
    assert time.monotonic() - begun >= GATHER_SECONDS


class Slow:
    """A store that answers one look late, as one whose brokers were gone."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.seconds = 1.0
        self.has_answered = threading.Event()

    def probes(self, journals: Any) -> Any:
        if not self.has_answered.is_set():
            time.sleep(self.seconds)
            self.has_answered.set()
        return self._store.probes(journals)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Pauses(threading.Event):
    """An event that notes for how long it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.asked.append(timeout)
        return super().wait(timeout)


def test_a_look_that_was_answered_late_delays_no_other(tmp_path: Path) -> None:
    """Looks are spaced by what they cost, at ten times that, and waiting costs nothing."""
    store = open_store(tmp_path, durability="buffered")
    store.create(Collection.define("events", "id BIGINT NOT NULL", key="id"))
    slow: Any = Slow(store)
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetcher = Fetcher(slow, "test", came.put, came.put)
    with store.producer() as producer:
        producer.append("events", [{"id": 1}])
        (journal,) = store.journals("events")
        try:
            fetcher.submit(Fetch(1, journal.name, 1, 1 << 20, journal.identity))
            fetcher._closing = pauses = Pauses()
            assert slow.has_answered.wait(60), "nobody looks"
            producer.append("events", [{"id": 2}])
            assert isinstance(came.get(timeout=60), Fetched)
        finally:
            fetcher.close()
    assert pauses.asked, "nobody looks again"
    assert max(pauses.asked) < slow.seconds


def test_what_was_written_at_one_time_is_read_at_one_time(tmp_path: Path) -> None:
    """A journal that was just read to its end does not stay behind one that has been quiet."""
    store = open_store(tmp_path, durability="buffered")
    store.create(
        Collection.define(
            "events", "id BIGINT NOT NULL, shard STRING NOT NULL", key="id", partition_by="shard"
        )
    )
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    watched: Any = Watched(store)
    fetcher = Fetcher(watched, "test", came.put, came.put)
    deadline = time.monotonic() + 60
    with store.producer() as producer:
        for shard in "ab":
            producer.append("events", [{"id": 1, "shard": shard}])
        busy, quiet = store.journals("events")
        try:
            for rows in itertools.count(1):
                fetcher.submit(Fetch(1, quiet.name, rows, 1 << 20, quiet.identity))
                time.sleep(GATHER_SECONDS + LOOK_SECONDS)
                watched.has_read.clear()
                since = time.monotonic()
                fetcher.submit(Fetch(2, busy.name, rows, 1 << 20, busy.identity))
                assert watched.has_read.wait(60)
                for shard in "ab":
                    producer.append("events", [{"id": rows + 1, "shard": shard}])
                assert {came.get(timeout=60).read, came.get(timeout=60).read} == {1, 2}
                if time.monotonic() - since < GATHER_SECONDS:
                    break  # else the machine was slow, or it waited for the busy one's time
                assert time.monotonic() < deadline, "each is read in a time of its own"
        finally:
            fetcher.close()


def test_many_journals_that_are_read_in_turn_are_each_decoded_once(tmp_path: Path) -> None:
    """A fetch takes a part of a frame. What it leaves waits for the next one of its journal."""
    rows, fetches, journals_read = 400, 4, 3 * GOING_ON_MAX
    store = open_store(tmp_path, durability="buffered")
    schema = "id BIGINT NOT NULL, shard INT NOT NULL"
    store.create(Collection.define("events", schema, key="id", partition_by="shard"))
    with store.producer() as producer:
        for shard in range(journals_read):
            producer.append("events", [{"id": number, "shard": shard} for number in range(rows)])
    counting: Any = CountingStore(store)
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetcher = Fetcher(counting, "test", came.put, came.put)
    journals = dict(enumerate(store.journals("events")))
    at = dict.fromkeys(journals, 0)
    got: dict[int, list[int]] = {read: [] for read in journals}
    try:
        (first,) = itertools.islice(store.read(journals[0].name, 0), 1)
        part_bytes = first.documents.nbytes // fetches
        while any(offset < rows for offset in at.values()):
            wishes = [
                Fetch(read, journals[read].name, offset, part_bytes, journals[read].identity)
                for read, offset in at.items()
                if offset < rows
            ]
            for wish in wishes:
                fetcher.submit(wish)
            for _ in wishes:
                found = came.get(timeout=60)
                assert isinstance(found, Fetched)
                at[found.read] = found.batches[-1].next_offset
                for batch in found.batches:
                    got[found.read] += batch.documents.column("id").to_numpy().tolist()
    finally:
        fetcher.close()
    assert got == {read: list(range(rows)) for read in journals}
    assert set(counting.rows.values()) == {rows}


class Together:
    """A store that reads many journals by one call, as one of Kafka, and whose answers take until
    `answers` is set."""

    reads_together = True

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.answers = threading.Event()
        self.probed: list[int] = []
        self.read: list[int] = []
        """How many journals each call was for."""

    def probes(self, journals: Any) -> Any:
        self.probed.append(len(journals))
        assert self.answers.wait(60)
        return self._store.probes(journals)

    def read_together(self, wanted: Any) -> dict[str, NextRows]:
        self.read.append(len(wanted))
        assert self.answers.wait(60)
        return {
            journal: NextRows(next(self._store.read(journal, begin)), self._store.probe(journal))
            for journal, (begin, _) in wanted.items()
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_is_wished_for_while_all_threads_are_busy_goes_by_one_call(tmp_path: Path) -> None:
    """With many journals, one after the other is found and runs out: a call for each would cost
    more than the rows."""
    journals_read = TOGETHER_READS_MAX + 20
    store = open_store(tmp_path, durability="buffered")
    schema = "id BIGINT NOT NULL, shard INT NOT NULL"
    store.create(Collection.define("events", schema, key="id", partition_by="shard"))
    with store.producer() as producer:
        for shard in range(journals_read):
            producer.append("events", [{"id": shard, "shard": shard}])
    together: Any = Together(store)
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetcher = Fetcher(together, "test", came.put, came.put)
    journals = list(enumerate(store.journals("events")))
    try:
        for read, journal in journals:
            fetcher.submit(Probe(read, journal.name, 0, journal.identity))
        together.answers.set()
        probed = [came.get(timeout=60) for _ in journals]
        together.answers.clear()
        for read, journal in journals:
            fetcher.submit(Fetch(read, journal.name, 0, 1_000, journal.identity))
        together.answers.set()
        found = [came.get(timeout=60) for _ in journals]
    finally:
        fetcher.close()
    assert all(isinstance(event, Probed) for event in probed)
    assert sorted(event.read for event in probed) == list(range(journals_read))
    assert sum(together.probed) == journals_read
    assert len(together.probed) <= READERS + 1
    assert all(isinstance(event, Fetched) for event in found)
    assert sorted(event.read for event in found) == list(range(journals_read))
    assert sum(together.read) == journals_read, "each is fetched once"
    assert max(together.read) <= TOGETHER_READS_MAX
    assert len(together.read) <= READERS + 2
