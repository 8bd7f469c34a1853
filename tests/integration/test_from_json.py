"""JSON values beside Spark's own `from_json`: the same rows are good, and hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.functions import from_json

from penstock.ddl import schema_from_ddl
from penstock.formats.json_format import JsonFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

CASES = {
    "BIGINT": ["1", "1.0", "9223372036854775807", "9223372036854775808", "-0", "1e2", '"1"', '""',
               "true", "null", "01", "+1", "NaN", "[1]", "{}"],
    "SMALLINT": ["32767", "40000"],
    "BOOLEAN": ["true", "1", '"true"'],
    "DOUBLE": ["1", "1e400", "NaN", '"NaN"', '"Infinity"', "-Infinity", '"-INF"', '"1.5"', "1e-400",
               '"INF"', '"+INF"', "12345678901234567890"],
    "FLOAT": ["0.1", "1e39", "16777217.0000001"],
    "DECIMAL(5,2)": ["1.25", '"3.1"', "2", "1e2", "1.255", "1.245", "-1.255", "12345.2", '" 1"',
                     '"x"', '""', "true", '"1e2"', "NaN", "999.995", '"+1"'],
    "STRING": ['"x"', "1", "true", '{"b": 1, "c":[1 ,2]}', '[1, "x"]', "null", '"\\u00e9\\n"',
               '"\\x"'],
    "BINARY": ['"aGk="', '"aGk"', '"aG k="', '"!!"', '""', "1", '"-_8="'],
    "DATE": ['"2020-01-02"', '"2020-1-2"', '"2020-01"', '"2020"', '"2020-01-02T03:04"',
             '"2020-01-02 03:04"', '" 2020-01-02 "', "18000", '""', '"2020-02-30"', '"0001-01-01"',
             '"2020-01-02x"', '"2020-01-02Z"'],
    "TIMESTAMP": ['"2020-01-02T03:04:05.123Z"', '"2020-01-02 03:04:05"', '"2020-01-02 03:04"',
                  '"2020-01-02 03"', '"2020-01-02"', '"2020-01-02T03:04:05+02:00"',
                  '"2020-01-02T03:04:05+0200"', '"2020-01-02T03:04:05.123456789Z"', "1577934245",
                  "1577934245.5", '"1577934245"', '""', '"2020-1-2 3:4:5"', '"2020"', '"2020-01"',
                  '"2020-01-02T24:00:00"', '"2020-01-02T03:04:60"', '"2020-01-02T03:04:05UTC"',
                  '"2020-01-02t03:04:05"', '"2020-01-02T03:04:05.Z"', '"2020-01-02Z"',
                  '"2020-01-02T03:04:05,1"'],
    "TIMESTAMP_NTZ": ['"2020-01-02T03:04:05.123Z"', '"2020-01-02T03:04:05.123"', "1577934245",
                      '"2020-01-02 03"', '"2020-1-2 3:4:5"'],
    "STRUCT<b: INT, c: STRING>": ['{"b":1}', "null", "{}", '[1,"x"]', "1", '"x"',
                                  '{"b":"x","c":"y"}'],
    "ARRAY<INT>": ["[1,null]", "[]", "1", '{"x":1}', '["x"]', "null", "[[1]]"],
    "MAP<STRING, INT>": ['{"x":1}', "{}", "null", "[1]", '{"x":"y"}', '{"x":null}'],
    "ARRAY<STRUCT<b: INT>>": ['[{"b":1},null,{}]', '{"b":1}'],
}  # fmt: skip
DOCUMENTS = [
    "", "   ", "null", "1", "[]", '{"a":1,"a":2}', '{"A":1}', '{"a":1', '{"a":1,}', '{"b":"\t"}',
    '{"b":{"x":[1,2]}}', '\n{"a":\n1}\n', "{a:1}", '{"a":1 /* c */}',
]  # fmt: skip


# What docs/formats.md lists: who accepts the value, and what they make of it.
DIFFERENT = {
    ("INT", '{"a":1} x'): ("1", None),
    ("INT", "{'a':1}"): ("1", None),
    ("INT", '\ufeff{"a":1}'): (None, "1"),
    ("STRING", '{"a":"\\ud800"}'): ("?", None),
    ("TINYINT", '{"a":128}'): ("-128", None),
    ("STRING", '{"a":1.50}'): ("1.5", "1.50"),
    ("STRING", '{"a":NaN}'): ('"NaN"', "NaN"),
    ("BINARY", '{"a":"aGk=aGk="}'): ("b'hihi'", None),
    ("BINARY", '{"a":"aGk=\\n"}'): ("b'hi'", None),
    ("TIMESTAMP", '{"a":"2020-01-02T03:04Z"}'): (None, "2020-01-02 03:04:00+00:00"),
    ("TIMESTAMP", '{"a":"2020-01-02T03:04:05+19:00"}'): (None, "2020-01-01 08:04:05+00:00"),
    ("TIMESTAMP", '{"a":"2020-01-02T03:04:05 Europe/Berlin"}'): ("2020-01-02 02:04:05+00:00", None),
}


@pytest.mark.parametrize(("kind", "value"), DIFFERENT)
def test_the_differences_are_those_that_are_written_down(
    spark: SparkSession, kind: str, value: str
) -> None:
    theirs, ours = both(spark, f"a {kind}", [value])
    assert (theirs[0], ours[0]) == DIFFERENT[kind, value]


def both(
    spark: SparkSession, ddl: str, values: list[str]
) -> tuple[list[str | None], list[str | None]]:
    """Spark's column and ours as texts; None is a value that failed."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    parsed = from_json("value", f"{ddl}, _corrupt_record STRING").alias("row")
    frame = spark.createDataFrame([(value,) for value in values], "value STRING").select(parsed)
    table = frame.select("row.a", "row._corrupt_record").toArrow()
    bad = table.column("_corrupt_record").is_valid().to_pylist()
    decoded = JsonFormat(schema_from_ddl(ddl)).decode(
        pa.array([value.encode() for value in values], pa.binary())
    )
    theirs = table.column("a").to_pylist()
    ours = decoded.batch.column("a").to_pylist()
    return (
        [None if bad[row] else str(value) for row, value in enumerate(theirs)],
        [None if row in decoded.failed else str(value) for row, value in enumerate(ours)],
    )


@pytest.mark.parametrize("kind", [*CASES, "documents"])
def test_the_same_as_from_json(spark: SparkSession, kind: str) -> None:
    values = [f'{{"a": {text}}}' for text in CASES[kind]] if kind in CASES else DOCUMENTS
    theirs, ours = both(spark, f"a {kind if kind in CASES else 'INT'}", values)
    assert dict(zip(values, ours, strict=True)) == dict(zip(values, theirs, strict=True))
