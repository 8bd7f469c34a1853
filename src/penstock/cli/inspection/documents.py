"""Rows of Arrow batches as plain values, with producers and clocks as people know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.outputs import encoded_columns, encoder
from penstock.ids import Producer, clock_to_datetime

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.cli.inspection.report import Row


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    columns = encoded_columns(batch, [encoder(field.type) for field in batch.schema])
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def producer_of(number: int) -> str:
    return str(Producer.from_int64(number))


def clock_of(clock: int) -> str:
    """16 hex digits, as everywhere."""
    return f"{clock:016x}"


def moment_of(clock: int) -> str:
    return clock_to_datetime(clock).isoformat()
