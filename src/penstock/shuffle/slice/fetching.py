"""The Slice's hands: probes and reads journals for it, and waits where there is nothing yet.

Fetches that follow each other go on with one reader of the journal. A journal that is read to its
end is looked at again and again; with many of those, the looks are spaced so that they take a tenth
of a processor at most.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.journal.errors import OffsetDroppedError, UnknownJournalError
from penstock.shuffle.slice.events import (
    Fetch,
    Fetched,
    Probe,
    Probed,
    Replay,
    ReplayFetched,
    SliceEvent,
    Vanished,
)
from penstock.threads import Pool, supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.journal.store import JournalBatch, JournalStore, States

READERS: Final = 2
"""Threads. Arrow and the disk work while the interpreter does something else."""
LOOK_SECONDS: Final = 0.02
GATHER_SECONDS: Final = 0.05
"""So long a journal that was read to its end is left alone: what is written bit by bit is read
together. A fetch, and all that follows from it, takes milliseconds however little it brings."""
REPLAY_BYTES: Final = 4 * 1024 * 1024


class Fetcher:
    """`deliver` gets what was found, `fail` what went wrong; both from threads of this."""

    def __init__(
        self,
        store: JournalStore,
        name: str,
        deliver: Callable[[SliceEvent], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._pool = Pool(READERS, f"{name} reads", fail)
        self._going_on: dict[int, tuple[int, Iterator[JournalBatch]]] = {}
        """By read, a reader that has come to this offset."""
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, Fetch]] = {}
        """By read, from when on it is looked for more, and what is wished for."""
        self._closing = threading.Event()
        self._looks = supervised(f"{name} looks", self._look, fail=fail, until=self._closing.is_set)
        self._looks.start()

    def submit(self, wish: Probe | Fetch | Replay) -> None:
        match wish:
            case Probe():
                self._pool.submit(self._probe, wish)
            case Fetch():
                self._pool.submit(self._fetch, wish)
            case Replay():
                self._pool.submit(self._replay, wish)

    def close(self) -> None:
        self._closing.set()
        self._pool.close(cancel=True)
        self._looks.join()
        for _, batches in self._going_on.values():
            batches.close()  # type: ignore[attr-defined] # a generator, which holds a file

    def _probe(self, wish: Probe) -> None:
        states: States = {}
        try:
            probe = self._store.probe(wish.journal)
            if probe.first_kept > wish.offset:
                at, states = self._store.states(wish.journal, probe.first_kept)
                if at != probe.first_kept:
                    raise LocalProtocolError(
                        f"{wish.journal} begins at {probe.first_kept}, and its store knows where "
                        f"producers stand at {at} only"
                    )
        except OffsetDroppedError:  # once more, just now
            self._probe(wish)
        except UnknownJournalError:
            self._deliver(Vanished(wish.read))
        else:
            self._deliver(Probed(wish.read, probe.first_kept, probe.write_head, states))

    def _fetch(self, wish: Fetch) -> None:
        offset, batches = self._going_on.pop(wish.read, (-1, None))
        if batches is None or offset != wish.offset:
            batches = self._store.read(wish.journal, wish.offset)
        try:
            found, is_more = _some(batches, wish.bytes_max)
            head = self._store.probe(wish.journal).write_head
        except OffsetDroppedError:
            self._probe(Probe(wish.read, wish.journal, wish.offset))
            return
        except UnknownJournalError:
            self._deliver(Vanished(wish.read))
            return
        if not found:
            with self._lock:
                self._waiting[wish.read] = time.monotonic() + GATHER_SECONDS, wish
            return
        if is_more:
            last = found[-1]
            self._going_on[wish.read] = last.first_offset + last.rows, batches
        self._deliver(Fetched(wish.read, tuple(found), head))

    def _replay(self, wish: Replay) -> None:
        begin = wish.begin
        try:
            begin = max(begin, self._store.probe(wish.journal).first_kept)
            found, is_more = _some(self._store.read(wish.journal, begin, wish.end), REPLAY_BYTES)
        except OffsetDroppedError:  # just now
            self._replay(wish)
            return
        except UnknownJournalError:
            found, is_more, begin = [], False, wish.end  # what is gone cannot be read again
        reached = found[-1].first_offset + found[-1].rows if is_more else wish.end
        self._deliver(ReplayFetched(wish.read, tuple(found), reached, min(begin, wish.end)))

    def _look(self) -> None:
        pause = LOOK_SECONDS
        while not self._closing.wait(pause):
            begun = time.monotonic()
            with self._lock:
                waiting = list(self._waiting.values())
            more = [wish for since, wish in waiting if since <= begun and self._has_more(wish)]
            if more:
                # With one, all: what was written at one time is levelled together.
                more += [wish for since, wish in waiting if since > begun and self._has_more(wish)]
            for wish in more:
                with self._lock:
                    del self._waiting[wish.read]
                self.submit(wish)
            pause = max(LOOK_SECONDS, 10 * (time.monotonic() - begun))

    def _has_more(self, wish: Fetch) -> bool:
        if self._closing.is_set():
            return False
        try:
            probe = self._store.probe(wish.journal)
        except UnknownJournalError:
            return True  # the fetch finds out, and says so
        return probe.write_head > wish.offset or probe.first_kept > wish.offset


def _some(batches: Iterator[JournalBatch], bytes_max: int) -> tuple[list[JournalBatch], bool]:
    """The next batches, at least one if there is one; and whether there may be more."""
    found: list[JournalBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.documents.nbytes
        if size >= bytes_max:
            return found, True
    return found, False
