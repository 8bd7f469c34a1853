"""One 64-bit word for each value of a column: its digest.

Values of one family that are equal have equal digests, however they are stored:

- integers of any width, signed or not, and booleans, which are 0 and 1;
- floating-point numbers of any width: both zeros are one, and so are all NaNs;
- decimals of any width, precision and scale;
- texts and bytes in any layout: a text is its UTF-8 bytes, and equals those;
- timestamps of any unit, as instants: whether and which time zone they are shown in is no matter;
  durations and times of day of any unit;
- dates, stored as days or as milliseconds;
- a dictionary's, a run-end encoding's and an extension type's values as what they stand for.

Nothing is promised between families: 7, 7.0 and the eighth of January 1970 are different keys,
whether their digests differ or not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import xxhash

from penstock.errors import ConfigurationError
from penstock.routing.arithmetic import BLOCK_ROWS, UInt64Array, mix, residue, scaled_residue

Array: TypeAlias = "pa.Array[Any]"
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Int64Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

FOLDED_BYTES_MAX: Final = 128
"""Up to here bytes are folded word by word, a word of all rows at once; longer values are taken
one by one, by XXH3. It is a part of the format. About here both cost the same."""

# The first 64 bits behind the point of well-known numbers, so that nothing can be hidden in them.
BYTES: Final = np.uint64(0x243F6A8885A308D3)  # pi
NULL: Final = np.uint64(0xB7E151628AED2A6A)  # e
UNSIGNED: Final = np.uint64(0x6A09E667F3BCC908)  # the square root of two

_SIGN_BIT: Final = np.uint64(1 << 63)
_INFINITY: Final = np.uint64(0x7FF0_0000_0000_0000)
_NAN: Final = np.uint64(0x7FF8_0000_0000_0000)
_DAY_MILLISECONDS: Final = 86_400_000
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_LOWEST_LIMB_FIRST: Final = np.dtype("<u8").isnative
"""Arrow keeps wide numbers in the byte order of the machine."""
_WORD_BYTES: Final = 8


def check_key_type(kind: pa.DataType) -> None:
    """Refuses what has no digests: lists, structs, maps and unions."""
    _family_of(kind)


def digests(column: Array) -> UInt64Array:
    """The digest of each value."""
    family = _family_of(column.type)
    if isinstance(column, pa.ExtensionArray):
        return digests(column.storage)
    if isinstance(column, pa.RunEndEncodedArray):
        return _run_end_digests(column)
    if column.null_count == len(column):
        return _null_digests(column)
    if isinstance(column, pa.DictionaryArray):
        by_index, column = digests(column.dictionary), column.indices
        found: UInt64Array = by_index[column.fill_null(0).to_numpy()]
    else:
        found = family(column)
    if column.null_count:
        # What lies under a null can be anything, and never counts.
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        found = np.where(is_null, NULL, found)
    return found


def _run_end_digests(column: pa.RunEndEncodedArray[Any, Any]) -> UInt64Array:
    first, count = column.find_physical_offset(), column.find_physical_length()
    ends = column.run_ends.slice(first, count).to_numpy().astype(np.int64) - column.offset
    # The last run can reach beyond a slice.
    rows = np.diff(np.minimum(ends, len(column)), prepend=0)
    return np.repeat(digests(column.values.slice(first, count)), rows)


def _null_digests(column: Array) -> UInt64Array:
    return np.full(len(column), NULL)


def _integer_digests(column: Array) -> UInt64Array:
    """In two's complement; but what only fits an unsigned word is set apart from the negatives."""
    if pa.types.is_signed_integer(column.type):
        return _signed_words(column)
    words = _numbers(column, f"u{column.type.bit_width // 8}").astype(np.uint64)
    if column.type.bit_width == 64:
        words ^= (words >> np.uint64(63)) * UNSIGNED
    return words


def _boolean_digests(column: Array) -> UInt64Array:
    return _integer_digests(column.cast(pa.uint8()))


