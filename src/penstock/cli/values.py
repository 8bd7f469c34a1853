"""Text and JSON values made into a column's type, or refused with the reason.

An empty CSV field is no value; in a STRING column that is NOT NULL it is the empty text. Moments
are ISO 8601; without a zone they are UTC. BINARY is base64. In CSV, nested values are JSON.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from penstock.cli.sources import RefusedRowsError
from penstock.ddl import schema_to_ddl

if TYPE_CHECKING:
    from penstock.cli.sources import RawRows

Convert: TypeAlias = Callable[[Any], Any]
"""Takes a value that is not None; ValueError, with the reason, if it does not fit."""

_SHOWN_CHARACTERS_MAX: Final = 60
_EXACT: Final = decimal.Context(prec=1_000)
_WORDS: Final = {"true": True, "false": False, "1": True, "0": False}


def to_arrow(raw: RawRows, schema: pa.Schema) -> pa.Table | pa.RecordBatch:
    """The rows as Arrow of the schema's types. Columns that it lacks are refused."""
    names = raw.rows.schema.names if isinstance(raw.rows, pa.RecordBatch) else list(raw.rows)
    for name in names:
        if schema.get_field_index(name) < 0:
            raise RefusedRowsError(
                raw.source.name if raw.source.format != "json" else _first_with(raw, name),
                name,
                f"the collection has no such column; it has {', '.join(schema.names)}",
            )
    if isinstance(raw.rows, pa.RecordBatch):
        return raw.rows
    is_text = raw.source.format == "csv"
    return pa.table(
        {
            name: _column(raw, schema.field(name), values, is_text=is_text)
            for name, values in raw.rows.items()
        },
        schema=pa.schema([schema.field(name).with_nullable(True) for name in raw.rows]),
    )


def _first_with(raw: RawRows, name: str) -> str:
    """The first line that has the column. One with a null there may come before it; no matter."""
    values = raw.rows[name] if isinstance(raw.rows, dict) else []
    found = next((row for row, value in enumerate(values) if value is not None), 0)
    return raw.place(found)


def _column(raw: RawRows, field: pa.Field[Any], values: list[Any], *, is_text: bool) -> Any:
    if is_text and not (pa.types.is_string(field.type) and not field.nullable):
        values = [None if value == "" else value for value in values]
    if is_text and pa.types.is_nested(field.type):
        values = [_parsed(raw, field, row, value) for row, value in enumerate(values)]
    if _takes_as_is(field.type) and not is_text:
        try:
            return pa.array(values, type=field.type)
        except (pa.ArrowException, OverflowError):
            pass  # by value, below
    convert = converter(field.type)
    done: list[Any] = []
    try:
        for value in values:
            done.append(None if value is None else convert(value))  # noqa: PERF401 - see below
    except ValueError as error:
        # `done` tells which row it was: that is why it is no comprehension.
        raise _refused(raw, field, len(done), values[len(done)], str(error)) from None
    try:
        return pa.array(done, type=field.type)
    except (pa.ArrowException, OverflowError) as error:
        row, reason = _first_failing(done, field.type)
        raise _refused(raw, field, row, values[row], reason or str(error)) from None


def _takes_as_is(kind: pa.DataType) -> bool:
    """Types whose JSON values Arrow takes or refuses as we would."""
    return pa.types.is_string(kind) or pa.types.is_boolean(kind)


def _parsed(raw: RawRows, field: pa.Field[Any], row: int, value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value, parse_float=decimal.Decimal)
    except ValueError as error:
        raise _refused(raw, field, row, value, f"is not JSON: {error}") from None


def _refused(
    raw: RawRows, field: pa.Field[Any], row: int, value: object, reason: str
) -> RefusedRowsError:
    kind = schema_to_ddl(pa.schema([field.with_nullable(True)])).removeprefix(field.name).strip()
    plain = isinstance(value, str | decimal.Decimal)
    shown = str(value) if plain else json.dumps(value, default=str)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = shown[:_SHOWN_CHARACTERS_MAX] + "..."
    return RefusedRowsError(
        raw.place(row), field.name, f"{shown!r} does not fit {kind}: {reason.splitlines()[0]}"
    )


