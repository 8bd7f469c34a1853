"""What Spark sees of a collection: columns, types, values, and words when options are wrong."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.spark import documents

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

EVERY_TYPE = """
    k BIGINT NOT NULL, b BOOLEAN, t TINYINT, s SMALLINT, i INT, f FLOAT, d DOUBLE, text STRING,
    bytes BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(38,10),
    `odd.name` ARRAY<INT>, nested STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: STRING>>>,
    m MAP<STRING, ARRAY<DOUBLE>>
"""
FULL = {
    "k": 1, "b": True, "t": -128, "s": 32767, "i": -(2**31), "f": 1.5, "d": float("nan"),
    "text": "zażółć ' \" \n", "bytes": b"\x00\xff", "day": datetime.date(1969, 7, 20),
    "at": datetime.datetime(2026, 11, 15, 1, 2, 3, 456789, tzinfo=datetime.UTC),
    "local": datetime.datetime(1950, 1, 1, 0, 0, 0, 1),
    "price": decimal.Decimal("1234567890.0123456789"),
    "odd.name": [1, None, 3], "nested": {"a": 1, "b": [{"c": "x"}, None, {"c": None}]},
    "m": {"x": [1.0, None], "y": None},
}  # fmt: skip
EMPTY = {"k": 2}
HOLLOW = {"k": 3, "text": "", "bytes": b"", "odd.name": [], "nested": {"a": 0, "b": []}, "m": {}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ps.OpenStore:
    folder = tmp_path_factory.mktemp("schema") / "store"
    store = ps.open_store(folder, durability="buffered")
    store.create(ps.Collection.define("types", EVERY_TYPE, "k"))
    with store.producer() as producer:
        producer.append("types", [FULL, EMPTY])
        with producer.transaction() as txn:
            txn.append("types", [HOLLOW])
    return store


def load(spark: SparkSession, kept: ps.OpenStore, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("store", kept.url).option("collection", "types")
    reader = reader.options(**options)
    return (reader.schema(schema) if schema else reader).load()


def test_every_type_comes_back(spark: SparkSession, store: ps.OpenStore) -> None:
    frame = load(spark, store)
    by_sql = documents(spark, store=store.url, collection="types")
    assert frame.schema == by_sql.schema
    assert frame.schema.names == [*FULL, "_meta"]
    assert all(field.nullable for field in frame.schema)
    assert frame.select("_meta").dtypes == [
        (
            "_meta",
            "struct<journal:string,offset:bigint,producer:string,clock:timestamp,"
            "clock_raw:bigint,binding:int,commit_clock_raw:bigint,member:int,vnode:int,"
            "epoch:bigint,watermark:timestamp>",
        )
    ]
    for read in (frame, by_sql):
        full, empty, hollow = (row.asDict(True) for row in sorted(read.collect(), key=_key))
        for row in (full, empty, hollow):
            del row["_meta"]
        assert str(full.pop("d")) == "nan"
        moment = FULL["at"]
        assert isinstance(moment, datetime.datetime)
        assert full.pop("at").astimezone(datetime.UTC) == moment
        assert full == {name: value for name, value in FULL.items() if name not in ("d", "at")}
        assert {name: value for name, value in empty.items() if value is not None} == EMPTY
        assert {name: value for name, value in hollow.items() if value is not None} == HOLLOW


def _key(row: Any) -> int:
    return int(row.k)


def test_raw_view_has_every_row_and_flag(spark: SparkSession, store: ps.OpenStore) -> None:
    raw = load(spark, store, view="raw", order="offset")
    assert raw.schema.names[:7] == [
        "_journal", "_offset", "_producer", "_clock", "_flags", "_kind", "_hints",
    ]  # fmt: skip
    found = [(row._offset, row._flags, row._kind, row._hints, row.k) for row in raw.collect()]
    assert found == [
        (0, 0, "OUTSIDE", None, 1),
        (1, 0, "OUTSIDE", None, 2),
        (2, 1, "CONTINUE", None, 3),
        (3, 2, "ACK", [], None),
    ]


def test_a_schema_chooses_columns(spark: SparkSession, store: ps.OpenStore) -> None:
    chosen = "_meta STRUCT<offset: BIGINT, journal: STRING>, text STRING, k BIGINT"
    found = load(spark, store, schema=chosen).collect()
    assert [tuple(row._meta) for row in found] == [(place, "types/000") for place in range(3)]
    assert [(row.text, row.k) for row in found] == [(FULL["text"], 1), (None, 2), ("", 3)]
    only = load(spark, store, schema="_meta STRUCT<clock: TIMESTAMP>", order="clock")
    assert only.count() == 3
    assert load(spark, store, schema="_kind STRING", view="raw").where("_kind='ACK'").count() == 1


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("", {"colection": "types"}, "there is no option 'colection'; a batch read has store"),
        ("", {"store": "/nowhere/at/all"}, "there is no Penstock store at file:///nowhere/at/all"),
        ("", {"collection": "tips"}, "there is no collection 'tips' in this store; it has: types"),
        ("", {"as_of": "yesterday"}, "as_of 'yesterday' is neither a moment"),
        ("", {"shuffle_key": "k,who"}, "'shuffle_key': collection 'types' has no column 'who'"),
        ("", {"partitions": "k=1"}, "'k' is not one; it is by no column"),
        ("k INT", {}, "column 'k' as int; it is bigint"),
        ("k BIGINT NOT NULL", {}, "column 'k' as NOT NULL"),
        ("key BIGINT", {}, "column 'key'; there are k, b, t"),
    ],
)
def test_wrong_options_are_told_in_plain_words(
    spark: SparkSession, store: ps.OpenStore, schema: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        load(spark, store, schema, **options).collect()
    assert words in str(caught.value)


def test_found_without_registering_and_quiet(store: ps.OpenStore, tmp_path: Path) -> None:
    """In a process that imports nothing of ours but the session, with Spark's own defaults."""
    program = f"""
from penstock.spark import local_session
spark = local_session("quiet", cores=1)
frame = spark.read.format("penstock").option("store", {store.url!r}).option("collection", "types")
assert frame.load().where("k > 1").count() == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
