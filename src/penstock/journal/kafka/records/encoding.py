"""Rows as record batches, without a loop over rows: the other direction of columns.py. Pure.

A record is numbers of varying length between bytes of varying length. The numbers of all records
are written at once, into a column of bytes for each place where they stand; Arrow then joins these
columns with those of keys and values. What comes out lies record behind record in one buffer, which
is cut into batches.

Who the producer is, and the sequence numbers, are not known yet: `stamped` fills them in, and
computes the checksum that covers them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.kafka.records.batches import (
    CRC_BEGIN,
    HEADER,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

CodecName: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: Final[dict[str, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
OVERHEAD_BYTES_MAX: Final = 30
"""Of a record, beside its key, value and headers: six numbers of up to five bytes."""
_TIME_BYTES_MORE: Final = 5
"""Of a record that has a time of its own: a number of up to ten bytes."""
_VARINT_BYTES_MAX: Final = 10
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_BEGIN: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_LZ4_HEAD: Final = bytes.fromhex("04224d18607073")
"""A frame of independent blocks of up to 4 MB, without checksums. Arrow's own frames have blocks
that refer to each other, which Java's clients and brokers refuse."""
_LZ4_BLOCK_BYTES_MAX: Final = 4 << 20
_LZ4_STORED: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Compression:
    name: CodecName = "none"
    level: int | None = None

    def packed(self, payload: pa.Buffer) -> bytes | pa.Buffer:
        if self.name == "none":
            return payload
        if self.name == "lz4":
            return _lz4(payload, self.level)
        codec = pa.Codec(self.name, compression_level=self.level)
        return codec.compress(payload, asbytes=True)


@dataclass(frozen=True, slots=True)
class Rows:
    """What records are made of, a value for each row."""

    keys: pa.Array[Any]
    values: pa.Array[Any]
    headers: pa.Array[Any] | None = None
    """The encoded headers of each row (`encoded_headers`), with their number in front."""
    timestamps_ms: NDArray[np.int64] | None = None
    """None: all have the time of their batch."""

    def take(self, order: NDArray[np.int64]) -> Rows:
        return Rows(
            self.keys.take(order),
            self.values.take(order),
            None if self.headers is None else self.headers.take(order),
            None if self.timestamps_ms is None else self.timestamps_ms[order],
        )

    def sizes(self) -> NDArray[np.int64]:
        """How many bytes each record takes at most."""
        sizes: NDArray[np.int64] = lengths_of(self.keys).clip(0) + lengths_of(self.values).clip(0)
        if self.headers is not None:
            sizes += lengths_of(self.headers)
        if self.timestamps_ms is not None:
            sizes += _TIME_BYTES_MORE
        return sizes + OVERHEAD_BYTES_MAX


def record_batches(
    rows: Rows,
    counts: Sequence[int],
    timestamp_ms: int,
    compression: Compression,
    *,
    is_transactional: bool = True,
) -> list[bytes]:
    """The rows in batches of so many each. Those without times of their own have this one."""
    deltas = np.concatenate([np.arange(count) for count in counts])
    times = rows.timestamps_ms
    if times is None:
        times = np.full(len(deltas), timestamp_ms, np.int64)
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
    records = _records(rows, deltas, times - np.repeat(times[begins], counts))
    cuts, data = bytes_of(records)
    attributes = CODECS[compression.name] | (TRANSACTIONAL if is_transactional else 0)
    made, begin = [], 0
    for count in counts:
        first, last = int(cuts[begin]), int(cuts[begin + count])
        packed = compression.packed(data.slice(first, last - first))
        length = HEADER.size - LENGTH_END + len(packed)
        mine = times[begin : begin + count]
        head = HEADER.pack(
            0, length, -1, MAGIC, 0, attributes, count - 1, int(mine[0]), int(mine.max()),
            -1, -1, -1, count,
        )  # fmt: skip
        made.append(b"".join((head, packed)))
        begin += count
    return made


