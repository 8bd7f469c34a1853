"""Frames: the bytes of one append. docs/format.md has the layout; this is its only code.

A frame is a 72-byte header and a payload. The payload is an Arrow IPC record batch (documents
with their identity columns) or one acknowledgement. Both parts carry a checksum, so that a torn
or altered frame is known before anything of it is used.
"""

from __future__ import annotations

import functools
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.checksum import checksum
from penstock.errors import CorruptStorageError, LocalProtocolError
from penstock.ids import Kind, Producer
from penstock.sequence import Run

if TYPE_CHECKING:
    from collections.abc import Iterator


FRAME_MAGIC: Final = b"PSF1"
FRAME_ALIGNMENT: Final = 8
"""Every frame begins at a multiple of this in its segment."""
FRAME_HEADER: Final = struct.Struct("<4sBBHIIQQqQQQQ")
FRAME_PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Checked before a payload is allocated: a damaged length must not ask for gigabytes."""
FRAME_ROWS_MAX: Final = 65_536
FRAME_PAYLOAD_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Larger appends are split, so that a reader's step stays small."""

KIND_DOCUMENTS: Final = 1
KIND_ACK: Final = 2

ID_FIELDS: Final = (
    pa.field("_producer", pa.int64(), nullable=False),
    pa.field("_clock", pa.uint64(), nullable=False),
    pa.field("_flags", pa.uint16(), nullable=False),
)
"""The identity of each document, before its own columns."""

Clocks: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


class DamagedFrameError(CorruptStorageError):
    """A frame's bytes fail a check. The journal's reader adds where that was."""


_KIND_BITS: Final = 0x03
_GOES_ON: Final = 0x80
"""Set in a frame's kind if the next frame is of the same append."""
_UNSYNCED_SHIFT, _UNSYNCED_MAX = 2, 0x1F
"""The five bits between the two: how much before the frame was not durable yet, see below."""
_MIXED: Final = 0xFF
"""In place of the rows' kind: their clocks do not ascend, so the header cannot sum them up."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame's header. It sums its rows up, so that states are found without reading them."""

    kind: int
    goes_on: bool
    """Whether the next frame is of the same append."""
    unsynced_bytes_max: int | None
    """When the frame was appended, everything before it was durable but at most this many bytes.
    None if the frame does not tell. By this, damage is told from an end that a power cut tore."""
    row_kind: int
    schema_version: int
    rows: int
    payload_bytes: int
    first_offset: int
    appended_us: int
    producer: int
    first_clock: int
    last_clock: int
    payload_sum: int

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER.size + self.payload_bytes

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.rows

    @property
    def run(self) -> Run | None:
        """The rows as one run, if they are one."""
        if self.row_kind == _MIXED or (self.row_kind == Kind.ACK and self.rows != 1):
            return None
        return Run(
            self.producer,
            self.row_kind,
            self.first_clock,
            self.last_clock,
            self.first_offset,
            self.end_offset,
        )


@dataclass(frozen=True, slots=True)
class Ack:
    """Closes a producer's span in one journal. `hints` are the other journals of the transaction,
    in which the same producer's ACK of the same clock is to be found."""

    producer: Producer
    clock: int
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload not yet placed in a journal: its offset comes when it is appended."""

    kind: int
    row_kind: int
    schema_version: int
    rows: int
    producer: int
    first_clock: int
    last_clock: int
    body: pa.Buffer
    body_sum: int
    """Taken when the payload is made: outside of the journal's lock."""

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER.size + self.body.size

    def header(
        self,
        first_offset: int,
        appended_us: int,
        *,
        goes_on: bool = False,
        unsynced_bytes: int | None = None,
    ) -> bytes:
        """The header for this payload at its place. An append of several frames goes on after each
        but the last: found without its end, it is cut whole. `unsynced_bytes` is how much before
        this frame is not durable yet, None if nobody knows."""
        fields = (
            FRAME_MAGIC,
            self.kind | (_GOES_ON if goes_on else 0) | _unsynced_bits(unsynced_bytes),
            self.row_kind,
            self.schema_version,
            self.rows,
            self.body.size,
            first_offset,
            appended_us,
            self.producer,
            self.first_clock,
            self.last_clock,
            self.body_sum,
        )
        unchecked = FRAME_HEADER.pack(*fields, 0)[:-8]
        return FRAME_HEADER.pack(*fields, checksum(unchecked))


def _unsynced_bits(size: int | None) -> int:
    """0 if unknown; else n, for fewer than 2^(n - 1) bytes."""
    bits = 0 if size is None else size.bit_length() + 1
    return bits << _UNSYNCED_SHIFT if bits <= _UNSYNCED_MAX else 0


