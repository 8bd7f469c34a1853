"""Finding a journal's end after a crash: what is whole stays, what is torn is put aside.

Everything below the head's `synced` was durable. What lies behind it was perhaps never finished,
or perhaps acknowledged before a power cut took the newer head with it. Frames that are whole stay.
Of the first that is not, a frame behind it tells: each says how much was durable when it was
appended. If the bad frame was, it is damage, and nothing is cut; whoever reads that far is told.
Otherwise an append was torn. Its bytes, and all behind them, are kept in a file of their own.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.disk import DiskFullError, explained, sync_folder, write_new_file
from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.durable import locked, replace_file
from penstock.journal.file.head import DamagedHeadError, Head, Position, Trust, this_boot
from penstock.journal.file.segment import FramePlace, SegmentReader, list_segments, segment_path

if TYPE_CHECKING:
    from pathlib import Path

CUT_SUFFIX: Final = ".cut"
CUTS_KEPT_MAX: Final = 16
"""Torn ends that are kept for each journal, the latest. Each is at most an append or a few."""

log = logging.getLogger(__name__)


def is_journal(folder: Path) -> bool:
    """Whether a journal was ever opened here: one that was made only in part does not count."""
    return (folder / "head").exists() or (folder / "sync.lock").exists()


def restore_lost_head(folder: Path) -> None:
    """Puts an empty head where one was lost: it is taken for damaged, and rebuilt."""
    if (folder / "head").exists() or not is_journal(folder):
        return
    with explained("open", folder / "sync.lock"):
        descriptor = os.open(folder / "sync.lock", os.O_RDWR)
    try:
        with locked(descriptor):
            if not (folder / "head").exists():
                replace_file(folder / "head", b"")
    finally:
        os.close(descriptor)


def refuse_to_overwrite(journal: str, folder: Path) -> None:
    """A journal is made where there is none. Segments with rows are one that lost its head."""
    for first in list_segments(folder):
        with SegmentReader(journal, folder, first) as reader:
            _, position = reader.header()
            if reader.size() > position:
                reason = "the file is missing, but segments with rows are there"
                raise CorruptJournalError(journal, "head", 0, reason)


@dataclass(frozen=True, slots=True)
class Unrest:
    """Why the files do not, durably, end where the head says."""

    what: str
    mends: bool = True
    """Whether whoever opens the journal next mends it."""
    loses: bool = False
    """Whether that costs rows that were acknowledged, or may."""


def unrest(head: Head, folder: Path, *, to_disk: bool) -> Unrest | None:
    """Why whoever opens the journal must look for its end; None if it is at rest. Somebody may be
    appending just now, too."""
    try:
        records = head.all()
    except DamagedHeadError:
        return Unrest("its head is damaged")
    written, synced = records.written, records.synced
    try:
        size = segment_path(folder, written.segment).stat().st_size
    except FileNotFoundError:
        return Unrest("its newest segment is missing", mends=False, loses=True)
    if records.trust is Trust.DOUBTED:
        return Unrest(
            "the disk failed to sync it: nobody can append before it is read back from the disk"
        )
    if size < written.bytes:
        durable = to_disk and synced.segment == written.segment and size < synced.bytes
        return Unrest(
            f"its newest segment ends {written.bytes - size} bytes early",
            mends=not durable,
            loses=durable or not to_disk,
        )
    if size > written.bytes:
        return Unrest(f"{size - written.bytes} bytes of an unfinished append are behind its end")
    if goes_on(written, folder):
        return Unrest("its head is old: there is a later segment")
    if synced != written:
        rows = written.offset - synced.offset
        return Unrest(f"its last {rows} rows are not known to be durable, and nobody sees them yet")
    if not to_disk and records.boot != this_boot():
        return Unrest("it is only buffered, and the machine was started anew since", loses=True)
    return Unrest("somebody was looking for its end, and died") if records.trust else None


def goes_on(written: Position, folder: Path) -> bool:
    """Whether there is a later segment that the head does not know of."""
    return written.offset != written.segment and segment_path(folder, written.offset).exists()


def mend(journal: str, folder: Path, known: Position | None, *, to_disk: bool) -> Position:
    """Walks the frames from the `known` durable position (or, if that is lost, from the begin of
    the newest segment) through all segments, puts a torn end aside, and gives the position
    reached. In a store that is only buffered nothing is durable but what lies in older segments:
    there the first bad frame is the end."""
    segments = list_segments(folder)
    if not segments or (known is not None and known.segment not in segments):
        raise missing(journal, folder, 0 if known is None else known.segment)
    reached = _begin(journal, folder, segments[-1]) if known is None else known
    for following in [first for first in segments if first > reached.segment]:
        # The segment was made durable whole before the following one was begun.
        end = _walk(journal, folder, reached)
        if end[0].offset != following or end[1] is not None:
            reason = end[1] or f"rows end at {end[0].offset}, not {following}"
            _tell_damage(journal, folder, end[0], reason, following)
        reached = _begin(journal, folder, following)
    return _mend_last(journal, folder, reached, to_disk=to_disk)


def missing(journal: str, folder: Path, segment: int) -> CorruptJournalError:
    return CorruptJournalError(
        journal, segment_path(folder, segment).name, 0, "the file is missing"
    )


def _begin(journal: str, folder: Path, segment: int) -> Position:
    with SegmentReader(journal, folder, segment) as reader:
        header, position = reader.header()
    return Position(segment, position, header.first_offset)


def _walk(journal: str, folder: Path, begin: Position) -> tuple[FramePlace, str | None]:
    with SegmentReader(journal, folder, begin.segment) as reader:
        if (size := reader.size()) < begin.bytes:
            reason = f"the file is shorter than the {begin.bytes} bytes that were durable"
            raise CorruptJournalError(
                journal, segment_path(folder, begin.segment).name, size, reason
            )
        return reader.scan(begin.bytes, begin.offset)


def _mend_last(journal: str, folder: Path, begin: Position, *, to_disk: bool) -> Position:
    while True:
        end, reason = _walk(journal, folder, begin)
        if reason is None:
            break
        with SegmentReader(journal, folder, begin.segment) as reader:
            behind = reader.witness(end) if to_disk else None
            if behind is None:
                _put_aside(journal, folder, end, reader, reason)
                break
        _tell_damage(journal, folder, end, reason, behind.offset)
        begin = Position(behind.segment, behind.position, behind.offset)
    return Position(end.segment, end.position, end.offset)


def _tell_damage(journal: str, folder: Path, at: FramePlace, reason: str, until: int) -> None:
    log.error(
        "%s: segment %s is damaged at byte %d: %s; rows %d to %d were durable and cannot be read. "
        "Nothing was cut, and the rows behind them are kept: restore the segment from a copy",
        journal,
        segment_path(folder, at.segment).name,
        at.position,
        reason,
        at.offset,
        until - 1,
    )


def _put_aside(
    journal: str, folder: Path, end: FramePlace, reader: SegmentReader, reason: str
) -> None:
    """Cuts a torn end off, once it is kept elsewhere."""
    path, size = segment_path(folder, end.segment), reader.size() - end.position
    kept = _new_cut(folder, end)
    where = f"they are kept in {kept}"
    try:
        write_new_file(kept, reader.bytes_at(end.position, size))
        sync_folder(folder)
    except DiskFullError:
        # Nobody could read or write the journal before there is room, for bytes that nobody was
        # promised.
        where = "the disk is full, and so they are not kept"
        kept.unlink(missing_ok=True)
    with explained("truncate", path):
        os.truncate(path, end.position)
    log.warning(
        "%s: cut %d bytes of an unfinished append from the end of %s (%s); %s",
        journal,
        size,
        path.name,
        reason,
        where,
    )


def _new_cut(folder: Path, end: FramePlace) -> Path:
    """The name of the next file of this kind. The oldest make room."""
    cuts = list_cuts(folder)
    for path in cuts[: max(len(cuts) - CUTS_KEPT_MAX + 1, 0)]:
        path.unlink(missing_ok=True)
    stem = f"{end.segment:020d}.{end.position}"
    number = 1 + sum(path.name.startswith(stem) for path in cuts)
    while (path := folder / f"{stem}-{number}{CUT_SUFFIX}").exists():
        number += 1
    return path


def list_cuts(folder: Path) -> list[Path]:
    """Torn ends that are kept, the oldest first."""
    found = []
    for path in folder.glob(f"*{CUT_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]
