"""Adds a point to a backup: everything that a live store holds at one moment, whole transactions.

    1  records   what queries that write batches have decided, and staged for it
    2  cut       up to where each journal is copied, and which transactions are half acknowledged
    3  look      no query has decided meanwhile: a batch must not be there without its decision
    4  copy      the bytes that the backup lacks, every frame checked as it lies in the copy
    5  point     written last: with it, and not before, the copy counts

Producers go on all the while, and nothing of the store is locked: a backup that is paused or
killed holds nobody up. What it copied is written over by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from penstock.disk import explained, make_folder, sync_folder
from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.ids import Producer
from penstock.journal.cut import take_cut
from penstock.journal.errors import OffsetDroppedError, UnknownJournalError
from penstock.journal.file.durable import try_lock
from penstock.journal.file.head import Position
from penstock.journal.file.rescue.points import (
    KeptJournal,
    Point,
    copy_files,
    list_points,
    read_point,
    records_folder,
    write_point,
)
from penstock.journal.file.segment import SegmentReader, list_segments, segment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal.cut import JournalCut
    from penstock.journal.file.store import FileStore
    from penstock.journal.store import Journal

    Moved = Callable[[int, int], None]
    """Told of progress: bytes done, and bytes in all."""

CUTS_MAX: Final = 20
"""How often a cut is taken in the hope of one in which no transaction is half acknowledged, which
restores without a change to any byte. A store that never rests is copied all the same."""
CUT_PAUSE_SECONDS: Final = 0.01
"""A commit is acknowledged within milliseconds."""
TRIES_MAX: Final = 5
"""Retention may drop a segment that is being copied, and a query decide a batch; not each time."""
RECORD_FOLDERS: Final = ("sinks", "aborts")
"""Small files of the store that are copied as they are. Feeds are not: a query that reads a
restored store begins anew, because rows that it has read may be gone."""
_LOCK: Final = ".lock"
_COPY_STEP_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BackedUp:
    point: Point
    bytes_copied: int
    """What the backup did not have before."""


def back_up(store: FileStore, backup: Path, moved: Moved = lambda *_: None) -> BackedUp:
    """Copies what is new since the backup's newest point, and adds a point."""
    if backup.resolve().is_relative_to(store.root.resolve()):
        raise ConfigurationError(
            f"{backup} lies within the store that it is to save; choose a folder on another disk"
        )
    _check_backup_folder(store, backup)
    make_folder(backup)
    with _alone(backup):
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(_OvertakenError, OffsetDroppedError, UnknownJournalError):
                return _Copying(store, backup, moved).run()
        return _Copying(store, backup, moved).run()


class _OvertakenError(CorruptStorageError):
    """The store changed in a way that this try cannot keep up with. Nothing is wrong with it."""


