"""A Queue's log: blocks appended to segment files, and made durable on demand.

One thread appends and reclaims; another may sync at the same time, and a third compress.

1. **Append** writes a block behind the last one. Nothing is promised yet.
2. **Sync** makes durable what was written: the files, and the folder if there are new ones.
3. **Roll.** The first block that finds its segment full begins the next one.
4. **Open** at an epoch's LSN cuts everything behind it off: it is written again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from typing import TYPE_CHECKING, Final

from penstock.disk import explained, make_folder, sync_folder, write_new_file
from penstock.errors import CorruptStorageError, LocalProtocolError
from penstock.shuffle.queue.block import EncodedPart, Introduced, PartEncoder, encode_block
from penstock.shuffle.queue.catalogue import Catalogue
from penstock.shuffle.queue.errors import (
    CorruptQueueError,
    QueueInUseError,
    QueueLostError,
    QueueWriteError,
)
from penstock.shuffle.queue.segment import (
    FLOOR_NAME,
    TEMPORARY_SUFFIX,
    Floor,
    SegmentHeader,
    list_segments,
    lsn_of,
    read_floor,
    segment_of,
    segment_path,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Names, Order, Parcel, Piece

SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A segment that has this much is full. Segments are what reclaim frees, and compress rewrites."""
SEGMENT_BLOCKS_MAX: Final = 256
"""Or so many blocks, which is far below what an LSN has room for. A reader looks at every block
of the segments that are left: with documents that trickle in, blocks are small, and 64 MiB of them
would be looked at, over and over, for a few rows at their end."""
_PIECES_MAX: Final = 1024
"""As many the system takes in one call."""


