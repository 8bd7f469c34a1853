"""Manifests: the list of a snapshot's parts. docs/snapshots.md has the layout; this is its code.

A snapshot without a manifest does not exist: it is written last, when all parts are durable. Small
parts are in the manifest itself: they take no file of their own, and no sync.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from penstock.checksum import checksum
from penstock.errors import LocalProtocolError
from penstock.snapshot.errors import DamagedManifestError
from penstock.snapshot.names import PARTS_MAX, Attempt, parse_label, parse_part

MANIFEST_MAGIC: Final = b"PENSNAPS"
MANIFEST_VERSION: Final = 2
VERSIONS_READ: Final = (1, 2)
"""In the first, every part was a file."""
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Checked before it is read: PARTS_MAX parts with long names fit."""

_FIELDS: Final = struct.Struct("<8sII")
_CHECKSUM: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a snapshot, which may have been written for an older one; or some bytes of the
    manifest."""

    name: str
    file: str
    """Empty: the part is in the manifest."""
    size_bytes: int
    checksum: int
    data: bytes | None = field(default=None, repr=False)
    """What the manifest has of it."""

    def is_same(self, size_bytes: int, checksum: int) -> bool:
        """Whether those bytes are in this file already, and need not be written again."""
        return self.size_bytes == size_bytes and self.checksum == checksum


@dataclass(frozen=True, slots=True)
class Manifest:
    member: int
    attempt: Attempt
    parts: tuple[Part, ...]
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    """What the writer wants to know again: offsets, positions, settings."""
    watermark: int | None = None
    """The member's local watermark where the snapshot cuts its streams."""


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest. They are read again before they are given: what cannot come back as
    it was is refused while the caller can still act."""
    document = {
        "member": manifest.member,
        "attempt": manifest.attempt.label,
        "watermark": manifest.watermark,
        "attributes": manifest.attributes,
        "parts": [
            [part.name, part.file, part.size_bytes, f"{part.checksum:016x}"]
            for part in manifest.parts
        ],
    }
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"a snapshot's attributes must be JSON: {error}") from error
    fields = _FIELDS.pack(MANIFEST_MAGIC, MANIFEST_VERSION, len(text))
    body = b"".join([text, *(part.data for part in manifest.parts if part.data is not None)])
    data = fields + _CHECKSUM.pack(checksum(fields + body)) + body
    try:
        same = decode(data, manifest.member, manifest.attempt) == manifest
    except DamagedManifestError as error:
        raise LocalProtocolError(f"this snapshot could not be read again: {error}") from error
    if not same:
        raise LocalProtocolError(
            "a snapshot's attributes must come back from JSON as they were: "
            "write lists for tuples, and texts for the keys of mappings"
        )
    return data


def decode(data: bytes, member: int, attempt: Attempt) -> Manifest:
    """The manifest of that attempt, every byte of it checked."""
    manifest = decode_stated(data)
    if (manifest.member, manifest.attempt) != (member, attempt):
        raise DamagedManifestError(
            f"its manifest is of member {manifest.member} and {manifest.attempt.label}, "
            "and was put under another name"
        )
    return manifest


def decode_stated(data: bytes) -> Manifest:
    """As `decode`, of whichever attempt the manifest says it is."""
    if not HEADER_BYTES <= len(data) <= MANIFEST_BYTES_MAX:
        raise DamagedManifestError(f"its manifest has {len(data)} bytes, which none can have")
    magic, version, text_bytes = _FIELDS.unpack_from(data)
    if magic != MANIFEST_MAGIC:
        raise DamagedManifestError("its manifest does not begin as one")
    if text_bytes > len(data) - HEADER_BYTES:
        raise DamagedManifestError(
            f"its manifest has {len(data) - HEADER_BYTES} bytes of text, not {text_bytes}"
        )
    (expected,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum(data[: _FIELDS.size] + data[HEADER_BYTES:]) != expected:
        raise DamagedManifestError("its manifest does not match its checksum")
    if version not in VERSIONS_READ:
        raise DamagedManifestError(
            f"its manifest has format {version}; this Penstock knows {MANIFEST_VERSION}"
        )
    text_end = HEADER_BYTES + text_bytes
    try:
        document = _checked(json.loads(data[HEADER_BYTES:text_end]), dict)
        return _from_document(document, data[text_end:])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedManifestError(f"its manifest is not what was agreed: {error}") from error


def _from_document(document: dict[str, Any], held: bytes) -> Manifest:
    """Raises ValueError, TypeError or KeyError for what no writer of this format writes. `held` are
    the bytes of parts that the manifest has, one behind the other."""
    unknown = document.keys() - {"member", "attempt", "watermark", "attributes", "parts"}
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}")
    attempt = parse_label(_checked(document["attempt"], str))
    if attempt is None:
        raise ValueError(f"no attempt: {document['attempt']!r}")
    parts = []
    for entry in _checked(document["parts"], list):
        part = _part(*entry)
        if not part.file:
            part, held = _with_data(part, held), held[part.size_bytes :]
        parts.append(part)
    if held:
        raise ValueError(f"{len(held)} bytes belong to no part")
    if len({part.name for part in parts}) != len(parts) or len(parts) > PARTS_MAX:
        raise ValueError(f"{len(parts)} parts are too many, or two have one name")
    watermark = document.get("watermark")
    return Manifest(
        member=_checked(document["member"], int),
        attempt=attempt,
        parts=tuple(parts),
        attributes=_checked(document.get("attributes", {}), dict),
        watermark=None if watermark is None else _checked(watermark, int),
    )


def _part(name: object, file: object, size_bytes: object, checksum: object) -> Part:
    part = Part(
        _checked(name, str),
        _checked(file, str),
        _checked(size_bytes, int),
        int(_checked(checksum, str), 16),
    )
    if (part.file and parse_part(part.file) is None) or part.size_bytes < 0:
        raise ValueError(f"no part: {part}")
    return part


def _with_data(part: Part, held: bytes) -> Part:
    data = held[: part.size_bytes]
    if not part.is_same(len(data), checksum(data)):
        raise ValueError(f"the bytes of part {part.name!r} are not those that were written")
    return replace(part, data=data)


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} in place of {kind.__name__}")
    return value
