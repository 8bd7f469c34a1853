"""Columns to Avro's binary encoding, all rows at once: the other direction of avro_decode.py.

Each field of the schema becomes a column of bytes; a record is these joined. So the cost of Python
is per field of the schema, not per value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.avro_schema import (
    Entries,
    Enum,
    Fixed,
    Items,
    Node,
    Primitive,
    Record,
    Union,
    is_null,
)
from penstock.formats.buffers import binary_array, offsets_and_octets, valid_rows
from penstock.formats.encoding import (
    check_members,
    check_text,
    entries,
    fitted,
    joined,
    of_each,
)
from penstock.formats.errors import SchemaError, UnencodableRowError

if TYPE_CHECKING:
    from penstock.formats.buffers import Column, Mask, Numbers, Octets

_VARINT_BYTES_MAX: Final = 10
_DECIMAL_BYTES: Final = 16


class AvroEncoder:
    """Writes rows of these columns by a schema."""

    def __init__(self, columns: pa.Schema, record: Record) -> None:
        check_members(list(columns), list(record.schema))
        _check_record(record, list(columns), "")
        self._record = record

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        given = dict(zip(rows.schema.names, rows.columns, strict=True))
        parts = []
        for member in self._record.fields:
            wanted: Any = member.node.column
            column: Column = pa.nulls(rows.num_rows, wanted)
            if member.name in given:
                column = fitted(given[member.name], wanted)
            parts.append(_encoded(member.node, column, member.name))
        return cast("pa.BinaryArray", joined(*parts))


def _check_record(record: Record, given: list[pa.Field[Any]], prefix: str) -> None:
    """What the frame lacks must be something that may be null. Unions of several types are refused:
    nothing in a frame says which of them a value is."""
    types = {field.name: field.type for field in given}
    for member in record.fields:
        name = prefix + member.name
        if member.name not in types and not _takes_null(member.node):
            raise SchemaError(
                f"the frame has no column {name!r}, which in the Avro schema cannot be null: add "
                "it in the query, or give another schema"
            )
        _check_node(member.node, types.get(member.name), name)


def _check_node(node: Node, kind: pa.DataType | None, name: str) -> None:
    match node:
        case Union():
            if len(node.members) > 1:
                raise SchemaError(
                    f"column {name!r} is one of several types in the Avro schema, and a column "
                    "of a frame has one: give a schema with one type, and null if need be"
                )
            for place in node.members:
                _check_node(node.branches[place], kind, name)
        case Record() if isinstance(kind, pa.StructType):
            _check_record(node, list(kind), f"{name}.")
        case Items() if isinstance(kind, pa.ListType):
            _check_node(node.element, kind.value_type, f"{name}[]")
        case Entries() if isinstance(kind, pa.MapType):
            _check_node(node.value, kind.item_type, f"{name}.value")
        case _:
            pass


def _takes_null(node: Node) -> bool:
    return is_null(node) or (isinstance(node, Union) and any(map(is_null, node.branches)))


def _encoded(node: Node, column: Column, name: str) -> Column:
    """The bytes of each value."""
    if isinstance(node, Union):
        return _union(node, column, name)
    if column.null_count and not is_null(node):
        raise UnencodableRowError(name, "it is null, and its Avro schema has no null there")
    match node:
        case Primitive():
            return _primitive(node, column, name)
        case Fixed():
            return _fixed(node, column, name)
        case Enum():
            places: Column = pc.index_in(column, pa.array(node.symbols, pa.string()))
            if places.null_count:
                unknown = column.filter(places.is_null())[0].as_py()
                raise UnencodableRowError(name, f"{unknown!r} is not one of {node.symbols}")
            return varints(_int64(places))
        case Items():
            counts, (elements,) = entries(column)
            return _repeated(counts, _encoded(node.element, elements, f"{name}[]"))
        case Entries():
            counts, (keys, items) = entries(column)
            check_text(keys, f"{name}.key")
            pairs = joined(_bytes(keys), _encoded(node.value, items, f"{name}.value"))
            return _repeated(counts, pairs)
        case Record():
            if not node.fields:
                return _nothing(len(column))
            parts = [
                _encoded(member.node, pc.struct_field(column, [place]), f"{name}.{member.name}")
                for place, member in enumerate(node.fields)
            ]
            return joined(*parts)
        case _:
            assert_never(node)


def _union(node: Union, column: Column, name: str) -> Column:
    """The number of the branch, and what it holds."""
    null = next((place for place, branch in enumerate(node.branches) if is_null(branch)), None)
    if null is None or not node.members:
        [place] = node.members or [0]
        numbers = varints(np.full(len(column), place, np.int64))
        return joined(numbers, _encoded(node.branches[place], column, name))
    [place] = node.members
    there = valid_rows(column)
    numbers = varints(np.where(there, place, null).astype(np.int64))
    bodies = _encoded(node.branches[place], column.drop_null(), name)
    if not there.all():
        places = np.cumsum(there) - 1
        bodies = bodies.take(pa.array(places, mask=~there)).fill_null(b"")
    return joined(numbers, bodies)


def _primitive(node: Primitive, column: Column, name: str) -> Column:
    match node.name:
        case "null":
            return _nothing(len(column))
        case "boolean":
            truths = column.to_numpy(zero_copy_only=False).astype(np.uint8)
            return _matrix(truths.reshape(-1, 1))
        case "float" | "double":
            kind = np.dtype("<f4" if node.name == "float" else "<f8")
            numbers = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), kind)
            return _matrix(numbers.view(np.uint8).reshape(-1, kind.itemsize))
        case "bytes" if isinstance(node.column, pa.Decimal128Type):
            return _sized(_minimal(_big_endian(column)))
        case "bytes" | "string":
            if node.name == "string":
                check_text(column, name)
            return _bytes(column)
        case _:
            numbers = _int64(column)
            if node.logical.endswith("millis"):
                numbers = numbers // 1000  # Spark's `to_avro` cuts, too
            return varints(numbers)


def _fixed(node: Fixed, column: Column, name: str) -> Column:
    if isinstance(node.column, pa.Decimal128Type):
        octets = _big_endian(column)
        size = min(node.size, _DECIMAL_BYTES)
        sign = np.where(octets[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
        cut, kept = octets[:, : _DECIMAL_BYTES - size], octets[:, _DECIMAL_BYTES - size :]
        if (cut != sign).any() or ((kept[:, :1] ^ sign) >= 0x80).any():
            raise UnencodableRowError(name, f"it has no room in a fixed of {node.size} bytes")
        longer = np.repeat(sign, node.size - size, axis=1)
        return _matrix(np.concatenate((longer, kept), axis=1))
    sizes: Column = pc.binary_length(column)
    if not (sizes.to_numpy(zero_copy_only=False) == node.size).all():
        raise UnencodableRowError(name, f"it has not the {node.size} bytes of a fixed")
    return column


def _repeated(counts: Numbers, items: Column) -> Column:
    """One block, with the number of its items, and the end; only the end if there are none."""
    some = (counts > 0).astype(np.int64)
    ends = binary_array(_ends(some), np.zeros(int(some.sum()), np.uint8))
    return joined(varints(counts), of_each(counts, items), ends)


def _bytes(column: Column) -> Column:
    return _sized(column.cast(pa.binary()))


def _sized(values: Column) -> Column:
    offsets, _ = offsets_and_octets(values)
    return joined(varints(np.diff(offsets)), values)


def varints(numbers: Numbers) -> Column:
    """Zigzag numbers of varying length."""
    rest = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    octets = np.zeros((len(numbers), _VARINT_BYTES_MAX), np.uint8)
    used = np.zeros((len(numbers), _VARINT_BYTES_MAX), np.bool_)
    for place in range(_VARINT_BYTES_MAX):
        used[:, place] = rest > 0 if place else True
        if not used[:, place].any():
            break
        octets[:, place] = (rest & np.uint64(0x7F)) | np.where(rest > 0x7F, 0x80, 0).astype(
            np.uint64
        )
        rest = rest >> np.uint64(7)
    return binary_array(_ends(used.sum(axis=1)), octets[used])


def _minimal(octets: Octets) -> Column:
    """Numbers of sixteen bytes without those that only repeat the sign."""
    sign = np.where(octets[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    spare = (octets[:, :-1] == sign) & ((octets[:, 1:] ^ sign) < 0x80)
    kept: Mask = np.ones(octets.shape, dtype=bool)
    kept[:, :-1] = ~np.logical_and.accumulate(spare, axis=1)
    return binary_array(_ends(kept.sum(axis=1)), octets[kept])


def _big_endian(column: Column) -> Octets:
    """The unscaled numbers of decimals, sixteen bytes each, the highest first."""
    _, data = column.buffers()
    octets = np.frombuffer(b"" if data is None else data, np.uint8)
    begin, rows = column.offset * _DECIMAL_BYTES, len(column)
    little = octets[begin : begin + rows * _DECIMAL_BYTES].reshape(rows, _DECIMAL_BYTES)
    return cast("Octets", little[:, ::-1])


def _matrix(octets: Octets) -> Column:
    rows, size = octets.shape
    return binary_array(np.arange(rows + 1) * size, octets.ravel())


def _ends(lengths: Numbers) -> Numbers:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _int64(column: Column) -> Numbers:
    whole = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    return cast("Numbers", column.cast(whole).cast(pa.int64()).to_numpy())


def _nothing(rows: int) -> Column:
    """Made here and not at import: Arrow imports pandas for its first scalar."""
    return pa.repeat(pa.scalar(b"", pa.binary()), rows)
