"""What every format makes of a batch of values, and what all formats share.

A value is the bytes of one record. A format decodes a whole batch of them at once: each value
becomes one row, in the same order. A value that does not parse becomes a row of nulls, and its row
number is in `failed`; its neighbours are not touched. A null value (Kafka's tombstone) becomes a
row of nulls too, and is no failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REASON_CHARACTERS_MAX: Final = 300
"""A reason quotes the value: longer quotations fill logs and dead-letter rows, and help nobody."""
SALVAGE_ROWS: Final = (512, 64)
"""A batch that fails as a whole is tried again in blocks of this many rows, and those that fail in
smaller ones. A try of Arrow's JSON parser costs 0.4 ms before the first row, as much as a dozen
rows one by one."""


class UnparsableError(Exception):
    """A value, or a block of values, does not parse. It stays inside of this package: a row number
    and a reason are what comes out."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One row per value. Rows that failed are all null; `reasons` is in the order of `failed`."""

    batch: pa.RecordBatch
    failed: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


class Format(Protocol):
    """Turns values into columns. `decode` depends on the values only, and on each one by itself."""

    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


def failures(schema: pa.Schema, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> Decoded:
    """What was decoded, with the failed rows named in order. The batch has nulls there already."""
    if batch.schema != schema:
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    rows = sorted(reasons)
    return Decoded(batch, tuple(rows), tuple(shortened(reasons[row]) for row in rows))


def salvaged(
    values: pa.BinaryArray,
    decode_block: Callable[[pa.BinaryArray], pa.RecordBatch],
    decode_rows: Callable[[pa.BinaryArray], Decoded],
    sizes: tuple[int, ...] = SALVAGE_ROWS,
) -> Decoded:
    """Decodes the whole batch, or, if something in it does not parse, in smaller and smaller
    blocks; the smallest with a bad value in it are left to `decode_rows`. So bad values cost
    something only where they are."""
    try:
        return Decoded(decode_block(values))
    except UnparsableError:
        pass
    if not sizes:
        return decode_rows(values)
    size, smaller = sizes[0], sizes[1:]
    return joined(
        salvaged(values.slice(start, size), decode_block, decode_rows, smaller)
        for start in range(0, len(values), size)
    )


def joined(parts: Iterable[Decoded]) -> Decoded:
    """Batches one behind the other; row numbers move with their rows."""
    batches: list[pa.RecordBatch] = []
    failed: list[int] = []
    reasons: list[str] = []
    rows = 0
    for part in parts:
        batches.append(part.batch)
        failed += [row + rows for row in part.failed]
        reasons += part.reasons
        rows += part.batch.num_rows
    return Decoded(one_batch(pa.Table.from_batches(batches)), tuple(failed), tuple(reasons))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table's rows as one batch, even if there are none."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_pylist([], schema=table.schema)


def nulls(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Rows in which every column is null."""
    return pa.RecordBatch.from_arrays(
        [pa.nulls(rows, field.type) for field in schema], schema=schema
    )


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with every column and every part of one nullable: a value may lack anything, and
    tombstones lack everything. Spark's `from_json` treats NOT NULL the same way."""
    return pa.schema([_nullable_field(field) for field in schema])


def _nullable_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _nullable_type(field.type), nullable=True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([_nullable_field(field) for field in kind])
    if isinstance(kind, pa.ListType):
        return pa.list_(pa.field("element", _nullable_type(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_nullable_type(kind.key_type), _nullable_type(kind.item_type))
    return kind


def shortened(reason: str) -> str:
    """The reason within its limit."""
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    return reason[: REASON_CHARACTERS_MAX - 3] + "..."
