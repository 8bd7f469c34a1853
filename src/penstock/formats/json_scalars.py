"""Texts inside of JSON strings that stand for dates, times, decimals and bytes.

The rules are Spark's `from_json` where they depend on nothing but the text; docs/formats.md lists
the differences. Dates are days and times are microseconds since 1970, because Python's own types
end at the year 9999 and begin at the year 1.
"""

from __future__ import annotations

import base64
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa

from penstock.formats.buffers import binary_array, offsets_and_octets, valid_rows
from penstock.formats.decoded import UnparsableError

if TYPE_CHECKING:
    from penstock.formats.buffers import Numbers, Octets

_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME: Final = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?"
)
_ZONE: Final = r"(?P<zone> ?(?:Z|UTC|GMT)|(?P<sign>[+-])(?P<hours>\d{2})(?::?(?P<minutes>\d{2}))?)"
_TIMESTAMP: Final = re.compile(rf"{_DATE}(?:[ T]{_TIME}{_ZONE}?)?")
_DAY: Final = re.compile(rf"{_DATE}(?:[ T].*)?")
_MONTH: Final = re.compile(r"(\d{4})(?:-(\d{1,2}))?")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SPACE: Final = " \t\r\n"
_SECOND: Final = 1_000_000
_DAY_SECONDS: Final = 86_400
_DECIMALS: Final = Context(prec=80, rounding=ROUND_HALF_UP)
"""Twice the digits that a column can have: more is too large for it, or rounds to the same."""


def days_of(text: str) -> int:
    """`2020-01-02`, also without leading zeros, without day or month, or with a time behind it."""
    text = text.strip(_SPACE)
    match = _DAY.fullmatch(text)
    if match is not None:
        return _days(match["year"], match["month"], match["day"])
    match = _MONTH.fullmatch(text)
    if match is not None:
        return _days(match[1], match[2] or "1", "1")
    raise UnparsableError(f"{text!r} is no date such as 2020-01-31")


def micros_of(text: str, *, zoned: bool) -> int:
    """`2020-01-02T03:04:05.678+02:00`. Without a zone it is UTC. A column without time zone
    (`zoned` is false) takes no zone in the text."""
    text = text.strip(_SPACE)
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        short = _MONTH.fullmatch(text)
        if short is None:
            raise UnparsableError(f"{text!r} is no timestamp such as 2020-01-31T23:59:59.5Z")
        return _days(short[1], short[2] or "1", "1") * _DAY_SECONDS * _SECOND
    if match["zone"] is not None and not zoned:
        raise UnparsableError(f"{text!r} has a time zone, and TIMESTAMP_NTZ has none")
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise UnparsableError(f"{text!r} has a time that no day has")
    seconds = hour * 3600 + minute * 60 + second
    if match["sign"] is not None:
        hours, minutes = int(match["hours"]), int(match["minutes"] or 0)
        if hours > 23 or minutes > 59:
            raise UnparsableError(f"{text!r} has a time zone that does not exist")
        offset = hours * 3600 + minutes * 60
        seconds -= offset if match["sign"] == "+" else -offset
    days = _days(match["year"], match["month"], match["day"])
    fraction = ((match["fraction"] or "") + "000000")[:6]
    return (days * _DAY_SECONDS + seconds) * _SECOND + int(fraction)


def decimal_of(text: str, kind: pa.Decimal128Type) -> Decimal:
    """The number, rounded half up to the column's scale. Too many digits before the point fail."""
    if not _NUMBER.fullmatch(text):
        raise UnparsableError(f"{text!r} is no number")
    try:
        number = _DECIMALS.quantize(Decimal(text), Decimal(1).scaleb(-kind.scale))
    except InvalidOperation:
        raise UnparsableError(f"{text!r} is too large for {kind}") from None
    if len(number.as_tuple().digits) > kind.precision:
        raise UnparsableError(f"{text!r} is too large for {kind}")
    return number


