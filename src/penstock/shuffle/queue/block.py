"""Blocks: what a Queue writes at once. docs/format.md has the bytes; this is their only code.

A block is a header, metadata, and a body. The metadata says of every part which groups of rows it
has (a read, a producer, and the clocks between which they lie), so that who reads knows what is in
a part before anything of it is decoded. The body has the parts, one for each stage, each an Arrow
IPC message of its own: the batch's buffers go to the file as they are. Where rows of several stages
come in turns, their order is before them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checksum import RunningChecksum, checksum
from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import ROLLBACK_SCHEMA, Stage, fields_of
from penstock.shuffle.queue.arranging import arranged
from penstock.shuffle.queue.groups import GROUP, Groups, groups_of, identities
from penstock.transport.stages import StageEncoders, has_dictionaries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.shuffle.queue.segment import Bytes

BLOCK_MAGIC: Final = b"PSQB"
BLOCK_HEADER: Final = struct.Struct("<4sHHQIIIIIIIIQQQQ")
BLOCK_ROWS_MAX: Final = 1 << 24
BLOCK_BODY_BYTES_MAX: Final = 1 << 30
BLOCK_METADATA_BYTES_MAX: Final = 1 << 28
"""The merge makes blocks of two MiB. These limits are for damaged lengths, and for a block of
survivors, which has to be one whatever is in it."""
ALIGNMENT_BYTES: Final = 8

_ORDERED: Final = 1
_PART: Final = np.dtype(
    [
        ("binding", "<u4"),
        ("version", "<u4"),
        ("rows", "<u4"),
        ("groups", "<u4"),
        ("bytes", "<u8"),
        ("sum", "<u8"),
    ]
)
_READ: Final = np.dtype([("read", "<u4"), ("binding", "<u4"), ("bytes", "<u4"), ("zero", "<u4")])
_SCHEMA: Final = np.dtype(
    [("binding", "<u4"), ("version", "<u4"), ("bytes", "<u4"), ("zero", "<u4")]
)

Piece: TypeAlias = bytes | memoryview | pa.Buffer
Parcel: TypeAlias = tuple[Stage, pa.RecordBatch]
"""A parcel, or rollbacks, as they came."""
Names: TypeAlias = "Mapping[int, tuple[int, str]]"
"""What read numbers stand for: binding and journal."""
Order: TypeAlias = npt.NDArray[np.uint32]


class DamagedBlockError(Exception):
    """A block's bytes fail a check. Who reads the file adds which one it is."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPart:
    stage: Stage
    rows: int
    groups: Groups
    pieces: Sequence[Piece]
    size_bytes: int
    sum: int

    @classmethod
    def of(cls, stage: Stage, rows: int, groups: Groups, pieces: Sequence[Piece]) -> EncodedPart:
        running, size_bytes = RunningChecksum(), 0
        for piece in pieces:
            running.update(piece)
            size_bytes += len(piece)
        return cls(stage, rows, groups, pieces, size_bytes, running.intdigest())


class PartEncoder:
    """Makes parts of parcels, and holds every stage to one schema."""

    def __init__(self) -> None:
        self._encoders = StageEncoders()
        self._schemas: dict[Stage, pa.Schema] = {}

    def expect(self, stage: Stage, schema: pa.Schema) -> None:
        """A schema that the stage has in a segment already."""
        self._schemas[stage] = schema
        columns = [pa.nulls(0, field.type) for field in schema]
        self._encoders.encode(str(stage), pa.RecordBatch.from_arrays(columns, schema=schema))

    def encode(
        self, parcels: Sequence[Parcel], order: Order | None
    ) -> tuple[list[EncodedPart], Order | None]:
        """A part for each stage that has rows, and their order; None if they follow each other."""
        for stage, batch in parcels:
            self._check(stage, batch)
        parcels, order = arranged([parcel for parcel in parcels if parcel[1].num_rows], order)
        return [self._part(stage, batch) for stage, batch in parcels], order

    def _check(self, stage: Stage, batch: pa.RecordBatch) -> None:
        known = self._schemas.get(stage)
        if known is None:
            _check_schema(stage, batch.schema)
            self._schemas[stage] = batch.schema
            # Arrow writes the schema before a stage's first batch; blocks have it elsewhere.
            self._encoders.encode(str(stage), batch.slice(0, 0))
        elif known is not batch.schema and not known.equals(batch.schema):
            raise LocalProtocolError(
                f"{stage} changed its schema; a collection's changed schema is another version"
            )

    def _part(self, stage: Stage, batch: pa.RecordBatch) -> EncodedPart:
        rows = identities(stage, batch)
        pieces = self._encoders.encode(str(stage), batch)
        return EncodedPart.of(stage, batch.num_rows, groups_of(rows), pieces)


