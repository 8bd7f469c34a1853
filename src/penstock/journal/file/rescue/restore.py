"""Makes a store of a backup's point, and checks every byte of it on the way.

    1  copy      each journal's segments, up to the point, every frame checked
    2  hide      transactions that were half acknowledged: their ACKs become rollbacks
    3  head      with it a journal exists. It has another identity than the one that was copied:
                 whoever has read that one further than the point must not go on here
    4  close     what was open at the point is rolled back: nobody will commit it any more
    5  records   decisions of batches, with what was staged for them
    6  rename    the store appears under its name, whole

Before step 6 there is no store. What a restore that was killed left is removed by the next.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.disk import explained, make_folder, sync_folder
from penstock.errors import ConfigurationError, CorruptStorageError
from penstock.ids import CLOCK_NONE, Producer
from penstock.journal.cut import JournalCut
from penstock.journal.file.durable import replace_file
from penstock.journal.file.head import Kept, Position, new_head
from penstock.journal.file.identity import identity_record, new_identity
from penstock.journal.file.rescue.points import copy_files, read_point, records_folder
from penstock.journal.file.segment import SegmentReader, list_segments, segment_path
from penstock.journal.file.store import FileStore
from penstock.journal.frames import KIND_ACK, Ack, decode_ack, encode_ack
from penstock.journal.progress import states_of
from penstock.journal.transaction import roll_back
from penstock.journal.writable import Touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal.file.rescue.points import KeptJournal, Point
    from penstock.journal.frames import FrameHeader


@dataclass(frozen=True, slots=True)
class Restored:
    point: Point
    hidden: int
    """Transactions that were half acknowledged at the point, and are not in the store."""
    rolled_back: int
    """Transactions that were open at the point."""


def check_point(
    backup: Path, number: int | None = None, moved: Callable[[int, int], None] = lambda *_: None
) -> Point:
    """Reads everything that a point needs. CorruptJournalError names what is damaged."""
    point = read_point(backup, number)
    for done, kept in enumerate(point.journals, 1):
        for segment in _segments(backup, kept):
            for _ in segment.frames():
                pass
        moved(done, len(point.journals))
    return point


def restore(
    backup: Path,
    target: Path,
    number: int | None = None,
    moved: Callable[[int, int], None] = lambda *_: None,
) -> Restored:
    """Makes a store at `target`, where there must be none."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is not empty; restore into a new folder")
    point = read_point(backup, number)
    unfinished = target.with_name(f".{target.name}.restoring")
    shutil.rmtree(unfinished, ignore_errors=True)
    with FileStore(unfinished, durability=point.durability) as store:
        for collection in point.collections:
            store.create(collection)
        hidden: set[Ack] = set()
        for done, kept in enumerate(point.journals, 1):
            hidden |= _restore_journal(store, backup, kept)
            moved(done, len(point.journals))
        rolled_back = _close_spans(store, point)
    copy_files(records_folder(backup, point.number), unfinished)
    with explained("make", target):
        unfinished.rename(target)
    sync_folder(target.parent)
    return Restored(point, len(hidden), rolled_back)


def _restore_journal(store: FileStore, backup: Path, kept: KeptJournal) -> set[Ack]:
    """Steps 1 to 3; gives whose transactions were hidden, without their hints."""
    folder = store.folder_of(kept.name)
    make_folder(folder)
    hidden = set()
    for segment in _segments(backup, kept):
        path = segment_path(folder, segment.first)
        with explained("copy into", path), path.open("w+b") as file:
            with segment.path.open("rb") as copy:
                shutil.copyfileobj(copy, file)
            file.truncate(segment.end.bytes)
            for position, header, ack in segment.frames():
                if ack is not None and _is_hidden(ack, kept):
                    file.seek(position)
                    file.write(_as_rollback(header, ack))
                    hidden.add(Ack(ack.producer, ack.clock))
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)
    head = new_head(kept.end, Kept(kept.first_kept, kept.suspended))
    replace_file(folder / "head", head + identity_record(new_identity()))
    return hidden


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment of the backup, as far as a point needs it."""

    journal: str
    first: int
    path: Path
    end: Position

    def frames(self) -> Iterator[tuple[int, FrameHeader, Ack | None]]:
        """Each with its position, checked; and what it acknowledges, if it does."""
        with SegmentReader(self.journal, self.path.parent, self.first) as reader:
            header, position = reader.header()
            offset = header.first_offset
            for at, frame in reader.headers(position, offset, self.end.bytes):
                _, body = reader.frame(at, frame)
                offset = frame.end_offset
                yield at, frame, decode_ack(frame, body) if frame.kind == KIND_ACK else None
        if offset != self.end.offset:
            raise CorruptStorageError(
                f"{self.path} ends at offset {offset}, and the point needs {self.end.offset}: the "
                "backup is incomplete. Restore an earlier point, or from another copy"
            )


def _segments(backup: Path, kept: KeptJournal) -> Iterator[_Segment]:
    folder = kept.folder(backup)
    needed = [first for first in list_segments(folder) if first <= kept.end.segment]
    for index, first in enumerate(needed):
        path = segment_path(folder, first)
        if index + 1 < len(needed):
            size = path.stat().st_size
            following = needed[index + 1]
            if following > kept.first_kept:
                yield _Segment(kept.name, first, path, Position(first, size, following))
        else:
            yield _Segment(kept.name, first, path, kept.end)
    if not needed or needed[-1] != kept.end.segment or needed[0] > kept.first_kept:
        raise CorruptStorageError(
            f"{folder} lacks segments that the point needs: the backup is incomplete. Restore an "
            "earlier point, or from another copy"
        )


def _is_hidden(ack: Ack, kept: KeptJournal) -> bool:
    return ack.producer in kept.hidden and ack.clock >= kept.hidden[ack.producer]


def _as_rollback(header: FrameHeader, ack: Ack) -> bytes:
    """The frame with a clock below every commit: an ACK of the past discards its span. It has the
    size of the one whose place it takes, because it names the same journals."""
    payload = encode_ack(header.schema_version, Ack(ack.producer, CLOCK_NONE, ack.hints))
    frame = payload.header(header.first_offset, header.appended_us, goes_on=header.goes_on)
    return frame + payload.body.to_pybytes()


def _close_spans(store: FileStore, point: Point) -> int:
    """Step 4; gives how many transactions were open."""
    open_spans: dict[int, list[Touch]] = {}
    for kept in point.journals:
        whole = JournalCut(kept.name, kept.first_kept, kept.end.offset)
        for producer, state in states_of(store, whole).items():
            if state.max_continue:
                touch = Touch(kept.name, state.offset, state.last_commit)
                open_spans.setdefault(producer, []).append(touch)
    for producer, touches in open_spans.items():
        roll_back(store, Producer.from_int64(producer), tuple(touches), None)
    return len(open_spans)
