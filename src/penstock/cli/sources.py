"""Rows out of files: JSON lines, CSV and Parquet, each with the place it came from."""

from __future__ import annotations

import csv
import decimal
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMATS: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
ROWS_MAX: Final = 50_000
"""Rows of text held at a time: some 50 MB as Python objects."""
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer line is no document (they end at 16 MiB), and would only fill the memory."""
_READ_BYTES: Final = 1024 * 1024

Columns: TypeAlias = dict[str, list[Any]]


class RefusedRowsError(ConfigurationError):
    """A row of a file cannot be appended. Mend the named place and append again."""

    def __init__(self, place: str, column: str | None, reason: str, kept: str = "") -> None:
        super().__init__(place, column, reason, kept)
        self.place, self.column, self.reason, self.kept = place, column, reason, kept

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.place}{column}: {self.reason}{self.kept}"


@dataclass(frozen=True, slots=True)
class Source:
    """One file to append, or standard input."""

    name: str
    format: str
    path: Path | None

    @classmethod
    def of(cls, name: str, wanted: str | None) -> Source:
        """The file's format is what was asked for, or what its name ends in."""
        if name == "-":
            return cls("standard input", wanted or "json", None)
        path = Path(name)
        found = wanted or FORMATS.get(path.suffix.lower())
        if found is None:
            raise ConfigurationError(
                f"{name}: cannot tell its format from its name; "
                f"give --format json, csv or parquet, or a name ending in {', '.join(FORMATS)}"
            )
        if not path.exists():
            raise ConfigurationError(f"{name}: there is no such file")
        return cls(name, found, path)

    def open(self) -> BinaryIO:
        # Not sys.stdin itself: closing this one must leave that one open.
        return (
            open(sys.stdin.fileno(), "rb", closefd=False)
            if self.path is None
            else self.path.open("rb")
        )


@dataclass(frozen=True, slots=True)
class RawRows:
    """Some rows of a file as they stand there. `rows` is Arrow if the file has types itself."""

    source: Source
    rows: Columns | pa.RecordBatch
    numbers: Sequence[int]
    """Which line (or row, in Parquet) each row is, from 1."""
    done: float
    """How much of the file is read by now, from 0 to 1."""

    def place(self, row: int) -> str:
        unit = "row" if self.source.format == "parquet" else "line"
        return f"{self.source.name} {unit} {self.numbers[row]}"


def read_rows(
    source: Source, *, rows_max: int = ROWS_MAX, eager: bool = False
) -> Iterator[RawRows]:
    """The rows of a file. An eager reader of JSON lines gives what is there rather than wait."""
    with source.open() as stream:
        if source.format == "json":
            yield from _read_json(source, cast("io.BufferedReader", stream), rows_max, eager)
        elif source.format == "csv":
            yield from _read_csv(source, stream, rows_max)
        else:
            yield from _read_parquet(source, stream, rows_max)


def _read_json(
    source: Source, stream: io.BufferedReader, rows_max: int, eager: bool
) -> Iterator[RawRows]:
    size = _size(source)
    documents: list[dict[str, Any]] = []
    numbers: list[int] = []
    number = 0
    rest = b""
    while True:
        data = stream.read1(_READ_BYTES)
        lines = (rest + data).split(b"\n")
        # Without more data the last line is whole even if nothing ends it.
        rest = lines.pop() if data else b""
        if len(rest) > LINE_BYTES_MAX:
            raise RefusedRowsError(f"{source.name} line {number + 1}", None, "is too long")
        for line in lines:
            number += 1
            if line.strip():
                documents.append(_document(source, number, line))
                numbers.append(number)
            if len(documents) >= rows_max:
                yield RawRows(source, _columns(documents), numbers, _done(stream, size))
                documents, numbers = [], []
        if documents and (eager or not data):
            yield RawRows(source, _columns(documents), numbers, 1.0 if not data else 0.0)
            documents, numbers = [], []
        if not data:
            return


def _document(source: Source, number: int, line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        # Numbers with a point stay exact until the column's type is known.
        value = json.loads(text, parse_float=decimal.Decimal)
    except UnicodeDecodeError as error:
        raise RefusedRowsError(
            f"{source.name} line {number}", None, f"is not UTF-8 text: {error.reason}"
        ) from None
    except ValueError as error:
        raise RefusedRowsError(
            f"{source.name} line {number}", None, f"is not JSON: {error}"
        ) from None
    if not isinstance(value, dict):
        kind = "an array" if isinstance(value, list) else f"{json.dumps(value, default=str)[:40]}"
        raise RefusedRowsError(
            f"{source.name} line {number}",
            None,
            f"is {kind}, not an object; write one document on each line (jq -c '.[]' does that)",
        )
    return value


def _columns(documents: list[dict[str, Any]]) -> Columns:
    names: dict[str, None] = {}
    for document in documents:
        names.update(dict.fromkeys(document))
    return {name: [document.get(name) for document in documents] for name in names}


def _read_csv(source: Source, stream: BinaryIO, rows_max: int) -> Iterator[RawRows]:
    size = _size(source)
    reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True)
    header: list[str] | None = None
    rows: list[list[str]] = []
    numbers: list[int] = []
    number = 1
    try:
        for row in reader:
            begin, number = number, reader.line_num + 1
            if not row:
                continue
            if header is None:
                header = _header(source, row)
                continue
            if len(row) != len(header):
                raise RefusedRowsError(
                    f"{source.name} line {begin}",
                    None,
                    f"has {len(row)} fields, but the header has {len(header)}",
                )
            rows.append(row)
            numbers.append(begin)
            if len(rows) >= rows_max:
                yield RawRows(source, _by_column(header, rows), numbers, _done(stream, size))
                rows, numbers = [], []
    except csv.Error as error:
        raise RefusedRowsError(
            f"{source.name} line {number}", None, f"is not CSV: {error}"
        ) from None
    except UnicodeDecodeError as error:
        raise RefusedRowsError(
            source.name, None, f"is not UTF-8 text near line {number}: {error.reason}"
        ) from None
    if header is None:
        raise RefusedRowsError(source.name, None, "is empty: the first line names the columns")
    if rows:
        yield RawRows(source, _by_column(header, rows), numbers, 1.0)


def _header(source: Source, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    for name in names:
        if not name or names.count(name) > 1:
            what = "a column has no name" if not name else f"column {name!r} appears twice"
            raise RefusedRowsError(f"{source.name} line 1", None, f"{what} in the header")
    return names


def _by_column(header: list[str], rows: list[list[str]]) -> Columns:
    return {
        name: list(values) for name, values in zip(header, zip(*rows, strict=True), strict=True)
    }


def _read_parquet(source: Source, stream: BinaryIO, rows_max: int) -> Iterator[RawRows]:
    # Parquet is read from its end: standard input must be held whole.
    data = pa.BufferReader(stream.read()) if source.path is None else stream
    try:
        file = pq.ParquetFile(data)
    except pa.ArrowInvalid as error:
        raise RefusedRowsError(source.name, None, f"is not a Parquet file: {error}") from None
    total, row = max(file.metadata.num_rows, 1), 0
    for batch in file.iter_batches(batch_size=rows_max):
        numbers = range(row + 1, row + 1 + batch.num_rows)
        row += batch.num_rows
        yield RawRows(source, batch, numbers, row / total)


def _done(stream: BinaryIO, size: float) -> float:
    return stream.tell() / size if size < float("inf") else 0.0


def _size(source: Source) -> float:
    """In bytes; without end where it is not known, so that no progress is claimed."""
    size = source.path.stat().st_size if source.path is not None else 0
    return float(size) or float("inf")
