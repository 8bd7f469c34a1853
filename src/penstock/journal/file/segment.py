"""Segment files: a header that says what follows, then frames. docs/format.md has the layout.

A segment's name is the offset of its first row. Its header holds the sequencing states of producers
at that offset, so that any segment can be sequenced by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.checksum import checksum
from penstock.disk import disk_error, explained, sync_folder
from penstock.ids import Kind
from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.durable import write_file
from penstock.journal.file.segment_header import (
    HEADER_BYTES_MAX,
    PREFIX,
    SEGMENT_MAGIC,
    SEGMENT_VERSION,
    SegmentHeader,
)
from penstock.journal.frames import (
    FRAME_ALIGNMENT,
    FRAME_HEADER,
    FRAME_MAGIC,
    KIND_ACK,
    DamagedFrameError,
    FrameHeader,
    check_payload,
    decode_ack,
    decode_documents,
    decode_header,
    document_schema,
)
from penstock.journal.store import JournalBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.journal.collection import Collection

_STEP_BYTES: Final = 256 * 1024
"""How much is read at a time where frames are small."""
_LARGE_FRAME_BYTES: Final = 64 * 1024
"""From here on a frame is read by itself, and makes a batch by itself."""


@dataclass(frozen=True, slots=True)
class FramePlace:
    """Where in which segment's file the frame begins, or will, whose first row has the offset."""

    segment: int
    position: int
    offset: int


def segment_path(folder: Path, first_offset: int) -> Path:
    return folder / f"{first_offset:020d}.segment"


def list_segments(folder: Path) -> list[int]:
    """The first offsets of the journal's segments, ascending."""
    with explained("list", folder), os.scandir(folder) as entries:
        return sorted(int(entry.name[:20]) for entry in entries if entry.name.endswith(".segment"))


def create_segment(folder: Path, header: SegmentHeader) -> int:
    """Makes an empty segment durable, under its name; gives its size in bytes."""
    data = header.encode()
    path = segment_path(folder, header.first_offset)
    temporary = path.with_suffix(".new")
    write_file(temporary, data)
    with explained("write", path):
        temporary.rename(path)
    sync_folder(folder)
    return len(data)


