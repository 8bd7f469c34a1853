"""Columns of every type a key can have, for property tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

Column: TypeAlias = "pa.Array[Any]"

INTEGERS = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
)  # fmt: skip
FLOATS = (pa.float16(), pa.float32(), pa.float64())
TIMES = (
    pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
    pa.timestamp("s", "UTC"), pa.timestamp("ms", "+05:30"), pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "UTC"),
    pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns"),
    pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
)  # fmt: skip
DATES = (pa.date32(), pa.date64())
DECIMALS = (
    pa.decimal32(9, 3), pa.decimal64(18, 0), pa.decimal64(18, 18), pa.decimal128(38, 18),
    pa.decimal128(38, 0), pa.decimal128(20, -5), pa.decimal256(76, 30), pa.decimal256(76, -40),
)  # fmt: skip
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
BINARIES = (
    pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.binary(0), pa.binary(1), pa.binary(8), pa.binary(13), pa.binary(128), pa.binary(130),
)  # fmt: skip
INTERVAL = pa.month_day_nano_interval()

PLAIN: tuple[pa.DataType, ...] = (
    pa.null(), pa.bool_(), *INTEGERS, *FLOATS, *TIMES, *DATES, *DECIMALS, *TEXTS, *BINARIES,
    INTERVAL,
)  # fmt: skip


class Wrapped(pa.ExtensionType):
    """An extension type of ours around any storage."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "penstock.test.wrapped")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Wrapped:
        return cls(storage_type)


def _bits(kind: Any) -> int:
    return int(kind.bit_width)


def _stored_integers(kind: Any) -> st.SearchStrategy[int]:
    bits = _bits(kind)
    signed = not pa.types.is_unsigned_integer(kind)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(least, most) | st.sampled_from([0, 1, least, most])


def _unscaled(kind: Any) -> st.SearchStrategy[int]:
    """Decimals as whole numbers of their last place; often with zeros at the end."""
    most = 10**kind.precision - 1
    numbers = st.integers(-most, most) | st.integers(-200, 200) | st.sampled_from([most, -most])
    zeros = st.integers(0, kind.precision)
    return st.builds(lambda number, count: number - number % 10**count, numbers, zeros).filter(
        lambda number: -most <= number <= most
    )


def bitmap(valid: list[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(valid, bool), bitorder="little").tobytes())


def decimal_column(unscaled: list[int | None], kind: Any) -> Column:
    """Laid out by hand: Arrow's own conversions are limited by precision."""
    width = kind.byte_width
    data = b"".join(
        (number or 0).to_bytes(width, sys.byteorder, signed=True) for number in unscaled
    )
    valid = bitmap([number is not None for number in unscaled])
    return pa.Array.from_buffers(kind, len(unscaled), [valid, pa.py_buffer(data)])


# Around the ends of words, and of what is folded; and bytes that are all ones or zeros.
_LENGTHS = st.integers(0, 20) | st.sampled_from([119, 120, 121, 127, 128, 129, 130, 300])
BYTE_VALUES = st.binary(max_size=20) | st.builds(
    lambda length, byte: bytes([byte]) * length, _LENGTHS, st.sampled_from([0, 1, 97, 128, 255])
)
TEXT_VALUES = st.text(max_size=12) | st.builds(
    lambda length, letter: letter * length, _LENGTHS, st.sampled_from("a\0é😀")
)


def values_of(kind: Any) -> tuple[st.SearchStrategy[Any], Callable[[list[Any]], Column]]:
    """Values of a type, none of them null; and how a list of them, and of nulls, becomes one."""

    def plain(values: list[Any]) -> Column:
        column: Column = pa.array(values, kind)
        return column

    def by_view(values: list[Any]) -> Column:
        numbers: Any = pa.array(values, {32: pa.int32(), 64: pa.int64()}[_bits(kind)])
        column: Column = numbers.view(kind)
        return column

    def by_bits(values: list[Any]) -> Column:
        bits = _bits(kind)
        words = np.array([value or 0 for value in values], f"u{bits // 8}")
        mask = np.array([value is None for value in values], bool)
        column: Column = pa.array(words.view(f"f{bits // 8}"), kind, mask=mask)
        return column

    if pa.types.is_null(kind):
        return st.none(), plain
    if pa.types.is_boolean(kind):
        return st.booleans(), plain
    if pa.types.is_integer(kind):
        return _stored_integers(kind), plain
    if pa.types.is_floating(kind):
        # Bits rather than numbers: every NaN, and every infinity and zero.
        bits = _bits(kind)
        chosen = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan], f"f{bits // 8}")
        special = chosen.view(f"u{bits // 8}").tolist()
        return st.integers(0, 2**bits - 1) | st.sampled_from(special), by_bits
    if pa.types.is_interval(kind):
        small, large = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
        return st.tuples(small, small, large), plain
    if pa.types.is_time(kind):
        units_per_day = 86_400 * 10 ** {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        return st.integers(0, units_per_day - 1), by_view
    if pa.types.is_date64(kind):
        most = 2**63 // 86_400_000
        return st.integers(-most, most - 1).map(lambda day: day * 86_400_000), by_view
    if pa.types.is_temporal(kind):
        return _stored_integers(kind), by_view
    if pa.types.is_decimal(kind):
        return _unscaled(kind), lambda values: decimal_column(values, kind)
    if kind in TEXTS:
        return TEXT_VALUES, plain
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width), plain
    return BYTE_VALUES, plain


@st.composite
def plain_columns(draw: st.DrawFn, length: int | None = None) -> Column:
    kind = draw(st.sampled_from(PLAIN))
    values, make = values_of(kind)
    size = draw(st.integers(0, 12)) if length is None else length
    return make(draw(st.lists(values | st.none(), min_size=size, max_size=size)))


@st.composite
def columns(draw: st.DrawFn, length: int | None = None) -> Column:
    """Of any type, also encoded and wrapped, and also a slice of something longer."""
    size = draw(st.integers(0, 12)) if length is None else length
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    whole = before + size + after
    few = draw(st.integers(1, 5))
    match draw(st.sampled_from(["plain", "plain", "dictionary", "runs", "wrapped", "all"])):
        case "plain":
            column = draw(plain_columns(whole))
        case "dictionary":
            column = _dictionary(draw, draw(plain_columns(few)), whole)
        case "runs":
            column = _runs(draw, draw(plain_columns(few)), whole)
        case "wrapped":
            column = wrapped(draw(plain_columns(whole)))
        case _:
            column = _runs(draw, wrapped(_dictionary(draw, draw(plain_columns(2)), few)), whole)
    return column.slice(before, size)


def wrapped(storage: Column) -> Column:
    return pa.ExtensionArray.from_storage(Wrapped(storage.type), storage)


def _dictionary(draw: st.DrawFn, values: Column, length: int) -> Column:
    places = st.integers(0, len(values) - 1) | st.none()
    indices = draw(st.lists(places, min_size=length, max_size=length))
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), values)


def _runs(draw: st.DrawFn, values: Column, length: int) -> Column:
    values = values[:length]
    ends: list[int] = []
    if length:
        inner, count = st.integers(1, max(length - 1, 1)), len(values) - 1
        ends = [*sorted(draw(st.sets(inner, min_size=count, max_size=count))), length]
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)
