"""Mending a journal after a crash: where it really ends, and what is cut from its end.

Everything below the head's `synced` was durable. What lies behind it was perhaps never finished,
or perhaps acknowledged before a power cut took the newer head with it: frames that are whole stay,
the first that is not is cut, with whatever follows it. Damage anywhere else is never cut.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.durable import locked, replace_file
from penstock.journal.file.head import DamagedHeadError, Head, Position
from penstock.journal.file.segment import SegmentReader, list_segments, segment_path

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


def is_journal(folder: Path) -> bool:
    """Whether a journal was ever opened here: one that was made only in part does not count."""
    return (folder / "head").exists() or (folder / "sync.lock").exists()


def restore_lost_head(folder: Path) -> None:
    """Puts an empty head where one was lost: it is taken for damaged, and rebuilt."""
    if (folder / "head").exists() or not is_journal(folder):
        return
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


def is_sound(head: Head, folder: Path) -> bool:
    """Whether the segments end where the head says."""
    try:
        written = head.written()
        head.synced()
        head.kept()
        size = segment_path(folder, written.segment).stat().st_size
    except (DamagedHeadError, FileNotFoundError):
        return False
    return size == written.bytes and not goes_on(written, folder)


def goes_on(written: Position, folder: Path) -> bool:
    """Whether there is a later segment that the head does not know of."""
    return written.offset != written.segment and segment_path(folder, written.offset).exists()


def is_whole(journal: str, folder: Path, synced: Position, written: Position) -> bool:
    """Whether all frames between the two are sound."""
    with SegmentReader(journal, folder, written.segment) as reader:
        if synced.segment == written.segment:
            position, offset = synced.bytes, synced.offset
        else:  # whatever lies in earlier segments was synced when they were rolled
            header, position = reader.header()
            offset = header.first_offset
        return reader.scan(position, offset) == (written.bytes, written.offset, None)


def mend(journal: str, folder: Path, synced: Position | None) -> Position:
    """Walks the frames from `synced` (or, if that is lost, from the begin of the newest segment)
    through all segments, cuts an unfinished end, and gives the position reached."""
    segments = list_segments(folder)
    if not segments or (synced is not None and synced.segment not in segments):
        raise missing(journal, folder, 0 if synced is None else synced.segment)
    reached = _begin(journal, folder, segments[-1]) if synced is None else synced
    while True:
        following = next((first for first in segments if first > reached.segment), None)
        reached = _mend_segment(journal, folder, reached, is_last=following is None)
        if following is None:
            return reached
        if following != reached.offset:
            name = segment_path(folder, reached.segment).name
            reason = f"rows end at {reached.offset}, not {following}"
            raise CorruptJournalError(journal, name, reached.bytes, reason)
        reached = _begin(journal, folder, following)


def missing(journal: str, folder: Path, segment: int) -> CorruptJournalError:
    return CorruptJournalError(
        journal, segment_path(folder, segment).name, 0, "the file is missing"
    )


def _begin(journal: str, folder: Path, segment: int) -> Position:
    with SegmentReader(journal, folder, segment) as reader:
        header, position = reader.header()
    return Position(segment, position, header.first_offset)


def _mend_segment(journal: str, folder: Path, begin: Position, *, is_last: bool) -> Position:
    """The end of the whole frames of a segment. Only in the last one may the rest be cut."""
    path = segment_path(folder, begin.segment)
    with SegmentReader(journal, folder, begin.segment) as reader:
        size = reader.size()
        if size < begin.bytes:
            reason = f"the file is shorter than the {begin.bytes} bytes that were durable"
            raise CorruptJournalError(journal, path.name, size, reason)
        position, offset, damage = reader.scan(begin.bytes, begin.offset)
    if damage is not None:
        if not is_last:
            raise CorruptJournalError(journal, path.name, position, damage)
        log.warning(
            "%s: cut %d bytes of an unfinished append from the end of %s (%s)",
            journal,
            size - position,
            path.name,
            damage,
        )
        os.truncate(path, position)
    return Position(begin.segment, position, offset)