class SegmentReader:
    """Reads one segment file, checking everything it returns."""

    def __init__(
        self, journal: str, folder: Path, first_offset: int, *, path: Path | None = None
    ) -> None:
        """`path` if the file lies elsewhere than in its journal's folder."""
        self._journal = journal
        self._path = segment_path(folder, first_offset) if path is None else path
        self._first_offset = first_offset
        self.reached: FramePlace | None = None
        """Behind the last frame that `frames` gave."""
        # Arrow's own file reads into Arrow's own memory, which is reused from step to step;
        # fresh memory for every step costs several times the read itself.
        with explained("read", self._path):
            self._file = pa.OSFile(str(self._path), "rb")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        return self._file.size()

    def header(self) -> tuple[SegmentHeader, int]:
        """The header, and the position of the first frame."""
        header, position = self.stated_header()
        if (header.journal, header.first_offset) != (self._journal, self._first_offset):
            raise self._damaged(
                0, f"this is the segment {header.first_offset} of journal {header.journal}"
            )
        return header, position

    def first_place(self) -> FramePlace:
        """Of the first frame."""
        header, position = self.header()
        return FramePlace(self._first_offset, position, header.first_offset)

    def stated_header(self) -> tuple[SegmentHeader, int]:
        """As `header`, of whichever journal the segment says it is."""
        prefix = self._read(0, PREFIX.size).to_pybytes()
        if len(prefix) < PREFIX.size:
            raise self._damaged(0, "the segment header is cut short")
        magic, version, body_bytes, found = PREFIX.unpack(prefix)
        if magic != SEGMENT_MAGIC:
            raise self._damaged(0, "this is not a Penstock segment")
        if not 1 <= version <= SEGMENT_VERSION:
            raise self._damaged(
                0, f"it has format {version}, and this Penstock reads {SEGMENT_VERSION}"
            )
        if body_bytes > min(HEADER_BYTES_MAX, self.size() - PREFIX.size):
            raise self._damaged(0, f"a segment header of {body_bytes} bytes cannot be")
        body = self._read(PREFIX.size, body_bytes).to_pybytes()
        if len(body) < body_bytes or checksum(body) != found:
            raise self._damaged(0, "the segment header's checksum does not match")
        return SegmentHeader.decode(version, body), PREFIX.size + body_bytes

    def frames(
        self, place: FramePlace, limit: int, skip_below: int = 0
    ) -> Iterator[list[tuple[FrameHeader, pa.Buffer]]]:
        """Checked frames from a place up to the byte `limit`: a large one by itself, small ones in
        groups. What ends at or below the offset `skip_below` is passed over."""
        position, offset = place.position, place.offset
        while position < limit:
            large = self._large_header(position, offset, limit)
            if large is not None:
                found = (
                    [self._frame(position, large, limit)] if large.end_offset > skip_below else []
                )
                offset = large.end_offset
                position += large.frame_bytes
                self.reached = FramePlace(self._first_offset, position, offset)
                if found:
                    yield found
                continue
            want = min(_STEP_BYTES, limit - position)
            step = self._read(position, want)
            if step.size < want:
                raise self._damaged(
                    position, f"the file ends {want - step.size} bytes before its journal does"
                )
            found = []
            at = 0
            while at + FRAME_HEADER.size <= step.size:
                data = step.slice(at, FRAME_HEADER.size).to_pybytes()
                header = self._frame_header(position + at, data, offset)
                if at + header.frame_bytes > step.size or header.payload_bytes > _LARGE_FRAME_BYTES:
                    break
                if header.end_offset > skip_below:
                    body = step.slice(at + FRAME_HEADER.size, header.payload_bytes)
                    self._check(position + at, header, body)
                    found.append((header, body))
                offset = header.end_offset
                at += header.frame_bytes
            if at == 0:
                raise self._damaged(position, "a frame is cut short")
            position += at
            self.reached = FramePlace(self._first_offset, position, offset)
            if found:
                yield found

    def headers(self, position: int, offset: int, limit: int) -> Iterator[tuple[int, FrameHeader]]:
        """The checked headers of the frames up to the byte `limit`, each with its position. The
        frames themselves are passed over."""
        step, begin = self._read(0, 0), position
        while position < limit:
            at = position - begin
            if at + FRAME_HEADER.size > step.size:
                begin, at = position, 0
                step = self._read(position, min(_STEP_BYTES, limit - position))
                if step.size < FRAME_HEADER.size:
                    raise self._damaged(position, "a frame header is cut short")
            data = step.slice(at, FRAME_HEADER.size).to_pybytes()
            header = self._frame_header(position, data, offset)
            yield position, header
            offset = header.end_offset
            position += header.frame_bytes

    def frame(self, position: int, header: FrameHeader) -> tuple[FrameHeader, pa.Buffer]:
        """The checked frame behind a header."""
        return self._frame(position, header, position + header.frame_bytes)

    def scan(self, position: int, offset: int) -> tuple[FramePlace, str | None]:
        """Walks the appends from a position to the end of the file or the first damage: gives the
        end of the last whole append, and what was wrong after it, if anything."""
        size = self.size()
        whole = (position, offset)
        while position < size:
            try:
                header, _ = self._frame(position, self._header_at(position, offset, size), size)
            except CorruptJournalError as error:
                return FramePlace(self._first_offset, *whole), error.reason
            offset = header.end_offset
            position += header.frame_bytes
            if not header.goes_on:
                whole = (position, offset)
        torn = None if whole == (position, offset) else "an append is cut short"
        return FramePlace(self._first_offset, *whole), torn

    def witness(self, damaged: FramePlace) -> FramePlace | None:
        """The first frame behind a damaged place that was appended when the bytes there were
        durable already. If there is one, they were acknowledged and are damaged since. If there
        is none, they were perhaps never written: the power failed before they were synced."""
        size = self.size()
        for position in self._magics(damaged.position + FRAME_ALIGNMENT, size):
            try:
                header = decode_header(self._read(position, FRAME_HEADER.size).to_pybytes())
            except DamagedFrameError:
                continue
            unsynced = header.unsynced_bytes_max or 0  # a frame that does not tell is believed
            if header.first_offset > damaged.offset and position - unsynced > damaged.position:
                return FramePlace(self._first_offset, position, header.first_offset)
        return None

    def _magics(self, position: int, size: int) -> Iterator[int]:
        """Where a frame could begin."""
        while position + FRAME_HEADER.size <= size:
            step = self._read(position, _STEP_BYTES).to_pybytes()
            at = step.find(FRAME_MAGIC)
            while at >= 0:
                if (position + at) % FRAME_ALIGNMENT == 0:
                    yield position + at
                at = step.find(FRAME_MAGIC, at + 1)
            position += len(step) - len(FRAME_MAGIC) + 1 if len(step) > len(FRAME_MAGIC) else size

    def bytes_at(self, position: int, size: int) -> Iterator[pa.Buffer]:
        """As they are, unchecked."""
        end = position + size
        while position < end:
            step = self._read(position, min(_STEP_BYTES, end - position))
            if not step.size:
                return
            yield step
            position += step.size

    def _read(self, position: int, size: int) -> pa.Buffer:
        """Up to `size` bytes from a position; fewer at the end of the file."""
        try:
            self._file.seek(position)
            return self._file.read_buffer(size)
        except OSError as error:
            raise disk_error("read", self._path, error) from error

    def _large_header(self, position: int, offset: int, limit: int) -> FrameHeader | None:
        header = self._header_at(position, offset, limit)
        return header if header.payload_bytes > _LARGE_FRAME_BYTES else None

    def _header_at(self, position: int, offset: int, limit: int) -> FrameHeader:
        if position + FRAME_HEADER.size > limit:
            raise self._damaged(position, "a frame header is cut short")
        data = self._read(position, FRAME_HEADER.size).to_pybytes()
        if len(data) < FRAME_HEADER.size:
            raise self._damaged(position, "the file ends before its journal does")
        return self._frame_header(position, data, offset)

    def _frame(
        self, position: int, header: FrameHeader, limit: int
    ) -> tuple[FrameHeader, pa.Buffer]:
        if position + header.frame_bytes > limit:
            raise self._damaged(position, "a frame is cut short")
        body = self._read(position + FRAME_HEADER.size, header.payload_bytes)
        self._check(position, header, body)
        return header, body

    def _frame_header(self, position: int, data: bytes, offset: int) -> FrameHeader:
        try:
            header = decode_header(data)
        except DamagedFrameError as error:
            raise self._damaged(position, str(error)) from None
        if header.first_offset != offset:
            raise self._damaged(
                position, f"the frame is of offset {header.first_offset}, expected {offset}"
            )
        return header

    def _check(self, position: int, header: FrameHeader, body: pa.Buffer) -> None:
        try:
            check_payload(header, body)
        except DamagedFrameError as error:
            raise self._damaged(position, f"{error} (rows from {header.first_offset})") from None

    def _damaged(self, position: int, reason: str) -> CorruptJournalError:
        return CorruptJournalError(self._journal, self._path.name, position, reason)


