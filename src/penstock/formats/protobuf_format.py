"""Protobuf values to columns, by ptars; columns as Spark's `from_protobuf` has them.

Enums are their names, uint32 is BIGINT, uint64 is DECIMAL(20,0), a Timestamp is a TIMESTAMP, a
wrapper is what it wraps, a duration is BIGINT microseconds, and a message inside of itself is
BINARY.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.buffers import Numbers, valid_rows, without_prefix
from penstock.formats.decoded import (
    Decoded,
    UnparsableError,
    failures,
    joined,
    nullable,
    nulls,
    one_batch,
    salvaged,
)
from penstock.formats.errors import SchemaError

_COLUMNS: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.duration("us"): pa.int64(),
    pa.time64("us"): pa.int64(),
}
_PANIC: Final = "PanicException"
"""What Rust's panics are called in Python. They are no `Exception`, and ptars exports no name."""


class ProtobufFormat:
    """Messages of one type. Fields are found by their numbers, so values that an older or newer
    version of the message wrote are read too."""

    def __init__(self, descriptor: Any) -> None:
        try:
            import ptars  # noqa: PLC0415
        except ImportError:
            raise SchemaError(
                "format protobuf needs more packages: pip install 'penstock[kafka]'"
            ) from None
        config = ptars.PtarsConfig(
            timestamp_unit="us",
            duration_unit="us",
            time_unit="us",
            enum_repr="string",
            list_value_name="element",
        )
        pool = ptars.HandlerPool([descriptor.file], config)
        self._handler = pool.get_for_message(descriptor)
        raw = self._handler.schema()
        if len(raw) == 0:
            raise SchemaError(f"the Protobuf message {descriptor.full_name} has no fields")
        columns = [field.with_type(_column(field.type)) for field in raw]
        self._schema = nullable(pa.schema(columns))
        self.raw_schema = nullable(raw)
        """As ptars has it: with unsigned numbers, times of day and durations."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def values_of(self, raw: pa.RecordBatch) -> pa.BinaryArray:
        """Messages of rows in the raw schema: what `decode` reads."""
        return cast(pa.BinaryArray, self._handler.record_batch_to_array(raw))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if len(values) == 0:
            return Decoded(nulls(self._schema, 0))
        decoded = salvaged(values, self._block, self._rows)
        if values.null_count == 0:
            return decoded
        rows = pa.array(np.arange(len(values)), mask=~valid_rows(values))
        return Decoded(decoded.batch.take(cast(Any, rows)), decoded.failed, decoded.reasons)

    def _block(self, values: pa.BinaryArray) -> pa.RecordBatch:
        try:
            raw = self._handler.array_to_record_batch(pa.concat_arrays([values]))
            columns = [
                column.cast(field.type)
                for column, field in zip(raw.columns, self._schema, strict=True)
            ]
        except (ValueError, pa.ArrowException) as error:
            raise UnparsableError(str(error)) from None
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise UnparsableError(f"ptars gave up: {error}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _rows(self, values: pa.BinaryArray) -> Decoded:
        parts = []
        for row in range(len(values)):
            try:
                parts.append(Decoded(self._block(values.slice(row, 1))))
            except UnparsableError as error:
                parts.append(failures(self._schema, nulls(self._schema, 1), {0: str(error)}))
        return joined(parts)


class IndexedProtobufFormat:
    """Behind a schema's id, Confluent's serializers write which message of the file follows: how
    many numbers, and the numbers. Messages of other types fail."""

    def __init__(self, messages: ProtobufFormat, path: tuple[int, ...], name: str) -> None:
        self._messages = messages
        self._name = name
        self._prefixes = index_prefixes(path)

    @property
    def schema(self) -> pa.Schema:
        return self._messages.schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        parts, places = [], []
        left = np.ones(len(values), dtype=bool)
        for prefix in self._prefixes:
            begins = cast(Any, pc.starts_with(cast(Any, values), cast(Any, prefix))).fill_null(True)
            rows = np.flatnonzero(left & begins.to_numpy(zero_copy_only=False))
            left[rows] = False
            if len(rows) == len(values):
                return self._messages.decode(without_prefix(values, len(prefix)))
            parts.append(self._messages.decode(without_prefix(values.take(rows), len(prefix))))
            places.append(rows)
        rest = np.flatnonzero(left)
        reason = f"the value is not a {self._name}, but another message of its schema"
        parts.append(
            failures(
                self.schema, nulls(self.schema, len(rest)), dict.fromkeys(range(len(rest)), reason)
            )
        )
        return _in_places(self.schema, parts, [*places, rest])


def index_prefixes(path: tuple[int, ...]) -> list[bytes]:
    """What tells which message of its file follows. The first of them, the shortest, is written."""
    whole = _zigzag(len(path)) + b"".join(_zigzag(number) for number in path)
    return [b"\0", whole] if path == (0,) else [whole]


def _in_places(schema: pa.Schema, parts: list[Decoded], places: list[Numbers]) -> Decoded:
    rows = np.concatenate(places)
    whole = joined(parts)
    table = pa.Table.from_batches([whole.batch]).take(np.argsort(rows, kind="stable"))
    reasons = {
        int(rows[row]): reason for row, reason in zip(whole.failed, whole.reasons, strict=True)
    }
    return failures(schema, one_batch(table), reasons)


def _zigzag(number: int) -> bytes:
    number <<= 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _column(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_column(field.type)) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_column(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_column(kind.key_type), _column(kind.item_type))
    return _COLUMNS.get(kind, kind)
