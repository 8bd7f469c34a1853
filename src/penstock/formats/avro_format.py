"""Avro values to the columns of one schema, whatever schema they were written with.

Values are decoded by their writer's schema. The columns are then brought to the reader's by the
rules of Avro's schema resolution: fields by name or alias, defaults for those that the writer does
not have, numbers widened. Columns are always nullable, so two of its rules are milder here: a null
where the reader knows none stays null, and an enum's symbol that the reader lacks stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from penstock.formats.avro_decode import decode_records
from penstock.formats.avro_schema import (
    Entries,
    Enum,
    Items,
    Member,
    Node,
    Primitive,
    Record,
    Union,
    is_null,
)
from penstock.formats.decoded import Decoded
from penstock.formats.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.buffers import Column

_WIDER: Final = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
    "boolean": {"boolean"},
    "null": {"null"},
}
"""What a reader may want of what a writer wrote."""


class AvroFormat:
    """Values that one schema wrote, in the columns of another or the same."""

    def __init__(self, reader: Record, writer: Record | None = None) -> None:
        self._reader = reader
        self._writer = writer or reader
        self._columns = [_column(member, self._writer) for member in reader.fields]

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        decoded = decode_records(values, self._writer)
        if self._writer == self._reader:
            return decoded
        written = decoded.batch
        absent: Any = values.is_null()
        if decoded.failed:
            rows = absent.to_numpy(zero_copy_only=False).copy()
            rows[list(decoded.failed)] = True
            absent = pa.array(rows)
        columns = [_or_null(column(written), absent) for column in self._columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return Decoded(batch, decoded.failed, decoded.reasons)


def _or_null(column: Column, absent: Column) -> Column:
    """Defaults are for rows that there are, not for those that failed or are tombstones."""
    if not cast(Any, absent).true_count:
        return column
    rows = pa.array(range(len(column)), mask=absent.to_numpy(zero_copy_only=False))
    return column.take(rows)


def _column(member: Member, writer: Record) -> Callable[[pa.RecordBatch], Column]:
    number = _written(member, writer)
    if number is None:
        default = _default(member)
        return lambda batch: pa.repeat(cast(Any, default), batch.num_rows)
    resolve = _resolver(writer.fields[number].node, member.node, member.name)
    return lambda batch: resolve(batch.column(number))


def _written(member: Member, writer: Record) -> int | None:
    """Which of the writer's fields the reader's is."""
    names = [field.name for field in writer.fields]
    for name in (member.name, *member.aliases):
        if name in names:
            return names.index(name)
    return None


def _default(member: Member) -> pa.Scalar[Any]:
    if not member.has_default:
        raise SchemaError(
            f"the writer's Avro schema has no field {member.name!r}, and the reader's has no "
            "default for it; give the field a default"
        )
    return pa.array([_default_value(member.default, member.node)], member.node.column)[0]


def _default_value(default: Any, node: Node) -> Any:
    """Avro writes defaults as JSON; bytes as text with a character for each of them."""
    match node:
        case Union():
            members = [node.branches[i] for i in node.members]
            if default is None or not members:
                return None
            value = _default_value(default, members[0])
            struct = len(members) > 1 and isinstance(node.column, pa.StructType)
            return {"member0": value} if struct else value
        case Record():
            given = default or {}
            return {
                field.name: _default_value(given.get(field.name, field.default), field.node)
                for field in node.fields
            }
        case Items():
            return [_default_value(element, node.element) for element in default]
        case Entries():
            return [(name, _default_value(value, node.value)) for name, value in default.items()]
        case _ if pa.types.is_binary(node.column):
            return default.encode("latin-1")
        case _ if isinstance(node.column, pa.Decimal128Type):
            unscaled = int.from_bytes(default.encode("latin-1"), "big", signed=True)
            return cast(Any, _decimal(unscaled, node.column))
        case Primitive(logical=logical) if logical.endswith("millis"):
            return default * 1000
        case _:
            return default


def _decimal(unscaled: int, kind: pa.Decimal128Type) -> Any:
    raw = unscaled.to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(raw)])[0].as_py()


def _resolver(writer: Node, reader: Node, name: str) -> Callable[[Column], Column]:
    """How a column that was written one way is read in the other."""
    if writer == reader:
        return lambda column: column
    match writer, reader:
        case (Union(), _) | (_, Union()) if (inner := _one_member(writer, reader)) is not None:
            return _resolver(*inner, name)
        case Record(), Record():
            return _struct_resolver(writer, reader)
        case Items(), Items():
            element = _resolver(writer.element, reader.element, name)
            return lambda column: _list_with(column, element, reader.column)
        case Entries(), Entries():
            value = _resolver(writer.value, reader.value, name)
            return lambda column: _map_with(column, value, reader.column)
        case Enum(), Enum():
            return lambda column: column
        case Primitive(), Primitive() if reader.name in _WIDER[writer.name]:
            return lambda column: column.cast(reader.column)
    if writer.column == reader.column and not isinstance(writer, Union):
        return lambda column: column
    raise SchemaError(
        f"the field {name!r} was written as {writer.column} and cannot be read as {reader.column}"
    )


def _one_member(writer: Node, reader: Node) -> tuple[Node, Node] | None:
    """The types beside null, if each side has only one of them and one side is a union."""
    sides: list[Node] = []
    for node in (writer, reader):
        if not isinstance(node, Union):
            sides.append(node)
        elif len(node.members) == 1:
            sides.append(node.branches[node.members[0]])
        else:
            return None
    if is_null(sides[0]) and not is_null(sides[1]):
        return None
    return sides[0], sides[1]


def _struct_resolver(writer: Record, reader: Record) -> Callable[[Column], Column]:
    columns = [_column(member, writer) for member in reader.fields]

    def resolve(column: Column) -> Column:
        batch = pa.RecordBatch.from_arrays(cast(Any, column).flatten(), schema=writer.schema)
        parts = [part(batch) for part in columns]
        return pa.StructArray.from_arrays(
            parts, fields=list(cast(Any, reader.column)), mask=column.is_null()
        )

    return resolve


def _list_with(column: Any, element: Any, kind: pa.DataType) -> Column:
    return pa.ListArray.from_arrays(
        column.offsets, element(column.values), type=cast(Any, kind), mask=column.is_null()
    )


def _map_with(column: Any, value: Any, kind: pa.DataType) -> Column:
    return pa.MapArray.from_arrays(
        column.offsets, column.keys, value(column.items), mask=column.is_null()
    ).cast(kind)
