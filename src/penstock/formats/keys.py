"""Columns as keys of records.

A key of one column is its bytes, if that is STRING or BINARY, and its digits, if it is a whole
number. Any other key is a JSON object of its columns. It is null if all of its columns are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json_encode import JsonEncoder

if TYPE_CHECKING:
    from penstock.formats.buffers import Column

BYTES: Final = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


class KeyEncoder:
    """Makes keys of these columns; without any, keys are null."""

    def __init__(self, columns: pa.Schema) -> None:
        """Raises `SchemaError` for columns that a JSON object cannot hold."""
        self._names: list[str] = columns.names
        self._documents = JsonEncoder(columns)

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return cast("pa.BinaryArray", self._encode(rows))

    def _encode(self, rows: pa.RecordBatch) -> Any:
        if not self._names:
            return pa.nulls(rows.num_rows, pa.binary())
        columns: list[Column] = [rows.column(name) for name in self._names]
        kind = columns[0].type
        if len(columns) == 1 and kind in BYTES:
            return columns[0].cast(pa.binary())
        if len(columns) == 1 and pa.types.is_signed_integer(kind):
            return columns[0].cast(pa.string()).cast(pa.binary())
        documents: Any = self._documents.encode(rows.select(self._names))
        there: Any = columns[0].is_valid()
        for column in columns[1:]:
            there = pc.or_(there, column.is_valid())
        return pc.if_else(there, documents, pa.scalar(None, pa.binary()))