def _float_digests(column: Array) -> UInt64Array:
    """The bits of the number in double precision."""
    with np.errstate(invalid="ignore"):  # a signalling NaN among the values is just a NaN
        doubles = _numbers(column, f"f{column.type.bit_width // 8}").astype(np.float64)
    bits = doubles.view(np.uint64)
    bits[bits == _SIGN_BIT] = 0
    bits[(bits & ~_SIGN_BIT) > _INFINITY] = _NAN
    return bits


def _decimal_digests(column: Array) -> UInt64Array:
    """The number modulo a prime."""
    width = column.type.bit_width // 8
    if width <= _WORD_BYTES:
        limbs = _signed_words(column).reshape(-1, 1)
    else:
        flat = _numbers(column, "u8", width // _WORD_BYTES)
        limbs = flat.reshape(len(column), -1)
        if not _LOWEST_LIMB_FIRST:
            limbs = limbs[:, ::-1]
    return scaled_residue(residue(limbs), column.type.scale)


def _time_digests(column: Array) -> UInt64Array:
    """Nanoseconds modulo 2**64: the same for equal times of any unit, and no unit overflows."""
    return _signed_words(column) * np.uint64(_NANOSECONDS[column.type.unit])


def _date_digests(column: Array) -> UInt64Array:
    """Days."""
    if pa.types.is_date32(column.type):
        return _signed_words(column)
    days = _numbers(column, "i8") // np.int64(_DAY_MILLISECONDS)
    return days.astype(np.int64).view(np.uint64)


def _interval_digests(column: Array) -> UInt64Array:
    """As 16 bytes: months and days, 32 bits each, and nanoseconds, 64 bits; little-endian."""
    halves = _numbers(column, "u4", 4).reshape(-1, 4).astype(np.uint64)
    nanoseconds = _numbers(column, "u8", 2).reshape(-1, 2)[:, 1]
    start = mix(np.full(len(column), BYTES ^ np.uint64(16)))
    return mix(mix(start ^ halves[:, 0] ^ halves[:, 1] << np.uint64(32)) ^ nanoseconds)


def _fixed_bytes_digests(column: Array) -> UInt64Array:
    width = column.type.byte_width
    bounds = (column.offset + np.arange(len(column) + 1, dtype=np.int64)) * width
    return _bytes_digests(column.buffers()[1], bounds)


def _variable_bytes_digests(column: Array) -> UInt64Array:
    kind = column.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    bounds = _stored(offsets, "i8" if is_large else "i4", column.offset, len(column) + 1)
    return _bytes_digests(data, bounds.astype(np.int64))


def _bytes_digests(buffer: pa.Buffer | None, bounds: Int64Array) -> UInt64Array:
    """Of values that lie one behind the other: each between two bounds in the buffer."""
    found = np.empty(len(bounds) - 1, np.uint64)
    for start in range(0, len(found), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        found[block] = _block_digests(buffer, bounds[start : start + BLOCK_ROWS + 1])
    return found


def _block_digests(buffer: pa.Buffer | None, bounds: Int64Array) -> UInt64Array:
    begin, end = int(bounds[0]), int(bounds[-1])
    # A copy with room behind it, so that the last word of the last value can be read whole.
    data = np.zeros(end - begin + _WORD_BYTES - 1, np.uint8)
    data[: end - begin] = _stored(buffer, "u1", begin, end - begin)
    starts, lengths = bounds[:-1] - begin, np.diff(bounds)
    is_long = lengths > FOLDED_BYTES_MAX
    found = _folded(data, starts, np.where(is_long, 0, lengths))
    rows = np.flatnonzero(is_long)
    if len(rows):
        found[rows] = _long_digests(data.data, starts[rows], lengths[rows])
    return found


def _folded(data: Bytes, starts: Int64Array, lengths: Int64Array) -> UInt64Array:
    """The length and then the words of each value folded: all first words, all second words..."""
    counts = (lengths + _WORD_BYTES - 1) // _WORD_BYTES
    # With the longest values first, those that have one more word are always the first so many.
    order = np.argsort(~counts.astype(np.uint8), kind="stable")
    ending = np.bincount(counts)
    going_on = len(counts) - np.cumsum(ending)
    starts, lengths = starts[order], lengths[order]
    folded = mix(lengths.view(np.uint64) ^ BYTES)
    words = np.ndarray(len(data) - _WORD_BYTES + 1, "<u8", data, strides=(1,))  # at every byte
    for place, (going, still_going) in enumerate(pairwise(going_on.tolist())):
        taken = words[starts[:going] + place * _WORD_BYTES].astype(np.uint64, copy=False)
        # What lies behind the end of a value is shifted out.
        missing_bytes = (place + 1) * _WORD_BYTES - lengths[still_going:going]
        bits = (missing_bytes * 8).view(np.uint64)
        taken[still_going:] = taken[still_going:] << bits >> bits
        folded[:going] = mix(folded[:going] ^ taken)
    found = np.empty_like(folded)
    found[order] = folded
    return found


def _long_digests(data: memoryview, starts: Int64Array, lengths: Int64Array) -> list[int]:
    ends = (starts + lengths).tolist()
    return [
        xxhash.xxh3_64_intdigest(data[start:end])
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]


def _signed_words(column: Array) -> UInt64Array:
    """Signed numbers of up to 64 bits, in two's complement."""
    numbers = _numbers(column, f"i{column.type.bit_width // 8}")
    return numbers.astype(np.int64).view(np.uint64)


def _numbers(column: Array, kind: str, per_value: int = 1) -> Numbers:
    """A column of fixed width as it lies in memory, nulls and all."""
    return _stored(column.buffers()[1], kind, column.offset * per_value, len(column) * per_value)


def _stored(buffer: pa.Buffer | None, kind: str, first: int, count: int) -> Numbers:
    """So many numbers of a buffer, in the byte order of the machine."""
    dtype = np.dtype(kind)
    if count == 0:
        return np.empty(0, dtype)  # and there may be no buffer
    return np.frombuffer(cast("Any", buffer), dtype, count, first * dtype.itemsize)


_Family: TypeAlias = Callable[[Array], UInt64Array]

_FAMILIES: Final[tuple[tuple[Callable[[pa.DataType], bool], _Family], ...]] = (
    (pa.types.is_null, _null_digests),
    (pa.types.is_boolean, _boolean_digests),
    (pa.types.is_integer, _integer_digests),
    (pa.types.is_floating, _float_digests),
    (pa.types.is_decimal, _decimal_digests),
    (pa.types.is_string, _variable_bytes_digests),
    (pa.types.is_large_string, _variable_bytes_digests),
    (pa.types.is_string_view, _variable_bytes_digests),
    (pa.types.is_binary, _variable_bytes_digests),
    (pa.types.is_large_binary, _variable_bytes_digests),
    (pa.types.is_binary_view, _variable_bytes_digests),
    (pa.types.is_fixed_size_binary, _fixed_bytes_digests),
    (pa.types.is_timestamp, _time_digests),
    (pa.types.is_duration, _time_digests),
    (pa.types.is_time, _time_digests),
    (pa.types.is_date, _date_digests),
    (pa.types.is_interval, _interval_digests),
)


def _family_of(kind: pa.DataType) -> _Family:
    plain = kind
    while True:
        if isinstance(plain, pa.BaseExtensionType):
            plain = plain.storage_type
        elif isinstance(plain, pa.DictionaryType | pa.RunEndEncodedType):
            plain = plain.value_type
        else:
            break
    for is_member, family in _FAMILIES:
        if is_member(plain):
            return family
    raise ConfigurationError(
        f"a key column cannot be of type {kind}: choose columns of plain values, for example one "
        "field of it as a column of its own"
    )
