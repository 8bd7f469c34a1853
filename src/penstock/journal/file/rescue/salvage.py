"""Brings out of a damaged store what is whole, into a new one, and says what is missing.

    1  look      which frames of each journal are whole, and which rows are missing between them
    2  ask       the other journals and the ledgers: which commits do they name in a damaged one?
    3  append    whole frames to the new store, with the identities that they had
    4  close     at each gap, the spans that are open there: by the commit that somebody names, or,
                 if nobody does, by a rollback

Nothing is changed in the damaged store.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.ids import CLOCK_MAX, CLOCK_NONE, Kind, Producer
from penstock.journal.collection import Collection
from penstock.journal.errors import CorruptJournalError, ProducerFencedError
from penstock.journal.file.head import DamagedHeadError, Head
from penstock.journal.file.rescue.frames_found import whole_frames
from penstock.journal.file.segment import SegmentReader, list_segments
from penstock.journal.file.store import FileStore
from penstock.journal.frames import (
    KIND_ACK,
    Ack,
    Payload,
    decode_ack,
    decode_documents,
    document_schema,
    encode_ack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.journal.file.rescue.frames_found import WholeFrame
    from penstock.journal.frames import FrameHeader

_APPEND_FRAMES_MAX: Final = 64
"""Appended at once to the new store."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Rows [begin, end) of a journal are damaged. `end` is None if nobody knows how many."""

    begin: int
    end: int | None


@dataclass(slots=True)
class SalvagedJournal:
    name: str
    documents: int = 0
    """Brought into the new store; what was rolled back, or repeated, is among them."""
    missing: list[Missing] = field(default_factory=list)
    undecided: int = 0
    """Documents before a gap whose commit or rollback lies in it. They are left out."""
    assumed: int = 0
    """Documents before a gap that count as committed because another journal or a ledger names a
    later commit of their producer here. Had the gap held a rollback, they would not."""


def salvage(
    store: FileStore, target: Path, moved: Callable[[int, int], None] = lambda *_: None
) -> list[SalvagedJournal]:
    """Salvages all collections of a store into a new one."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is not empty; salvage into a new folder")
    folders = store.journal_folders()
    losses = {name: _missing(name, folder) for name, folder in folders.items()}  # 1
    named = _named_commits(store, folders, {name for name, lost in losses.items() if lost})  # 2
    salvaged = []
    with FileStore(target) as into:
        for done, (name, folder) in enumerate(folders.items(), 1):
            collection = into.create(_collection(store, name, folder))
            journal = _Salvaging(into, collection, name, named.get(name, {}))
            salvaged.append(journal.run(folder, losses[name]))
            moved(done, len(folders))
    return salvaged


def _missing(journal: str, folder: Path) -> list[Missing]:
    """Step 1, of one journal."""
    offset, end = _stated_ends(folder)
    found = []
    ends_whole = True
    for frame in whole_frames(journal, folder):
        if frame.header.first_offset > offset:
            found.append(Missing(offset, frame.header.first_offset))
        offset, ends_whole = frame.header.end_offset, frame.is_last
    if end is None and not ends_whole:
        found.append(Missing(offset, None))
    elif end is not None and offset < end:
        found.append(Missing(offset, end))
    return found


def _stated_ends(folder: Path) -> tuple[int, int | None]:
    """The first kept offset and the end, as the journal's head says; if it does not, as the names
    of segments do."""
    with contextlib.suppress(OSError, DamagedHeadError), (folder / "head").open("rb") as file:
        head = Head(file.fileno()).all()
        return head.kept.first_offset, max(head.synced.offset, head.kept.first_offset)
    return min(list_segments(folder), default=0), None


def _named_commits(
    store: FileStore, folders: Mapping[str, Path], damaged: set[str]
) -> dict[str, dict[int, set[int]]]:
    """Step 2: by journal and producer, the clocks of commits there that somebody tells of."""
    named: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name, folder in folders.items() if damaged else ():
        for frame in whole_frames(name, folder):
            if frame.header.kind == KIND_ACK:
                ack = decode_ack(frame.header, frame.body)
                for journal in damaged.intersection(ack.hints):
                    named[journal][ack.producer.int64].add(ack.clock)
    for ledger in store.ledgers():
        with contextlib.suppress(ProducerFencedError, CorruptStorageError):
            decision = ledger.record().decision
            if decision is not None:
                for journal in decision.journals:
                    named[journal][ledger.producer.int64].add(decision.clock)
    return named


def _collection(store: FileStore, journal: str, folder: Path) -> Collection:
    """As its file says; if that is damaged, as the journal's newest segment does."""
    name = journal.partition("/")[0]
    try:
        return store.collection(name)
    except CorruptStorageError as damaged:
        for first in reversed(list_segments(folder)):
            with (
                contextlib.suppress(CorruptJournalError, OSError),
                SegmentReader(journal, folder, first) as reader,
            ):
                return Collection.from_json(reader.header()[0].collection)
        raise damaged


