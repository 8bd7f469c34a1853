"""Columns to JSON documents, without a loop over rows: as Spark's `to_json` writes them.

Each column becomes a column of texts, by kernels of Arrow's; a document is these texts joined. A
null member is left out, a null inside of an array or a map is `null`. Where we differ from
`to_json`: a timestamp keeps its microseconds, and is in UTC.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.buffers import offsets_and_octets
from penstock.formats.encoding import check_text, entries, joined, of_each
from penstock.formats.errors import SchemaError, UnencodableRowError
from penstock.formats.json_scalars import base64_of_all

if TYPE_CHECKING:
    from penstock.formats.buffers import Column

_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""The years 1 to 9999: what readers understand, and what Arrow writes with four digits."""
_DAY_MICROS: Final = 86_400_000_000
_SPECIAL: Final = np.zeros(256, dtype=bool)
_SPECIAL[:32] = True
_SPECIAL[[ord('"'), ord("\\")]] = True
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f",
                 "\r": "\\r"}  # fmt: skip


class JsonEncoder:
    """Writes rows of these columns as documents."""

    def __init__(self, columns: pa.Schema) -> None:
        _check_names([field.name for field in columns], "the frame")
        for field in columns:
            _check(field.type, field.name)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        members = [
            (name, _text(column, name))
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return cast("pa.BinaryArray", _object(members, rows.num_rows).cast(pa.binary()))


def _check(kind: pa.DataType, name: str) -> None:
    match kind:
        case pa.StructType():
            _check_names([field.name for field in kind], f"column {name!r}")
            for field in kind:
                _check(field.type, f"{name}.{field.name}")
        case pa.ListType():
            _check(kind.value_type, f"{name}[]")
        case pa.MapType():
            if not _is_text(kind.key_type):
                raise SchemaError(
                    f"column {name!r} is a MAP whose keys are {kind.key_type}, and those of JSON "
                    "are STRING: cast them in the query"
                )
            _check(kind.item_type, f"{name}.value")
        case pa.TimestampType(unit="us") | pa.Decimal128Type():
            pass
        case _ if (
            pa.types.is_boolean(kind)
            or pa.types.is_signed_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_date32(kind)
            or _is_text(kind)
            or _is_bytes(kind)
        ):
            pass
        case _:
            raise SchemaError(
                f"column {name!r} is {kind}, which JSON has no form for: cast it in the query"
            )


def _check_names(names: list[str], where: str) -> None:
    if len(set(names)) < len(names):
        raise SchemaError(f"{where} has a member twice: {', '.join(names)}")


def _text(column: Column, name: str) -> Column:
    """The JSON of each value; null if it is null."""
    kind = column.type
    match kind:
        case pa.StructType():
            members = [
                (field.name, _text(pc.struct_field(column, [place]), f"{name}.{field.name}"))
                for place, field in enumerate(kind)
            ]
            return _where_valid(column, _object(members, len(column)))
        case pa.ListType():
            counts, (elements,) = entries(column)
            inside = of_each(counts, _text(elements, f"{name}[]").fill_null("null"), ",")
            return _where_valid(column, joined("[", inside, "]"))
        case pa.MapType():
            counts, (keys, items) = entries(column)
            texts = _text(items, f"{name}.value").fill_null("null")
            pairs = joined(_quoted(keys, f"{name}.key"), ":", texts)
            return _where_valid(column, joined("{", of_each(counts, pairs, ","), "}"))
        case pa.TimestampType():
            return _moment(column, name)
        case _ if _is_text(kind):
            return _quoted(column, name)
        case _ if _is_bytes(kind):
            return joined('"', base64_of_all(column.cast(pa.binary())), '"')
        case _ if pa.types.is_date32(kind):
            _check_days(column.cast(pa.int32()), name, 1)
            return joined('"', column.cast(pa.string()), '"')
        case _ if pa.types.is_floating(kind):
            return _number(column)
        case _:
            return column.cast(pa.string())


def _object(members: list[tuple[str, Column]], rows: int) -> Column:
    if not members:
        return pa.repeat(pa.scalar("{}"), rows)
    # Arrow's own way to leave nulls out (`null_handling="skip"`) loses rows that have nothing else.
    pairs = [joined(f",{_name(name)}:", text).fill_null("") for name, text in members]
    inside = cast("Any", pc.ascii_ltrim)(joined(*pairs), ",")
    return joined("{", inside, "}")


def _name(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _where_valid(column: Column, texts: Column) -> Column:
    if not column.null_count:
        return texts
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, texts.type))


def _quoted(column: Column, name: str) -> Column:
    texts = column.cast(pa.string())
    check_text(texts, name)
    offsets, octets = offsets_and_octets(texts)
    octets = octets[offsets[0] : offsets[-1]]
    special = octets[_SPECIAL[octets]]
    found = {chr(octet) for octet in np.unique(special).tolist()}
    for sign in sorted(found, key=lambda each: each != "\\"):  # else it would escape its own
        written = _SHORT.get(sign, f"\\u{ord(sign):04x}")
        texts = pc.replace_substring(texts, sign, written)
    return joined('"', texts, '"')


def _number(column: Column) -> Column:
    texts = column.cast(pa.string())
    finite = pc.is_finite(column)
    whole = pc.match_substring_regex(texts, r"^-?[0-9]+$")
    texts = pc.if_else(whole, joined(texts, ".0"), texts)  # a number with a point, as Java has it
    if pc.all(finite).as_py() is not False:
        return texts
    names = pc.if_else(
        pc.is_nan(column),
        "NaN",
        pc.if_else(pc.less(column, cast("Any", 0)), "-Infinity", "Infinity"),
    )
    return pc.if_else(finite, texts, joined('"', names, '"'))


def _moment(column: Column, name: str) -> Column:
    _check_days(column.cast(pa.int64()), name, _DAY_MICROS)
    plain = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    texts = cast("Any", pc.utf8_replace_slice)(plain, 10, 11, "T")
    return joined('"', texts, '"' if column.type.tz is None else 'Z"')


def _check_days(numbers: Column, name: str, unit: int) -> None:
    ends: Any = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return
    if ends["min"] < _FIRST_DAY * unit or ends["max"] >= (_LAST_DAY + 1) * unit:
        raise UnencodableRowError(name, "its year is not one of 1 to 9999")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
