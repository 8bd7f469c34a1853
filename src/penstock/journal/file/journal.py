"""One journal on disk: appends in one order over all processes, reads without a lock.

The head's `written` record is only changed under the head file's lock, `synced` only under the
sync lock; readers see nothing beyond `synced`. What a killed appender leaves behind `written` is
looked at by whoever takes the lock next: whole frames stay, a torn one is put aside.

Whoever opens a journal that is not at rest looks for its end, and makes it durable, before anything
else (`ending.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.disk import (
    REFUSED,
    DiskError,
    explained,
    make_folder,
    sync_folder,
)
from penstock.journal.errors import (
    AppendFailedError,
    CorruptJournalError,
    OffsetDroppedError,
    SyncFailedError,
    UnknownJournalError,
)
from penstock.journal.file.durable import locked, replace_file
from penstock.journal.file.ending import JournalEnd
from penstock.journal.file.head import (
    DamagedHeadError,
    Head,
    Kept,
    Position,
    Records,
    Trust,
    new_head,
    this_boot,
)
from penstock.journal.file.identity import (
    identity_of,
    identity_record,
    new_identity,
    record_identity,
)
from penstock.journal.file.repair import (
    goes_on,
    is_journal,
    missing,
    refuse_to_overwrite,
    restore_lost_head,
    unrest,
)
from penstock.journal.file.retention import Retention
from penstock.journal.file.rolling import next_header
from penstock.journal.file.segment import (
    BatchBuilder,
    FramePlace,
    SegmentReader,
    create_segment,
    list_segments,
    segment_path,
)
from penstock.journal.file.segment_header import SegmentHeader
from penstock.journal.store import JournalBatch, Probe, Range, States
from penstock.journal.writable import Appended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Collection as Members
    from pathlib import Path

    from penstock.errors import PenstockError
    from penstock.journal.collection import Collection
    from penstock.journal.frames import Payload
    from penstock.sequence import ProducerState

_WRITE_BUFFERS_MAX: Final = 512
"""Buffers in one gathered write; Linux takes 1,024 at most."""
PLACES_MAX: Final = 64
"""Where reads of a journal ended, the latest: of as many who tail it, a hundred bytes each."""
_WAIT_STEP_S_MIN, _WAIT_STEP_S_MAX = 0.0005, 0.02
HEAD_SYNC_BYTES: Final = 4 * 1024 * 1024
"""After so much the head is synced as well, and whenever a segment is rolled or the journal closed:
who opens it after a power cut walks over no more than that. One sync in a thousand, or so."""

log = logging.getLogger(__name__)


class JournalFile:
    """The open files of one journal in this process. Threads share it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        segment_bytes_max: int,
        *,
        to_disk: bool = True,
        registered: Callable[[], Members[int]] = frozenset,
    ) -> None:
        """`registered` gives the producers that have a ledger."""
        self.name = name
        self._to_disk = to_disk
        self._folder = folder
        self._registered = registered
        self._retention = Retention(name, folder)
        self._segment_bytes_max = segment_bytes_max
        self._sync_descriptor = self._segment_descriptor = self._syncing_descriptor = -1
        # The segments that the appending and the syncing thread have open.
        self._segment: int | None = None
        self._syncing: int | None = None
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._places: OrderedDict[int, FramePlace] = OrderedDict()
        """By offset, where reads ended."""
        self._places_lock = threading.Lock()
        self._head_behind_bytes = 0
        """How much this process has synced since it last synced the head."""
        self._doubt_untold: SyncFailedError | None = None
        """A sync failed, and the head, where all others look, could not be told so either."""
        restore_lost_head(folder)
        try:
            with explained("open", folder / "head"):
                self._head_descriptor, writable = _open_head(folder / "head")
        except FileNotFoundError:
            raise UnknownJournalError(name) from None
        self._head = Head(self._head_descriptor)
        if not writable:  # there is nothing that this process could mend
            self.identity = identity_of(name, folder, self._head_descriptor)
            return
        try:
            with explained("open", folder / "sync.lock"):
                self._sync_descriptor = os.open(folder / "sync.lock", os.O_RDWR | os.O_CREAT, 0o644)
            self._end = JournalEnd(
                name,
                folder,
                self._head,
                self._head_descriptor,
                self._sync_descriptor,
                to_disk=to_disk,
                open_segment=self._open_segment,
                make_durable=self._make_durable,
            )
            with self._sync_lock:
                self._end.check()
            self.identity = record_identity(name, folder, self._head_descriptor)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(name: str, folder: Path, collection: Collection) -> None:
        """Makes an empty journal; the head is written last, and with it the journal exists."""
        make_folder(folder)
        refuse_to_overwrite(name, folder)
        identity = new_identity()
        header = SegmentHeader(name, 0, collection.to_json(), bytes_before=0, identity=identity)
        size = create_segment(folder, header)
        head = new_head(Position(0, size, 0), Kept(0, suspended=False))
        replace_file(folder / "head", head + identity_record(identity))

    def close(self) -> None:
        if self._head_behind_bytes:
            with contextlib.suppress(DiskError):  # it only spares others some work
                self._head.sync()
        for descriptor in (
            self._head_descriptor,
            self._sync_descriptor,
            self._segment_descriptor,
            self._syncing_descriptor,
        ):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def is_gone(self) -> bool:
        """Whether somebody has deleted the journal, or made another one in its place. What is open
        of it here does not tell."""
        try:
            there = (self._folder / "head").stat()
        except FileNotFoundError:
            return not is_journal(self._folder)
        return there.st_ino != os.fstat(self._head_descriptor).st_ino

    @property
    def is_doubted(self) -> bool:
        """Whether a sync of it failed, and nobody has read it back from the disk since."""
        if self._doubt_untold is not None:
            return True
        with contextlib.suppress(DamagedHeadError):
            return self._head.all().trust is Trust.DOUBTED
        return True

    def probe(self) -> Probe:
        if self.is_gone:
            raise UnknownJournalError(self.name)
        return _probe(self._head, self.identity)

    # Appending

    def append(
        self,
        payloads: Sequence[Payload],
        check_open: Callable[[], None],
        load_collection: Callable[[], Collection],
    ) -> Appended:
        with self._append_lock, locked(self._head_descriptor):
            written, synced = self._sound_end()
            check_open()
            # An empty segment is never rolled: the next would have its name.
            if written.bytes >= self._segment_bytes_max and written.offset > written.segment:
                # Loaded now: frames of a later version may stand before this append's.
                collection = load_collection()
                written = synced = self._roll(written, collection)
                self._apply_retention(written, collection)
            durable = self._to_disk and synced.segment == written.segment
            buffers: list[object] = []
            offset, size = written.offset, written.bytes
            appended_us = time.time_ns() // 1_000
            for left, payload in zip(range(len(payloads) - 1, -1, -1), payloads, strict=True):
                header = payload.header(
                    offset,
                    appended_us,
                    goes_on=left > 0,
                    unsynced_bytes=size - synced.bytes if durable else None,
                )
                buffers += [header, payload.body]
                offset += payload.rows
                size += payload.frame_bytes
            reached = Position(written.segment, size, offset)
            self._write(written, buffers, reached)
            if not self._to_disk:
                self._head.set_synced(reached)
            kept = self._head.kept()
            if kept.suspended:
                self._head.set_kept(Kept(kept.first_offset, suspended=False))
        return Appended(written.offset, offset, self.identity)

    def sync(self, through: int) -> None:
        """Group commit: whoever holds the sync lock makes everything written so far durable, and
        those who waited for the lock find their rows covered."""
        if self._head.synced().offset >= through:
            return
        with self._sync_lock, locked(self._sync_descriptor):
            records = self._head.all()
            written, synced = records.written, records.synced
            if synced.offset >= through:
                return
            self._refuse_doubt(records)
            while self._to_disk and not self._sync_segment(written.segment):
                # Rolled and dropped since, and so durable before: what counts comes after it.
                dropped, written = written, self._head.written()
                if written.segment == dropped.segment:
                    raise missing(self.name, self._folder, written.segment)
            self._head.set_synced(written)
            if self._to_disk:
                self._sync_head_sometimes(synced, written)

    def _sync_head_sometimes(self, before: Position, now: Position) -> None:
        begin = before.bytes if before.segment == now.segment else 0
        self._head_behind_bytes += now.bytes - begin
        if self._head_behind_bytes >= HEAD_SYNC_BYTES:
            self._head.sync()
            self._head_behind_bytes = 0

    def _sync_segment(self, segment: int) -> bool:
        """Whether the segment is there, and now durable."""
        if self._syncing != segment:
            path = segment_path(self._folder, segment)
            try:
                with explained("open", path):
                    descriptor = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                return False
            if self._syncing_descriptor >= 0:
                os.close(self._syncing_descriptor)
            self._syncing, self._syncing_descriptor = segment, descriptor
        self._make_durable(segment, self._syncing_descriptor)
        return True

    def _make_durable(self, segment: int, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise self._doubt(segment, error) from error

    def _doubt(self, segment: int, error: OSError) -> SyncFailedError:
        """What the kernel could not write it may have dropped, and a second sync would not say so.
        So no process may build on it before somebody has read it back from the disk."""
        path = str(segment_path(self._folder, segment))
        failed = SyncFailedError(self.name, path, error.errno, error.strerror or str(error))
        try:
            self._head.set_trust(Trust.DOUBTED, this_boot())
            self._head.sync()
        except DiskError:
            self._doubt_untold = failed
        log.error("%s", failed)
        return failed

    def _refuse_doubt(self, records: Records) -> None:
        if self._doubt_untold is not None:
            raise self._doubt_untold
        if records.trust is Trust.DOUBTED:
            path = str(segment_path(self._folder, records.written.segment))
            raise SyncFailedError(self.name, path, None, "an earlier sync failed")

    def _write(self, written: Position, buffers: list[object], reached: Position) -> None:
        """Writes at the end of the segment, or leaves it as it was."""
        descriptor = self._open_segment(written.segment)
        at = written.bytes
        try:
            for begin in range(0, len(buffers), _WRITE_BUFFERS_MAX):
                views = [
                    memoryview(buffer)  # type: ignore[arg-type]
                    for buffer in buffers[begin : begin + _WRITE_BUFFERS_MAX]
                ]
                while views:
                    done = os.pwritev(descriptor, views, at)
                    at += done
                    while views and done >= len(views[0]):
                        done -= len(views.pop(0))
                    if done:
                        views[0] = views[0][done:]
            self._head.set_written(reached)
        except OSError as error:
            with contextlib.suppress(OSError):  # then the next append puts the rest aside
                os.ftruncate(descriptor, written.bytes)
            raise AppendFailedError(
                f"{self.name}: cannot append: {error.strerror}. Nothing of this append was kept, "
                "and the journal is as before; make room on the disk and append again"
            ) from error

    def _open_segment(self, segment: int) -> int:
        if self._segment != segment:
            if self._segment_descriptor >= 0:
                os.close(self._segment_descriptor)
            self._segment, self._segment_descriptor = None, -1
            path = segment_path(self._folder, segment)
            with explained("open", path):
                self._segment_descriptor = os.open(path, os.O_RDWR)
            self._segment = segment
        return self._segment_descriptor

    # Rolling, retention, suspension: all under the append lock

    def _roll(self, written: Position, collection: Collection) -> Position:
        """Seals the segment and begins the next, with the states of producers in its header."""
        # In a buffered store, too: so a power cut takes rows of its newest segment only.
        self._make_durable(written.segment, self._open_segment(written.segment))
        header = next_header(self.name, self._folder, written, collection, self._registered)
        header = replace(header, identity=self.identity)
        if header.bytes_before is None and collection.retention_bytes is not None:
            before = self._retention.bytes_before(written.segment) + written.bytes
            header = replace(header, bytes_before=before)
        rolled = Position(written.offset, create_segment(self._folder, header), written.offset)
        self._head.set_written(rolled)
        with self._sync_lock, locked(self._sync_descriptor):
            self._head.set_synced(rolled)
        self._head.sync()
        return rolled

    def _apply_retention(self, written: Position, collection: Collection) -> None:
        dropped, first_kept = self._retention.too_many(
            collection, self._head.kept().first_offset, written, time.time()
        )
        if dropped:
            self._drop_segments(dropped, first_kept, suspended=False)

    def drop_before(self, offset: int) -> int:
        """Drops the segments that lie wholly below the offset."""
        with self._append_lock, locked(self._head_descriptor):
            segments = list_segments(self._folder)
            kept = [first for first in segments if first <= offset][-1:] or segments[:1]
            below = [first for first in segments if first < kept[0]]
            if below:
                self._drop_segments(below, kept[0], suspended=False)
            return self._head.kept().first_offset

    def suspend(self, load_collection: Callable[[], Collection]) -> None:
        """Keeps no row at all, only the empty segment that says how to go on."""
        with self._append_lock, locked(self._head_descriptor):
            written, synced = self._sound_end()
            if written.offset != written.segment:
                written = self._roll(written, load_collection())
            elif synced != written:  # rolled by one who died before it said so
                with self._sync_lock, locked(self._sync_descriptor):
                    self._head.set_synced(written)
            below = [first for first in list_segments(self._folder) if first < written.segment]
            self._drop_segments(below, written.segment, suspended=True)

    def _drop_segments(self, segments: list[int], first_kept: int, *, suspended: bool) -> None:
        # The head says so first: a reader that finds a file missing then knows why.
        self._head.set_kept(Kept(first_kept, suspended))
        self._head.sync()
        for first in segments:
            path = segment_path(self._folder, first)
            with explained("remove", path):
                path.unlink(missing_ok=True)
        sync_folder(self._folder)

    # Reading

    def read(self, begin: int, end: int | None, builder: BatchBuilder) -> Iterator[JournalBatch]:
        probe, synced = self.probe(), self._head.synced()
        if begin < probe.first_kept:
            raise OffsetDroppedError(self.name, begin, probe.first_kept)
        end = probe.write_head if end is None else min(end, probe.write_head)
        if begin >= end:
            return
        segments = self._segments()
        if not segments or segments[0] > begin:
            raise self._dropped_or_missing(begin, probe.first_kept)
        for index, first in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else end
            if first >= end or following <= begin:
                continue
            try:
                reader = SegmentReader(self.name, self._folder, first)
            except FileNotFoundError:
                raise self._dropped_or_missing(max(begin, first), first) from None
            with reader:
                place = self._remembered(first, begin) or reader.first_place()
                limit = synced.bytes if first == synced.segment else reader.size()
                offset = place.offset
                for frames in reader.frames(place, limit, skip_below=begin):
                    batch = builder.build(frames).within(begin, end)
                    offset = frames[-1][0].end_offset
                    self._remember(reader.reached)
                    if batch.rows:
                        yield batch
                    if offset >= end:
                        break
                if offset < min(end, following):
                    raise CorruptJournalError(
                        self.name,
                        segment_path(self._folder, first).name,
                        limit,
                        f"rows end at offset {offset}, but the journal goes on at {following}",
                    )

    def _remembered(self, segment: int, offset: int) -> FramePlace | None:
        """The last place before it where a read ended: who goes on from there walks over nothing
        that it has seen, or over the frame in which it stopped."""
        with self._places_lock:
            places = [
                place
                for place in self._places.values()
                if place.segment == segment and place.offset <= offset
            ]
        return max(places, key=lambda place: place.offset, default=None)

    def _remember(self, place: FramePlace | None) -> None:
        if place is None:
            return
        with self._places_lock:
            self._places[place.offset] = place
            self._places.move_to_end(place.offset)
            if len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)

    def _segments(self) -> list[int]:
        try:
            return list_segments(self._folder)
        except FileNotFoundError:
            raise UnknownJournalError(self.name) from None

    def _dropped_or_missing(self, offset: int, segment: int) -> PenstockError:
        """Why there is no file for an offset: retention came first, or the file was lost."""
        first_kept = self.probe().first_kept
        if offset < first_kept:
            return OffsetDroppedError(self.name, offset, first_kept)
        return missing(self.name, self._folder, segment)

    def wait(self, beyond: int, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        step = _WAIT_STEP_S_MIN
        while (head := self.probe().write_head) <= beyond:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(step, left))
            step = min(step * 2, _WAIT_STEP_S_MAX)
        return head

    def ranges(self, begin: int, end: int) -> list[Range]:
        cuts = [first for first in self._segments() if begin < first < end]
        bounds = [begin, *cuts, end]
        return [
            Range(self.name, low, high) for low, high in itertools.pairwise(bounds) if low < high
        ]

    def states(self, at: int) -> tuple[int, States]:
        header = self._header_before(at)
        if header.fault is not None:
            name = segment_path(self._folder, header.first_offset).name
            raise CorruptJournalError(self.name, name, 0, header.fault)
        return header.first_offset, header.columns.to_dict()

    def departures(self, at: int) -> Iterator[tuple[int, Mapping[int, ProducerState]]]:
        header: SegmentHeader | None = self._header_before(at)
        while header is not None:
            if header.departed:
                yield header.first_offset, header.departed
            before = header.departed_before
            try:
                header = None if before is None else self._header(before)
            except FileNotFoundError:
                if before is not None and before >= self.probe().first_kept:
                    raise missing(self.name, self._folder, before) from None
                return  # dropped, and with it all rows of those who departed there

    def _header_before(self, at: int) -> SegmentHeader:
        segments = [first for first in self._segments() if first <= at]
        if not segments:
            raise OffsetDroppedError(self.name, at, self.probe().first_kept)
        try:
            return self._header(segments[-1])
        except FileNotFoundError:
            raise self._dropped_or_missing(at, segments[-1]) from None

    def _header(self, segment: int) -> SegmentHeader:
        with SegmentReader(self.name, self._folder, segment) as reader:
            return reader.header()[0]

    def _sound_end(self) -> tuple[Position, Position]:
        """Up to where the journal is written and synced, after mending what a killed process left
        behind its end. Under the append lock."""
        try:
            records = self._head.all()
        except DamagedHeadError:
            pass
        else:
            self._refuse_doubt(records)
            written, synced = records.written, records.synced
            try:
                size = os.fstat(self._open_segment(written.segment)).st_size
            except FileNotFoundError:
                size = -1
            told = size == written.bytes and synced.offset <= written.offset
            if told and not goes_on(written, self._folder):
                return written, synced
        with self._sync_lock, locked(self._sync_descriptor):
            reached = self._end.find()
        return reached, reached