class QueueLog:
    """Made by `open`."""

    def __init__(self, folder: Path, floor: Floor, segment_bytes_max: int) -> None:
        self.folder = folder
        self.catalogue = Catalogue(folder)
        self.last_lsn = 0
        self.durable_lsn = 0
        self._floor = floor
        self._segment_bytes_max = segment_bytes_max
        self._encoder = PartEncoder()
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()
        """Held where files change places: not while anything is written or synced."""
        self._syncing = threading.Lock()
        """One sync at a time: a flush and an epoch may both ask for one."""
        self._unsynced: list[int] = []
        """Descriptors of segments that have something to sync; the last is being written."""
        self._folder_changed = False
        self._broken: str | None = None
        # Of the segment that is being written:
        self._descriptor: int | None = None
        self._header = SegmentHeader(floor.generation, 0, 0)
        self._blocks = 0
        self._is_of_survivors = False
        """A block of survivors is alone in its segment."""
        self._names: dict[int, tuple[int, str]] = {}
        self._schemas: dict[Stage, pa.Schema] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        lsn: int,
        *,
        generation: int | None = None,
        discard: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> QueueLog:
        """The queue as it was at this LSN. At 0 one begins: in an empty folder, or, with
        `discard`, in place of what is there. If a `generation` is given, the queue that has it:
        one that was begun later has LSNs too, of other rows."""
        make_folder(folder)
        if lsn == 0:
            return cls(folder, _begin(folder, discard=discard), segment_bytes_max)
        try:
            floor = read_floor(folder)
        except CorruptStorageError as error:
            raise QueueLostError(str(folder), segment_of(lsn), str(error)) from error
        if floor is None:
            raise QueueLostError(str(folder), segment_of(lsn), "the folder holds no queue")
        if generation not in (None, floor.generation):
            raise QueueLostError(str(folder), segment_of(lsn), "the queue was begun anew since")
        log = cls(folder, floor, segment_bytes_max)
        log._resume(lsn)
        return log

    @property
    def generation(self) -> int:
        return self._floor.generation

    @property
    def first_segment(self) -> int:
        return self._floor.first_segment

    @property
    def segment(self) -> int:
        """The one that is being written. Those before it are sealed."""
        return self._header.segment

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        with self._lock:
            return sum(self._sizes.values())

    def append(
        self,
        parts: Sequence[Parcel],
        order: Order | None,
        reads: Names,
        *,
        stands_for: Sequence[int] = (),
        gives: Sequence[int] = (),
    ) -> int:
        """Writes a block, and gives its LSN. It is not durable yet. `order` has, for every place
        in the block, the number of the row there, counted over all parts; None if the parts simply
        follow each other. `reads` has names of at least the reads that occur. A block that `gives`
        vnodes away, or stands for segments, may have no rows."""
        self._check()
        encoded, order = self._encoder.encode(parts, order)
        if not encoded and not gives and not stands_for:
            raise LocalProtocolError("a block without rows; append when there are some")
        is_alone = bool(stands_for) or self._is_of_survivors
        if self._is_full() or (is_alone and self._blocks):
            self._roll()
        lsn = lsn_of(self.segment, self._blocks)
        named = self._new_names(encoded, reads)
        schemas = {
            stage: batch.schema
            for stage, batch in parts
            if batch.num_rows and stage not in self._schemas
        }
        introduced = Introduced(named, schemas)
        pieces = encode_block(lsn, encoded, order, introduced, stands_for, gives=gives)
        # The first block takes the segment's header with it.
        self._write(pieces if self._sizes[self.segment] else [self._header.encode(), *pieces])
        self._names.update(named)
        self._schemas.update(schemas)
        self._blocks += 1
        self._is_of_survivors = bool(stands_for)
        self.last_lsn = lsn
        return lsn

    def sync(self) -> int:
        """Makes durable what was written before the call, and gives its LSN."""
        with self._syncing:
            return self._sync()

    def _sync(self) -> int:
        self._check()
        with self._lock:
            lsn, current = self.last_lsn, self._descriptor
            if lsn == self.durable_lsn:
                return lsn
            descriptors, folder_changed = list(self._unsynced), self._folder_changed
            self._folder_changed = False
        try:
            for descriptor in descriptors:
                os.fdatasync(descriptor)
            if folder_changed:
                sync_folder(self.folder)
        except OSError as error:
            # What the system could not write it may have dropped: a second sync proves nothing.
            self._broken = f"a sync failed ({error})"
            raise QueueWriteError(
                f"{self.folder}: {self._broken}; open the queue again at its last epoch"
            ) from error
        with self._lock:
            for descriptor in descriptors:
                if descriptor != current:  # nothing was written to it since
                    self._unsynced.remove(descriptor)
                    os.close(descriptor)
        self.durable_lsn = lsn
        return lsn

    def drop(self, first_segment: int, consumed_lsn: int) -> int:
        """Drops the segments below the first that is needed; gives the bytes that are freed."""
        self._check()
        floor = Floor(self._floor.generation, first_segment, consumed_lsn)
        _write_floor(self.folder, floor)
        freed = 0
        with self._lock:
            for segment in range(self._floor.first_segment, first_segment):
                segment_path(self.folder, segment).unlink()
                freed += self._sizes.pop(segment)
            self._floor = floor
        self.catalogue.forget(below=first_segment)
        return freed

    def replace(self, segment: int, temporary: Path) -> bool:
        """Puts a rewritten file in the place of a sealed segment, unless that was dropped."""
        with self._lock:
            if segment not in self._sizes:
                temporary.unlink()
                return False
            self._sizes[segment] = temporary.stat().st_size
            temporary.rename(segment_path(self.folder, segment))
        sync_folder(self.folder)
        return True

    def close(self) -> None:
        """Lets go of the files. Nothing is synced."""
        self._broken = "it was closed"
        for descriptor in {*self._unsynced, self._descriptor} - {None}:
            os.close(descriptor)  # type: ignore[arg-type] # None was taken out
        self._unsynced.clear()
        self._descriptor = None
        self.catalogue.forget()

    def __enter__(self) -> QueueLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._broken is not None:
            raise LocalProtocolError(
                f"the queue in {self.folder} cannot go on: {self._broken}. Open it again at its "
                "last epoch"
            )

    def _resume(self, lsn: int) -> None:
        """Cuts everything behind the LSN off, once it is known that nothing before is missing."""
        last = segment_of(lsn)
        try:
            self.catalogue.view(lsn)
        except CorruptQueueError as error:
            raise QueueLostError(str(self.folder), error.segment, str(error)) from error
        except LocalProtocolError as error:
            raise QueueLostError(str(self.folder), last, str(error)) from error
        for name in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            name.unlink()
        for segment in reversed(list_segments(self.folder)):
            path = segment_path(self.folder, segment)
            if self._floor.first_segment <= segment <= last:
                self._sizes[segment] = path.stat().st_size
            else:
                path.unlink()
        sync_folder(self.folder)
        tail = self.catalogue.segment(last)
        self._header, self._blocks = tail.header, len(tail.loaded)
        self._is_of_survivors = bool(tail.loaded[-1].block.stands_for)
        self._names, self._schemas = dict(tail.names), dict(tail.schemas)
        for stage, schema in tail.schemas.items():
            self._encoder.expect(stage, schema)
        with explained("cut the end of", tail.path):
            self._descriptor = os.open(tail.path, os.O_RDWR)
            self._unsynced = [self._descriptor]
            if self._sizes[last] != tail.end:
                os.ftruncate(self._descriptor, tail.end)
                os.fsync(self._descriptor)
                self._sizes[last] = tail.end
        self.last_lsn = self.durable_lsn = lsn

    def _is_full(self) -> bool:
        return (
            self.segment == 0
            or self._sizes[self.segment] >= self._segment_bytes_max
            or self._blocks >= SEGMENT_BLOCKS_MAX
        )

    def _roll(self) -> None:
        """Begins the next segment."""
        header = SegmentHeader(self._floor.generation, self.segment + 1, self._blocks)
        path = segment_path(self.folder, header.segment)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise QueueWriteError(f"{path} cannot be made ({error}); make room, go on") from error
        with self._lock:
            self._descriptor = descriptor
            self._unsynced.append(descriptor)
            self._folder_changed = True
            self._header, self._blocks = header, 0
            self._sizes[header.segment] = 0
        self._names, self._schemas = {}, {}

    def _new_names(self, parts: Sequence[EncodedPart], reads: Names) -> dict[int, tuple[int, str]]:
        """Those that the segment does not have, or has for something else."""
        named = {}
        for part in parts:
            for read in set(part.groups["read"].tolist()):
                name = reads.get(read)
                if name is None or name[0] != part.stage.binding:
                    raise LocalProtocolError(
                        f"{part.stage} has rows of read {read}, which is "
                        f"{'unknown' if name is None else f'of binding {name[0]}'}"
                    )
                if self._names.get(read) != name:
                    named[read] = name
        return named

    def _write(self, pieces: Sequence[Piece]) -> None:
        if self._descriptor is None:
            raise LocalProtocolError("no segment is open")
        begin = self._sizes[self.segment]
        try:
            end = _write_all(self._descriptor, pieces, begin)
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, begin)
            except OSError as second:
                self._broken = f"a block was written in part ({error}; {second})"
            raise QueueWriteError(
                f"{segment_path(self.folder, self.segment)}: the disk refused a block ({error}). "
                "Nothing before it is lost; make room, and append it again"
            ) from error
        with self._lock:
            self._sizes[self.segment] = end


