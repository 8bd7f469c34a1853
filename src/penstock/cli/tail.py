"""Following a collection: every committed document once, as it becomes visible.

Each journal is read on from where it was left. Rows whose fate is open, or whose transaction the
cut does not show yet, are held until it is known; everything before the first of them is let go.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.ids import CLOCK_NONE
from penstock.journal.documents import Documents, commit_clocks
from penstock.journal.views import document_batch
from penstock.sequence import sequence_batch

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from penstock.cli.reading import Wanted
    from penstock.journal.cut import JournalCut
    from penstock.journal.store import JournalBatch, ReadableStore, States

POLL_S: Final = 0.2
"""A person does not notice a fifth of a second, and a machine does not notice five polls in one."""
SETTLE_S: Final = 2.0
"""How often dead producers are looked for, so that what they decided is shown."""


def follow(
    store: ReadableStore, wanted: Wanted, stopping: threading.Event
) -> Iterator[pa.RecordBatch | None]:
    """Until `stopping` is set. Gives None when there is nothing new for now."""
    tails: dict[str, JournalTail] = {}
    settled_at = float("-inf")
    while not stopping.is_set():
        if time.monotonic() - settled_at > SETTLE_S:
            store.recover_if_possible()
            settled_at = time.monotonic()
        # One cut for all journals: what it shows of a transaction it shows in all of them.
        for cut in store.cut(lambda: wanted.journals(store)):
            if cut.journal not in tails:
                tails[cut.journal] = JournalTail(store, cut, wanted.columns)
            for found in tails[cut.journal].advance(cut):
                yield document_batch(found, wanted.schema)
                if stopping.is_set():
                    return
        yield None
        stopping.wait(POLL_S)


class JournalTail:
    """Where the reading of one journal stands."""

    def __init__(self, store: ReadableStore, cut: JournalCut, columns: tuple[str, ...]) -> None:
        self._store = store
        self._columns = columns
        self._next, self._states = store.states(cut.journal, cut.begin)
        self._begin = cut.begin
        self._held: list[_Held] = []

    def advance(self, cut: JournalCut) -> Iterator[Documents]:
        """The documents that this cut shows and the ones before did not."""
        if self._next < cut.end:
            for batch in self._store.read(cut.journal, self._next, cut.end, self._columns):
                self._take(batch)
                yield from self._shown(cut)
        elif self._held:
            yield from self._shown(cut)

    def _take(self, batch: JournalBatch) -> None:
        states: States = self._states
        found = sequence_batch(
            batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags, states
        )
        found.raise_fault(batch.journal)
        states.update(found.changed)
        self._next = batch.next_offset
        # Rows below the begin are read for the states only, and count as shown.
        self._held.append(_Held(batch, found.outcomes, batch.offsets < self._begin))

    def _shown(self, cut: JournalCut) -> Iterator[Documents]:
        producers = np.concatenate([held.batch.producers for held in self._held])
        clocks = np.concatenate([held.batch.clocks for held in self._held])
        outcomes = np.concatenate([held.outcomes for held in self._held])
        commits = commit_clocks(outcomes, producers, clocks, {})
        limits = np.full(len(producers), cut.commit_max, dtype=np.uint64)
        for producer, limit in cut.limits.items():
            limits[producers == producer] = limit
        visible = (commits != CLOCK_NONE) & (commits <= limits)
        row = 0
        for held in self._held:
            rows = slice(row, row + held.batch.rows)
            row += held.batch.rows
            new = visible[rows] & ~held.shown
            held.shown |= new
            if new.any():
                yield _documents(held.batch, np.flatnonzero(new), commits[rows])
        hidden = (commits != CLOCK_NONE) & ~visible
        self._let_go(hidden)

    def _let_go(self, hidden: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Drops the batches before the first row that may still be shown."""
        needed = [state.offset for state in self._states.values() if state.max_continue]
        if hidden.any():
            offsets = np.concatenate([held.batch.offsets for held in self._held])
            needed.append(int(offsets[np.argmax(hidden)]))
        keep_from = min(needed, default=self._next)
        self._held = [held for held in self._held if held.batch.next_offset > keep_from]


class _Held:
    """A batch, what its rows turned out to be, and which of them were shown."""

    __slots__ = ("batch", "outcomes", "shown")

    def __init__(self, batch: JournalBatch, outcomes: Any, shown: Any) -> None:
        self.batch = batch
        self.outcomes = outcomes
        self.shown = shown


def _documents(batch: JournalBatch, rows: Any, commits: Any) -> Documents:
    return Documents(
        batch.journal,
        batch.offsets[rows],
        batch.producers[rows],
        batch.clocks[rows],
        batch.times[rows],
        commits[rows],
        batch.documents.take(pa.array(rows)),
    )
