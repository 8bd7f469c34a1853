"""Avro values become columns: held against fastavro, which decodes one value after the other."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.avro_format import AvroFormat
from penstock.formats.avro_schema import Record, parse_schema
from penstock.formats.errors import SchemaError

if TYPE_CHECKING:
    from penstock.formats.decoded import Decoded


def record(*fields: Any, name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(kind: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def encoded(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, json.loads(json.dumps(schema)), value)
    return buffer.getvalue()


def parsed(schema: Any) -> Record:
    return parse_schema(json.dumps(schema))


def decode(schema: Any, values: list[bytes | None], writer: Any = None) -> Decoded:
    written = None if writer is None else parsed(writer)
    decoded = AvroFormat(parsed(schema), written).decode(pa.array(values, pa.binary()))
    decoded.batch.validate(full=True)
    assert decoded.batch.num_rows == len(values)
    return decoded


def one(kind: Any, value: Any) -> Any:
    schema = record(field(kind), field("int", "z"))
    decoded = decode(schema, [encoded(schema, {"a": value, "z": 7})])
    assert decoded.reasons == ()
    assert decoded.batch.column("z").to_pylist() == [7]
    return decoded.batch.column("a").to_pylist()[0]


NOW = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ({"type": "int", "logicalType": "date"}, datetime.date(1960, 1, 2), None),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOW, None),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOW, NOW.replace(microsecond=678000)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, NOW.replace(tzinfo=None), None),
        ({"type": "int", "logicalType": "time-millis"}, datetime.time(0, 0, 1), 1000),
        ({"type": "long", "logicalType": "time-micros"}, datetime.time(0, 0, 1), 1_000_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
         Decimal("-123456789012345678901234567890.12"), None),
        ({"type": "fixed", "name": "f", "size": 5, "logicalType": "decimal", "precision": 10,
          "scale": 2}, Decimal("-12.34"), None),
        ({"type": "fixed", "name": "f", "size": 3}, b"abc", None),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", None),
        (["null", "long", "string"], "x", {"member0": None, "member1": "x"}),
        (["null", "long", "string"], None, "null"),
        (["int", "long"], 2**40, None),
        ({"type": "map", "values": ["null", "int"]}, {"x": 1, "y": None}, [("x", 1), ("y", None)]),
        ({"type": "string", "logicalType": "nobody-knows"}, "x", None),
        ("null", None, "null"),
    ],
)  # fmt: skip
def test_types(kind: Any, value: Any, wanted: Any) -> None:
    if wanted is None:
        wanted = value
    assert one(kind, value) == (None if wanted == "null" else wanted)


def test_a_name_stands_for_what_it_was_defined_as() -> None:
    color = {"type": "enum", "name": "x.y.color", "symbols": ["R", "G"]}
    schema = record(field(color), field("x.y.color", "b"))
    decoded = decode(schema, [encoded(schema, {"a": "R", "b": "G"})])
    assert decoded.batch.to_pylist() == [{"a": "R", "b": "G"}]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "not JSON"),
        ('"int"', "top level"),
        (json.dumps(record()), "at least one field"),
        (json.dumps(record(field("nothing"))), "'nothing' that it does not define"),
        (json.dumps(record(field(["null", "r"]))), "contains itself"),
        (json.dumps(record(field({"type": "array"}))), "lacks 'items'"),
        (json.dumps(record(field({"type": "bytes", "logicalType": "decimal", "precision": 60}))),
         "up to 38 digits"),
    ],
)  # fmt: skip
def test_schemas_that_have_no_columns(schema: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        parse_schema(schema)


ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("string", b"\x04h"), ("string", b""), ("string", b"\x02h\x0e\x00"),
        ("string", b"\x03h\x0e"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01h\x0e"), ("string", b"\x02\xff\x0e"),
        ("boolean", b"\x02\x0e"), (ENUM, b"\x08\x0e"), (["null", "long"], b"\x08\x0e"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x0e"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02\x00\x0e"),
        ("long", b"\xff" * 11 + b"\x01\x0e"), ("int", b"\xfe\xff\xff\xff\xff\xff\x01\x0e"),
        ("double", b"\x00\x00"), ({"type": "fixed", "name": "f", "size": 3}, b"ab"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3}, b"\x04\x7f\xff\x0e"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xff" * 9 + b"\x01\x0e"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01\x0e"),
    ],
)  # fmt: skip
def test_bad_bytes_fail_alone(kind: Any, raw: bytes) -> None:
    schema = record(field(["null", kind]) if kind in ("int",) else field(kind), field("int", "z"))
    if kind == "int":
        raw = b"\x02" + raw
    decoded = decode(schema, [None, raw, None])
    assert decoded.failed == (1,)
    assert decoded.batch.to_pylist() == [{"a": None, "z": None}] * 3


# Random schemas and values

SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=6),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
}
Typed = tuple[Any, st.SearchStrategy[Any]]


def wrapped(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda t: ({"type": "array", "items": t[0]}, st.lists(t[1], max_size=3))),
        inner.map(
            lambda t: (
                {"type": "map", "values": t[0]},
                st.dictionaries(SIMPLE["string"], t[1], max_size=3),
            )
        ),
        inner.filter(lambda t: not isinstance(t[0], list)).map(
            lambda t: (["null", t[0]], st.none() | t[1])
        ),
    )


typed = st.recursive(
    st.sampled_from(sorted(SIMPLE)).map(lambda name: (name, SIMPLE[name])), wrapped, max_leaves=3
)


@st.composite
def schemas_and_rows(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    chosen = draw(st.lists(typed, min_size=1, max_size=4))
    schema = record(*(field(kind, f"c{i}") for i, (kind, _) in enumerate(chosen)))
    row = st.fixed_dictionaries({f"c{i}": values for i, (_, values) in enumerate(chosen)})
    return schema, draw(st.lists(row, min_size=1, max_size=12))


def plain(value: Any) -> Any:
    """Arrow's maps are lists of pairs; fastavro's are dicts."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(pair, tuple) for pair in value):
            return {name: plain(inner) for name, inner in value}
        return [plain(inner) for inner in value]
    return value


