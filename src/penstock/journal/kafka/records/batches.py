"""Record batches within the bytes of a fetch: headers, checksums, and what follows from them.

Kafka's checksum covers a batch from its attributes on. The base offset, the length, the leader
epoch and the magic byte in front of it are not covered: what can be checked of them is checked
here, and the rest is left to the connection.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import crc32c

from penstock.journal.kafka.errors import CorruptRecordsError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, base and
greatest timestamp, producer id and epoch, base sequence, number of records."""
MAGIC: Final = 2
CRC_BEGIN: Final = 21
"""Of a batch's bytes; the checksum covers all from here on."""
LENGTH_END: Final = 12
"""A batch's length counts the bytes behind the length itself."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two lengths, the number of headers: a byte each."""

CODEC_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20


@dataclass(frozen=True, slots=True)
class Partition:
    """Names where bytes come from, in errors too."""

    topic: str
    number: int

    def corrupt(self, offset: int, reason: str) -> CorruptRecordsError:
        return CorruptRecordsError(self.topic, self.number, offset, reason)

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch: its header's fields, and its records' bytes as they were stored."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int
    payload: memoryview

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def has_append_time(self) -> bool:
        return bool(self.attributes & APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def batches(partition: Partition, data: memoryview, begin: int) -> Iterator[Batch]:
    """The whole batches of a fetch from offset `begin`. A broker cuts the last one off where the
    fetch's size ends: it is left out, and comes whole with the next fetch. Batches that end below
    `begin` are left out too."""
    position, after = 0, -1
    while len(data) - position >= LENGTH_END:
        base_offset, length = struct.unpack_from(">qi", data, position)
        if length < HEADER.size - LENGTH_END:
            reason = f"a record batch has {length} bytes, which is less than its header takes"
            raise partition.corrupt(base_offset, reason)
        end = position + LENGTH_END + length
        if end > len(data):
            # Even of a batch that is cut off the magic byte is usually there: an old form would
            # look like one that is cut off for ever.
            if len(data) - position > LENGTH_END + 4:
                _check_magic(partition, base_offset, data[position + LENGTH_END + 4])
            return
        batch = _batch(partition, data[position:end])
        if batch.base_offset <= after or batch.last_offset < batch.base_offset:
            reason = f"a record batch has offsets {batch.base_offset} to {batch.last_offset}"
            raise partition.corrupt(batch.base_offset, f"{reason}, behind {after}")
        after = batch.last_offset
        if batch.last_offset >= begin:
            yield batch
        position = end


def _batch(partition: Partition, data: memoryview) -> Batch:
    (
        base_offset, _length, leader_epoch, magic, checksum, attributes, last_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, records,
    ) = HEADER.unpack_from(data)  # fmt: skip
    _check_magic(partition, base_offset, magic)
    if crc32c.crc32c(data[CRC_BEGIN:]) != checksum:
        raise partition.corrupt(base_offset, "a record batch does not match its checksum")
    payload = data[HEADER.size :]
    codec = attributes & CODEC_MASK
    if records < 0 or (codec == 0 and records * RECORD_BYTES_MIN > len(payload)):
        reason = f"a record batch of {len(payload)} bytes claims to hold {records} records"
        raise partition.corrupt(base_offset, reason)
    return Batch(
        base_offset, base_offset + last_delta, leader_epoch, attributes, base_timestamp,
        max_timestamp, producer_id, producer_epoch, base_sequence, records, payload,
    )  # fmt: skip


def _check_magic(partition: Partition, offset: int, magic: int) -> None:
    if magic == MAGIC:
        return
    if magic in (0, 1):
        reason = (
            f"its records are in the form {magic}, which brokers before 0.11 wrote; Kafka 4 and "
            "later convert such topics, or have them copied into a new topic"
        )
        raise partition.corrupt(offset, reason)
    raise partition.corrupt(offset, f"a record batch has the unknown form {magic}")
