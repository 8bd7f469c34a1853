"""The hash of a key: the published values, the scalar reference, and what must be equal."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.routing import VNODES, check_key_type, digests, hash_keys, vnodes_of
from tests.unit.routing import reference
from tests.unit.routing.columns import (
    BYTE_VALUES,
    DECIMALS,
    INTEGERS,
    PLAIN,
    TEXTS,
    Column,
    bitmap,
    columns,
    decimal_column,
    values_of,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

D = decimal.Decimal
VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def hashes(*key: Column) -> list[int]:
    found = hash_keys(key)
    assert found.dtype == np.uint64
    return [int(number) for number in found]


def one(value: object, kind: pa.DataType) -> int:
    (found,) = hashes(pa.array([value], kind))
    return found


def stored(number: int, kind: pa.DataType) -> int:
    """The hash of a date or time, given as its count of units."""
    width: Any = kind
    numbers: Any = pa.array([number], {32: pa.int32(), 64: pa.int64()}[width.bit_width])
    (found,) = hashes(numbers.view(kind))
    return found


# --- the published values ---

TYPES: dict[str, pa.DataType] = {str(kind): kind for kind in PLAIN}


def vector_column(name: str, text: str | None) -> Column:
    """One value of vectors.json, where it is text in a form that depends on its type."""
    kind = TYPES[name]
    read: Callable[[str], object] = str
    if pa.types.is_boolean(kind):
        read = {"false": False, "true": True}.__getitem__
    elif pa.types.is_integer(kind):
        read = int
    elif pa.types.is_floating(kind):
        read = float
    elif pa.types.is_decimal(kind):
        read = D
    elif pa.types.is_interval(kind):
        read = lambda words: tuple(int(word) for word in words.split())  # noqa: E731
    elif pa.types.is_temporal(kind):
        width: Any = kind
        numbers: Any = pa.array(
            [None if text is None else int(text)], {32: pa.int32(), 64: pa.int64()}[width.bit_width]
        )
        column: Column = numbers.view(kind)
        return column
    elif kind not in TEXTS:
        read = bytes.fromhex
    whole: Column = pa.array([None if text is None else read(text)], kind)
    return whole


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: " ".join(vector["types"]))
def test_published_values(vector: dict[str, Any]) -> None:
    key = [
        vector_column(name, value)
        for name, value in zip(vector["types"], vector["values"], strict=True)
    ]
    expected = int(vector["hash"], 16)
    assert reference.hashes_of(key) == [expected]
    assert hashes(*key) == [expected]
    assert vnodes_of(key).tolist() == [vector["vnode"]] == [expected % 256]


def test_published_values_have_every_type_and_null() -> None:
    alone = {vector["types"][0] for vector in VECTORS if len(vector["types"]) == 1}
    assert alone == set(TYPES)
    assert any(vector["values"] == [None] for vector in VECTORS)
    assert any(len(vector["values"]) > 1 for vector in VECTORS)


# --- the reference ---


@pytest.mark.slow
@settings(max_examples=600)
@given(st.data())
def test_agrees_with_the_reference(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 12))
    key = data.draw(st.lists(columns(length), min_size=1, max_size=3))
    found = hash_keys(key)
    assert found.tolist() == reference.hashes_of(key)
    vnodes = vnodes_of(key)
    assert vnodes.dtype == np.uint16
    assert vnodes.tolist() == [number % VNODES for number in found.tolist()]


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_agrees_with_the_reference_for_each_type(kind: pa.DataType) -> None:
    values, make = values_of(kind)

    @settings(max_examples=40)
    @given(st.lists(values | st.none(), max_size=20))
    def check(drawn: list[Any]) -> None:
        column = make(drawn)
        assert hashes(column) == reference.hashes_of([column])

    check()


@given(st.data())
def test_parts_hash_as_the_whole(data: st.DataObject) -> None:
    column = data.draw(columns())
    cut = data.draw(st.integers(0, len(column)))
    assert hashes(column[:cut]) + hashes(column[cut:]) == hashes(column)
    if not isinstance(column, pa.RunEndEncodedArray):  # Arrow cannot join those
        assert hashes(pa.concat_arrays([column[cut:], column[:cut]])) == (
            hashes(column[cut:]) + hashes(column[:cut])
        )


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.string_view()], ids=str)
def test_many_texts_of_all_lengths(kind: pa.DataType) -> None:
    """More than are folded at once."""
    values = [None if row % 11 == 0 else f"{row}" * (row % 45) for row in range(20_000)]
    column: Any = pa.array(values).cast(kind)
    expected = reference.hashes_of([column[8_100:8_300]])
    assert hashes(column)[8_100:8_300] == expected == hashes(column[8_100:8_300])
    assert hashes(column)[-50:] == reference.hashes_of([column[-50:]])


def test_many_numbers() -> None:
    column: Column = pa.array(range(-10_000, 20_001), pa.int64())
    assert hashes(column) == reference.hashes_of([column])


# --- what lies in memory and does not count ---


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 9),
)
def test_what_lies_under_a_null_does_not_count(rows: list[tuple[int, bool]], skip: int) -> None:
    validity = bitmap([valid for _, valid in rows])
    data = np.array([number for number, _ in rows], np.int64).tobytes()
    clean: Column = pa.array([number if valid else None for number, valid in rows], pa.int64())
    dirty = pa.Array.from_buffers(pa.int64(), len(rows), [validity, pa.py_buffer(data)])
    assert hashes(dirty) == hashes(clean)
    assert hashes(dirty[skip:]) == hashes(clean[skip:])


@given(st.lists(st.tuples(BYTE_VALUES, st.booleans()), min_size=1, max_size=12), st.integers(0, 9))
def test_bytes_under_a_null_do_not_count(rows: list[tuple[bytes, bool]], skip: int) -> None:
    validity = bitmap([valid for _, valid in rows])
    clean: Column = pa.array([value if valid else None for value, valid in rows], pa.binary())
    _, *buffers = pa.array([value for value, _ in rows], pa.binary()).buffers()
    dirty = pa.Array.from_buffers(pa.binary(), len(rows), [validity, *buffers])
    assert dirty.null_count == clean.null_count
    assert hashes(dirty) == hashes(clean)
    assert hashes(dirty[skip:]) == hashes(clean[skip:])


def test_an_index_under_a_null_may_point_anywhere() -> None:
    indices = pa.Array.from_buffers(
        pa.int8(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(bytes([0, 100]))]
    )
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    assert hashes(column) == [one("a", pa.string()), one(None, pa.string())]


def test_arrays_without_buffers() -> None:
    assert hashes(pa.array(["", ""])) == [one("", pa.string())] * 2
    assert hashes(pa.array(["", None, ""])[1:]) == [one(None, pa.null()), one("", pa.string())]
    assert hashes(pa.array([b"", None], pa.binary(0))) == [
        one("", pa.string()),
        one(None, pa.null()),
    ]
    for kind in PLAIN:
        assert hash_keys([pa.array([], kind)]).shape == (0,)
        assert vnodes_of([pa.array([], kind)]).dtype == np.uint16


def test_the_limbs_of_another_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of the other byte order has its words the other way round, highest first."""
    kind = pa.decimal256(76, 5)
    column: Any = pa.array([D(10) ** 60 + D("0.5"), D(-3), D(10) ** -5], kind)
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(3, 4)
    turned = pa.py_buffer(np.ascontiguousarray(words[:, ::-1]).tobytes())
    other = pa.Array.from_buffers(kind, 3, [None, turned])
    expected = hashes(column)
    assert hashes(other) != expected
    monkeypatch.setattr("penstock.routing.digests._LOWEST_LIMB_FIRST", False)
    assert hashes(other) == expected


