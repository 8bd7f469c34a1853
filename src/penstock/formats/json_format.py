"""JSON documents to columns: a batch at once by Arrow's parser, and what that refuses, one by one.

1. Values that are no plain object (blank, a mark before it, not UTF-8) are put aside.
2. The others are joined by newlines and parsed as one block. That each value is one row is certain:
   each begins with an opening brace and ends with a closing one, and neither a document nor a
   string can go on over a brace, a newline and a brace. So there are as many rows as values only if
   each value is one document.
3. Columns that Arrow's parser reads differently from Spark were read as strings, and are cast.
4. If the block is refused, it is parsed in smaller ones; what a refused one holds goes, value by
   value, through `JsonDocuments`, and so does what was put aside.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.formats.buffers import Mask, offsets_and_octets, valid_rows
from penstock.formats.decoded import (
    Decoded,
    UnparsableError,
    failures,
    nullable,
    nulls,
    one_batch,
    salvaged,
)
from penstock.formats.json_document import JsonDocuments, NestedTooDeeplyError
from penstock.formats.json_scalars import bytes_of_all

_EMPTY: Final = b"{}"
"""Stands for values that are decoded elsewhere, or not at all: a row of nulls."""
_SPACE: Final = b" \t\r\n"
_BLOCK_BYTES_MAX: Final = (1 << 31) - 1


class JsonFormat:
    """Documents of one schema, as `from_json` reads them. A document that `from_json` would call
    malformed fails as a whole: no half of it is shown."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = nullable(schema)
        self._documents = JsonDocuments(self._schema)
        self._parsed = pa.schema([field.with_type(_parsed(field.type)) for field in self._schema])
        self._options = pa.json.ParseOptions(
            explicit_schema=self._parsed, unexpected_field_behavior="ignore"
        )
        self._by_block = not any(_has_map(field.type) for field in schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if len(values) == 0:
            return Decoded(nulls(self._schema, 0))
        if not self._by_block:
            return self._rows(values)
        values, odd = _plain(values)
        plain = values if not odd.any() else _where(odd, _EMPTY, values)
        decoded = salvaged(plain, self._block, self._rows)
        if not odd.any():
            return decoded
        return self._with_odd(decoded, values, odd)

    def _block(self, values: pa.BinaryArray) -> pa.RecordBatch:
        """Steps 2 and 3. The braces are looked at again: Arrow's parser ends the process if it is
        given a document that is `null`."""
        if _no_object(values).any():
            raise UnparsableError("a value is no object")
        rows = len(values)
        lines = pa.concat_arrays([values.fill_null(_EMPTY), pa.array([b""], pa.binary())])
        whole = pa.ListArray.from_arrays(pa.array([0, rows + 1], pa.int32()), lines)
        try:
            text = cast(Any, pc.binary_join(whole, b"\n"))[0].as_buffer()
            options = pa.json.ReadOptions(
                use_threads=False, block_size=min(text.size + 1, _BLOCK_BYTES_MAX)
            )
            table = pa.json.read_json(
                cast(Any, pa.BufferReader(text)), read_options=options, parse_options=self._options
            )
        except pa.ArrowException as error:
            raise UnparsableError(str(error)) from None
        if table.num_rows != rows:
            raise UnparsableError("a value holds more than one document")
        batch = one_batch(table)
        columns = [
            _finished(column, field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _rows(self, values: pa.BinaryArray) -> Decoded:
        """Step 4."""
        documents: list[dict[str, Any] | None] = []
        reasons = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                documents.append({} if value is None else self._documents.read(value))
            except NestedTooDeeplyError as error:
                deep = self._deep(values.slice(row, 1))
                if deep is None:
                    reasons[row] = str(error)
                documents.append(deep or {})
            except UnparsableError as error:
                reasons[row] = str(error)
                documents.append({})
        batch = pa.RecordBatch.from_struct_array(
            cast(pa.StructArray, pa.array(documents, pa.struct(list(self._schema))))
        )
        return failures(self._schema, batch, reasons)

    def _deep(self, value: pa.BinaryArray) -> dict[str, Any] | None:
        """Arrow's parser knows no depth, and so accepts such a document among good ones: then it
        must be accepted beside bad ones as well."""
        try:
            document: dict[str, Any] = self._block(value).to_pylist()[0]
        except UnparsableError:
            return None
        return document

    def _with_odd(self, decoded: Decoded, values: pa.BinaryArray, odd: Mask) -> Decoded:
        """Puts the rows of odd values in their places."""
        numbers = np.flatnonzero(odd)
        rows = self._rows(values.take(numbers))
        places = np.arange(len(values))
        places[numbers] = len(values) + np.arange(len(numbers))
        table = pa.Table.from_batches([decoded.batch, rows.batch]).take(places)
        reasons = dict(zip(decoded.failed, decoded.reasons, strict=True))
        reasons |= {
            int(numbers[row]): reason for row, reason in zip(rows.failed, rows.reasons, strict=True)
        }
        return failures(self._schema, one_batch(table), reasons)


def _plain(
    values: pa.BinaryArray,
) -> tuple[pa.BinaryArray, Mask]:
    """Step 1: the values, trimmed if need be, and which of them are no plain object."""
    odd = _no_object(values)
    if odd.any():
        trimmed = [None if value is None else value.strip(_SPACE) for value in values.to_pylist()]
        values = pa.array(trimmed, pa.binary())
        odd = _no_object(values)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        odd |= np.array([not _is_utf8(value) for value in values.to_pylist()])
    return values, odd


def _no_object(values: pa.BinaryArray) -> Mask:
    """Which values do not begin and end with a brace. Null is an object without members."""
    offsets, symbols = offsets_and_octets(values)
    filled = np.flatnonzero(np.diff(offsets) >= len(_EMPTY))
    odd = np.ones(len(values), dtype=bool)
    odd[filled] = (symbols[offsets[filled]] != ord("{")) | (
        symbols[offsets[filled + 1] - 1] != ord("}")
    )
    if values.null_count:
        odd &= valid_rows(values)
    return odd


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _where(chosen: Mask, value: bytes, others: pa.BinaryArray) -> pa.BinaryArray:
    return cast(pa.BinaryArray, pc.if_else(pa.array(chosen), pa.scalar(value, pa.binary()), others))


def _parsed(kind: pa.DataType) -> pa.DataType:
    """What Arrow's parser is asked for. It takes days as numbers, bytes as they are, and a time
    zone for TIMESTAMP_NTZ; Spark does not."""
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_parsed(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_parsed(kind.value_type)))
    if kind in (pa.date32(), pa.binary(), pa.timestamp("us")):
        return pa.string()
    return kind


def _finished(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Step 3: strings become what the column is."""
    if column.type == kind:
        return column
    validity = column.is_null() if column.null_count else None
    if isinstance(kind, pa.StructType):
        struct = cast(pa.StructArray, column)
        parts = [_finished(struct.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=validity)
    if isinstance(kind, pa.ListType):
        elements = _finished(cast("pa.ListArray[Any]", column).values, kind.value_type)
        return pa.ListArray.from_arrays(
            cast("pa.ListArray[Any]", column).offsets, elements, type=kind, mask=validity
        )
    if pa.types.is_binary(kind):
        decoded = bytes_of_all(cast(pa.StringArray, column))
        return decoded if validity is None else pc.if_else(validity, None, decoded)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise UnparsableError(str(error)) from None


def _has_map(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.MapType):
        return True
    if isinstance(kind, pa.ListType):
        return _has_map(kind.value_type)
    return isinstance(kind, pa.StructType) and any(_has_map(field.type) for field in kind)
