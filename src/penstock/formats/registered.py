"""Values that begin with the number of their schema, as Confluent's serializers write them.

Five bytes come first: a zero, and the schema's id in a registry, the highest byte first. A batch
may hold values of several schemas: they are decoded by id, each by its own format, into the same
columns, and put back in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.formats.buffers import Numbers, offsets_and_octets, valid_rows, without_prefix
from penstock.formats.decoded import Decoded, Format, failures, nulls, one_batch
from penstock.formats.errors import SchemaError, UnknownSchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX_BYTES: Final = 5
_NO_SCHEMA: Final = -1
_TOMBSTONE: Final = -2
FORMATS_MAX: Final = 1_000
"""Schemas of one topic that are kept open. A topic has a handful; garbage could name any number."""


class RegisteredFormat:
    """Finds each value's schema by its id. `open_schema` asks the registry; it raises if the id is
    unknown or its schema does not fit the columns, and then these values fail and no others."""

    def __init__(self, schema: pa.Schema, open_schema: Callable[[int], Format]) -> None:
        self._schema = schema
        self._open_schema = open_schema
        self._formats: dict[int, Format] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        ids = schema_ids(values)
        bodies = without_prefix(values, PREFIX_BYTES)
        different = np.unique(ids)
        if len(different) == 1:
            return self._group(int(different[0]), bodies)
        parts, order = [], []
        for number in different.tolist():
            rows = np.flatnonzero(ids == number)
            parts.append(self._group(number, bodies.take(rows)))
            order.append(rows)
        return _in_order(self._schema, parts, order)

    def _group(self, number: int, bodies: pa.BinaryArray) -> Decoded:
        """Values of one id."""
        if number == _TOMBSTONE:
            return Decoded(nulls(self._schema, len(bodies)))
        if number == _NO_SCHEMA:
            reason = "the value does not begin with a schema's id (a zero byte, and four more)"
            return self._all_failed(bodies, reason)
        try:
            value_format = self._format(number)
        except (SchemaError, UnknownSchemaError) as error:
            return self._all_failed(bodies, f"schema id {number}: {error}")
        return value_format.decode(bodies)

    def _format(self, number: int) -> Format:
        if number not in self._formats:
            if len(self._formats) >= FORMATS_MAX:
                self._formats.clear()
            self._formats[number] = self._open_schema(number)
        return self._formats[number]

    def _all_failed(self, bodies: pa.BinaryArray, reason: str) -> Decoded:
        rows = len(bodies)
        return failures(self._schema, nulls(self._schema, rows), dict.fromkeys(range(rows), reason))


def schema_ids(values: pa.BinaryArray) -> Numbers:
    """The id before each value, or a negative number if there is none."""
    offsets, octets = offsets_and_octets(values)
    ids = np.full(len(values), _NO_SCHEMA, dtype=np.int64)
    long = np.flatnonzero(np.diff(offsets) >= PREFIX_BYTES)
    prefixes = octets[offsets[long, None] + np.arange(PREFIX_BYTES)].astype(np.int64)
    numbers = prefixes[:, 1] << 24 | prefixes[:, 2] << 16 | prefixes[:, 3] << 8 | prefixes[:, 4]
    ids[long] = np.where(prefixes[:, 0] == 0, numbers, _NO_SCHEMA)
    ids[~valid_rows(values)] = _TOMBSTONE
    return ids


def _in_order(schema: pa.Schema, parts: list[Decoded], order: list[Numbers]) -> Decoded:
    """Rows of all parts, where they were."""
    places = np.argsort(np.concatenate(order), kind="stable")
    table = pa.Table.from_batches([part.batch for part in parts]).take(places)
    reasons = {}
    for part, rows in zip(parts, order, strict=True):
        for row, reason in zip(part.failed, part.reasons, strict=True):
            reasons[int(rows[row])] = reason
    return failures(schema, one_batch(table), reasons)