def test_columns_are_not_written_to() -> None:
    for column in (
        pa.array([2**63 + 1, None], pa.uint64()),
        pa.array([-0.0, math.nan], pa.float64()),
        pa.array(["abc", "x" * 200, None]),
    ):
        before = [buffer and buffer.to_pybytes() for buffer in column.buffers()]
        hash_keys([column, column])
        assert [buffer and buffer.to_pybytes() for buffer in column.buffers()] == before


# --- equal values of one family ---


@given(st.integers(-(2**63), 2**64 - 1) | st.integers(-300, 300))
def test_integers_of_any_width(number: int) -> None:
    found = set()
    for kind in INTEGERS:
        try:
            found.add(one(number, kind))
        except (pa.ArrowInvalid, OverflowError):
            continue  # it does not fit
    assert len(found) == 1
    if number < 0:
        assert one(number % 2**64, pa.uint64()) not in found


def test_booleans_are_numbers() -> None:
    assert hashes(pa.array([False, True, None])) == hashes(pa.array([0, 1, None], pa.uint8()))


@given(st.floats(width=16))
def test_floats_of_any_width(number: float) -> None:
    half: Column = pa.array([np.float16(number)], pa.float16())
    assert hashes(half) == [one(number, pa.float32())] == [one(number, pa.float64())]