def _check_schema(stage: Stage, schema: pa.Schema) -> None:
    wanted = list(ROLLBACK_SCHEMA) if stage.is_rollbacks else list(fields_of(schema))
    if list(schema)[: len(wanted)] != wanted or (stage.is_rollbacks and len(schema) != len(wanted)):
        raise LocalProtocolError(f"{stage}: these are not the columns of a parcel: {schema.names}")
    if has_dictionaries(schema):
        raise LocalProtocolError(
            f"{stage} has a dictionary-encoded column; a parcel's columns are plain. Cast it"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Introduced:
    """What a segment does not know before a block, and what holds from there on."""

    names: Names
    schemas: Mapping[Stage, pa.Schema]


def encode_block(
    lsn: int,
    parts: Sequence[EncodedPart],
    order: Order | None,
    introduced: Introduced,
    stands_for: Sequence[int],
    *,
    gives: Sequence[int] = (),
) -> list[Piece]:
    """The block's bytes, in pieces."""
    rows = sum(part.rows for part in parts)
    order_piece = b"" if order is None else _padded(order.astype("<u4", copy=False).tobytes())
    metadata = _encode_metadata(parts, introduced, stands_for, gives)
    body_bytes = len(order_piece) + sum(part.size_bytes for part in parts)
    if (
        rows > BLOCK_ROWS_MAX
        or body_bytes > BLOCK_BODY_BYTES_MAX
        or len(metadata) > BLOCK_METADATA_BYTES_MAX
    ):
        raise LocalProtocolError(
            f"a block of {rows:,} rows and {body_bytes:,} bytes is too large; append less at once"
        )
    fields = (
        BLOCK_MAGIC,
        _ORDERED if order is not None else 0,
        0,
        lsn,
        rows,
        len(parts),
        sum(len(part.groups) for part in parts),
        len(introduced.schemas),
        len(introduced.names),
        len(stands_for),
        len(metadata),
        len(gives),
        body_bytes,
        checksum(order_piece),
        checksum(metadata),
    )
    unchecked = BLOCK_HEADER.pack(*fields, 0)[:-8]
    header = BLOCK_HEADER.pack(*fields, checksum(unchecked))
    pieces: list[Piece] = [header + metadata + order_piece]
    for part in parts:
        pieces += part.pieces
    return pieces


def _encode_metadata(
    parts: Sequence[EncodedPart],
    introduced: Introduced,
    stands_for: Sequence[int],
    gives: Sequence[int],
) -> bytes:
    reads, schemas = introduced.names, introduced.schemas
    names = [journal.encode() for _, journal in reads.values()]
    texts = [schema.serialize().to_pybytes() for schema in schemas.values()]
    tables = (
        np.array(
            [
                (p.stage.binding, p.stage.version, p.rows, len(p.groups), p.size_bytes, p.sum)
                for p in parts
            ],
            _PART,
        ),
        *(part.groups for part in parts),
        np.array(stands_for, "<u8"),
        np.array(gives, "<u8"),
        np.array(
            [
                (read, binding, len(name), 0)
                for (read, (binding, _)), name in zip(reads.items(), names, strict=True)
            ],
            _READ,
        ),
        np.array(
            [
                (stage.binding, stage.version, len(text), 0)
                for stage, text in zip(schemas, texts, strict=True)
            ],
            _SCHEMA,
        ),
    )
    return _padded(b"".join([*(table.tobytes() for table in tables), *names, *texts]))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class PartEntry:
    """What a block says of one of its parts, and where that lies in the file."""

    stage: Stage
    rows: int
    groups: slice
    """Its groups, among those of the block."""
    begin: int
    size_bytes: int
    sum: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block as its header and metadata say. Positions are those of the file."""

    lsn: int
    rows: int
    parts: tuple[PartEntry, ...]
    groups: Groups
    stands_for: tuple[int, ...]
    """Segments whose surviving rows are in this block."""
    gives: tuple[int, ...]
    """Vnodes whose rows in blocks with lesser LSNs are not this queue's any more."""
    introduced: Introduced
    ordered: bool
    order_begin: int
    order_sum: int
    begin: int
    end: int

    @property
    def number(self) -> int:
        return self.lsn & 0xFFFF


def decode_block(data: Bytes, begin: int, lsn: int) -> Block:
    """The block that begins here. Everything but its body is checked."""
    if begin + BLOCK_HEADER.size > data.size:
        raise DamagedBlockError("it is missing: the file ends before it")
    header = data.slice(begin, BLOCK_HEADER.size).to_pybytes()
    magic, flags, zero, found, *counts, order_sum, metadata_sum, header_sum = BLOCK_HEADER.unpack(
        header
    )
    rows, parts, groups, schemas, reads, stands_for, metadata_bytes, gives, body_bytes = counts
    if magic != BLOCK_MAGIC:
        raise DamagedBlockError(f"no block begins at byte {begin} (found {magic!r})")
    if checksum(header[:-8]) != header_sum:
        raise DamagedBlockError("its header's checksum does not match")
    if found != lsn:
        raise DamagedBlockError(f"it is another one, with LSN {found:#x} instead of {lsn:#x}")
    if flags & ~_ORDERED or zero:
        raise DamagedBlockError(f"it has flags that are not known here ({flags:#x})")
    if (
        rows > BLOCK_ROWS_MAX
        or body_bytes > BLOCK_BODY_BYTES_MAX
        or metadata_bytes > BLOCK_METADATA_BYTES_MAX
    ):
        raise DamagedBlockError(f"{rows} rows in {body_bytes} bytes cannot be")
    order_begin = begin + BLOCK_HEADER.size + metadata_bytes
    end = order_begin + body_bytes
    if end > data.size:
        raise DamagedBlockError(f"it ends at byte {end}, and the file at {data.size}")
    metadata = data.slice(begin + BLOCK_HEADER.size, metadata_bytes).to_pybytes()
    if checksum(metadata) != metadata_sum:
        raise DamagedBlockError("its metadata's checksum does not match")
    tables = _Tables(metadata)
    part_table = tables.take(_PART, parts)
    group_table = tables.take(GROUP, groups)
    stood_for = tables.take(np.dtype("<u8"), stands_for)
    given = tables.take(np.dtype("<u8"), gives)
    read_table = tables.take(_READ, reads)
    schema_table = tables.take(_SCHEMA, schemas)
    names = {
        int(entry["read"]): (int(entry["binding"]), tables.bytes(int(entry["bytes"])).decode())
        for entry in read_table
    }
    stages = {
        Stage(int(entry["binding"]), int(entry["version"])): pa.ipc.read_schema(
            pa.py_buffer(tables.bytes(int(entry["bytes"])))
        )
        for entry in schema_table
    }
    ordered = bool(flags & _ORDERED)
    order_bytes = (4 * rows + 7) // 8 * 8 if ordered else 0
    entries = _part_entries(part_table, order_begin + order_bytes)
    if sum(part.rows for part in entries) != rows or int(part_table["groups"].sum()) != groups:
        raise DamagedBlockError("its parts do not add up to it")
    if int(part_table["bytes"].sum()) + order_bytes != body_bytes:
        raise DamagedBlockError("its parts do not fill its body")
    return Block(
        lsn=lsn,
        rows=rows,
        parts=entries,
        groups=group_table,
        stands_for=tuple(stood_for.tolist()),
        gives=tuple(given.tolist()),
        introduced=Introduced(names, stages),
        ordered=ordered,
        order_begin=order_begin,
        order_sum=order_sum,
        begin=begin,
        end=end,
    )


def _part_entries(table: Groups, begin: int) -> tuple[PartEntry, ...]:
    entries, group = [], 0
    for binding, version, rows, groups, size_bytes, part_sum in table.tolist():
        entries.append(
            PartEntry(
                Stage(binding, version),
                rows,
                slice(group, group + groups),
                begin,
                size_bytes,
                part_sum,
            )
        )
        group += groups
        begin += size_bytes
    return tuple(entries)


class _Tables:
    """Takes one table after the other off the metadata."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._position = 0

    def take(self, kind: np.dtype[Any], count: int) -> Groups:
        data = self.bytes(kind.itemsize * count)
        return np.frombuffer(data, kind)

    def bytes(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._metadata):
            raise DamagedBlockError("its metadata is shorter than it says")
        data = self._metadata[self._position : end]
        self._position = end
        return data


def decode_order(block: Block, data: Bytes) -> Order | None:
    """The order of the block's rows: at each place, the row's number over all parts."""
    if not block.ordered:
        return None
    size = 4 * block.rows
    stored = data.slice(block.order_begin, size + -size % ALIGNMENT_BYTES)
    if checksum(stored) != block.order_sum:
        raise DamagedBlockError("the checksum of its order does not match")
    return np.frombuffer(memoryview(stored), np.uint32, block.rows)


def decode_part(part: PartEntry, data: Bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The part's batch."""
    stored = data.slice(part.begin, part.size_bytes)
    if checksum(stored) != part.sum:
        raise DamagedBlockError(f"the checksum of a part of {part.stage} does not match")
    batch = pa.ipc.read_record_batch(stored, schema)
    if batch.num_rows != part.rows:
        raise DamagedBlockError(f"a part has {batch.num_rows} rows instead of {part.rows}")
    return batch