def _first_failing(values: list[Any], kind: pa.DataType) -> tuple[int, str]:
    for row, value in enumerate(values):
        try:
            pa.array([value], type=kind)
        except (pa.ArrowException, OverflowError) as error:
            return row, str(error)
    return 0, ""


def converter(kind: pa.DataType) -> Convert:
    """What makes a JSON or text value into a Python value for that type."""
    for accepts, convert in _CONVERTERS:
        if accepts(kind):
            return convert
    if isinstance(kind, pa.Decimal128Type):
        return _decimal_of(kind.precision, kind.scale)
    if isinstance(kind, pa.TimestampType):
        return _moment if kind.tz is not None else _local_moment
    if isinstance(kind, pa.MapType):
        return _map_of(converter(kind.key_type), converter(kind.item_type))
    if isinstance(kind, pa.ListType):
        return _list_of(converter(kind.value_type))
    if isinstance(kind, pa.StructType):
        return _struct_of({field.name: converter(field.type) for field in kind})
    raise ValueError(f"values of type {kind} cannot be read from text")


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str | decimal.Decimal):
        raise ValueError("it is not a whole number")
    try:
        exact = decimal.Decimal(value)
        if exact != exact.to_integral_value():
            raise ValueError("it is not a whole number")
        return int(exact)
    except (decimal.InvalidOperation, OverflowError):
        raise ValueError("it is not a whole number") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        raise ValueError("it is not a number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("it is not a number") from None


def _decimal_of(precision: int, scale: int) -> Convert:
    def convert_decimal(value: Any) -> decimal.Decimal:
        exact = _decimal(value)
        places = -int(exact.normalize(_EXACT).as_tuple().exponent)
        if exact and places > scale:
            raise ValueError(f"it has {places} decimal places")
        if exact and exact.adjusted() >= precision - scale:
            raise ValueError(f"it has {exact.adjusted() + 1} digits before the point")
        return exact

    return convert_decimal


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str | decimal.Decimal):
        raise ValueError("it is not a decimal number")
    try:
        exact = decimal.Decimal(value)
    except decimal.InvalidOperation:
        raise ValueError("it is not a decimal number") from None
    if not exact.is_finite():
        raise ValueError("it is not a decimal number")
    return exact


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    raise ValueError("it is neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is not text; put it in quotes")
    return value


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None


def _date(value: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(_text(value))
    except ValueError:
        raise ValueError("it is not a date like 2026-11-15") from None


def _parse_moment(value: Any) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(_text(value))
    except ValueError:
        raise ValueError("it is not a moment like 2026-11-15T20:00:00+00:00") from None


def _moment(value: Any) -> datetime.datetime:
    moment = _parse_moment(value)
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment


def _local_moment(value: Any) -> datetime.datetime:
    moment = _parse_moment(value)
    if moment.tzinfo is not None:
        raise ValueError("it has a time zone, and the column has none")
    return moment


def _list_of(convert: Convert) -> Convert:
    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("it is not a list")
        return [None if item is None else convert(item) for item in value]

    return convert_list


def _map_of(convert_key: Convert, convert_item: Convert) -> Convert:
    def convert_map(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
        return [
            (convert_key(key), None if item is None else convert_item(item))
            for key, item in value.items()
        ]

    return convert_map


def _struct_of(converters: dict[str, Convert]) -> Convert:
    def convert_struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
        for name in value:
            if name not in converters:
                raise ValueError(f"it has a field {name!r} that the type has not")
        return {
            name: None if value.get(name) is None else convert(value[name])
            for name, convert in converters.items()
        }

    return convert_struct


_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Convert], ...]] = (
    (pa.types.is_string, _text),
    (pa.types.is_integer, _whole_number),
    (pa.types.is_floating, _number),
    (pa.types.is_boolean, _truth),
    (pa.types.is_binary, _bytes),
    (pa.types.is_date, _date),
)