def test_zeros_and_nans_are_one_each() -> None:
    assert one(-0.0, pa.float64()) == one(0.0, pa.float64()) == one(-0.0, pa.float32())
    nans = np.array([0x7FF8 << 48, 0x7FF0 << 48 | 1, 0xFFF8 << 48, 2**64 - 1], np.uint64).view(
        np.float64
    )
    found = {*hashes(pa.array(nans, from_pandas=False)), one(math.nan, pa.float32())}
    assert len(found) == 1
    infinities = {one(math.inf, pa.float64()), one(-math.inf, pa.float64())}
    assert len(found | infinities | {one(0.0, pa.float64())}) == 4


@given(st.integers(-(10**9) + 1, 10**9 - 1) | st.integers(-99, 99), st.integers(-30, 30))
def test_decimals_by_value(number: int, scale: int) -> None:
    found = set()
    widths: tuple[tuple[Any, int], ...] = (
        (pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76),
    )  # fmt: skip
    for kind, precision in widths:
        for zeros in range(0, precision - len(str(abs(number))) + 1, 5):
            column = decimal_column([number * 10**zeros], kind(precision, scale + zeros))
            found.update(hashes(column))
    assert len(found) == 1
    tenfold = decimal_column([number * 10], pa.decimal128(38, scale))
    assert hashes(tenfold) != [*found] or number == 0


def test_some_decimals() -> None:
    assert one(D("1.50"), pa.decimal128(5, 2)) == one(D("1.5"), pa.decimal32(3, 1))
    assert one(D("1.5E+9"), pa.decimal128(5, -8)) == one(D(1_500_000_000), pa.decimal256(40, 7))
    assert one(D("-0.0"), pa.decimal128(5, 2)) == one(D(0), pa.decimal64(5, 0))
    values = [2**61 - 3, 2**61 + 1, 1, -1, 10, -10, 10**60, -(10**60), 10**60 + 1, 10**75]
    assert len(set(hashes(decimal_column([*values], pa.decimal256(76, 10))))) == len(values)


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
def test_the_extremes_of_decimals(kind: pa.Decimal128Type[Any, Any]) -> None:
    most = 10**kind.precision - 1
    column = decimal_column([most, -most, 0, 1, -1], kind)
    assert hashes(column) == reference.hashes_of([column])


@given(st.text(max_size=40))
def test_texts_and_bytes_in_any_layout(text: str) -> None:
    found = {one(text, kind) for kind in TEXTS}
    raw = text.encode()
    found |= {one(raw, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())}
    found.add(one(raw, pa.binary(len(raw))))
    assert len(found) == 1


def test_texts_that_are_nearly_equal() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "\0a", "a" * 8, "a" * 8 + "\0", "a" * 128, "a" * 129]
    assert len({one(text, pa.string()) for text in texts}) == len(texts)


UNITS: tuple[tuple[int, Any], ...] = ((1, "s"), (10**3, "ms"), (10**6, "us"), (10**9, "ns"))


@given(st.integers(-(2**33), 2**33), st.sampled_from(UNITS))
def test_times_of_any_unit(seconds: int, unit: tuple[int, Any]) -> None:
    per_second, name = unit
    expected = stored(seconds, pa.timestamp("s"))
    assert stored(seconds * per_second, pa.timestamp(name)) == expected
    assert stored(seconds * per_second, pa.timestamp(name, "Asia/Kolkata")) == expected
    assert stored(seconds * per_second, pa.duration(name)) == expected
    assert stored(seconds * per_second + 1, pa.timestamp(name)) != expected


@given(st.integers(-(2**43), 2**43), st.sampled_from(UNITS[:3]))
def test_times_beyond_what_nanoseconds_reach(seconds: int, unit: tuple[int, Any]) -> None:
    per_second, name = unit
    expected = stored(seconds, pa.timestamp("s"))
    assert stored(seconds * per_second, pa.timestamp(name)) == expected
    assert stored(seconds * per_second - 1, pa.timestamp(name)) != expected