@dataclass(slots=True)
class _Span:
    """Of a producer, not closed so far."""

    latest: int
    documents: int


class _Salvaging:
    """Steps 3 and 4, of one journal."""

    def __init__(
        self, into: FileStore, collection: Collection, journal: str, named: Mapping[int, set[int]]
    ) -> None:
        self._into = into
        self._schemas = [document_schema(schema) for schema in collection.schemas]
        self._journal = journal
        self._named = named
        self._spans: dict[int, _Span] = {}
        self._held: list[Payload] = []
        self._found = SalvagedJournal(journal)

    def run(self, folder: Path, missing: list[Missing]) -> SalvagedJournal:
        self._found.missing = missing
        gaps = {one.end for one in missing}
        later = [frame.header for frame in whole_frames(self._journal, folder)] if missing else []
        offset = 0
        for index, frame in enumerate(whole_frames(self._journal, folder)):
            header = frame.header
            if header.first_offset in gaps:
                self._close_spans(_next_clocks(later[index:]), is_gap=True)
            self._append(self._follow(frame))
            offset = header.end_offset
        self._close_spans({}, is_gap=bool(missing) and missing[-1].begin == offset)
        self._flush()
        return self._found

    def _follow(self, frame: WholeFrame) -> Payload:
        """Keeps account of the spans that are open behind the frame; gives what is appended."""
        header = frame.header
        if header.kind == KIND_ACK:
            span = self._spans.pop(header.producer, None)
            if span is not None and header.first_clock < span.latest:
                # A rollback repeats the clock of a commit, which may lie in a gap: without that
                # commit, a reader would take it for one that leaves out a part of the span.
                return _rollback(header.producer)
            return _payload(frame)
        self._found.documents += header.rows
        rows = decode_documents(frame.body, self._schemas[header.schema_version - 1])
        producers, clocks, flags = (rows.column(index).to_numpy() for index in range(3))
        spanned = (flags & Kind.CONTINUE) != 0
        for producer in np.unique(producers[spanned]).tolist():
            ours = clocks[spanned & (producers == producer)]
            span = self._spans.setdefault(producer, _Span(CLOCK_NONE, 0))
            span.latest = max(span.latest, int(ours.max()))
            span.documents += len(ours)
        return _payload(frame)

    def _close_spans(self, next_clocks: Mapping[int, int], *, is_gap: bool) -> None:
        """At a gap, or at the end. A span whose named commit comes after the producer's next row is
        not closed here: it goes on behind the gap."""
        for producer, span in list(self._spans.items()):
            commit = min(
                (c for c in self._named.get(producer, ()) if c >= span.latest), default=None
            )
            if commit is not None and is_gap:
                self._found.assumed += span.documents
                if next_clocks.get(producer, CLOCK_MAX) <= commit:
                    continue
            elif is_gap:
                self._found.undecided += span.documents
                self._found.documents -= span.documents
            self._append(_rollback(producer) if commit is None else _commit(producer, commit))
            del self._spans[producer]

    def _append(self, payload: Payload) -> None:
        self._held.append(payload)
        if len(self._held) >= _APPEND_FRAMES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            end = self._into.append(self._journal, self._held, None).end
            self._into.sync(self._journal, end)
            self._held = []


def _commit(producer: int, clock: int) -> Payload:
    return encode_ack(1, Ack(Producer.from_int64(producer), clock))


def _rollback(producer: int) -> Payload:
    """An ACK that is below every commit discards its span."""
    return _commit(producer, CLOCK_NONE)


def _payload(frame: WholeFrame) -> Payload:
    header = frame.header
    return Payload(
        header.kind,
        header.row_kind,
        header.schema_version,
        header.rows,
        header.producer,
        header.first_clock,
        header.last_clock,
        frame.body,
        header.payload_sum,
    )


def _next_clocks(headers: Sequence[FrameHeader]) -> dict[int, int]:
    """The first clock of each producer in these frames."""
    clocks: dict[int, int] = {}
    for header in headers:
        clocks.setdefault(header.producer, header.first_clock)
    return clocks
