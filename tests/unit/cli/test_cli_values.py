"""Text and JSON values become a column's type, or are refused with the reason."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli.infer import infer_schema
from penstock.cli.outputs import encoded_columns, encoder
from penstock.cli.sources import Columns, RawRows, RefusedRowsError, Source
from penstock.cli.values import to_arrow
from penstock.ddl import schema_from_ddl, schema_to_ddl
from penstock.errors import ConfigurationError

UTC = datetime.UTC


def _raw(columns: Columns, format_: str = "json") -> RawRows:
    count = len(next(iter(columns.values())))
    return RawRows(Source("file", format_, None), columns, list(range(1, count + 1)), 1.0)


def _converted(ddl: str, value: Any, format_: str = "json") -> Any:
    table = to_arrow(_raw({"x": [value]}, format_), schema_from_ddl(f"x {ddl}"))
    return table.column(0).to_pylist()[0]


@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("BIGINT", 5, 5),
        ("BIGINT", "5", 5),
        ("BIGINT", decimal.Decimal("5.0"), 5),
        ("DOUBLE", 5, 5.0),
        ("DOUBLE", decimal.Decimal("5.25"), 5.25),
        ("DOUBLE", "-inf", float("-inf")),
        ("DECIMAL(10,2)", decimal.Decimal("1.1"), decimal.Decimal("1.10")),
        ("DECIMAL(10,2)", "12345678.90", decimal.Decimal("12345678.90")),
        ("DECIMAL(10,2)", "1.1000", decimal.Decimal("1.10")),
        ("DECIMAL(10,2)", 7, decimal.Decimal("7.00")),
        ("STRING", "", ""),
        ("BOOLEAN", True, True),
        ("BOOLEAN", "false", False),
        ("BINARY", "aGk=", b"hi"),
        ("DATE", "2026-11-15", datetime.date(2026, 11, 15)),
        ("TIMESTAMP", "2026-11-15T20:00:00Z", datetime.datetime(2026, 11, 15, 20, tzinfo=UTC)),
        ("TIMESTAMP", "2026-11-15T20:00:00+02:00", datetime.datetime(2026, 11, 15, 18, tzinfo=UTC)),
        ("TIMESTAMP", "2026-11-15 20:00:00", datetime.datetime(2026, 11, 15, 20, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", "2026-11-15T20:00:00", datetime.datetime(2026, 11, 15, 20)),
        ("ARRAY<BIGINT>", [1, None, 3], [1, None, 3]),
        ("MAP<STRING,DECIMAL(4,1)>", {"a": "1.5"}, [("a", decimal.Decimal("1.5"))]),
        ("STRUCT<a: BIGINT, b: STRING>", {"b": "x"}, {"a": None, "b": "x"}),
    ],
)
def test_a_json_value_becomes_the_columns_type(ddl: str, value: Any, expected: Any) -> None:
    assert _converted(ddl, value) == expected


@pytest.mark.parametrize(
    ("ddl", "value", "reason"),
    [
        ("BIGINT", decimal.Decimal("1.5"), "not a whole number"),
        ("BIGINT", True, "not a whole number"),
        ("TINYINT", 300, "300"),
        ("DOUBLE", True, "not a number"),
        ("DECIMAL(10,2)", "1.234", "3 decimal places"),
        ("DECIMAL(4,2)", "123.45", "3 digits before the point"),
        ("DECIMAL(10,2)", "NaN", "not a decimal number"),
        ("STRING", 5, "not text"),
        ("BOOLEAN", 1, "neither true nor false"),
        ("BINARY", "not base64!", "not base64"),
        ("DATE", "15.11.2026", "not a date"),
        ("TIMESTAMP", "yesterday", "not a moment"),
        ("TIMESTAMP", 1_700_000_000, "not a moment"),
        ("TIMESTAMP_NTZ", "2026-11-15T20:00:00Z", "has a time zone"),
        ("ARRAY<BIGINT>", 5, "not a list"),
        ("STRUCT<a: BIGINT>", {"a": 1, "z": 2}, "a field 'z' that the type has not"),
    ],
)
def test_a_json_value_that_does_not_fit_is_refused_with_its_place(
    ddl: str, value: Any, reason: str
) -> None:
    schema = schema_from_ddl(f"x {ddl}")
    with pytest.raises(RefusedRowsError, match=reason) as refused:
        to_arrow(_raw({"x": [None, value, None]}), schema)
    assert (refused.value.place, refused.value.column) == ("file line 2", "x")


def test_an_empty_csv_field_is_no_value_but_an_empty_text_where_one_is_needed() -> None:
    assert _converted("BIGINT", "", "csv") is None
    assert _converted("STRING", "", "csv") is None
    assert _converted("STRING NOT NULL", "", "csv") == ""


def test_nested_csv_fields_are_json() -> None:
    assert _converted("ARRAY<DOUBLE>", "[1.5, 2]", "csv") == [1.5, 2.0]
    with pytest.raises(RefusedRowsError, match="is not JSON"):
        _converted("ARRAY<DOUBLE>", "1;2", "csv")


def test_a_column_that_the_collection_lacks_is_refused() -> None:
    with pytest.raises(RefusedRowsError, match=r"file line 2, column 'y': .* it has x"):
        to_arrow(_raw({"x": [1, 2], "y": [None, 3]}), schema_from_ddl("x BIGINT"))


def test_a_schema_is_inferred_from_text() -> None:
    raw = _raw(
        {
            "id": ["1", "2"],
            "code": ["007", "42"],
            "share": ["1.5", ""],
            "open": ["true", "false"],
            "zeros": ["0", "1"],
            "day": ["2026-01-01", "2026-01-02"],
            "at": ["2026-01-01T00:00:00Z", ""],
            "note": ["x", ""],
            "nothing": ["", ""],
        },
        "csv",
    )
    assert schema_to_ddl(infer_schema(raw, ["id"])) == (
        "id BIGINT NOT NULL, code STRING, share DOUBLE, open BOOLEAN, zeros BIGINT, day DATE, "
        "at TIMESTAMP, note STRING, nothing STRING"
    )


def test_a_schema_is_inferred_from_json() -> None:
    raw = _raw(
        {
            "id": [1, 2],
            "price": [decimal.Decimal("1.5"), 2],
            "at": ["2026-01-01T00:00:00Z", None],
            "text": ["12", None],
            "tags": [["a"], []],
            "place": [{"x": 1, "y": None}, None],
        }
    )
    assert schema_to_ddl(infer_schema(raw, ["id"])) == (
        "id BIGINT NOT NULL, price DOUBLE, at TIMESTAMP, text STRING, tags ARRAY<STRING>, "
        "place STRUCT<x: BIGINT, y: STRING>"
    )


def test_a_key_that_is_not_in_the_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no key column 'uid'; it has id"):
        infer_schema(_raw({"id": [1]}), ["uid"])


def test_values_of_no_one_type_ask_for_a_schema() -> None:
    columns: Columns = {"id": [1, 2], "x": [[1], {"a": 1}]}
    with pytest.raises(RefusedRowsError, match="no one type fits"):
        infer_schema(_raw(columns), ["id"])


def test_what_is_written_as_json_is_read_back_the_same() -> None:
    schema = schema_from_ddl(
        "a BIGINT, b DOUBLE, c DECIMAL(10,2), d BINARY, e DATE, f TIMESTAMP, g MAP<STRING,DATE>, "
        "h ARRAY<STRUCT<x: DECIMAL(3,1)>>, i TIMESTAMP_NTZ, j BOOLEAN, k STRING"
    )
    day = datetime.date(2026, 1, 2)
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    rows = [
        {
            "a": 2**62 + 1, "b": float("-inf"), "c": decimal.Decimal("12345678.90"),
            "d": b"\x00\xff", "e": day, "f": moment, "g": [("k", day)],
            "h": [{"x": decimal.Decimal("1.5")}, None], "i": moment.replace(tzinfo=None),
            "j": False, "k": "ä\n",
        },
        dict.fromkeys(schema.names),
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema)
    columns = encoded_columns(batch, [encoder(field.type) for field in schema])
    raw = _raw(dict(zip(schema.names, columns, strict=True)))
    assert to_arrow(raw, schema).to_pylist() == batch.to_pylist()
