"""Record batches written for people and programs: JSON lines, CSV, a table, Parquet."""

from __future__ import annotations

import abc
import base64
import csv
import io
import json
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.text import Text

from penstock.cli import terminal
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE_ROWS_MAX: Final = 100
"""More rows than a person looks at in a table; --limit asks for another number."""
CELL_CHARACTERS_MAX: Final = 60

Encode: TypeAlias = Callable[[Any], Any]


class Output(abc.ABC):
    """Takes batches until it is closed."""

    @abc.abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abc.abstractmethod
    def flush(self) -> None:
        """Lets a reader see what was written so far, where that is possible."""

    def close(self) -> None:
        self.flush()


class JsonOutput(Output):
    """One document on each line."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        self._names = schema.names
        self._encoders = [encoder(field.type) for field in schema]

    def write(self, batch: pa.RecordBatch) -> None:
        columns = encoded_columns(batch, self._encoders)
        names = self._names
        lines = [
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        self._stream.write(("\n".join(lines) + "\n").encode())

    def flush(self) -> None:
        self._stream.flush()


class CsvOutput(Output):
    """A header and a line for each document; nested values as JSON, no value as nothing."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        self._encoders = [encoder(field.type) for field in schema]
        self._nested = [pa.types.is_nested(field.type) for field in schema]
        self._rows([schema.names])

    def write(self, batch: pa.RecordBatch) -> None:
        columns = encoded_columns(batch, self._encoders)
        for index, nested in enumerate(self._nested):
            if nested or pa.types.is_boolean(batch.column(index).type):
                columns[index] = [
                    None if value is None else json.dumps(value, ensure_ascii=False)
                    for value in columns[index]
                ]
        self._rows(list(row) for row in zip(*columns, strict=True))

    def _rows(self, rows: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._stream.write(text.getvalue().encode())

    def flush(self) -> None:
        self._stream.flush()


class TableOutput(Output):
    """For people: the first rows as a table."""

    def __init__(self, schema: pa.Schema, rows_max: int) -> None:
        numbers = [
            field.name
            for field in schema
            if pa.types.is_integer(field.type)
            or pa.types.is_floating(field.type)
            or pa.types.is_decimal(field.type)
        ]
        self._table = terminal.table(*schema.names, right=numbers)
        self._encoders = [encoder(field.type) for field in schema]
        self._rows_max = rows_max
        self._more = 0

    def write(self, batch: pa.RecordBatch) -> None:
        room = max(self._rows_max - self._table.row_count, 0)
        self._more += max(batch.num_rows - room, 0)
        columns = encoded_columns(batch.slice(0, room), self._encoders)
        for row in zip(*columns, strict=True):
            self._table.add_row(*(Text(cell(value)) for value in row))

    def flush(self) -> None:
        """Columns are as wide as their widest value, which is known at the end."""

    def close(self) -> None:
        console = terminal.output()
        console.print(self._table)
        if self._more:
            click.echo(
                f"and {terminal.counted(self._more, 'row')} more; --limit shows them", err=True
            )


class ParquetOutput(Output):
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(stream, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def flush(self) -> None:
        """A Parquet file can be read once it is closed."""

    def close(self) -> None:
        self._writer.close()


def open_output(stream: BinaryIO, schema: pa.Schema, format_: str, limit: int | None) -> Output:
    if format_ == "json":
        return JsonOutput(stream, schema)
    if format_ == "csv":
        return CsvOutput(stream, schema)
    if format_ == "table":
        return TableOutput(schema, TABLE_ROWS_MAX if limit is None else limit)
    return ParquetOutput(stream, schema)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only once it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    if not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: there is no folder {path.parent}")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def encoded_columns(batch: pa.RecordBatch, encoders: list[Encode | None]) -> list[list[Any]]:
    """Each column as values that JSON has."""
    columns: list[list[Any]] = []
    for index, encode in enumerate(encoders):
        values: list[Any] = batch.column(index).to_pylist()
        if encode is not None:
            values = [None if value is None else encode(value) for value in values]
        columns.append(values)
    return columns


def encoder(kind: pa.DataType) -> Encode | None:
    """What makes a value of that type fit for JSON; None if it is. `append` reads it all back:
    moments as ISO 8601, decimals as text (exact), BINARY as base64, NaN as text."""
    if isinstance(kind, pa.TimestampType) or pa.types.is_date(kind):
        return _iso
    if pa.types.is_decimal(kind):
        return str
    if pa.types.is_floating(kind):
        return _finite
    if pa.types.is_binary(kind):
        return _base64
    if isinstance(kind, pa.MapType):
        return _map_encoder(encoder(kind.key_type), encoder(kind.item_type))
    if isinstance(kind, pa.ListType):
        return _list_encoder(encoder(kind.value_type))
    if isinstance(kind, pa.StructType):
        return _struct_encoder({field.name: encoder(field.type) for field in kind})
    return None


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _apply(encode: Encode | None, value: Any) -> Any:
    return value if encode is None or value is None else encode(value)


def _list_encoder(encode: Encode | None) -> Encode:
    return lambda values: [_apply(encode, value) for value in values]


def _struct_encoder(encoders: dict[str, Encode | None]) -> Encode:
    return lambda value: {name: _apply(encoders[name], item) for name, item in value.items()}


def _map_encoder(encode_key: Encode | None, encode_item: Encode | None) -> Encode:
    return lambda pairs: {
        _key_text(_apply(encode_key, key)): _apply(encode_item, item) for key, item in pairs
    }


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)


def cell(value: Any) -> str:
    """A value in a table, cut where nobody would read on."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 3] + "..."
