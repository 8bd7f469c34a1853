"""The Slice's hands, on a journal of a real store."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.journal import Collection, open_store
from penstock.shuffle.slice.events import Fetch, Fetched
from penstock.shuffle.slice.fetching import GATHER_SECONDS, LOOK_SECONDS, Fetcher

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
