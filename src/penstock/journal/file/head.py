"""A journal's head: three small records in one file, each replaced whole.

`written` says where the last append ended, `synced` what of it is durable, `kept` where the
journal begins after retention. Readers take no lock: a record read while it is being replaced
fails its checksum and is read again.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from typing import Final

from penstock.checksum import checksum
from penstock.errors import CorruptStorageError

_RECORD: Final = struct.Struct("<QQQQ")
_WRITTEN_AT, _SYNCED_AT, _KEPT_AT, _HEAD_BYTES = 0, 64, 128, 192
_PLACES: Final = (_WRITTEN_AT, _SYNCED_AT, _KEPT_AT)
_READ_TRIES_MAX: Final = 200
"""A record is replaced in a microsecond or so; 200 failing reads mean damage, not bad luck."""


class DamagedHeadError(CorruptStorageError):
    """A head record fails its checksum. The journal rebuilds it from its segments."""


@dataclass(frozen=True, slots=True)
class Position:
    """An end of the journal: the segment it lies in, the byte there, and the row offset."""

    segment: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Kept:
    first_offset: int
    suspended: bool


class Head:
    """The open head file of one journal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def written(self) -> Position:
        return Position(*self._read(_WRITTEN_AT))

    def synced(self) -> Position:
        return Position(*self._read(_SYNCED_AT))

    def kept(self) -> Kept:
        first, suspended, _ = self._read(_KEPT_AT)
        return Kept(first, bool(suspended))

    def all(self) -> tuple[Position, Position, Kept]:
        """Written, synced and kept, by one read where nothing is being replaced just now."""
        data = os.pread(self._descriptor, _HEAD_BYTES, 0)
        records = [_decoded(data[at : at + _RECORD.size]) for at in _PLACES]
        if None in records:
            return self.written(), self.synced(), self.kept()
        written, synced, kept = (record or (0, 0, 0) for record in records)
        return Position(*written), Position(*synced), Kept(kept[0], bool(kept[1]))

    def set_written(self, position: Position) -> None:
        self._write(_WRITTEN_AT, position.segment, position.bytes, position.offset)

    def set_synced(self, position: Position) -> None:
        self._write(_SYNCED_AT, position.segment, position.bytes, position.offset)

    def set_kept(self, kept: Kept) -> None:
        self._write(_KEPT_AT, kept.first_offset, int(kept.suspended), 0)

    def _read(self, at: int) -> tuple[int, int, int]:
        for attempt in range(_READ_TRIES_MAX):
            record = _decoded(os.pread(self._descriptor, _RECORD.size, at))
            if record is not None:
                return record
            if attempt > 10:
                time.sleep(0.0005)
        raise DamagedHeadError(f"the head record at byte {at} fails its checksum")

    def _write(self, at: int, first: int, second: int, third: int) -> None:
        os.pwrite(self._descriptor, _record(first, second, third), at)


def new_head(position: Position, kept: Kept) -> bytes:
    """The bytes of a head file whose journal ends, durably, at the position."""
    data = bytearray(_HEAD_BYTES)
    for at, fields in (
        (_WRITTEN_AT, (position.segment, position.bytes, position.offset)),
        (_SYNCED_AT, (position.segment, position.bytes, position.offset)),
        (_KEPT_AT, (kept.first_offset, int(kept.suspended), 0)),
    ):
        data[at : at + _RECORD.size] = _record(*fields)
    return bytes(data)


def _decoded(data: bytes) -> tuple[int, int, int] | None:
    if len(data) < _RECORD.size:
        return None
    first, second, third, found = _RECORD.unpack(data)
    return (first, second, third) if checksum(data[:-8]) == found else None


def _record(first: int, second: int, third: int) -> bytes:
    data = _RECORD.pack(first, second, third, 0)[:-8]
    return data + checksum(data).to_bytes(8, "little")
