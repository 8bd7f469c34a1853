"""Entries of Kafka's transaction log (`__transaction_state`), decoded. Pure.

For one transactional id the log goes Ongoing, PrepareCommit or PrepareAbort with all partitions of
the transaction, then CompleteCommit or CompleteAbort without any. Before a marker is in any of the
partitions, the Prepare entry is in this log. Compaction keeps the last entry of each id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from penstock.errors import RemoteProtocolError

TRANSACTION_LOG: Final = "__transaction_state"
KEY_VERSION: Final = 0
VALUE_VERSIONS: Final = (0, 1)
"""0: strings and lists with their lengths in front. 1: compact ones, with tagged fields."""
_FIXED: Final = struct.Struct(">qhib")
"""Producer id and epoch, timeout, status."""
_TIMES: Final = struct.Struct(">qq")
_NONE: Final = -1


class Status(IntEnum):
    """Of a transactional id, as its coordinator numbers them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class Entry:
    """What a coordinator wrote of a transactional id."""

    log_partition: int
    offset: int
    transactional_id: str
    producer_id: int
    epoch: int
    status: Status
    partitions: tuple[tuple[str, int], ...]
    """Topics and numbers. Empty before the first and after the completion."""
    timeout_ms: int
    updated_ms: int
    started_ms: int | None
    """None: no transaction was open."""
    previous_producer_id: int | None = None
    """Of which the transaction is, if the id has got another producer id since."""
    next_producer_id: int | None = None
    """Which the id gets when the transaction is complete: epochs of the old one are used up."""
    next_epoch: int | None = None
    client_version: int = 0
    """2: every transaction of the producer has an epoch of its own."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The coordinator forgot a transactional id that was idle for long."""

    log_partition: int
    offset: int
    transactional_id: str


class UnknownEntryError(RemoteProtocolError):
    """The transaction log has an entry in a form that we do not know. A newer Kafka wrote it: use a
    newer Penstock; until then transactions can be read per partition only."""

    def __init__(self, log_partition: int, offset: int, reason: str) -> None:
        super().__init__(log_partition, offset, reason)
        self.log_partition, self.offset, self.reason = log_partition, offset, reason

    def __str__(self) -> str:
        return (
            f"{TRANSACTION_LOG}-{self.log_partition} at offset {self.offset}: {self.reason}. "
            "A newer Kafka than we know wrote it: use a newer Penstock"
        )


def entry(
    log_partition: int, offset: int, key: bytes | None, value: bytes | None
) -> Entry | Tombstone:
    """One record of the log. Raises `UnknownEntryError`."""
    try:
        transactional_id = _key(key)
        if value is None:
            return Tombstone(log_partition, offset, transactional_id)
        (version,) = struct.unpack_from(">h", value)
        if version not in VALUE_VERSIONS:
            raise ValueError(f"a value has the version {version}")
        cursor = _Cursor(value, 2, is_compact=version == 1)
        return _entry(log_partition, offset, transactional_id, cursor)
    except (ValueError, IndexError, struct.error) as error:
        raise UnknownEntryError(log_partition, offset, str(error)) from error


def _key(key: bytes | None) -> str:
    if key is None:
        raise ValueError("an entry has no key")
    version, length = struct.unpack_from(">hh", key)
    if version != KEY_VERSION or len(key) != 4 + length:
        raise ValueError(f"a key has the version {version} and {len(key)} bytes")
    return key[4:].decode()


def _entry(log_partition: int, offset: int, transactional_id: str, cursor: _Cursor) -> Entry:
    producer_id, epoch, timeout_ms, status = cursor.take(_FIXED)
    partitions = cursor.partitions()
    updated_ms, started_ms = cursor.take(_TIMES)
    tags = cursor.tags()
    return Entry(
        log_partition=log_partition,
        offset=offset,
        transactional_id=transactional_id,
        producer_id=producer_id,
        epoch=epoch,
        status=Status(status),
        partitions=partitions,
        timeout_ms=timeout_ms,
        updated_ms=updated_ms,
        started_ms=None if started_ms == _NONE else started_ms,
        previous_producer_id=_tagged(tags, 0, ">q"),
        next_producer_id=_tagged(tags, 1, ">q"),
        client_version=_tagged(tags, 2, ">h") or 0,
        next_epoch=_tagged(tags, 3, ">h"),
    )


def _tagged(tags: dict[int, bytes], tag: int, form: str) -> int | None:
    if tag not in tags:
        return None
    (value,) = struct.unpack(form, tags[tag])
    return None if value == _NONE else int(value)


class _Cursor:
    """Takes one field after the other from an entry's value."""

    def __init__(self, data: bytes, position: int, *, is_compact: bool) -> None:
        self._data, self._position, self._is_compact = data, position, is_compact

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self._position)
        self._position += form.size
        return values

    def partitions(self) -> tuple[tuple[str, int], ...]:
        found = []
        for _ in range(self._length(_INT32)):
            topic = self._octets(self._length(_INT16)).decode()
            count = self._length(_INT32)
            if count * _INT32.size > len(self._data) - self._position:
                raise ValueError(f"a list of {count} partitions is cut off")
            found += [(topic, self.take(_INT32)[0]) for _ in range(count)]
            self.tags()
        return tuple(found)

    def tags(self) -> dict[int, bytes]:
        """Fields that only some entries have, by their numbers."""
        if not self._is_compact:
            return {}
        return {self._varint(): self._octets(self._varint()) for _ in range(self._varint())}

    def _length(self, form: struct.Struct) -> int:
        """Of a list or a string; none at all counts as an empty one."""
        length = self._varint() - 1 if self._is_compact else self.take(form)[0]
        if length > len(self._data) - self._position:
            raise ValueError(f"a field of length {length} is cut off")
        return max(length, 0)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _octets(self, count: int) -> bytes:
        octets = self._data[self._position : self._position + count]
        if len(octets) < count:
            raise ValueError(f"a field of {count} bytes is cut off")
        self._position += count
        return octets


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