def emptied(value: Any) -> Any:
    """An empty map and an empty list look the same in Arrow's Python form."""
    if isinstance(value, dict):
        return {name: emptied(inner) for name, inner in value.items()} or []
    return [emptied(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=200, deadline=None)
@given(schemas_and_rows(), st.data())
def test_bad_rows_fail_and_the_others_are_what_fastavro_reads(
    given_: tuple[Any, list[dict[str, Any]]], data: st.DataObject
) -> None:
    schema, rows = given_
    values = [encoded(schema, row) for row in rows]
    bad = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    for row in bad:
        values[row] = values[row] + b"\0"  # bytes behind a record are never right
    decoded = decode(schema, list(values))
    assert decoded.failed == tuple(sorted(bad))
    found = decoded.batch.to_pylist()
    for row, value in enumerate(values):
        if row in bad:
            assert set(map(str, found[row].values())) == {"None"}
        else:
            oracle = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
            assert emptied(plain(found[row])) == emptied(oracle)


@settings(max_examples=200, deadline=None)
@given(schemas_and_rows(), st.data())
def test_any_bytes_are_a_row_or_a_failure(
    given_: tuple[Any, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Damaged bytes hurt nobody else, and what is accepted is what fastavro reads."""
    schema, rows = given_
    values = [encoded(schema, row) for row in rows]
    damaged = bytearray(data.draw(st.binary(max_size=20)) or values[0])
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    decoded = decode(schema, [*values, bytes(damaged), *values])
    assert set(decoded.failed) <= {len(values)}
    found = decoded.batch.to_pylist()
    assert repr(found[: len(values)]) == repr(found[len(values) + 1 :])
    if not decoded.failed:
        buffer = io.BytesIO(bytes(damaged))
        oracle = fastavro.schemaless_reader(buffer, schema, None)
        assert buffer.read() == b""
        assert repr(emptied(plain(found[len(values)]))) == repr(emptied(oracle))


# Schemas that change


def resolved(writer: Any, reader: Any, value: dict[str, Any]) -> tuple[Any, Any]:
    """Our row, and fastavro's."""
    raw = encoded(writer, value)
    oracle = fastavro.schemaless_reader(io.BytesIO(raw), writer, reader)
    return decode(reader, [raw], writer).batch.to_pylist()[0], oracle


def test_fields_are_added_removed_reordered_renamed_and_widened() -> None:
    writer = record(field("int"), field("string", "gone"), field("float", "f"), field("int", "old"))
    reader = record(
        field("double", "f"),
        field("string", "new", default="x"),
        field("long"),
        field(["null", "string"], "maybe", default=None),
        field("long", "young", aliases=["old"]),
        field({"type": "array", "items": "int"}, "l", default=[1, 2]),
        field("bytes", "b", default="\u00ff"),
    )
    ours, oracle = resolved(writer, reader, {"a": 1, "gone": "y", "f": 0.5, "old": 3})
    assert oracle.pop("b") in ("\u00ff", b"\xff")
    assert ours.pop("b") == b"\xff"
    assert ours == oracle


def test_what_is_nested_changes_too() -> None:
    def nested(*fields: Any) -> Any:
        inner = record(*fields, name="inner")
        return record(
            field(["null", inner]),
            field({"type": "array", "items": "inner"}, "l"),
            field({"type": "map", "values": "inner"}, "m"),
        )

    writer = nested(field("int", "x"), field("string", "y"))
    reader = nested(field("long", "x"), field("int", "z", default=9))
    value = {"x": 1, "y": "s"}
    ours, oracle = resolved(writer, reader, {"a": value, "l": [value], "m": {"k": value}})
    assert plain(ours) == oracle
    ours, oracle = resolved(writer, reader, {"a": None, "l": [], "m": {}})
    assert emptied(plain(ours)) == emptied(oracle)


def test_defaults_are_not_for_tombstones_and_failures() -> None:
    writer, reader = record(field("int")), record(field("int"), field("int", "b", default=5))
    decoded = decode(reader, [b"\x02", None, b"", b"\x04"], writer)
    assert decoded.failed == (2,)
    assert decoded.batch.column("b").to_pylist() == [5, None, None, 5]


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (field("int"), field("int", "b"), "no default for it"),
        (field("long"), field("int"), "written as int64 and cannot be read as int32"),
        (field("string"), field("int"), "written as string"),
    ],
)
def test_schemas_that_do_not_fit(writer: Any, reader: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        AvroFormat(parsed(record(reader)), parsed(record(writer)))