def test_times_of_day_of_any_unit() -> None:
    values = [datetime.time(0), datetime.time(23, 59, 59)]
    kinds = (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    found = {tuple(hashes(pa.array(values, kind))) for kind in kinds}
    assert len(found) == 1


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 86_399_999))
def test_days_are_days(day: int, milliseconds: int) -> None:
    expected = stored(day, pa.date32())
    assert stored(day * 86_400_000 + milliseconds, pa.date64()) == expected


def runs_of(ends: list[int], values: list[str | None]) -> Column:
    return pa.RunEndEncodedArray.from_arrays(
        pa.array(ends, pa.int16()), pa.array(values, pa.string())
    )


def test_encoded_columns_hash_as_what_they_stand_for() -> None:
    plain: Any = pa.array(["a", None, "a", "bb", "bb", None])
    expected = hashes(plain)
    assert hashes(plain.dictionary_encode()) == expected
    with_null = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, 1, 2, 2, None], pa.uint8()), pa.array([None, "a", "bb"])
    )
    assert hashes(with_null) == expected
    assert hashes(runs_of([1, 2, 3, 5, 6], ["a", None, "a", "bb", None])) == expected
    assert hashes(wrapped(plain)) == expected
    assert hashes(wrapped(plain.dictionary_encode())[1:5]) == expected[1:5]
    raw: Column = pa.array([b"0123456789abcdef"], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), raw)
    assert hashes(uuids) == hashes(raw)


# --- keys of several columns ---


def test_order_and_place_matter() -> None:
    left: Column = pa.array(["a", None, "a", None])
    right: Column = pa.array(["b", "a", None, None])
    # (a, null), (null, a) and (null, null) are in both.
    assert len({*hashes(left, right), *hashes(right, left)}) == 5
    assert hashes(left) != hashes(left, left)


@given(st.lists(st.text(max_size=3), min_size=2, max_size=2), st.integers(0, 6))
def test_a_key_is_more_than_its_columns_joined(texts: list[str], cut: int) -> None:
    joined = "".join(texts)
    moved = [joined[:cut], joined[cut:]]
    first = hashes(*(pa.array([text]) for text in texts))
    second = hashes(*(pa.array([text]) for text in moved))
    assert (first == second) == (texts == moved)


def test_nulls_of_all_types_are_one() -> None:
    found = {one(None, kind) for kind in PLAIN}
    found |= set(hashes(pa.nulls(2)))
    found |= set(hashes(runs_of([2], [None])))
    assert len(found) == 1


# --- what is refused ---

NESTED = (
    pa.list_(pa.int8()),
    pa.large_list(pa.int8()),
    pa.list_(pa.int8(), 2),
    pa.list_view(pa.int8()),
    pa.struct([("a", pa.int8())]),
    pa.map_(pa.string(), pa.int8()),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.dense_union([pa.field("a", pa.int8())]),
)


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_types_are_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        hash_keys([pa.array([1]), pa.nulls(1, kind)])
    assert f"cannot be of type {kind}: choose columns of plain values" in str(caught.value)
    with pytest.raises(ConfigurationError):
        hash_keys([pa.nulls(0, kind)])
    with pytest.raises(ConfigurationError):
        check_key_type(pa.dictionary(pa.int8(), kind))


def test_nested_storage_is_refused_by_the_name_of_the_column_type() -> None:
    column = wrapped(pa.array([[1]]))
    with pytest.raises(ConfigurationError, match=r"type extension<penstock\.test\.wrapped"):
        hash_keys([column])


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_plain_types_pass(kind: Any) -> None:
    check_key_type(kind)
    check_key_type(pa.dictionary(pa.int8(), kind))
    check_key_type(pa.run_end_encoded(pa.int32(), kind))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"of one length, not of \[2, 3\]"):
        hash_keys([pa.array([1, 2]), pa.array([1, 2, 3])])
    with pytest.raises(LocalProtocolError, match="at least one column"):
        hash_keys([])


def test_the_limit_is_part_of_the_format() -> None:
    assert digests.FOLDED_BYTES_MAX == 128
    assert VNODES == 256
    raw = struct.pack("<16q", *range(16))
    assert one(raw, pa.binary()) == reference.fold(reference.KEY, reference.text(raw))
