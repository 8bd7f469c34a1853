"""Record batches as another client writes and reads them: aiokafka's, which shares nothing with
ours."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from penstock.journal.kafka.records.batches import HEADER

Headers = list[tuple[str, bytes | None]]
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True)
class Row:
    """One record, as a test wants it."""

    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch_of(
    rows: list[Row],
    *,
    base: int = 0,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """`rows` have rising deltas."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(is_transactional),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=1 << 30,
    )
    for row in rows:
        assert builder.append(row.delta, row.timestamp, row.key, row.value, list(row.headers))
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    struct.pack_into(">i", batch, 12, leader_epoch)
    return bytes(batch)


def control_batch(*, base: int, kind: int, producer: tuple[int, int], epoch: int) -> bytes:
    """A marker, as a coordinator has it written."""
    rows = [Row(0, 1_000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, epoch))]
    batch = batch_of(rows, base=base, producer=(*producer, -1), is_transactional=True)
    return with_attributes(batch, 0x30)


def with_attributes(batch: bytes, attributes: int) -> bytes:
    """The same batch with other bits, and the checksum that goes with them."""
    changed = bytearray(batch)
    struct.pack_into(">h", changed, 21, attributes)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


def read_by_another(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None, Headers]]:
    """Offset, timestamp, key, value and headers of all records but control records."""
    records = MemoryRecords(data)
    found: list[Any] = []
    while records.has_next():
        batch = records.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        if not batch.is_control_batch:
            found += [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    return found


def with_payload(payload: bytes, records: int, *, base: int = 0, codec: int = 0) -> bytes:
    """A batch of any bytes, under a right checksum: what a defective producer sends."""
    header = bytearray(
        HEADER.pack(base, HEADER.size - 12 + len(payload), 0, 2, 0, codec, max(records, 1) - 1, 0,
                    0, -1, -1, -1, records)
    )  # fmt: skip
    struct.pack_into(">I", header, 17, crc32c.crc32c(bytes(header[21:]) + payload))
    return bytes(header) + payload


def varint(number: int) -> bytes:
    """With zigzag, as records have them."""
    rest = (number << 1) ^ (number >> 63)
    octets = bytearray()
    while rest >= 0x80:
        octets.append(rest & 0x7F | 0x80)
        rest >>= 7
    octets.append(rest)
    return bytes(octets)


def read_slowly(payload: bytes, records: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Deltas of timestamp and offset, key, value: one byte after the other. Raises ValueError or
    IndexError where the bytes are no records."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = payload[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift >= 70:
                raise ValueError("a varint does not end")

    def octets() -> bytes | None:
        nonlocal position
        length = number()
        if length < 0:
            return None
        position += length
        if position > len(payload):
            raise ValueError("cut off")
        return payload[position - length : position]

    found = []
    for _ in range(records):
        length = number()
        end = position + length
        position += 1
        row = (number(), number(), octets(), octets())
        count = number()
        if length < 0 or count < 0:
            raise ValueError("negative")
        for _ in range(count):
            if octets() is None:
                raise ValueError("a header has no name")
            octets()
            if position > end:
                raise ValueError("a header is beyond its record")
        if position != end:
            raise ValueError("a record does not end at its end")
        found.append(row)
    if position != len(payload):
        raise ValueError("there is more")
    return found