def stamped(batch: bytes, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
    """The batch as this producer's, with the sequence number of its first record."""
    data = bytearray(batch)
    _PRODUCER.pack_into(data, _PRODUCER_BEGIN, producer_id, producer_epoch, sequence)
    _CRC.pack_into(data, _CRC_AT, crc32c.crc32c(memoryview(data)[CRC_BEGIN:]))
    return data


def encoded_headers(
    lists: pa.Array[Any] | None, fixed: Sequence[tuple[str, pa.Array[Any]]], rows: int
) -> pa.Array[Any]:
    """The headers of each row as a record has them. `lists` is an array of lists of (key, value);
    `fixed` are headers that every row has, by name, each with its value for every row."""
    counts = np.full(rows, len(fixed), np.int64)
    pieces: list[pa.Array[Any]] = []
    if lists is not None:
        own, encoded = _listed(lists)
        counts += own
        pieces.append(encoded)
    for name, values in fixed:
        key = name.encode()
        key_length = _numbers([np.full(rows, len(key), np.int64)])
        pieces += [
            key_length,
            _repeated(key, rows),
            _numbers([lengths_of(values)]),
            _filled(values),
        ]
    return _joined([_numbers([counts]), *pieces])


def lengths_of(values: pa.Array[Any]) -> NDArray[np.int64]:
    """In bytes; -1 for null, as records have it."""
    lengths = pc.fill_null(cast("Any", pc.binary_length)(values), -1)
    return cast("NDArray[np.int64]", lengths.to_numpy(zero_copy_only=False).astype(np.int64))


def bytes_of(values: pa.Array[Any]) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Of an array of binary: where each value begins, and the last one ends; and the bytes."""
    _, offsets, data = values.buffers()
    nothing = pa.py_buffer(b"")
    if offsets is None or not len(values):
        return np.zeros(len(values) + 1, np.int32), nothing
    cuts = np.frombuffer(cast("Any", offsets), np.int32)
    begin = values.offset
    return cuts[begin : begin + len(values) + 1], nothing if data is None else data


def _records(
    rows: Rows, deltas: NDArray[np.int64], time_deltas: NDArray[np.int64]
) -> pa.Array[Any]:
    keys, values = lengths_of(rows.keys), lengths_of(rows.values)
    headers = rows.headers
    if headers is None:
        headers = _repeated(b"\x00", len(deltas))
    zero = np.zeros(len(deltas), np.int64)
    begin = [zero, time_deltas, deltas, keys]  # the first are the attributes, one byte
    middle = _numbers([values])
    sizes = sum((_widths(column) for column in begin), keys.clip(0) + values.clip(0))
    sizes = sizes + lengths_of(middle) + lengths_of(headers)
    return _joined(
        [_numbers([sizes, *begin]), _filled(rows.keys), middle, _filled(rows.values), headers]
    )


def _listed(lists: pa.Array[Any]) -> tuple[NDArray[np.int64], pa.Array[Any]]:
    """How many headers each list has, and their bytes."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat: Any = cast("Any", lists).flatten()
    keys = flat.field("key").cast(pa.binary())
    values = flat.field("value")
    encoded = _joined(
        [
            _numbers([lengths_of(keys)]),
            _filled(keys),
            _numbers([lengths_of(values)]),
            _filled(values),
        ]
    )
    cuts, data = bytes_of(encoded)
    own = cuts[np.concatenate([[0], np.cumsum(counts)])]
    found: pa.Array[Any] = pa.BinaryArray.from_buffers(
        pa.binary(), len(lists), [None, pa.py_buffer(own.data), data]
    )
    return counts.astype(np.int64), found


def _numbers(columns: Sequence[NDArray[np.int64]]) -> pa.Array[Any]:
    """The numbers of each row as varints, one behind the other."""
    rows = len(columns[0])
    zigzags = [(column << 1) ^ (column >> 63) for column in columns]
    largest = max((int(zigzag.max()) for zigzag in zigzags if rows), default=0)
    octets_max = max(-(-largest.bit_length() // 7), 1)
    octets = np.zeros((rows, len(columns), octets_max), np.uint8)
    used = np.zeros((rows, len(columns), octets_max), np.bool_)
    for place, zigzag in enumerate(zigzags):
        for octet in range(octets_max):
            rest = zigzag >> (7 * octet)
            octets[:, place, octet] = (rest & 0x7F) | np.where(rest > 0x7F, 0x80, 0)
            used[:, place, octet] = rest > 0 if octet else True
            if octet and not used[:, place, octet].any():
                break
    cuts = np.zeros(rows + 1, np.int32)
    np.cumsum(used.sum(axis=(1, 2)), out=cuts[1:])
    made: pa.Array[Any] = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(cuts.data), pa.py_buffer(octets[used].data)]
    )
    return made


def _widths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that each of them takes as a varint."""
    zigzag = (numbers << 1) ^ (numbers >> 63)
    limits = np.array([1 << (7 * octet) for octet in range(1, _VARINT_BYTES_MAX - 1)])
    return np.searchsorted(limits, zigzag, side="right").astype(np.int64) + 1


def _filled(values: pa.Array[Any]) -> pa.Array[Any]:
    return values.fill_null(b"") if values.null_count else values


def _repeated(value: bytes, rows: int) -> pa.Array[Any]:
    return pa.repeat(pa.scalar(value, pa.binary()), rows)


def _joined(columns: Sequence[pa.Array[Any]]) -> pa.Array[Any]:
    join = cast("Any", pc.binary_join_element_wise)
    return cast("pa.Array[Any]", join(*columns, pa.scalar(b"", pa.binary())))


def _lz4(payload: pa.Buffer, level: int | None) -> bytes:
    codec = pa.Codec("lz4_raw", compression_level=level)
    pieces: list[bytes | pa.Buffer] = [_LZ4_HEAD]
    for begin in range(0, payload.size, _LZ4_BLOCK_BYTES_MAX):
        block = payload.slice(begin, min(_LZ4_BLOCK_BYTES_MAX, payload.size - begin))
        packed = codec.compress(block, asbytes=True)
        if len(packed) < block.size:
            pieces += [struct.pack("<I", len(packed)), packed]
        else:
            pieces += [struct.pack("<I", block.size | _LZ4_STORED), block]
    return b"".join((*pieces, b"\x00\x00\x00\x00"))
