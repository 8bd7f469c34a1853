"""Segment files: a header that says what follows, then frames. docs/format.md has the layout.

A segment's name is the offset of its first row. Its header holds the sequencing states of all
producers at that offset, so that any segment can be sequenced by itself.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import google_crc32c
import numpy as np
import pyarrow as pa

from penstock.ids import Kind, Producer
from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.durable import sync_folder, write_file
from penstock.journal.frames import (
    FRAME_HEADER,
    KIND_ACK,
    DamagedFrameError,
    FrameHeader,
    check_payload,
    decode_ack,
    decode_documents,
    decode_header,
    document_schema,
)
from penstock.journal.store import JournalBatch, States
from penstock.sequence import ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.journal.collection import Collection

SEGMENT_MAGIC: Final = b"PENSTOCK"
SEGMENT_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIII4x")
_HEADER_BYTES_MAX: Final = 64 * 1024 * 1024
_STEP_BYTES: Final = 4 * 1024 * 1024
"""How much is read at a time: large enough for speed, small enough to keep many readers."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself. `fault` is set when an earlier row broke the protocol."""

    journal: str
    first_offset: int
    collection: dict[str, Any]
    states: States = field(default_factory=dict)
    fault: str | None = None

    def encode(self) -> bytes:
        text = json.dumps(
            {
                "journal": self.journal,
                "first_offset": self.first_offset,
                "collection": self.collection,
                "states": [
                    [
                        str(Producer.from_int64(producer)),
                        state.last_commit,
                        state.max_continue,
                        state.offset,
                    ]
                    for producer, state in sorted(self.states.items())
                ],
                "fault": self.fault,
            }
        ).encode()
        text += b" " * (-len(text) % 8)
        crc = google_crc32c.value(text)
        return _PREFIX.pack(SEGMENT_MAGIC, SEGMENT_VERSION, len(text), crc) + text


def segment_path(folder: Path, first_offset: int) -> Path:
    return folder / f"{first_offset:020d}.segment"


def list_segments(folder: Path) -> list[int]:
    """The first offsets of the journal's segments, ascending."""
    with os.scandir(folder) as entries:
        return sorted(int(entry.name[:20]) for entry in entries if entry.name.endswith(".segment"))


def create_segment(folder: Path, header: SegmentHeader) -> int:
    """Makes an empty segment durable, under its name; gives its size in bytes."""
    data = header.encode()
    path = segment_path(folder, header.first_offset)
    temporary = path.with_suffix(".new")
    write_file(temporary, data)
    temporary.rename(path)
    sync_folder(folder)
    return len(data)


