"""Envelopes as the connector writes them become rows of their table."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.ddl import schema_from_ddl
from penstock.errors import ConfigurationError
from penstock.formats import SchemaError, open_format, value_options
from penstock.formats.debezium import DebeziumFormat

TABLE = schema_from_ddl("id BIGINT, name STRING, tags ARRAY<STRING>, place STRUCT<x: INT>")


def envelope(op: str = "c", **given: Any) -> dict[str, Any]:
    """As the connector for PostgreSQL writes it, with all that we do not read."""
    return {
        "before": None,
        "after": {"id": 1, "name": "one", "tags": ["a"], "place": {"x": 1}},
        "source": {
            "version": "3.4.0.Final",
            "connector": "postgresql",
            "name": "bank",
            "ts_ms": 1_795_033_477_550,
            "snapshot": "false",
            "db": "money",
            "sequence": '["26388712","26389408"]',
            "ts_us": 1_795_033_477_550_343,
            "ts_ns": 1_795_033_477_550_343_000,
            "schema": "public",
            "table": "a",
            "txId": 734,
            "lsn": 26_389_408,
            "xmin": None,
        },
        "transaction": {"id": "734:26389408", "total_order": 4, "data_collection_order": 2},
        "op": op,
        "ts_ms": 1_795_033_477_600,
        **given,
    }


def wrapped(document: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [{"type": "int64", "field": "id"}], "optional": False}
    return {"schema": schema, "payload": document}


def decoded(*documents: Any) -> Any:
    values = [None if one is None else json.dumps(one).encode() for one in documents]
    return DebeziumFormat(TABLE).decode(pa.array(values, pa.binary()))


def rows(*documents: Any) -> list[dict[str, Any]]:
    found = decoded(*documents)
    assert not found.failed, found.reasons
    listed: list[dict[str, Any]] = found.batch.to_pylist()
    return listed


def test_an_insert_is_the_row_and_where_the_log_has_it() -> None:
    (row,) = rows(envelope())
    committed = row.pop("_committed")
    assert committed.isoformat() == "2026-11-18T20:24:37.550343+00:00"
    assert row == {
        "id": 1,
        "name": "one",
        "tags": ["a"],
        "place": {"x": 1},
        "_op": "c",
        "_transaction": 734,
        "_order": 4,
        "_sequence": '["26388712","26389408"]',
    }


def test_an_update_is_the_row_that_it_left() -> None:
    (row,) = rows(envelope("u", before={"id": 1, "name": "old", "tags": None, "place": None}))
    assert (row["_op"], row["name"]) == ("u", "one")


def test_a_deletion_is_what_is_known_of_the_row() -> None:
    """Beside others: each row takes what is its own, nested values too."""
    before = {"id": 2, "name": None, "tags": ["b", "c"], "place": {"x": 2}}
    found = rows(envelope(), envelope("d", before=before, after=None), envelope())
    names = ("_op", "id", "name", "tags", "place")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("c", 1, "one", ["a"], {"x": 1}),
        ("d", 2, None, ["b", "c"], {"x": 2}),
        ("c", 1, "one", ["a"], {"x": 1}),
    ]


def test_rows_of_a_snapshot_have_no_transaction() -> None:
    (row,) = rows(envelope("r", transaction=None))
    assert (row["_op"], row["id"], row["_order"]) == ("r", 1, None)


def test_a_truncation_has_no_row() -> None:
    (row,) = rows(envelope("t", after=None))
    assert (row["_op"], row["id"], row["_transaction"]) == ("t", None, 734)


def test_the_schema_of_the_connector_makes_no_difference() -> None:
    """Not even if some values have it, because the connector was set otherwise meanwhile."""
    documents = [envelope("c"), envelope("d", before={"id": 7}, after=None), envelope("u")]
    bare = rows(*documents)
    assert rows(*map(wrapped, documents)) == bare
    assert rows(documents[0], wrapped(documents[1]), documents[2]) == bare


def test_a_tombstone_is_no_failure() -> None:
    found = rows(envelope(), None)
    assert found[1] == dict.fromkeys(found[0])


def test_what_is_no_change_fails_and_hurts_no_other_row() -> None:
    mysql = envelope()
    mysql["source"]["connector"] = "mysql"
    begin = {"status": "BEGIN", "id": "733:26388064", "event_count": None}
    found = decoded(envelope(), begin, mysql, [1], envelope(op="u"))
    assert found.failed == (1, 2, 3)
    assert found.reasons[0] == "it is no change of a row: it has no op, or no source"
    assert found.reasons[1].startswith("it comes from Debezium's connector for mysql")
    assert [row["_op"] for row in found.batch.to_pylist()] == ["c", None, None, None, "u"]
    assert found.batch.to_pylist()[2]["id"] is None


def test_columns_that_the_envelope_has_are_refused() -> None:
    with pytest.raises(SchemaError, match="cannot be called '_op'"):
        DebeziumFormat(schema_from_ddl("id INT, _op STRING"))


def test_options() -> None:
    given = {"format": "debezium", "schema": "id BIGINT"}
    names = ["id", "_op", "_transaction", "_order", "_sequence", "_committed"]
    assert open_format(value_options(given)).schema.names == names
    for wrong, match in (
        ({"schema": ""}, "the table's columns"),
        ({"on_error": "null"}, "fail or dead_letter"),
        ({"schema.registry.url": "http://localhost"}, "JsonConverter"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            value_options({**given, **wrong})
