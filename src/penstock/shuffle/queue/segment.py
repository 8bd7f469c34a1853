"""Segment files, as they lie in a Queue's folder, and the floor below which there are none.

A segment is a header and blocks. Its header has the number of blocks of the segment before it: a
segment that lost its last blocks is found out. A file that was rewritten (compressed) is another
inode, and the old one stays whole for who has it open.
"""

from __future__ import annotations

import os
import struct
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checksum import checksum
from penstock.disk import explained, read_file
from penstock.shuffle.queue.block import (
    Block,
    DamagedBlockError,
    decode_block,
    decode_order,
    decode_part,
)
from penstock.shuffle.queue.errors import CorruptQueueError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Names, Order, PartEntry

SEGMENT_MAGIC: Final = b"PSTKQSEG"
FLOOR_MAGIC: Final = b"PSTKQFLR"
VERSION: Final = 1
COMPRESSED: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQQQ")
_SUFFIX: Final = ".queue"
TEMPORARY_SUFFIX: Final = ".tmp"
FLOOR_NAME: Final = "floor"
HEADER_BYTES: Final = _HEADER.size


def lsn_of(segment: int, block: int) -> int:
    return segment << 16 | block


def segment_of(lsn: int) -> int:
    return lsn >> 16


def segment_path(folder: Path, segment: int) -> Path:
    return folder / f"{segment:012x}{_SUFFIX}"


def list_segments(folder: Path) -> list[int]:
    with os.scandir(folder) as entries:
        return sorted(
            int(entry.name.removesuffix(_SUFFIX), 16)
            for entry in entries
            if entry.name.endswith(_SUFFIX)
        )


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    generation: int
    segment: int
    blocks_before: int
    """How many blocks the segment before this one has."""
    compressed: bool = False

    def encode(self) -> bytes:
        flags = COMPRESSED if self.compressed else 0
        return _seal(SEGMENT_MAGIC, flags, self.generation, self.segment, self.blocks_before)

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader:
        flags, generation, segment, blocks_before = _unseal(SEGMENT_MAGIC, data)
        if flags & ~COMPRESSED:
            raise DamagedBlockError(f"the file has flags that are not known here ({flags:#x})")
        return cls(generation, segment, blocks_before, bool(flags & COMPRESSED))


@dataclass(frozen=True, slots=True)
class Floor:
    """Which queue this is, and what of it was dropped on purpose."""

    generation: int
    """Drawn anew when a queue begins: files of different queues are never taken for one."""
    first_segment: int
    lsn: int
    """The consumer is done with an epoch of this LSN: nobody reads, or cuts, below it."""

    def encode(self) -> bytes:
        return _seal(FLOOR_MAGIC, 0, self.generation, self.first_segment, self.lsn)

    @classmethod
    def decode(cls, data: bytes) -> Floor:
        flags, *fields = _unseal(FLOOR_MAGIC, data)
        if flags:
            raise DamagedBlockError(f"the file has flags that are not known here ({flags:#x})")
        return cls(*fields)


def _seal(magic: bytes, flags: int, *fields: int) -> bytes:
    unchecked = _HEADER.pack(magic, VERSION, flags, *fields, 0)[:-8]
    return _HEADER.pack(magic, VERSION, flags, *fields, checksum(unchecked))


def _unseal(magic: bytes, data: bytes) -> tuple[int, int, int, int]:
    if len(data) != _HEADER.size:
        raise DamagedBlockError(f"the file ends after {len(data)} bytes, within its header")
    found, version, flags, first, second, third, header_sum = _HEADER.unpack(data)
    if found != magic or checksum(data[:-8]) != header_sum:
        raise DamagedBlockError("the file's header does not match its checksum")
    if version != VERSION:
        raise DamagedBlockError(f"the file is of format {version}; this reads {VERSION}")
    return flags, first, second, third


def read_floor(folder: Path) -> Floor | None:
    """The floor, or None if no queue ever began here."""
    path = folder / FLOOR_NAME
    try:
        return Floor.decode(read_file(path))
    except FileNotFoundError:
        return None
    except DamagedBlockError as error:
        raise CorruptQueueError(str(path), 0, 0, str(error)) from None


Bytes: TypeAlias = "FileBytes | pa.Buffer"
"""Of a segment: in its file, or in memory."""


class SegmentReplacedError(Exception):
    """The file was compressed meanwhile. Open it again, from its beginning."""


class ReadIds:
    """Small numbers for reads, whatever numbers they had when their rows were stored."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, str], int] = {}

    def of(self, binding: int, journal: str) -> int:
        return self._ids.setdefault((binding, journal), len(self._ids))

    def find(self, binding: int, journal: str) -> int:
        """-1 if no row of that read was ever seen."""
        return self._ids.get((binding, journal), -1)


@dataclass(frozen=True, slots=True, eq=False)
class Rollbacks:
    """Of one block, or of several."""

    blocks: npt.NDArray[np.int64]
    """The places of their blocks in a view."""
    places: npt.NDArray[np.uint32]
    """Their places in the order of their block."""
    reads: npt.NDArray[np.int64]
    producers: npt.NDArray[np.int64]
    after: npt.NDArray[np.uint64]
    through: npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class Loaded:
    """A block that was found in a segment, with what its numbers stand for."""

    segment: OpenSegment
    block: Block
    names: Names
    reads: npt.NDArray[np.int64]
    """Per group, the read's id."""
    rollbacks: Rollbacks | None = None
    """Taken out of the block's parts when they are first asked for."""

    def decode(self, part: PartEntry) -> pa.RecordBatch:
        return self.segment.decode(self.block, part)

    def order(self) -> Order | None:
        return self.segment.order(self.block)

    def places(self) -> list[Order]:
        """For each part, the places of its rows among those of the block, ascending."""
        places = np.arange(self.block.rows, dtype=np.uint32)
        order = self.order()
        if order is not None:
            places[order] = places.copy()
        return np.split(places, np.cumsum([part.rows for part in self.block.parts])[:-1])


