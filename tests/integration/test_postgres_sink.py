"""The PostgreSQL sink: the conformance suite in both of its modes, and what it refuses."""

from __future__ import annotations

import datetime
import decimal
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError
from penstock.sinks import postgres_batches
from penstock.sinks.batches import commit_batch
from penstock.sinks.postgres_batches import PostgresSink
from penstock.sinks.two_phase import Batch
from penstock.testing.sinks import SCHEMA, SinkConformance, Target, write
from tests.postgres_server import Database, database

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

__all__ = ["database"]


class TableTarget(Target):
    def __init__(self, database: Database, name: str, key: tuple[str, ...] = ()) -> None:
        self.database, self.name, self.key = database, name, key
        primary = " PRIMARY KEY" if key else ""
        with database.connect() as connection:
            connection.execute(f'CREATE TABLE "{name}" (id bigint{primary}, text varchar(40))')

    def sink(self) -> PostgresSink:
        return PostgresSink(self.database.conninfo, self.name, SCHEMA.names, self.key)

    def contents(self) -> list[Any]:
        with self.database.connect() as connection:
            rows = connection.execute(f'SELECT id FROM "{self.name}"').fetchall()
        return [each for (each,) in rows]

    def leftovers(self) -> Sequence[object]:
        with self.database.connect() as connection:
            left = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
            tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'staged_%'"
            for (table,) in connection.execute(tables).fetchall():
                left += connection.execute(f"SELECT * FROM penstock.{table}").fetchall()
        return left


class TestPostgresSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _targets(self, database: Database) -> None:
        postgres_batches._records.cache_clear()  # of a database that was emptied since
        self.database = database
        self.names = (f"target {number}" for number in itertools.count())

    def new_target(self) -> Target:
        # The checks' queries have the same ids for every target.
        with self.database.connect() as connection:
            tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'"
            for (table,) in connection.execute(tables).fetchall():
                connection.execute(f"TRUNCATE penstock.{table}")
        return TableTarget(self.database, next(self.names))


def test_later_rows_of_a_key_replace_earlier_ones(database: Database) -> None:
    postgres_batches._records.cache_clear()
    target = TableTarget(database, "totals", ("id",))
    for number, text in enumerate(("one", "two")):
        values: dict[str, list[Any]] = {"id": [1, number + 5], "text": [text, None]}
        rows = pa.record_batch(values, schema=SCHEMA)
        sink, batch = target.sink(), Batch("q", number)
        part = sink.stage(batch, 0, iter([rows]))
        assert part is not None
        commit_batch(sink, batch, [part])
    with database.connect() as connection:
        found = connection.execute("SELECT * FROM totals ORDER BY id").fetchall()
    assert found == [(1, "two"), (5, None), (6, None)]
    with pytest.raises(ConfigurationError, match="has several rows of one key"):
        write(target.sink(), 9, [4], [4])
    assert sorted(target.contents()) == [1, 5, 6]


EVERY_TYPE: dict[str, tuple[Any, str, list[Any]]] = {
    "b": (pa.bool_(), "boolean", [True, None]),
    "i": (pa.int32(), "integer", [-(2**31), None]),
    "f": (pa.float64(), "double precision", [float("-inf"), 0.1]),
    "d": (pa.decimal128(12, 2), "numeric(12, 2)", [decimal.Decimal("1234567890.25"), None]),
    "day": (pa.date32(), "date", [datetime.date(1969, 7, 20), None]),
    "at": (
        pa.timestamp("us", tz="Europe/Berlin"),
        "timestamptz",
        [datetime.datetime(2026, 11, 15, 1, 2, 3, 456789, tzinfo=datetime.UTC), None],
    ),
    "text": (pa.string(), "text", ['a "quoted", \n line \\ ü \t', ""]),
    "odd.name": (pa.string(), "text", ["NULL", None]),
}


def test_every_type_and_what_is_refused(database: Database) -> None:
    postgres_batches._records.cache_clear()
    columns = ", ".join(f'"{name}" {kind}' for name, (_, kind, _) in EVERY_TYPE.items())
    with database.connect() as connection:
        connection.execute("CREATE SCHEMA other")
        connection.execute(f"CREATE TABLE other.every (id serial, {columns})")
    schema = pa.schema([(name, kind) for name, (kind, _, _) in EVERY_TYPE.items()])
    values = [pa.array(values, kind) for kind, _, values in EVERY_TYPE.values()]
    sink = PostgresSink(database.conninfo, "other.every", schema.names)
    sink.check(schema)
    batch = Batch("q", 0)
    part = sink.stage(batch, 0, iter([pa.record_batch(values, schema=schema)]))
    assert part is not None
    commit_batch(sink, batch, [part])
    with database.connect() as connection:
        found = connection.execute("SELECT * FROM other.every ORDER BY id").fetchall()
    expected = zip(*(values for _, _, values in EVERY_TYPE.values()), strict=True)
    assert [row[1:] for row in found] == list(expected)
    for name, kind, words in (
        ("colour", pa.string(), "table 'other.every' has not: it has id, b, i"),
        ("text", pa.list_(pa.string()), "cannot be copied into a table"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            sink.check(pa.schema([(name, kind)]))
    with pytest.raises(ConfigurationError, match="has no table 'nowhere'; create it"):
        PostgresSink(database.conninfo, "nowhere", ["a"]).check(pa.schema([("a", pa.int64())]))
