"""The Slice's hands: probes and reads journals for it, and waits where there is nothing yet.

Fetches that follow each other go on with one reader of the journal. A journal that is read to its
end is looked at again and again; with many of those, the looks are spaced so that they take a tenth
of a processor at most.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from penstock.errors import CorruptStorageError, LocalProtocolError
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
from penstock.shuffle.slice.reads import row_bytes_of
from penstock.threads import Pool, supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from penstock.journal.store import JournalBatch, JournalStore, States
    from penstock.journal.store import Probe as Found

    _Batches: TypeAlias = Generator[JournalBatch, None, None]

READERS: Final = 2
"""Threads. Arrow and the disk work while the interpreter does something else."""
LOOK_SECONDS: Final = 0.02
GATHER_SECONDS: Final = 0.05
"""So long a journal that was read to its end is left alone: what is written bit by bit is read
together. A fetch, and all that follows from it, takes milliseconds however little it brings."""
REPLAY_BYTES: Final = 4 * 1024 * 1024
GOING_ON_MAX: Final = 8
"""Readers that are kept between fetches, each with a file, and up to a frame (4 MiB) of rows that
were more than was asked for. Where more journals are read in turn, such rows are read again."""


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
        self._going_on: OrderedDict[int, tuple[int, JournalBatch | None, _Batches]] = OrderedDict()
        """By read, a reader that has come to this offset, and what it has read beyond."""
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, Fetch]] = {}
        """By read, from when on it is looked for more, and what is wished for."""
        self._closing = threading.Event()
        self._looks = supervised(f"{name} looks", self._look, fail=fail, until=self._closing.is_set)
        self._looks.start()

    def submit(self, wish: Probe | Fetch | Replay) -> None:
        self._pool.submit(self._do, wish)

    def _do(self, wish: Probe | Fetch | Replay) -> None:
        try:
            match wish:
                case Probe():
                    self._probe(wish)
                case Fetch():
                    self._fetch(wish)
                case Replay():
                    self._replay(wish)
        except CorruptStorageError:
            # The files of another journal in its place do not fit what was read of it before.
            try:
                self._found(wish)
            except UnknownJournalError:
                self._vanished(wish.read)
            else:
                raise

    def close(self) -> None:
        self._closing.set()
        self._pool.close(cancel=True)
        self._looks.join()
        for _, _, batches in self._going_on.values():
            batches.close()

    def _probe(self, wish: Probe) -> None:
        states: States = {}
        try:
            probe = self._found(wish)
            if probe.first_kept > wish.offset:
                at, states = self._store.states(wish.journal, probe.first_kept)
                self._found(wish)  # still, so that they are its own
                if at != probe.first_kept:
                    raise LocalProtocolError(
                        f"{wish.journal} begins at {probe.first_kept}, and its store knows where "
                        f"producers stand at {at} only"
                    )
        except OffsetDroppedError:  # once more, just now
            self._probe(wish)
        except UnknownJournalError:
            self._vanished(wish.read)
        else:
            self._deliver(Probed(wish.read, probe.first_kept, probe.write_head, states))

    def _found(self, wish: Probe | Fetch | Replay) -> Found:
        """What the journal holds. To who reads it, one that has its name now is not it."""
        found = self._store.probe(wish.journal)
        if found.identity != wish.identity:
            raise UnknownJournalError(wish.journal)
        return found

    def _vanished(self, read: int) -> None:
        self._going_on.pop(read, None)
        self._deliver(Vanished(read))

    def _fetch(self, wish: Fetch) -> None:
        rest, batches = self._reader(wish)
        try:
            found, rest, is_more = _some(rest, batches, wish.bytes_max)
            head = self._found(wish).write_head
        except OffsetDroppedError:
            self._probe(Probe(wish.read, wish.journal, wish.offset, wish.identity))
            return
        except UnknownJournalError:
            batches.close()
            self._vanished(wish.read)
            return
        if not found:
            with self._lock:
                self._waiting[wish.read] = time.monotonic() + GATHER_SECONDS, wish
            return
        if is_more:
            last = found[-1]
            self._keep(wish.read, (last.first_offset + last.rows, rest, batches))
        self._deliver(Fetched(wish.read, tuple(found), head))

    def _reader(self, wish: Fetch) -> tuple[JournalBatch | None, _Batches]:
        """What is left of a batch, and the batches behind it, from the offset on."""
        with self._lock:
            kept = self._going_on.pop(wish.read, None)
        if kept is not None:
            offset, rest, batches = kept
            if offset == wish.offset:
                return rest, batches
            batches.close()
        # Of a generator, which holds a file.
        return None, cast("_Batches", self._store.read(wish.journal, wish.offset))

    def _keep(self, read: int, kept: tuple[int, JournalBatch | None, _Batches]) -> None:
        with self._lock:
            self._going_on[read] = kept
            dropped = None
            if len(self._going_on) > GOING_ON_MAX:
                _, (_, _, dropped) = self._going_on.popitem(last=False)
        if dropped is not None:
            dropped.close()

    def _replay(self, wish: Replay) -> None:
        begin = wish.begin
        try:
            begin = max(begin, self._found(wish).first_kept)
            batches = self._store.read(wish.journal, begin, wish.end)
            found, _, is_more = _some(None, batches, REPLAY_BYTES)
            self._found(wish)  # still, so that they are its own
        except OffsetDroppedError:  # just now
            self._replay(wish)
            return
        except UnknownJournalError:
            self._vanished(wish.read)
            return
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
            probe = self._found(wish)
        except UnknownJournalError:
            return True  # the fetch finds out, and says so
        return probe.write_head > wish.offset or probe.first_kept > wish.offset


def _some(
    rest: JournalBatch | None, batches: Iterator[JournalBatch], bytes_max: int
) -> tuple[list[JournalBatch], JournalBatch | None, bool]:
    """The next rows, as many as fit but at least one if there is one; what is left of the last
    batch; and whether there may be more."""
    found: list[JournalBatch] = []
    left = float(bytes_max)
    for batch in itertools.chain([] if rest is None else [rest], batches):
        row_bytes = row_bytes_of(batch.documents)
        fitting = max(int(left // row_bytes), 0 if found else 1)
        if fitting < batch.rows:
            if fitting:
                found.append(_rows(batch, 0, fitting, copied=True))
            return found, _rows(batch, fitting, batch.rows), True
        found.append(batch if batch is not rest else _rows(batch, 0, batch.rows, copied=True))
        left -= batch.rows * row_bytes
        if left <= 0:
            return found, None, True
    return found, None, False


def _rows(batch: JournalBatch, begin: int, end: int, *, copied: bool = False) -> JournalBatch:
    """Rows of a batch; `copied`, so that they do not hold the memory of all of it."""
    rows: Any = np.arange(begin, end) if copied else slice(begin, end)
    documents = batch.documents
    return replace(
        batch,
        first_offset=batch.first_offset + begin,
        producers=batch.producers[rows],
        clocks=batch.clocks[rows],
        flags=batch.flags[rows],
        documents=documents.take(rows) if copied else documents.slice(begin, end - begin),
        hints={row - begin: hints for row, hints in batch.hints.items() if begin <= row < end},
    )
