"""A frame of ordinary columns as keys and values of records: what `format` and `key` do.

All columns become the value, those of the key too, so that nothing is lost to whoever reads values.
Only `_meta`, and a column `key` that no option speaks of, are no part of it: the first becomes
headers, the second is Kafka's own key, as a read with a format gives it. What keys look like says
formats/keys.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.columns import META
from penstock.errors import ConfigurationError
from penstock.formats.keys import BYTES, KeyEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.formats.writing import Written

_KEY: Final = "key"


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
        names = (_KEY,) if self._own_key else values.key
        keys = pa.schema([frame.field(name) for name in names])
        for field in keys:
            _check_key(field, is_own=self._own_key)
        self._keys_of = KeyEncoder(keys)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        value = self._value.encode(rows.select(in_value(rows.schema.names, self._key)))
        columns: dict[str, Any] = {"key": self._keys_of.encode(rows), "value": value}
        if META in rows.schema.names:
            columns[META] = rows.column(META)
        return pa.record_batch(columns)


def _check_key(field: pa.Field[Any], *, is_own: bool) -> None:
    if is_own and field.type not in BYTES:
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
