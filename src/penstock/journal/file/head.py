"""A journal's head: small records in one file, each replaced whole.

`written` says where the last append ended, `synced` what of it is durable, `kept` where the
journal begins after retention, and `trust` whether the files may be built upon. Readers take no
lock: a record read while it is being replaced fails its checksum and is read again.
"""

from __future__ import annotations

import enum
import functools
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.checksum import checksum
from penstock.disk import disk_error, explained
from penstock.errors import CorruptStorageError

_RECORD: Final = struct.Struct("<QQQQ")
_WRITTEN_AT, _TRUST_AT, _SYNCED_AT, _KEPT_AT, _HEAD_BYTES = 0, 32, 64, 128, 192
_PLACES: Final = (_WRITTEN_AT, _SYNCED_AT, _KEPT_AT, _TRUST_AT)
_UNSET: Final = bytes(_RECORD.size)
"""In place of `trust`, in heads that were made before there was one."""
_READ_TRIES_MAX: Final = 200
"""A record is replaced in a microsecond or so; 200 failing reads mean damage, not bad luck."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

_Fields = tuple[int, int, int]


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


class Trust(enum.IntEnum):
    """Whether appends may build on what the files hold."""

    SOUND = 0
    DOUBTED = 1
    """A sync failed: what the kernel holds in memory may not be what is on the disk. Nobody
    appends before somebody has opened the journal anew, and so read it back from the disk."""
    CHECKING = 2
    """Somebody who opened the journal is looking for its end."""


@dataclass(frozen=True, slots=True)
class Records:
    written: Position
    synced: Position
    kept: Kept
    trust: Trust
    boot: int
    """In which run of the machine the journal's end was looked for last, see `this_boot`."""


@functools.cache
def this_boot() -> int:
    """Tells one run of the machine from the next; 0 where the system does not say."""
    try:
        return checksum(_BOOT.read_bytes())
    except OSError:
        return 0


class Head:
    """The open head file of one journal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def written(self) -> Position:
        return Position(*self._read(_WRITTEN_AT))

    def synced(self) -> Position:
        return Position(*self._read(_SYNCED_AT))

    def kept(self) -> Kept:
        return _kept(self._read(_KEPT_AT))

    def all(self) -> Records:
        """By one read where nothing is being replaced just now."""
        data = self._pread(_HEAD_BYTES, 0)
        found = [_decoded(data[at : at + _RECORD.size], at) for at in _PLACES]
        written, synced, kept, trust = (
            self._read(at) if fields is None else fields
            for at, fields in zip(_PLACES, found, strict=True)
        )
        return Records(
            Position(*written), Position(*synced), _kept(kept), Trust(trust[0]), trust[1]
        )

    def set_written(self, position: Position) -> None:
        self._write(_WRITTEN_AT, position.segment, position.bytes, position.offset)

    def set_synced(self, position: Position) -> None:
        self._write(_SYNCED_AT, position.segment, position.bytes, position.offset)

    def set_kept(self, kept: Kept) -> None:
        self._write(_KEPT_AT, kept.first_offset, int(kept.suspended), 0)

    def set_trust(self, trust: Trust, boot: int) -> None:
        self._write(_TRUST_AT, trust, boot, 0)

    def sync(self) -> None:
        """Not needed for what it says to be true: frames tell it too. It spares whoever opens the
        journal after a power cut the walk over them."""
        with explained("sync", self._descriptor):
            os.fdatasync(self._descriptor)

    def _read(self, at: int) -> _Fields:
        for attempt in range(_READ_TRIES_MAX):
            record = _decoded(self._pread(_RECORD.size, at), at)
            if record is not None:
                return record
            if attempt > 10:
                time.sleep(0.0005)
        raise DamagedHeadError(f"the head record at byte {at} fails its checksum")

    def _pread(self, size: int, at: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:
            raise disk_error("read", self._descriptor, error) from error

    def _write(self, at: int, first: int, second: int, third: int) -> None:
        try:
            os.pwrite(self._descriptor, _record(first, second, third), at)
        except OSError as error:
            raise disk_error("write", self._descriptor, error) from error


def new_head(position: Position, kept: Kept) -> bytes:
    """The bytes of a head file whose journal ends, durably, at the position."""
    data = bytearray(_HEAD_BYTES)
    for at, fields in (
        (_WRITTEN_AT, (position.segment, position.bytes, position.offset)),
        (_TRUST_AT, (Trust.SOUND, this_boot(), 0)),
        (_SYNCED_AT, (position.segment, position.bytes, position.offset)),
        (_KEPT_AT, (kept.first_offset, int(kept.suspended), 0)),
    ):
        data[at : at + _RECORD.size] = _record(*fields)
    return bytes(data)


def _kept(fields: _Fields) -> Kept:
    return Kept(fields[0], bool(fields[1]))


def _decoded(data: bytes, at: int) -> _Fields | None:
    if len(data) < _RECORD.size:
        return None
    if at == _TRUST_AT and data == _UNSET:
        return Trust.SOUND, 0, 0
    first, second, third, found = _RECORD.unpack(data)
    return (first, second, third) if checksum(data[:-8]) == found else None


def _record(first: int, second: int, third: int) -> bytes:
    data = _RECORD.pack(first, second, third, 0)[:-8]
    return data + checksum(data).to_bytes(8, "little")