def bytes_of(text: str) -> bytes:
    """Base64 with padding."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        raw = None
    if raw is None or len(text) % 4:
        raise UnparsableError(f"{text!r} is no base64")
    return raw


def _days(year: str, month: str, day: str) -> int:
    try:
        return int(np.datetime64(f"{year}-{month:0>2}-{day:0>2}", "D").astype(np.int64))
    except ValueError:
        raise UnparsableError(f"{year}-{month}-{day} is no day of the calendar") from None


_SIX_BITS: Final = np.full(256, 0xFF, dtype=np.uint8)
_SIX_BITS[
    np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", "u1")
] = np.arange(64)
_PADDING: Final = ord("=")


def bytes_of_all(texts: pa.StringArray) -> pa.BinaryArray:
    """Base64 of a whole column, with padding where it must be: else it is left to `bytes_of`."""
    offsets, symbols = offsets_and_octets(texts.fill_null(""))
    symbols = symbols[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if (offsets % 4).any():
        raise UnparsableError("base64 without padding")
    bits = _SIX_BITS[symbols]
    padding = symbols == _PADDING
    bits[padding] = 0
    if (bits > 63).any():
        raise UnparsableError("no base64")
    padded = _padding_of_each(symbols, offsets)
    if padding.sum() != padded.sum():
        raise UnparsableError("padding inside of base64")
    first, second, third, fourth = bits.reshape(-1, 4).T.astype(np.uint8)
    octets = np.empty((len(first), 3), dtype=np.uint8)
    octets[:, 0] = first << 2 | second >> 4
    octets[:, 1] = second << 4 | third >> 2
    octets[:, 2] = third << 6 | fourth
    kept = np.ones(octets.size, dtype=bool)
    ends = offsets[1:] // 4 * 3
    kept[ends[padded >= 1] - 1] = False
    kept[ends[padded == 2] - 2] = False
    lengths = np.diff(offsets) // 4 * 3 - padded
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return binary_array(starts, octets.ravel()[kept])


def _padding_of_each(symbols: Octets, offsets: Numbers) -> Numbers:
    """How many padding symbols each text ends with: 0, 1 or 2."""
    filled = np.diff(offsets) > 0
    padded = np.zeros(len(filled), dtype=np.int64)
    ends = offsets[1:][filled]
    last = symbols[ends - 1] == _PADDING
    padded[filled] = np.add(last, last & (symbols[ends - 2] == _PADDING), dtype=np.int64)
    return padded


_SIGNS: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", "u1"
)


def base64_of_all(values: pa.BinaryArray) -> pa.StringArray:
    """A whole column in base64, with padding."""
    offsets, octets = offsets_and_octets(values)
    lengths = np.diff(offsets)
    groups = -(-lengths // 3)
    ends = np.concatenate(([0], np.cumsum(groups)))
    padded = np.zeros(3 * int(ends[-1]), dtype=np.uint8)
    places = np.arange(int(lengths.sum())) + np.repeat(
        3 * ends[:-1] + offsets[0] - offsets[:-1], lengths
    )
    padded[places] = octets[offsets[0] : offsets[-1]]
    first, second, third = padded.reshape(-1, 3).T
    symbols = np.empty((len(first), 4), dtype=np.uint8)
    symbols[:, 0] = _SIGNS[first >> 2]
    symbols[:, 1] = _SIGNS[(first & 0x03) << 4 | second >> 4]
    symbols[:, 2] = _SIGNS[(second & 0x0F) << 2 | third >> 6]
    symbols[:, 3] = _SIGNS[third & 0x3F]
    texts = symbols.ravel()
    lacking = 3 * groups - lengths
    texts[4 * ends[1:][lacking >= 1] - 1] = _PADDING
    texts[4 * ends[1:][lacking == 2] - 2] = _PADDING
    null = ~valid_rows(values) if values.null_count else None
    return cast("pa.StringArray", binary_array(4 * ends, texts, null).cast(pa.string()))