class BatchBuilder:
    """Makes journal batches out of frames: older schemas filled up, acknowledgements as rows."""

    def __init__(self, journal: str, collection: Collection, columns: Sequence[str] | None) -> None:
        self._journal = journal
        names = collection.schema.names if columns is None else list(columns)
        self._schema = pa.schema(
            [collection.schema.field(name).with_nullable(True) for name in names]
        )
        self._written = [document_schema(schema) for schema in collection.schemas]
        self._places = [
            [schema.get_field_index(name) for name in names] for schema in self._written
        ]
        """For each version, where the wanted columns are in its frames; -1 for later ones."""

    def build(self, frames: list[tuple[FrameHeader, pa.Buffer]]) -> JournalBatch:
        """One batch out of consecutive frames."""
        built = [self._build_one(header, body) for header, body in frames]
        if len(built) == 1:
            return built[0]
        hints: dict[int, tuple[str, ...]] = {}
        row = 0
        for batch in built:
            if batch.hints:
                hints[row] = batch.hints[0]
            row += batch.rows
        return JournalBatch.numbered(
            self._journal,
            frames[0][0].first_offset,
            np.concatenate([batch.producers for batch in built]),
            np.concatenate([batch.clocks for batch in built]),
            np.concatenate([batch.flags for batch in built]),
            _joined([batch.documents for batch in built])
            if len(self._schema)
            else _no_columns(row),
            hints,
        )

    def _build_one(self, header: FrameHeader, body: pa.Buffer) -> JournalBatch:
        if header.kind == KIND_ACK:
            ack = decode_ack(header, body)
            return JournalBatch.numbered(
                self._journal,
                header.first_offset,
                np.array([ack.producer.int64], dtype=np.int64),
                np.array([ack.clock], dtype=np.uint64),
                np.array([Kind.ACK], dtype=np.uint16),
                self._select(1, [pa.nulls(1, field_.type) for field_ in self._schema]),
                {0: ack.hints} if ack.hints else {},
            )
        version = header.schema_version - 1
        batch = decode_documents(body, self._written[version])
        producers, clocks, flags, *_ = columns = batch.columns
        wanted = [
            columns[place]
            if place >= 0
            else pa.nulls(batch.num_rows, self._schema.field(index).type)
            for index, place in enumerate(self._places[version])
        ]
        return JournalBatch.numbered(
            self._journal,
            header.first_offset,
            producers.to_numpy(),
            clocks.to_numpy(),
            flags.to_numpy(),
            self._select(batch.num_rows, wanted),
            {},
        )

    def _select(self, count: int, columns: list[pa.Array[Any]]) -> pa.RecordBatch:
        if not columns:
            return _no_columns(count)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _no_columns(count: int) -> pa.RecordBatch:
    """A batch that has rows but no columns, for who reads identities only."""
    empty = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(cast("pa.StructArray", empty))
