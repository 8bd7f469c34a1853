"""One journal on disk: appends in one order over all processes, reads without a lock.

The head's `written` record is only changed under the head file's lock, `synced` only under the
sync lock; readers see nothing beyond `synced`. What a killed appender leaves behind `written` is
looked at by whoever takes the lock next: whole frames stay, a torn one is cut.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.journal.errors import CorruptJournalError, OffsetDroppedError, UnknownJournalError
from penstock.journal.file.durable import locked, make_folder, replace_file, sync_folder
from penstock.journal.file.head import DamagedHeadError, Head, Kept, Position, new_head
from penstock.journal.file.segment import (
    BatchBuilder,
    SegmentHeader,
    SegmentReader,
    create_segment,
    list_segments,
    segment_path,
)
from penstock.journal.store import Appended, JournalBatch, Probe, Range, States
from penstock.sequence import SequenceFaultError, sequence_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.journal.collection import Collection
    from penstock.journal.frames import Payload

_WRITE_BUFFERS_MAX: Final = 512
"""Buffers in one gathered write; Linux takes 1,024 at most."""
_WAIT_STEP_S_MIN, _WAIT_STEP_S_MAX = 0.0005, 0.02

log = logging.getLogger(__name__)


class AppendFailedError(PenstockError):
    """The disk refused an append: full, or broken. The journal is as before; mend it, try again."""


class JournalFile:
    """The open files of one journal in this process. Threads share it."""

    def __init__(self, name: str, folder: Path, segment_bytes_max: int) -> None:
        self.name = name
        self._folder = folder
        self._segment_bytes_max = segment_bytes_max
        try:
            self._head_descriptor = os.open(folder / "head", os.O_RDWR)
        except FileNotFoundError:
            raise UnknownJournalError(name) from None
        self._sync_descriptor = os.open(folder / "sync.lock", os.O_RDWR | os.O_CREAT, 0o644)
        self._head = Head(self._head_descriptor)
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._segment: int | None = None
        self._segment_descriptor = -1
        self._check_tail()

    @staticmethod
    def create(name: str, folder: Path, collection: Collection) -> None:
        """Makes an empty journal; the head is written last, and with it the journal exists."""
        make_folder(folder)
        header = SegmentHeader(name, 0, collection.to_json())
        size = create_segment(folder, header)
        replace_file(folder / "head", new_head(Position(0, size, 0), Kept(0, suspended=False)))

    def close(self) -> None:
        for descriptor in (self._head_descriptor, self._sync_descriptor, self._segment_descriptor):
            if descriptor >= 0:
                os.close(descriptor)

    def probe(self) -> Probe:
        return _probe(self._head)

    # Appending

    def append(
        self,
        payloads: Sequence[Payload],
        check_open: Callable[[], None],
        collection: Collection,
    ) -> Appended:
        with self._append_lock, locked(self._head_descriptor):
            written = self._written_and_sound()
            check_open()
            if written.bytes >= self._segment_bytes_max:
                written = self._roll(written, collection)
                self._apply_retention(collection)
            buffers: list[object] = []
            offset, size = written.offset, written.bytes
            appended_us = time.time_ns() // 1_000
            for payload in payloads:
                buffers += [payload.header(offset, appended_us), payload.body]
                offset += payload.rows
                size += payload.frame_bytes
            self._write(written, buffers)
            self._head.set_written(Position(written.segment, size, offset))
            if self._head.kept().suspended:
                self._head.set_kept(Kept(written.offset, suspended=False))
        return Appended(written.offset, offset)

    def sync(self, through: int, *, to_disk: bool) -> None:
        """Group commit: whoever holds the sync lock makes everything written so far durable, and
        those who waited for the lock find their rows covered."""
        if self._head.synced().offset >= through:
            return
        with self._sync_lock, locked(self._sync_descriptor):
            if self._head.synced().offset >= through:
                return
            written = self._head.written()
            if to_disk:
                descriptor = os.open(segment_path(self._folder, written.segment), os.O_RDWR)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            self._head.set_synced(written)

    def _write(self, written: Position, buffers: list[object]) -> None:
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
        except OSError as error:
            os.ftruncate(descriptor, written.bytes)
            raise AppendFailedError(
                f"{self.name}: cannot append: {error.strerror}. Nothing of this append was kept, "
                "and the journal is as before; make room on the disk and append again"
            ) from error

    def _open_segment(self, segment: int) -> int:
        if self._segment != segment:
            if self._segment_descriptor >= 0:
                os.close(self._segment_descriptor)
            self._segment_descriptor = os.open(segment_path(self._folder, segment), os.O_RDWR)
            self._segment = segment
        return self._segment_descriptor

    # Rolling, retention, suspension: all under the append lock

    def _roll(self, written: Position, collection: Collection) -> Position:
        """Seals the segment and begins the next, with the states of all producers in its header."""
        os.fdatasync(self._open_segment(written.segment))
        states, fault = self._states_at_end(written, collection)
        header = SegmentHeader(self.name, written.offset, collection.to_json(), states, fault)
        rolled = Position(written.offset, create_segment(self._folder, header), written.offset)
        self._head.set_written(rolled)
        return rolled

    def _states_at_end(
        self, written: Position, collection: Collection
    ) -> tuple[States, str | None]:
        with SegmentReader(self.name, self._folder, written.segment) as reader:
            header, position = reader.header()
            states, fault = header.states, header.fault
            builder = BatchBuilder(self.name, collection, columns=())
            for frames in reader.frames(position, header.first_offset, written.bytes):
                if fault is not None:
                    break
                batch = builder.build(frames)
                found = sequence_batch(
                    batch.offsets, batch.producers, batch.clocks, batch.flags, states
                )
                states = found.states
                try:
                    found.raise_fault(self.name)
                except SequenceFaultError as error:
                    # Appends go on: it is the readers who must be told.
                    fault = str(error)
        return states, fault

    def _apply_retention(self, collection: Collection) -> None:
        segments = list_segments(self._folder)
        sizes = [segment_path(self._folder, first).stat() for first in segments]
        keep_from = 0
        if collection.retention_seconds is not None:
            oldest = time.time() - collection.retention_seconds
            while keep_from < len(segments) - 1 and sizes[keep_from].st_mtime < oldest:
                keep_from += 1
        if collection.retention_bytes is not None:
            total = sum(stat.st_size for stat in sizes[keep_from:])
            while keep_from < len(segments) - 1 and total > collection.retention_bytes:
                total -= sizes[keep_from].st_size
                keep_from += 1
        if keep_from:
            self._drop_segments(segments[:keep_from], segments[keep_from], suspended=False)

    def drop_before(self, offset: int) -> int:
        """Drops the segments that lie wholly below the offset."""
        with self._append_lock, locked(self._head_descriptor):
            segments = list_segments(self._folder)
            kept = [first for first in segments if first <= offset][-1:] or segments[:1]
            below = [first for first in segments if first < kept[0]]
            if below:
                self._drop_segments(below, kept[0], suspended=False)
            return self._head.kept().first_offset

    def suspend(self, collection: Collection) -> None:
        """Keeps no row at all, only the empty segment that says how to go on."""
        with self._append_lock, locked(self._head_descriptor):
            written = self._written_and_sound()
            if written.offset != written.segment:
                written = self._roll(written, collection)
            with self._sync_lock, locked(self._sync_descriptor):
                self._head.set_synced(written)
            below = [first for first in list_segments(self._folder) if first < written.segment]
            self._drop_segments(below, written.segment, suspended=True)

    def _drop_segments(self, segments: list[int], first_kept: int, *, suspended: bool) -> None:
        # The head says so first: a reader that finds a file missing then knows why.
        self._head.set_kept(Kept(first_kept, suspended))
        os.fsync(self._head_descriptor)
        for first in segments:
            segment_path(self._folder, first).unlink(missing_ok=True)
        sync_folder(self._folder)

    # Reading

    def read(self, begin: int, end: int | None, builder: BatchBuilder) -> Iterator[JournalBatch]:
        probe, synced = self.probe(), self._head.synced()
        if begin < probe.first_kept:
            raise OffsetDroppedError(self.name, begin, probe.first_kept)
        end = probe.write_head if end is None else min(end, probe.write_head)
        if begin >= end:
            return
        segments = list_segments(self._folder)
        for index, first in enumerate(segments):
            following = segments[index + 1] if index + 1 < len(segments) else None
            if first >= end or (following is not None and following <= begin):
                continue
            try:
                reader = SegmentReader(self.name, self._folder, first)
            except FileNotFoundError:
                raise OffsetDroppedError(
                    self.name, max(begin, first), self.probe().first_kept
                ) from None
            with reader:
                header, position = reader.header()
                limit = synced.bytes if first == synced.segment else reader.size()
                offset = header.first_offset
                for frames in reader.frames(position, offset, limit, skip_below=begin):
                    batch = _clipped(builder.build(frames), begin, end)
                    offset = frames[-1][0].end_offset
                    if batch.rows:
                        yield batch
                    if offset >= end:
                        break
                if offset < min(end, following if following is not None else end):
                    raise CorruptJournalError(
                        self.name,
                        segment_path(self._folder, first).name,
                        limit,
                        f"rows end at offset {offset}, but the journal goes on at {following}",
                    )

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
        cuts = [first for first in list_segments(self._folder) if begin < first < end]
        bounds = [begin, *cuts, end]
        return [
            Range(self.name, low, high) for low, high in itertools.pairwise(bounds) if low < high
        ]

    def states(self, at: int) -> tuple[int, States]:
        segments = [first for first in list_segments(self._folder) if first <= at]
        if not segments:
            raise OffsetDroppedError(self.name, at, self.probe().first_kept)
        with SegmentReader(self.name, self._folder, segments[-1]) as reader:
            header, _ = reader.header()
        if header.fault is not None:
            raise CorruptJournalError(
                self.name, segment_path(self._folder, segments[-1]).name, 0, header.fault
            )
        return header.first_offset, header.states

    # Repair: under the append lock

    def _check_tail(self) -> None:
        """At opening: if the files go on behind the head, nobody may be appending just now."""
        try:
            written = self._head.written()
            self._head.synced()
            self._head.kept()
            size = segment_path(self._folder, written.segment).stat().st_size
        except (DamagedHeadError, FileNotFoundError):
            written, size = None, 0
        if written is None or size != written.bytes:
            with self._append_lock, locked(self._head_descriptor):
                self._written_and_sound()

    def _written_and_sound(self) -> Position:
        """The end of the journal, after mending what a killed process left behind it."""
        try:
            written, synced = self._head.written(), self._head.synced()
            kept = self._head.kept()
        except DamagedHeadError:
            return self._rebuild_head()
        try:
            size = os.fstat(self._open_segment(written.segment)).st_size
        except FileNotFoundError:
            size = -1
        newest = segment_path(self._folder, written.offset)
        unpublished = written.offset != written.segment and newest.exists()
        if size == written.bytes and not unpublished and synced.offset <= written.offset:
            return written
        # Everything below `synced` was durable; look from there. Frames that are whole stay: they
        # may have been acknowledged before a power cut took the newer head with it.
        start = synced if synced.offset >= kept.first_offset else None
        return self._mend(start)

    def _rebuild_head(self) -> Position:
        """The head is damaged: start over from the first frame of the newest segment."""
        segments = list_segments(self._folder)
        if not segments:
            raise CorruptJournalError(self.name, "head", 0, "the journal has no segments")
        self._head.set_kept(Kept(segments[0], suspended=False))
        log.warning("%s: its head was damaged; rebuilding it from its segments", self.name)
        return self._mend(None)

    def _mend(self, start: Position | None) -> Position:
        segments = list_segments(self._folder)
        if start is None:
            first = segments[-1]
            with SegmentReader(self.name, self._folder, first) as reader:
                header, position = reader.header()
                start = Position(first, position, header.first_offset)
        reached = start
        while True:
            path = segment_path(self._folder, reached.segment)
            with SegmentReader(self.name, self._folder, reached.segment) as reader:
                if reader.size() < reached.bytes:
                    raise CorruptJournalError(
                        self.name,
                        path.name,
                        reader.size(),
                        f"the file is shorter than the {reached.bytes} bytes that were durable",
                    )
                position, offset, damage = reader.scan(reached.bytes, reached.offset)
                size = reader.size()
            following = [first for first in segments if first > reached.segment]
            if damage is not None and following:
                raise CorruptJournalError(self.name, path.name, position, damage)
            if damage is not None:
                log.warning(
                    "%s: cut %d bytes of an unfinished append from the end of %s (%s)",
                    self.name,
                    size - position,
                    path.name,
                    damage,
                )
                os.truncate(path, position)
            reached = Position(reached.segment, position, offset)
            if not following:
                break
            if following[0] != offset:
                raise CorruptJournalError(
                    self.name, path.name, position, f"rows end at {offset}, not {following[0]}"
                )
            with SegmentReader(self.name, self._folder, following[0]) as reader:
                header, position = reader.header()
            reached = Position(following[0], position, header.first_offset)
        os.fdatasync(self._open_segment(reached.segment))
        self._head.set_written(reached)
        with self._sync_lock, locked(self._sync_descriptor):
            self._head.set_synced(reached)
        return reached


def probe_head(name: str, folder: Path) -> Probe:
    """Probes a journal that is not open: one small file is read."""
    try:
        descriptor = os.open(folder / "head", os.O_RDONLY)
    except FileNotFoundError:
        raise UnknownJournalError(name) from None
    try:
        return _probe(Head(descriptor))
    finally:
        os.close(descriptor)


def _probe(head: Head) -> Probe:
    kept, synced = head.kept(), head.synced()
    return Probe(kept.first_offset, max(synced.offset, kept.first_offset), kept.suspended)


def _clipped(batch: JournalBatch, begin: int, end: int) -> JournalBatch:
    """The rows of the batch within [begin, end)."""
    low = max(begin - batch.first_offset, 0)
    high = min(end - batch.first_offset, batch.rows)
    if low == 0 and high == batch.rows:
        return batch
    return JournalBatch(
        batch.journal,
        batch.first_offset + low,
        batch.producers[low:high],
        batch.clocks[low:high],
        batch.flags[low:high],
        batch.documents.slice(low, max(high - low, 0)),
        {row - low: hints for row, hints in batch.hints.items() if low <= row < high},
    )
