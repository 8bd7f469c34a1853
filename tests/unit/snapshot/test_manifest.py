"""Manifests: every byte is checked, and what is read is what was written."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.snapshot.errors import DamagedManifestError
from penstock.snapshot.manifest import MANIFEST_BYTES_MAX, Manifest, Part, decode, encode
from penstock.snapshot.names import NUMBER_MAX, Attempt

OLD, ATTEMPT = Attempt.new(3, 0), Attempt.new(7, 2)
HELD = b"in the manifest"
PARTS = (
    Part("queue", ATTEMPT.part(0), 12, 2**64 - 1),
    Part("small", "", len(HELD), xxhash.xxh3_64_intdigest(HELD), HELD),
    Part("états/a", OLD.part(4), 0, 0),
    Part("none", "", 0, xxhash.xxh3_64_intdigest(b""), b""),
)
MANIFEST = Manifest(2, ATTEMPT, PARTS, {"offsets": [1, 2.5, None, {"a": True}]}, 99)

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
PART = st.builds(
    Part,
    st.text(max_size=10),
    st.integers(0, 99).map(ATTEMPT.part),
    st.integers(0, 2**63),
    st.integers(0, 2**64 - 1),
) | st.builds(
    lambda name, data: Part(name, "", len(data), xxhash.xxh3_64_intdigest(data), data),
    st.text(max_size=10),
    st.binary(max_size=20),
)


def document_of(data: bytes) -> dict[str, Any]:
    """By the layout in docs/snapshots.md alone, not by the code."""
    magic, version, text_bytes, checksum = struct.unpack_from("<8sIIQ", data)
    assert (magic, version) == (b"PENSNAPS", 2)
    assert checksum == xxhash.xxh3_64_intdigest(data[:16] + data[24:])
    document: dict[str, Any] = json.loads(data[24 : 24 + text_bytes])
    held = sum(size for _, file, size, _ in document["parts"] if not file)
    assert len(data) == 24 + text_bytes + held
    return document


def bytes_of(document: object, version: int = 2, held: bytes = b"") -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    fields = struct.pack("<8sII", b"PENSNAPS", version, len(text))
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields + text + held)) + text + held


@given(
    st.builds(
        Manifest,
        st.integers(0, 2**31),
        st.builds(Attempt.new, st.integers(1, NUMBER_MAX), st.integers(0, NUMBER_MAX)),
        st.lists(PART, max_size=5, unique_by=lambda part: part.name).map(tuple),
        st.dictionaries(st.text(max_size=5), VALUES, max_size=4),
        st.none() | st.integers(0, 2**64 - 1),
    )
)
def test_what_is_written_is_read(manifest: Manifest) -> None:
    assert decode(encode(manifest), manifest.member, manifest.attempt) == manifest


def test_the_layout() -> None:
    data = encode(MANIFEST)
    assert data.endswith(b"}" + HELD)
    assert document_of(data) == {
        "member": 2,
        "attempt": ATTEMPT.label,
        "watermark": 99,
        "attributes": {"offsets": [1, 2.5, None, {"a": True}]},
        "parts": [
            ["queue", ATTEMPT.part(0), 12, "f" * 16],
            ["small", "", len(HELD), f"{xxhash.xxh3_64_intdigest(HELD):016x}"],
            ["états/a", OLD.part(4), 0, "0" * 16],
            ["none", "", 0, f"{xxhash.xxh3_64_intdigest(b''):016x}"],
        ],
    }


def test_the_first_format_is_read() -> None:
    parts = [["queue", ATTEMPT.part(0), 12, "f" * 16]]
    data = bytes_of({"member": 2, "attempt": ATTEMPT.label, "parts": parts}, version=1)
    assert decode(data, 2, ATTEMPT) == Manifest(2, ATTEMPT, PARTS[:1], {}, None)


def test_absent_fields_have_defaults() -> None:
    data = bytes_of({"member": 2, "attempt": ATTEMPT.label, "parts": []})
    assert decode(data, 2, ATTEMPT) == Manifest(2, ATTEMPT, (), {}, None)


def test_any_flipped_bit_is_found() -> None:
    data = encode(MANIFEST)
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(DamagedManifestError):
                decode(bytes(damaged), 2, ATTEMPT)


def test_any_other_length_is_found() -> None:
    data = encode(MANIFEST)
    for size in range(len(data)):
        with pytest.raises(DamagedManifestError):
            decode(data[:size], 2, ATTEMPT)
    for more in (b"\0", data):
        with pytest.raises(DamagedManifestError):
            decode(data + more, 2, ATTEMPT)


def test_a_manifest_under_another_name_is_refused() -> None:
    data = encode(MANIFEST)
    for member, attempt in ((3, ATTEMPT), (2, OLD), (2, Attempt.new(7, 2))):
        with pytest.raises(DamagedManifestError, match="put under another name"):
            decode(data, member, attempt)


def test_a_newer_format_is_told_apart_from_damage() -> None:
    with pytest.raises(DamagedManifestError, match="format 3; this Penstock knows 2"):
        decode(bytes_of({}, version=3), 2, ATTEMPT)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1}, {"member": "2"}, {"member": True}, {"attempt": "7"}, {"attempt": 7},
        {"parts": {}}, {"parts": [["a"]]}, {"parts": [[1, ATTEMPT.part(0), 0, "0"]]},
        {"parts": [["a", "../secret", 0, "0"]]}, {"parts": [["a", ATTEMPT.part(0), -1, "0"]]},
        {"parts": [["a", ATTEMPT.part(0), 1, "z"]]}, {"parts": [["a", ATTEMPT.part(0), 1, 5]]},
        {"parts": [["a", ATTEMPT.part(0), 1, "0"]] * 2}, {"watermark": "1"}, {"attributes": []},
    ],
)  # fmt: skip
def test_what_no_writer_writes_is_refused(change: dict[str, object]) -> None:
    document = document_of(encode(MANIFEST)) | change
    held = b"" if "parts" in change else HELD
    with pytest.raises(DamagedManifestError, match="not what was agreed"):
        decode(bytes_of(document, held=held), 2, ATTEMPT)


@pytest.mark.parametrize("held", [b"", HELD[:-1], HELD + b"!", HELD.upper()])
def test_bytes_that_are_not_those_of_the_parts_are_refused(held: bytes) -> None:
    """Though the checksum of the whole is right."""
    document = document_of(encode(MANIFEST))
    assert decode(bytes_of(document, held=HELD), 2, ATTEMPT) == MANIFEST
    with pytest.raises(DamagedManifestError, match="not what was agreed"):
        decode(bytes_of(document, held=held), 2, ATTEMPT)


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000, b"9" * 10_000])
def test_text_that_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedManifestError):
        decode(bytes_of(text), 2, ATTEMPT)


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": float("nan")}, {"a": b"bytes"}, {"a": (1, 2)}, {"a": {1: 2}}, {"a": {1, 2}},
        {"a": 10**5_000}, {"a": "x" * MANIFEST_BYTES_MAX},
    ],
)  # fmt: skip
def test_attributes_that_would_not_come_back_are_refused_at_once(attributes: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode(Manifest(2, ATTEMPT, (), attributes))
