"""Unpacks the records of a batch.

gzip, lz4 and zstd are streams that do not name their size: they are read in pieces up to a limit,
so that a small batch cannot ask for all memory. Snappy names its sizes, and they are checked first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.journal.kafka.records.batches import Batch, Partition

UNPACKED_BYTES_MAX: Final = 1 << 28
"""Of one batch. Brokers accept a megabyte of packed bytes by default; text packs by up to 250."""
PIECE_BYTES: Final = 1 << 17
"""Large enough that a batch is one or two pieces, small enough to stay in a core's cache."""

GZIP, LZ4, ZSTD = 1, 3, 4
Stream: TypeAlias = Literal["gzip", "lz4", "zstd"]
_STREAMS: Final[dict[int, Stream]] = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
"""The magic and two version numbers. Java's clients frame snappy so; librdkafka does not."""


def unpacked(partition: Partition, batch: Batch) -> list[bytes | memoryview]:
    """A batch's records, in pieces."""
    try:
        match batch.codec:
            case 0:
                return [batch.payload]
            case 2:
                return _snappy(batch.payload)
            case codec if codec in _STREAMS:
                return _stream(batch.payload, _STREAMS[codec])
            case codec:
                raise ValueError(f"the compression {codec} is unknown")
    except (OSError, ValueError, pa.ArrowException, struct.error) as error:
        reason = f"the records of a batch cannot be unpacked: {error}"
        raise partition.corrupt(batch.base_offset, reason) from error


def _stream(payload: memoryview, codec: Stream) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    room = UNPACKED_BYTES_MAX
    with pa.input_stream(pa.py_buffer(payload), compression=codec) as stream:
        while piece := stream.read(PIECE_BYTES):
            room -= len(piece)
            if room < 0:
                raise ValueError(_too_large())
            pieces.append(piece)
    return pieces


def _snappy(payload: memoryview) -> list[bytes | memoryview]:
    if bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return [_snappy_block(payload, UNPACKED_BYTES_MAX)]
    pieces: list[bytes | memoryview] = []
    position, room = _XERIAL_HEADER_BYTES, UNPACKED_BYTES_MAX
    while position < len(payload):
        (size,) = struct.unpack_from(">i", payload, position)
        position += 4
        if not 0 <= size <= len(payload) - position:
            raise ValueError(f"a snappy block of {size} bytes is cut off")
        piece = _snappy_block(payload[position : position + size], room)
        pieces.append(piece)
        room -= len(piece)
        position += size
    return pieces


def _snappy_block(block: memoryview, room: int) -> bytes:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > room:
        raise ValueError(_too_large())
    return pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)


def _too_large() -> str:
    return f"a batch unpacks to more than {UNPACKED_BYTES_MAX} bytes"
