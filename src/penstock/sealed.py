"""Small files with their checksum in them: every one that a release writes and reads back.

A document is a JSON object whose last member is the checksum of all bytes before that member:

    {"format": 1, "durability": "synced", "checksum": "8f0c7a3b5d1e9924"}

It stays JSON, so that people, `jq` and releases that know nothing of seals read it. A line is for
files that grow: 16 hex digits of checksum, a space, JSON.

Files of releases before seals have no checksum. They are told from damaged ones by their members:
an old file has those of its kind and no others, and a seal that is damaged is one member too many.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from penstock.checksum import checksum
from penstock.errors import CorruptStorageError

if TYPE_CHECKING:
    from collections.abc import Collection

_SEAL: Final = re.compile(rb', "checksum": "([0-9a-f]{16})"\}')
_SEAL_BYTES: Final = len(b', "checksum": "0123456789abcdef"}')
_COPY: Final = "restore it from a copy"


class DamagedFileError(CorruptStorageError):
    """A small file is not what was written. Do what it says at its end: as a rule, restore the file
    that it names from a copy."""

    def __init__(self, name: str, reason: str, way_out: str = _COPY) -> None:
        super().__init__(name, reason, way_out)
        self.name, self.reason, self.way_out = name, reason, way_out

    def __str__(self) -> str:
        return f"{self.name} is damaged: {self.reason}; {self.way_out}"


def sealed_json(fields: dict[str, Any]) -> bytes:
    return seal_text(json.dumps(fields).encode())


def seal_text(text: bytes) -> bytes:
    """Of a JSON object with at least one member, as `json.dumps` writes it."""
    body = text[:-1].rstrip()
    return b'%s, "checksum": "%016x"}' % (body, checksum(body))


def is_sealed(data: bytes) -> bool:
    return _SEAL.fullmatch(data[-_SEAL_BYTES:]) is not None


def unsealed_json(
    name: str, data: bytes, old_members: Collection[str], way_out: str = _COPY
) -> dict[str, Any]:
    """The members of a document, without its checksum. `old_members` are those that its kind had
    before there were seals; the name and the way out are for the error."""
    body, seal = data[:-_SEAL_BYTES], _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if seal is not None:
        if b"%016x" % checksum(body) != seal[1]:
            raise DamagedFileError(name, "its checksum does not match", way_out)
        return _object(name, body + b"}", way_out)
    found = _object(name, data, way_out)
    unknown = sorted(found.keys() - set(old_members))
    if unknown:
        reason = f"it has no checksum at its end, and a member {unknown[0]!r} that it cannot have"
        raise DamagedFileError(name, reason, way_out)
    return found


def _object(name: str, data: bytes, way_out: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode())
    except ValueError as error:
        raise DamagedFileError(name, f"it is not readable JSON ({error})", way_out) from None
    if not isinstance(found, dict):
        raise DamagedFileError(name, "it does not hold a JSON object", way_out)
    return found


def sealed_line(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return b"%016x %s\n" % (checksum(text), text)


def unsealed_line(name: str, line: bytes, way_out: str = _COPY) -> Any:
    found, _, text = line.removesuffix(b"\n").partition(b" ")
    if b"%016x" % checksum(text) != found:
        raise DamagedFileError(name, "its checksum does not match", way_out)
    return json.loads(text)