class FileBytes:
    """The bytes of an open file, as they are asked for. They are read and not mapped into memory:
    of a mapped file, a bad sector ends the process by a signal."""

    def __init__(self, path: Path) -> None:
        with explained("read", path):
            self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    def slice(self, begin: int, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        view, done = memoryview(buffer), 0
        while done < size:
            try:
                read = os.preadv(self._descriptor, [view[done:]], begin + done)
            except OSError as error:
                raise DamagedBlockError(
                    f"the disk cannot read bytes {begin + done} to {begin + size - 1} "
                    f"({error.strerror})"
                ) from error
            if not read:
                raise DamagedBlockError(f"the file ends at byte {begin + done}")
            done += read
        return buffer


class OpenSegment:
    """One open segment file. Blocks are looked at when they are asked for."""

    def __init__(
        self,
        folder: Path,
        segment: int,
        generation: int,
        ids: ReadIds,
        *,
        path: Path | None = None,
    ) -> None:
        """`path` if the file lies elsewhere than in its queue's folder."""
        self.path = segment_path(folder, segment) if path is None else path
        self.segment = segment
        self.loaded: list[Loaded] = []
        self._ids = ids
        self._names: dict[int, tuple[int, str]] = {}
        self._read_ids: dict[int, int] = {}
        self.schemas: dict[Stage, pa.Schema] = {}
        self._data: Bytes = self._open()
        try:
            self.header = SegmentHeader.decode(
                self._data.slice(0, min(HEADER_BYTES, self._data.size)).to_pybytes()
            )
        except DamagedBlockError as error:
            raise self._damaged(0, error) from None
        if (self.header.generation, self.header.segment) != (generation, segment):
            raise self._damaged(
                0,
                f"it is segment {self.header.segment:012x} of queue {self.header.generation:x}, "
                f"and this is queue {generation:x}",
            )

    @property
    def end(self) -> int:
        """Of the blocks that were looked at."""
        return self.loaded[-1].block.end if self.loaded else HEADER_BYTES

    @property
    def size_bytes(self) -> int:
        """Of the file, when it was opened."""
        return self._data.size

    @property
    def names(self) -> Names:
        return self._names

    def is_current(self) -> bool:
        """Whether the file that is open is the one that has the name."""
        status = self.path.stat()
        return (status.st_dev, status.st_ino) == _identity(self._data)

    def load(self, blocks: int) -> None:
        """Looks at the blocks up to this count."""
        while len(self.loaded) < blocks:
            number = len(self.loaded)
            lsn = lsn_of(self.segment, number)
            try:
                try:
                    block = decode_block(self._data, self.end, lsn)
                except DamagedBlockError:
                    if not self._open_more():
                        raise
                    block = decode_block(self._data, self.end, lsn)
            except (DamagedBlockError, pa.ArrowException, UnicodeDecodeError) as error:
                raise self._damaged(number, error) from None
            self.loaded.append(self._resolve(block))

    def release(self) -> None:
        """The file is let go with the last view that still reads from it, not a moment later: a
        file that was dropped takes disk space for as long as it is open."""
        self.loaded = []

    def decode(self, block: Block, part: PartEntry) -> pa.RecordBatch:
        try:
            return decode_part(part, self._data, self.schemas[part.stage])
        except (DamagedBlockError, pa.ArrowException, OSError) as error:
            raise self._damaged(block.number, error) from None

    def order(self, block: Block) -> Order | None:
        try:
            return decode_order(block, self._data)
        except DamagedBlockError as error:
            raise self._damaged(block.number, error) from None

    def _open(self) -> Bytes:
        return FileBytes(self.path)

    def _open_more(self) -> bool:
        """Reads on in what was written since. A rewritten file has its blocks at other places."""
        before, self._data = self._data, self._open()
        if _identity(self._data) != _identity(before):
            raise SegmentReplacedError
        return self._data.size > before.size

    def _resolve(self, block: Block) -> Loaded:
        """Gives the block's numbers their meaning, with what the blocks before it said."""
        introduced = block.introduced
        if introduced.names:
            self._names = {**self._names, **introduced.names}
            for read, (binding, journal) in introduced.names.items():
                self._read_ids[read] = self._ids.of(binding, journal)
        self.schemas.update(introduced.schemas)
        unknown = {part.stage for part in block.parts} - self.schemas.keys()
        distinct, places = np.unique(block.groups["read"], return_inverse=True)
        ids = [self._read_ids.get(read, -1) for read in distinct.tolist()]
        if unknown or -1 in ids:
            raise self._damaged(block.number, "it has reads or stages that nobody has named")
        return Loaded(self, block, self._names, np.array(ids, np.int64)[places])

    def _damaged(self, block: int, reason: object) -> CorruptQueueError:
        return CorruptQueueError(str(self.path), self.segment, block, str(reason))


def _identity(data: Bytes) -> tuple[int, int] | None:
    return data.identity if isinstance(data, FileBytes) else None