def probe_head(name: str, folder: Path, *, to_disk: bool) -> Probe | None:
    """Probes a journal that is not open: one small file is read, and another's size. None if the
    two do not fit: then an append is under way, or the head is from before a power cut."""
    try:
        with explained("open", folder / "head"):
            descriptor = os.open(folder / "head", os.O_RDONLY)
    except FileNotFoundError:
        if is_journal(folder):
            return None
        raise UnknownJournalError(name) from None
    try:
        head = Head(descriptor)
        if unrest(head, folder, to_disk=to_disk) is not None:
            return None
        return _probe(head, identity_of(name, folder, descriptor))
    finally:
        os.close(descriptor)


def _open_head(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether it may be written: a store may be one to read only."""
    try:
        return os.open(path, os.O_RDWR), True
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        return os.open(path, os.O_RDONLY), False


def find_identity(name: str, folder: Path) -> str | None:
    """The identity of the journal in a folder; None if there is no journal."""
    try:
        with explained("open", folder / "head"):
            descriptor = os.open(folder / "head", os.O_RDONLY)
    except FileNotFoundError:
        return identity_of(name, folder, None) if is_journal(folder) else None
    try:
        return identity_of(name, folder, descriptor)
    finally:
        os.close(descriptor)


def _probe(head: Head, identity: str) -> Probe:
    kept, synced = head.kept(), head.synced()
    write_head = max(synced.offset, kept.first_offset)
    return Probe(kept.first_offset, write_head, kept.suspended, identity)
