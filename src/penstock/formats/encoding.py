"""What turns columns into values, for every format: the other direction of decoded.py.

An encoder is made for the columns of a frame, and refuses those that its format cannot hold before
a row is written. Then a batch of rows becomes as many values. A row that does not fit raises: half
of a batch is never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl import normal_schema
from penstock.formats.errors import SchemaError, UnencodableRowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.buffers import Column, Numbers


class ValueEncoder(Protocol):
    """Turns rows into values, one for each row and none of them null."""

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray: ...


def check_fits(kind: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Refuses a column that would not keep its values as the type that a schema wants."""
    kind, wanted = _plain(kind), _plain(wanted)
    if isinstance(kind, pa.StructType) and isinstance(wanted, pa.StructType):
        check_members(list(kind), list(wanted), f"{name}.")
        return
    if isinstance(kind, pa.ListType) and isinstance(wanted, pa.ListType):
        check_fits(kind.value_type, wanted.value_type, f"{name}[]")
        return
    if isinstance(kind, pa.MapType) and isinstance(wanted, pa.MapType):
        check_fits(kind.key_type, wanted.key_type, f"{name}.key")
        check_fits(kind.item_type, wanted.item_type, f"{name}.value")
        return
    if not _is_wider(kind, wanted):
        raise SchemaError(
            f"column {name!r} is {kind} in the frame, and {wanted} in the schema of the values: "
            "cast it in the query, or give another schema"
        )


def check_members(
    given: Sequence[pa.Field[Any]], wanted: Sequence[pa.Field[Any]], prefix: str = ""
) -> None:
    """Columns go by name. What the frame lacks is null; what the schema lacks is refused."""
    fields = {field.name: field for field in wanted}
    for field in given:
        if field.name not in fields:
            raise SchemaError(
                f"the frame has a column {prefix + field.name!r}, and the schema of the values has "
                f"not: it has {', '.join(fields)}. Drop it in the query, or give another schema"
            )
        check_fits(field.type, fields[field.name].type, prefix + field.name)


def fitted(column: Column, wanted: pa.DataType) -> Column:
    """A column that `check_fits` let pass, as the type that the schema wants."""
    if isinstance(wanted, pa.StructType):
        names = [field.name for field in column.type]
        parts = [
            fitted(pc.struct_field(column, [names.index(field.name)]), field.type)
            if field.name in names
            else pa.nulls(len(column), field.type)
            for field in wanted
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=column.is_null())
    if isinstance(wanted, pa.ListType):
        counts, (elements,) = entries(column)
        return pa.ListArray.from_arrays(
            starts(counts),
            fitted(elements, wanted.value_type),
            type=cast("Any", wanted),
            mask=column.is_null(),
        )
    if isinstance(wanted, pa.MapType):
        counts, (names, items) = entries(column)
        made: Column = pa.MapArray.from_arrays(
            starts(counts), fitted(names, wanted.key_type), fitted(items, wanted.item_type)
        ).cast(cast("Any", wanted))
        if not column.null_count:
            return made
        return pc.if_else(column.is_valid(), made, pa.scalar(None, wanted))
    return column.cast(wanted)


def entries(column: Column) -> tuple[Numbers, list[Column]]:
    """Of lists or maps: how many entries each has, none if it is null; and all entries, one behind
    the other: elements, or keys and values."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    is_map = isinstance(column.type, pa.MapType)
    parts = [column.keys, column.items] if is_map else [column.values]
    counts = np.diff(offsets)
    if column.null_count:
        counts = np.where(column.is_valid().to_numpy(zero_copy_only=False), counts, 0)
    total = int(counts.sum())
    begin = int(offsets[0])
    if total == int(offsets[-1]) - begin:
        return counts, [part.slice(begin, total) for part in parts]
    firsts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    places = np.repeat(offsets[:-1] - firsts, counts) + np.arange(total)
    return counts, [part.take(pa.array(places)) for part in parts]


def starts(counts: Numbers) -> Column:
    """Where the entries of each list begin, and the last one's end."""
    return pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())


def of_each(counts: Numbers, pieces: Column, separator: str = "") -> Column:
    """The pieces of each list in one text, or in one value."""
    lists: Column = pa.ListArray.from_arrays(starts(counts), pieces)
    between: Any = pa.scalar(separator, pa.string()).cast(pieces.type)
    return pc.binary_join(lists, between)


def joined(*pieces: Column | pa.Scalar[Any] | str) -> Column:
    """Texts or values, those of each row one behind the other. Null if one of them is null."""
    first = next(piece for piece in pieces if isinstance(piece, pa.Array))
    alike = [pa.scalar(piece, first.type) if isinstance(piece, str) else piece for piece in pieces]
    join = cast("Any", pc.binary_join_element_wise)
    return join(*alike, pa.scalar("", pa.string()).cast(first.type))


def check_text(column: Column, name: str) -> None:
    """Spark lets a STRING hold any bytes; formats have UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise UnencodableRowError(name, "it is not UTF-8; make it BINARY in the query") from None


def _is_wider(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(wanted):
        narrow, wide = cast("Any", kind), cast("Any", wanted)
        return bool(narrow.bit_width <= wide.bit_width)
    if pa.types.is_float32(kind) and pa.types.is_float64(wanted):
        return True
    if isinstance(kind, pa.Decimal128Type) and isinstance(wanted, pa.Decimal128Type):
        whole, wanted_whole = kind.precision - kind.scale, wanted.precision - wanted.scale
        return bool(whole <= wanted_whole and kind.scale <= wanted.scale)
    return kind == wanted


def _plain(kind: pa.DataType) -> pa.DataType:
    """Arrow has several texts, and zones that say only how a moment is shown."""
    if pa.types.is_nested(kind):
        return kind
    found: pa.DataType = normal_schema(pa.schema([pa.field("x", kind)])).field(0).type
    return found
