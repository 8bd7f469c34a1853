"""Columns to Protobuf messages, by ptars: the other direction of protobuf_format.py.

A null is a field that is not set; for a field that always has a value, that is its default. ptars
leaves out, without a word, what it cannot write: so that is looked for first, and refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.encoding import check_members, check_text, entries, fitted
from penstock.formats.errors import SchemaError, UnencodableRowError
from penstock.formats.protobuf_format import ProtobufFormat

if TYPE_CHECKING:
    from penstock.formats.buffers import Column


class ProtobufEncoder:
    """Writes rows of these columns as messages of one type."""

    def __init__(self, columns: pa.Schema, descriptor: Any) -> None:
        self._format = ProtobufFormat(descriptor)
        check_members(list(columns), list(self._format.schema))
        self._descriptor = descriptor
        _check_message(descriptor, list(columns), "")

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        fields = self._descriptor.fields_by_name
        columns = []
        for field, as_ptars in zip(self._format.schema, self._format.raw_schema, strict=True):
            column: Column = pa.nulls(rows.num_rows, field.type)
            if field.name in given:
                column = fitted(given[field.name], field.type)
            _check_values(column, fields[field.name], field.name)
            columns.append(_raw(column, as_ptars.type, field.name))
        raw = pa.RecordBatch.from_arrays(columns, schema=self._format.raw_schema)
        return self._format.values_of(raw)


def _check_message(descriptor: Any, given: list[pa.Field[Any]], prefix: str) -> None:
    types = {field.name: field.type for field in given}
    for field in descriptor.fields:
        name = prefix + field.name
        if field.is_required and field.name not in types:
            raise SchemaError(f"the frame has no column {name!r}, which the message requires")
        if field.name not in types or field.message_type is None:
            continue
        kind = types[field.name]
        if field.message_type is descriptor or (pa.types.is_binary(kind) and not _wraps(field)):
            raise SchemaError(
                f"column {name!r} is a message inside of itself, which no column can hold: drop it "
                "in the query"
            )
        if isinstance(kind, pa.ListType):
            kind = kind.value_type
        if isinstance(kind, pa.StructType):
            _check_message(field.message_type, list(kind), f"{name}.")


def _wraps(field: Any) -> bool:
    return str(field.message_type.full_name).startswith("google.protobuf.")


def _check_values(column: Column, field: Any, name: str) -> None:
    """What a message cannot hold."""
    kind = column.type
    if isinstance(kind, pa.MapType):
        _, (keys, items) = entries(column)
        parts = field.message_type.fields_by_name
        _check_values(keys, parts["key"], f"{name}.key")
        _check_there(items, f"{name}.value", "a map of Protobuf has no null in it")
        _check_values(items, parts["value"], f"{name}.value")
        return
    if isinstance(kind, pa.ListType):
        _, (column,) = entries(column)
        kind = column.type
        _check_there(column, f"{name}[]", "a repeated field of Protobuf has no null in it")
    elif field.is_required:
        _check_there(column, name, "the message requires it")
    if field.enum_type is not None:
        names = pa.array(list(field.enum_type.values_by_name), pa.string())
        known = pc.is_in(column, names, skip_nulls=True)
        wrong = column.filter(pc.and_(column.is_valid(), pc.invert(known)))
        if len(wrong):
            raise UnencodableRowError(
                name, f"{wrong[0].as_py()!r} is not one of {names.to_pylist()}"
            )
    elif isinstance(kind, pa.StructType):
        whole = column.drop_null()
        for place, part in enumerate(kind):
            inner = field.message_type.fields_by_name[part.name]
            _check_values(pc.struct_field(whole, [place]), inner, f"{name}.{part.name}")
    elif pa.types.is_string(kind):
        check_text(column, name)


def _check_there(column: Column, name: str, reason: str) -> None:
    if column.null_count:
        raise UnencodableRowError(name, f"it is null, and {reason}")


def _raw(column: Column, kind: pa.DataType, name: str) -> Column:
    """As ptars has it: whole numbers without sign, times of day, durations."""
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise UnencodableRowError(name, f"the message has no room for it ({error})") from None