class SegmentReader:
    """Reads one segment file, checking everything it returns."""

    def __init__(self, journal: str, folder: Path, first_offset: int) -> None:
        self._journal = journal
        self._path = segment_path(folder, first_offset)
        self._first_offset = first_offset
        self._descriptor = os.open(self._path, os.O_RDONLY)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def header(self) -> tuple[SegmentHeader, int]:
        """The header, and the position of the first frame."""
        prefix = os.pread(self._descriptor, _PREFIX.size, 0)
        if len(prefix) < _PREFIX.size:
            raise self._damaged(0, "the segment header is cut short")
        magic, version, text_bytes, crc = _PREFIX.unpack(prefix)
        if magic != SEGMENT_MAGIC:
            raise self._damaged(0, "this is not a Penstock segment")
        if version != SEGMENT_VERSION:
            raise self._damaged(
                0, f"it has format {version}, and this Penstock reads {SEGMENT_VERSION}"
            )
        if text_bytes > _HEADER_BYTES_MAX:
            raise self._damaged(0, f"a segment header of {text_bytes} bytes cannot be")
        text = os.pread(self._descriptor, text_bytes, _PREFIX.size)
        if len(text) < text_bytes or google_crc32c.value(text) != crc:
            raise self._damaged(0, "the segment header's checksum does not match")
        data = json.loads(text)
        states = {
            Producer.from_hex(producer).int64: ProducerState(last_commit, max_continue, offset)
            for producer, last_commit, max_continue, offset in data["states"]
        }
        header = SegmentHeader(
            data["journal"], data["first_offset"], data["collection"], states, data["fault"]
        )
        return header, _PREFIX.size + text_bytes

    def frames(
        self, position: int, offset: int, limit: int, skip_below: int = 0
    ) -> Iterator[list[tuple[FrameHeader, pa.Buffer]]]:
        """Checked frames from a frame's position up to the byte `limit`, in steps. Frames that
        end at or below the row offset `skip_below` are passed over unread."""
        while position < limit:
            want = min(_STEP_BYTES, limit - position)
            step = pa.py_buffer(os.pread(self._descriptor, want, position))
            if step.size < want:
                raise self._damaged(
                    position, f"the file ends {want - step.size} bytes before its journal does"
                )
            found = []
            at = 0
            while at + FRAME_HEADER.size <= step.size:
                header = self._frame_header(position + at, step, at, offset)
                if at + header.frame_bytes > step.size:
                    break
                if header.end_offset > skip_below:
                    body = step.slice(at + FRAME_HEADER.size, header.payload_bytes)
                    self._check(position + at, header, body)
                    found.append((header, body))
                offset = header.end_offset
                at += header.frame_bytes
            if at == 0:
                # A frame longer than one step: read just that one.
                header, body = self._long_frame(position, offset, limit)
                if header.end_offset > skip_below:
                    found.append((header, body))
                offset = header.end_offset
                at = header.frame_bytes
            position += at
            if found:
                yield found

    def scan(self, position: int, offset: int) -> tuple[int, int, str | None]:
        """Walks the frames from a position to the end of the file or the first damage: gives the
        position and row offset reached, and what was wrong there, if anything."""
        size = self.size()
        while position < size:
            try:
                header, _ = self._long_frame(position, offset, size)
            except CorruptJournalError as error:
                return position, offset, error.reason
            offset = header.end_offset
            position += header.frame_bytes
        return position, offset, None

    def _long_frame(self, position: int, offset: int, limit: int) -> tuple[FrameHeader, pa.Buffer]:
        if position + FRAME_HEADER.size > limit:
            raise self._damaged(position, "a frame header is cut short")
        data = os.pread(self._descriptor, FRAME_HEADER.size, position)
        header = self._frame_header(position, pa.py_buffer(data), 0, offset)
        if position + header.frame_bytes > limit:
            raise self._damaged(position, "a frame is cut short")
        body = pa.py_buffer(
            os.pread(self._descriptor, header.payload_bytes, position + FRAME_HEADER.size)
        )
        self._check(position, header, body)
        return header, body

    def _frame_header(self, position: int, step: pa.Buffer, at: int, offset: int) -> FrameHeader:
        try:
            header = decode_header(step.slice(at, FRAME_HEADER.size).to_pybytes())
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
        self._collection = collection
        names = collection.schema.names if columns is None else list(columns)
        self._schema = pa.schema(
            [collection.schema.field(name).with_nullable(True) for name in names]
        )
        self._written = [document_schema(schema) for schema in collection.schemas]

    @property
    def newest_version(self) -> int:
        return self._collection.version

    def build(self, frames: list[tuple[FrameHeader, pa.Buffer]]) -> JournalBatch:
        """One batch out of consecutive frames."""
        ids: list[tuple[np.ndarray[Any, Any], ...]] = []
        parts: list[pa.RecordBatch] = []
        hints: dict[int, tuple[str, ...]] = {}
        first_offset = frames[0][0].first_offset
        for header, body in frames:
            if header.kind == KIND_ACK:
                ack = decode_ack(body)
                ids.append(
                    (
                        np.array([ack.producer.int64], dtype=np.int64),
                        np.array([ack.clock], dtype=np.uint64),
                        np.array([Kind.ACK], dtype=np.uint16),
                    )
                )
                if len(self._schema):
                    parts.append(self._nulls(1))
                if ack.hints:
                    hints[header.first_offset - first_offset] = ack.hints
            else:
                batch = decode_documents(body, self._written[header.schema_version - 1])
                ids.append(tuple(batch.column(index).to_numpy() for index in range(3)))
                if len(self._schema):
                    parts.append(self._project(batch))
        producers, clocks, flags = (
            column[0] if len(column) == 1 else np.concatenate(column)
            for column in zip(*ids, strict=True)
        )
        if not parts:
            documents = _no_columns(len(clocks))
        else:
            documents = parts[0] if len(parts) == 1 else _joined(parts)
        return JournalBatch(self._journal, first_offset, producers, clocks, flags, documents, hints)

    def _project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        columns = []
        for field_ in self._schema:
            index = batch.schema.get_field_index(field_.name)
            columns.append(pa.nulls(count, field_.type) if index < 0 else batch.column(index))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _nulls(self, count: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(count, field_.type) for field_ in self._schema], schema=self._schema
        )


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _no_columns(count: int) -> pa.RecordBatch:
    """A batch that has rows but no columns, for who reads identities only."""
    empty = pa.StructArray.from_buffers(pa.struct([]), count, [None])
    return pa.RecordBatch.from_struct_array(cast("pa.StructArray", empty))
