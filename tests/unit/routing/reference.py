"""The key hash once more, one value at a time, from the text of docs/format.md alone.

It shares no line with the code it judges. Whole numbers here have no size, so nothing wraps around
unless it says so, and decimals are fractions.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = 0x9E3779B97F4A7C15
BYTES = 0x243F6A8885A308D3
NULL = 0xB7E151628AED2A6A
UNSIGNED = 0x6A09E667F3BCC908
PRIME = 2**61 - 1
WORD = 2**64
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def hash_of(values: Sequence[pa.Scalar[Any]]) -> int:
    state = KEY
    for value in values:
        state = fold(state, digest_of(value))
    return state


def hashes_of(columns: Sequence[pa.Array[Any]]) -> list[int]:
    return [hash_of(row) for row in zip(*columns, strict=True)]


def fold(state: int, word: int) -> int:
    x = state ^ word
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def digest_of(value: pa.Scalar[Any]) -> int:
    kind: Any = value.type
    if isinstance(kind, pa.BaseExtensionType | pa.DictionaryType | pa.RunEndEncodedType):
        inner: Any = value
        return digest_of(inner.value) if value.is_valid else NULL
    if not value.is_valid:
        return NULL
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind):
        return integer(value.as_py())
    if types.is_floating(kind):
        return double(float(value.as_py()))
    if types.is_decimal(kind):
        return fraction(Fraction(value.as_py()))
    if types.is_date32(kind):
        return integer(number_in(value))
    if types.is_date64(kind):
        return integer(number_in(value) // 86_400_000)
    if types.is_interval(kind):
        return text(struct.pack("<iiq", *value.as_py()))
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        return number_in(value) * NANOSECONDS[kind.unit] % WORD
    plain = value.as_py()
    return text(plain.encode() if isinstance(plain, str) else plain)


def number_in(value: Any) -> int:
    """The count of units: `as_py` would round it, or refuse it."""
    return int(value.value)


def integer(value: int) -> int:
    return value ^ UNSIGNED if value >= 2**63 else value % WORD


def double(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8 << 48
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return 0 if bits == 1 << 63 else bits


def fraction(value: Fraction) -> int:
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME


def text(value: bytes) -> int:
    if len(value) > 128:
        return xxhash.xxh3_64_intdigest(value)
    state = fold(BYTES, len(value))
    for start in range(0, len(value), 8):
        state = fold(state, int.from_bytes(value[start : start + 8], "little"))
    return state
