"""A journal's identity on disk: what tells it from another one that is made under its name later.

It is made once, with the journal, and kept in the head, behind the records that change, and in the
header of every segment: so it outlives a lost head, and moves with the folder. Journals from before
there were identities get one that follows from their name, so that all processes give them the same
one, whether they may write it down or not.
"""

from __future__ import annotations

import os
import struct
import uuid
from typing import TYPE_CHECKING, Final

from penstock.checksum import checksum
from penstock.disk import explained
from penstock.errors import PenstockError
from penstock.journal.file.segment import SegmentReader, list_segments

if TYPE_CHECKING:
    from pathlib import Path

_AT: Final = 192
"""In the head, behind its other records."""
_RECORD: Final = struct.Struct("<16sQQ")
"""The identity, zeros, and a checksum of both."""
_OLDER: Final = uuid.UUID("5c1c0f1e-8f0d-4c52-9b55-3a0d4f0b7b51")
"""Identities of older journals are made of this and their names."""


def new_identity() -> str:
    return uuid.uuid4().hex


def identity_record(identity: str) -> bytes:
    data = _RECORD.pack(bytes.fromhex(identity), 0, 0)[:-8]
    return data + checksum(data).to_bytes(8, "little")


def recorded_identity(descriptor: int) -> str | None:
    """What a head says; None if it is older, or damaged there."""
    data = os.pread(descriptor, _RECORD.size, _AT)
    if len(data) < _RECORD.size:
        return None
    raw, _, found = _RECORD.unpack(data)
    return raw.hex() if checksum(data[:-8]) == found else None


def identity_of(name: str, folder: Path, descriptor: int | None) -> str:
    """A journal's identity, whether its head has it or not; without a head if that is lost."""
    recorded = None if descriptor is None else recorded_identity(descriptor)
    return recorded or _in_segments(name, folder) or _by_name(name)


def record_identity(name: str, folder: Path, descriptor: int) -> str:
    """The identity, durably in the head from here on. Whoever comes first writes it, and several at
    a time write the same."""
    recorded = recorded_identity(descriptor)
    if recorded is not None:
        return recorded
    identity = identity_of(name, folder, descriptor)
    with explained("write", folder / "head"):
        os.pwrite(descriptor, identity_record(identity), _AT)
        os.fdatasync(descriptor)
    return identity


def _in_segments(name: str, folder: Path) -> str | None:
    try:
        for first in reversed(list_segments(folder)):
            with SegmentReader(name, folder, first) as reader:
                return reader.header()[0].identity or None
    except (PenstockError, OSError, ValueError):
        pass  # whoever reads the segment is told what is wrong with it
    return None


def _by_name(name: str) -> str:
    return uuid.uuid5(_OLDER, name).hex
