"""A frame of ordinary columns as keys and values of records: what `format` and `key` do.

All columns become the value, those of the key too, so that nothing is lost to whoever reads values.
Only `_meta`, and a column `key` that no option speaks of, are no part of it: the first becomes
headers, the second is Kafka's own key, as a read with a format gives it.

A key of one column is its bytes, if that is STRING or BINARY, and its digits, if it is a whole
number. Any other key is a JSON object of its columns. It is null if all of its columns are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import META
from penstock.errors import ConfigurationError
from penstock.formats.json_encode import JsonEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.writing import Written

_KEY: Final = "key"
_BYTES: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


@dataclass(frozen=True, slots=True)
class Values:
    """What the options say of keys and values. Sent to tasks; there are no secrets in it."""

    written: Written
    key: tuple[str, ...] = ()


def in_value(names: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns that become the value."""
    apart = (META,) if key else (META, _KEY)
    return [name for name in names if name not in apart]


class ValueColumns:
    """Turns a frame's rows into rows with `key` and `value`, and `_meta` if it is there."""

    def __init__(self, frame: pa.Schema, values: Values) -> None:
        """Raises `ConfigurationError` for a frame that the options do not fit."""
        self._key = values.key
        self._own_key = not values.key and _KEY in frame.names
        if len(set(frame.names)) < len(frame.names):
            raise ConfigurationError(f"the frame has a column twice: {', '.join(frame.names)}")
        for name in values.key:
            if name not in frame.names:
                raise ConfigurationError(
                    f"option 'key' names a column {name!r}, and the frame has not: it has "
                    f"{', '.join(frame.names)}"
                )
        columns = [frame.field(name) for name in in_value(frame.names, values.key)]
        if not columns:
            raise ConfigurationError("the frame has no column that could become the value")
        self._value = values.written.encoder(pa.schema(columns))
        keys = pa.schema([frame.field(name) for name in self._keys()])
        for field in keys:
            _check_key(field, is_own=self._own_key)
        self._document = JsonEncoder(keys)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        value = self._value.encode(rows.select(in_value(rows.schema.names, self._key)))
        columns: dict[str, Any] = {"key": self._key_of(rows), "value": value}
        if META in rows.schema.names:
            columns[META] = rows.column(META)
        return pa.record_batch(columns)

    def _keys(self) -> tuple[str, ...]:
        return (_KEY,) if self._own_key else self._key

    def _key_of(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        names = self._keys()
        if not names:
            return pa.nulls(rows.num_rows, pa.binary())
        columns = [rows.column(name) for name in names]
        kind = columns[0].type
        if len(names) == 1 and (kind in _BYTES or pa.types.is_signed_integer(kind)):
            whole: Any = columns[0]
            return cast(
                "pa.Array[Any]",
                (whole if kind in _BYTES else whole.cast(pa.string())).cast(pa.binary()),
            )
        documents: Any = self._document.encode(rows.select(list(names)))
        there: Any = columns[0].is_valid()
        for column in columns[1:]:
            there = pc.or_(there, column.is_valid())
        return cast("pa.Array[Any]", pc.if_else(there, documents, pa.scalar(None, pa.binary())))


def _check_key(field: pa.Field[Any], *, is_own: bool) -> None:
    if is_own and field.type not in _BYTES:
        raise ConfigurationError(
            f"column 'key' is {field.type} in the frame, and as Kafka's own key must be STRING or "
            "BINARY: cast it in the query, or say .option('key', 'key'): then it is part of the "
            "value, too"
        )
    if _has_map(field.type):
        raise ConfigurationError(
            f"column {field.name!r} is or has a MAP, whose entries have no order: keys that are "
            "equal would be different bytes. Leave it out of the option 'key'"
        )


def _has_map(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.MapType):
        return True
    if isinstance(kind, pa.ListType):
        return _has_map(kind.value_type)
    return isinstance(kind, pa.StructType) and any(_has_map(field.type) for field in kind)
