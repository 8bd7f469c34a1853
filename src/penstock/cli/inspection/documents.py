"""Rows of Arrow batches as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.outputs import encoded_columns, encoder

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.report import Row


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    columns = encoded_columns(batch, [encoder(field.type) for field in batch.schema])
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