@functools.lru_cache(maxsize=256)
def document_schema(schema: pa.Schema) -> pa.Schema:
    """A collection's schema behind the identity columns."""
    return pa.schema([*ID_FIELDS, *schema])


def encode_documents(
    schema_version: int,
    documents: pa.RecordBatch,
    producer: Producer,
    clocks: Clocks,
    kind: Kind,
) -> Iterator[Payload]:
    """Documents as payloads of bounded size, in order."""
    count = documents.num_rows
    whole = pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(producer.int64, pa.int64()), count),
            pa.array(clocks),
            pa.repeat(pa.scalar(int(kind), pa.uint16()), count),
            *documents.columns,
        ],
        schema=document_schema(documents.schema),
    )
    rows_each = count
    if count and whole.nbytes > FRAME_PAYLOAD_BYTES_TARGET:
        rows_each = max(1, FRAME_PAYLOAD_BYTES_TARGET * count // whole.nbytes)
    rows_each = min(rows_each, FRAME_ROWS_MAX)
    for begin in range(0, count, max(rows_each, 1)):
        part = whole.slice(begin, rows_each)
        yield from _encode_whole_or_halves(schema_version, part, clocks[begin : begin + rows_each])


def _encode_whole_or_halves(
    schema_version: int, part: pa.RecordBatch, clocks: Clocks
) -> Iterator[Payload]:
    """Rows of uneven size can overfill a frame that holds the average well: halve until it fits.
    One row always fits, because rows are limited to a quarter of a frame."""
    body = part.serialize()
    if body.size <= FRAME_PAYLOAD_BYTES_MAX:
        producer, flags = part.column(0)[0].as_py(), part.column(2)[0].as_py()
        ascending = bool((clocks[1:] > clocks[:-1]).all())
        yield Payload(
            KIND_DOCUMENTS,
            flags if ascending else _MIXED,
            schema_version,
            part.num_rows,
            producer,
            int(clocks[0]),
            int(clocks[-1]),
            body,
            checksum(body),
        )
        return
    if part.num_rows == 1:
        raise LocalProtocolError(f"a row of {body.size} bytes does not fit a frame")
    half = part.num_rows // 2
    yield from _encode_whole_or_halves(schema_version, part.slice(0, half), clocks[:half])
    yield from _encode_whole_or_halves(schema_version, part.slice(half), clocks[half:])


def encode_ack(schema_version: int, ack: Ack) -> Payload:
    hints = json.dumps(ack.hints, ensure_ascii=False).encode() if ack.hints else b""
    body = pa.py_buffer(hints + b"\0" * (-len(hints) % 8))
    return Payload(
        KIND_ACK,
        Kind.ACK,
        schema_version,
        1,
        ack.producer.int64,
        ack.clock,
        ack.clock,
        body,
        checksum(body),
    )


def decode_header(data: bytes) -> FrameHeader:
    """Reads and checks a header, its length limit included."""
    if len(data) != FRAME_HEADER.size:
        raise DamagedFrameError(f"a frame header has {FRAME_HEADER.size} bytes, not {len(data)}")
    magic, *fields, header_sum = FRAME_HEADER.unpack(data)
    if magic != FRAME_MAGIC:
        raise DamagedFrameError(f"no frame begins here (found {magic!r})")
    if checksum(data[:-8]) != header_sum:
        raise DamagedFrameError("the frame header's checksum does not match")
    kind, *others = fields
    bits = kind >> _UNSYNCED_SHIFT & _UNSYNCED_MAX
    header = FrameHeader(
        kind & _KIND_BITS,
        bool(kind & _GOES_ON),
        (1 << bits - 1) - 1 if bits else None,
        *others,
    )
    if header.payload_bytes > FRAME_PAYLOAD_BYTES_MAX or header.kind not in (
        KIND_DOCUMENTS,
        KIND_ACK,
    ):
        raise DamagedFrameError(
            f"a frame of kind {header.kind} with {header.payload_bytes} bytes cannot be"
        )
    return header


def check_payload(header: FrameHeader, body: pa.Buffer) -> None:
    if body.size != header.payload_bytes:
        raise DamagedFrameError(
            f"the frame ends after {body.size} of its {header.payload_bytes} bytes"
        )
    if checksum(body) != header.payload_sum:
        raise DamagedFrameError("the frame's checksum does not match")


def decode_documents(body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The batch behind a checked payload; `schema` is that of `document_schema`."""
    return pa.ipc.read_record_batch(body, schema)


def decode_ack(header: FrameHeader, body: pa.Buffer) -> Ack:
    """The acknowledgement of a checked frame: whose and when is in its header."""
    hints = body.to_pybytes().rstrip(b"\0")
    producer = Producer.from_int64(header.producer)
    return Ack(producer, header.first_clock, tuple(json.loads(hints)) if hints else ())