def _begin(folder: Path, *, discard: bool) -> Floor:
    segments = list_segments(folder)
    if segments and not discard:
        raise QueueInUseError(
            f"{folder} holds {len(segments)} segments of a queue; open it at its epoch's LSN, or "
            "discard it if all queues are to begin anew"
        )
    # First the new floor: from here on nobody takes the old files for part of a queue.
    floor = Floor(secrets.randbits(64), 1, 0)
    _write_floor(folder, floor)
    for segment in reversed(segments):
        segment_path(folder, segment).unlink()
    for name in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        name.unlink()
    sync_folder(folder)
    return floor


def _write_floor(folder: Path, floor: Floor) -> None:
    temporary = folder / f".{FLOOR_NAME}{TEMPORARY_SUFFIX}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    try:
        write_new_file(temporary, [floor.encode()])
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not (folder / FLOOR_NAME).exists():
            raise
        # On a full disk nothing could be dropped if this needed room. It is far less than a sector.
        with explained("write", folder / FLOOR_NAME):
            descriptor = os.open(folder / FLOOR_NAME, os.O_WRONLY)
            try:
                os.pwrite(descriptor, floor.encode(), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return
    with explained("write", folder / FLOOR_NAME):
        temporary.rename(folder / FLOOR_NAME)
    sync_folder(folder)


def _write_all(descriptor: int, pieces: Sequence[Piece], position: int) -> int:
    """Gathers the pieces into as few calls as possible; gives the position behind them."""
    for begin in range(0, len(pieces), _PIECES_MAX):
        gathered = pieces[begin : begin + _PIECES_MAX]
        end = position + sum(map(len, gathered))
        position += os.pwritev(descriptor, gathered, position)
        if position < end:  # a signal came, or the disk is nearly full
            position = _write_rest(descriptor, gathered, position, end)
    return position


def _write_rest(descriptor: int, pieces: Sequence[Piece], position: int, end: int) -> int:
    rest = memoryview(b"".join(pieces))
    while position < end:
        position += os.pwrite(descriptor, rest[len(rest) - (end - position) :], position)
    return position