class _Copying:
    """One try."""

    def __init__(self, store: FileStore, backup: Path, moved: Moved) -> None:
        self._store = store
        self._backup = backup
        self._moved = moved
        known = list_points(backup)
        self._number = known[-1] + 1 if known else 1
        newest = read_point(backup) if known else None
        self._had = {} if newest is None else {_key(kept): kept for kept in newest.journals}
        self._copied_bytes = self._total_bytes = 0

    def run(self) -> BackedUp:
        store = self._store
        decided = _decisions(store.root)
        self._copy_records()  # 1
        store.recover_if_possible()
        cuts = self._cut()  # 2
        collections = tuple(store.collection(name) for name in store.collections())
        if _decisions(store.root) != decided:  # 3
            raise _OvertakenError(
                "queries decide batches faster than a backup can look; stop them for its start, "
                "or run it again"
            )
        identities = {journal.name: journal.identity for journal in self._journals()}
        self._total_bytes = sum(self._lacking_bytes(cut) for cut in cuts)
        kept = tuple(self._copy(cut, identities.get(cut.journal)) for cut in cuts)  # 4
        point = Point(self._number, time.time(), store.url, store.durability, collections, kept)
        write_point(self._backup, point)  # 5
        return BackedUp(point, self._copied_bytes)

    def _copy_records(self) -> None:
        target = records_folder(self._backup, self._number)
        shutil.rmtree(target, ignore_errors=True)  # of a try that did not come to its point
        for folder in RECORD_FOLDERS:
            copy_files(self._store.root / folder, target / folder)

    def _cut(self) -> list[JournalCut]:
        """A cut of all journals; if one can be had in which nothing is hidden, such a one."""
        for _ in range(CUTS_MAX):
            cuts = take_cut(self._store, lambda: [one.name for one in self._journals()])
            if not any(cut.limits for cut in cuts):
                break
            time.sleep(CUT_PAUSE_SECONDS)
        return cuts

    def _journals(self) -> list[Journal]:
        store = self._store
        return [each for name in store.collections() for each in store.journals(name)]

    def _copy(self, cut: JournalCut, identity: str | None) -> KeptJournal:
        if identity is None:
            raise UnknownJournalError(cut.journal)  # deleted since: try again without
        probe = self._store.probe(cut.journal)
        hidden = {Producer.from_int64(one): limit + 1 for one, limit in cut.limits.items()}
        kept = KeptJournal(
            cut.journal, identity, cut.begin, probe.suspended, Position(0, 0, cut.end), hidden
        )
        had = self._had.get(_key(kept))
        folder = kept.folder(self._backup)
        make_folder(folder)
        end = None if had is None else had.end
        for first in list_segments(self._store.folder_of(cut.journal)):
            if first <= cut.end and (had is None or first >= had.end.segment):
                end = self._copy_segment(cut, first, end, folder)
        if end is None:
            raise _OvertakenError(f"{cut.journal}: its segments were dropped while it was copied")
        sync_folder(folder)
        return replace(kept, end=end, suspended=probe.suspended and end.offset == cut.begin)

    def _copy_segment(
        self, cut: JournalCut, first: int, had: Position | None, folder: Path
    ) -> Position:
        """Brings the copy of a segment up to the cut's end. `had` is where the copy ends, perhaps
        in an earlier segment."""
        source = self._store.folder_of(cut.journal)
        try:
            reader = SegmentReader(cut.journal, source, first)
        except FileNotFoundError:
            raise OffsetDroppedError(cut.journal, first, first + 1) from None
        with reader:
            begin = had if had is not None and had.segment == first else None
            if begin is None:
                _, position = reader.header()
                begin = Position(first, position, first)
            end = begin
            for position, header in reader.headers(begin.bytes, begin.offset, reader.size()):
                if header.first_offset >= cut.end:
                    break
                end = Position(first, position + header.frame_bytes, header.end_offset)
        copied_from = begin.bytes if begin is had else 0
        self._append(
            segment_path(source, first), segment_path(folder, first), copied_from, end.bytes
        )
        with SegmentReader(cut.journal, folder, first) as copy:
            check_frames(copy, begin, end)
        return end

    def _append(self, source: Path, target: Path, begin: int, end: int) -> None:
        with (
            explained("copy into", target),
            source.open("rb") as reading,
            _open_for_append(target, begin) as writing,
        ):
            for at in range(begin, end, _COPY_STEP_BYTES):
                data = os.pread(reading.fileno(), min(_COPY_STEP_BYTES, end - at), at)
                writing.write(data)
                self._copied_bytes += len(data)
                self._moved(self._copied_bytes, max(self._total_bytes, self._copied_bytes))
            writing.flush()
            os.fsync(writing.fileno())

    def _lacking_bytes(self, cut: JournalCut) -> int:
        """About: the newest segment may hold rows behind the cut."""
        folder = self._store.folder_of(cut.journal)
        had = next((kept for key, kept in self._had.items() if key[0] == cut.journal), None)
        lacking = 0
        for first in list_segments(folder):
            if had is None or first >= had.end.segment:
                with contextlib.suppress(FileNotFoundError):
                    lacking += segment_path(folder, first).stat().st_size
        return lacking - (0 if had is None else min(had.end.bytes, lacking))


def check_frames(reader: SegmentReader, begin: Position, end: Position) -> None:
    """Reads the frames between two positions of a segment. CorruptJournalError if one is bad."""
    for position, header in reader.headers(begin.bytes, begin.offset, end.bytes):
        reader.frame(position, header)


def _key(kept: KeptJournal) -> tuple[str, str]:
    return kept.name, kept.identity


def _decisions(root: Path) -> set[str]:
    folder = root / "sinks" / "decisions"
    return {str(path.relative_to(folder)) for path in folder.glob("*/[!.]*")}


def _check_backup_folder(store: FileStore, backup: Path) -> None:
    known = list_points(backup)
    if known:
        of = read_point(backup).store
        if of != store.url:
            raise ConfigurationError(
                f"{backup} is a backup of {of}, not of {store.url}; choose another folder"
            )
    elif backup.is_dir() and any(backup.iterdir()) and not (backup / _LOCK).exists():
        raise ConfigurationError(f"{backup} is not a backup, and not empty; choose another folder")


@contextlib.contextmanager
def _alone(backup: Path) -> Iterator[None]:
    with explained("lock", backup / _LOCK):
        descriptor = os.open(backup / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_lock(descriptor):
            raise ConfigurationError(f"another backup into {backup} is running; let it finish")
        yield
    finally:
        os.close(descriptor)


def _open_for_append(target: Path, size: int) -> BinaryIO:
    """The target with its first `size` bytes; what a backup that died left behind them is cut."""
    file = target.open("r+b" if target.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file
