"""What ordinary columns become as keys and values."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.columns import META
from penstock.formats.writing import settled, written_options
from penstock.sinks.kafka_values import ValueColumns, Values


def encoded(rows: pa.RecordBatch, *key: str) -> tuple[list[Any], list[Any]]:
    options = written_options({"format": "json"})
    assert options is not None
    values = Values(settled(options, rows.schema, "t"), key)
    made = ValueColumns(rows.schema, values).rows(rows)
    return made.column("key").to_pylist(), [
        json.loads(each or b"") for each in made.column("value").to_pylist()
    ]


COLUMNS: dict[str, Any] = {
    "name": pa.array(["é", None, "c"]),
    "raw": pa.array([b"\xff", b"", None]),
    "id": pa.array([-5, None, 7], pa.int64()),
    "paid": pa.array([True, None, False]),
}
ROWS = pa.record_batch(COLUMNS)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ((), [None, None, None]),
        (("name",), ["é".encode(), None, b"c"]),
        (("raw",), [b"\xff", b"", None]),
        (("id",), [b"-5", None, b"7"]),
        (("paid",), [b'{"paid":true}', None, b'{"paid":false}']),
        (("id", "name"), ['{"id":-5,"name":"é"}'.encode(), None, b'{"id":7,"name":"c"}']),
        (("raw", "id"), [b'{"raw":"/w==","id":-5}', b'{"raw":""}', b'{"id":7}']),
    ],
)
def test_keys(key: tuple[str, ...], wanted: list[bytes | None]) -> None:
    keys, values = encoded(ROWS, *key)
    assert keys == wanted
    assert values[2] == {"name": "c", "id": 7, "paid": False}, "a key stays in the value"


def test_kafkas_own_key_and_where_a_row_came_from_are_no_part_of_the_value() -> None:
    meta = pa.array([{"offset": 3}], pa.struct([("offset", pa.int64())]))
    rows = pa.record_batch([pa.array(["k"]), pa.array([1]), meta], names=["key", "id", META])
    assert encoded(rows) == ([b"k"], [{"id": 1}])
    assert encoded(rows.drop_columns([META]), "key") == ([b"k"], [{"key": "k", "id": 1}])
