"""JSON values become columns: by Arrow's parser, and by the rules for one document the same."""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import schema_from_ddl
from penstock.formats.decoded import SALVAGE_ROWS, Decoded, UnparsableError
from penstock.formats.json_document import JsonDocuments
from penstock.formats.json_format import JsonFormat

UTC = datetime.UTC


def decode(ddl: str, *values: bytes | str | None) -> Decoded:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    decoded = JsonFormat(schema_from_ddl(ddl)).decode(pa.array(raw, pa.binary()))
    decoded.batch.validate(full=True)
    assert decoded.batch.num_rows == len(values)
    assert len(decoded.failed) == len(decoded.reasons)
    return decoded


def one(ddl: str, value: str) -> Any:
    """The column `a` of one value; alone, and the same between a good one and a bad one."""
    alone = decode(ddl, value)
    between = decode(ddl, "{}", value, "[", "{}")
    assert between.failed == (*(row + 1 for row in alone.failed), 2)
    assert str(between.batch.column("a")[1].as_py()) == str(alone.batch.column("a")[0].as_py())
    if alone.failed:
        assert alone.batch.column("a")[0].as_py() is None
        return alone.reasons[0]
    return alone.batch.column("a")[0].as_py()


def test_a_batch_becomes_columns() -> None:
    decoded = decode(
        "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>",
        '{"id": 1, "name": "é", "at": "2020-01-02T03:04:05.6Z", "tags": ["x", null]}',
        '{"name": null, "id": 2, "unknown": {"x": [1]}}',
    )
    assert decoded.batch.to_pylist() == [
        {
            "id": 1,
            "name": "é",
            "at": datetime.datetime(2020, 1, 2, 3, 4, 5, 600_000, UTC),
            "tags": ["x", None],
        },
        {"id": 2, "name": None, "at": None, "tags": None},
    ]
    assert decoded.failed == ()


def test_tombstones_and_blank_values_are_rows_of_nulls() -> None:
    decoded = decode("a INT", None, "", " \n", '{"a": 1}', None)
    assert decoded.batch.column("a").to_pylist() == [None, None, None, 1, None]
    assert decoded.failed == ()


def test_an_empty_batch_has_the_columns() -> None:
    decoded = decode("a INT, b MAP<STRING, INT>")
    assert decoded.batch.schema.names == ["a", "b"]


def test_a_sliced_array_is_decoded_from_where_it_begins() -> None:
    values = pa.array([b"{", b'{"a":1}', None, b'{"a":2}', b"x"], pa.binary())
    decoded = JsonFormat(schema_from_ddl("a INT")).decode(values.slice(1, 3))
    assert decoded.batch.column("a").to_pylist() == [1, None, 2]
    assert decoded.failed == ()


def test_not_null_is_not_asked_of_values() -> None:
    decoded = decode("a INT NOT NULL, b STRUCT<c: INT NOT NULL>", None, '{"b": {}}')
    assert decoded.batch.to_pylist() == [{"a": None, "b": None}, {"a": None, "b": {"c": None}}]


def test_every_refused_value_names_its_column_and_itself() -> None:
    decoded = decode("a STRUCT<b: ARRAY<INT>>", '{"a": {"b": [1, "x"]}}')
    assert decoded.reasons == ("a: b: 'x' is no int32",)


@pytest.mark.parametrize(
    "value",
    ["null", "1", '"x"', "[]", '[{"a":1}]', "{", '{"a":1', '{"a":1,}', "{a:1}", '{"a":01}',
     '{"a":+1}', '{"a":1} x', '{"a":1}{"a":2}', '{"b":"\t"}', '{"a":1 /* c */}', "}", "{]", "{}}",
     '{"a" 1}', '{"a":}', '{,}', '{"b":[1,]}', '{"b":[1 2]}', '{"b":"\\x"}', '{"b":tru}'],
)  # fmt: skip
def test_what_is_no_document_fails(value: str) -> None:
    assert isinstance(one("a INT", value), str)


def test_bytes_that_are_no_text_fail_alone() -> None:
    decoded = decode("a STRING", '{"a":"x"}', b'{"a":"\xff"}', '{"a":"y"}')
    assert decoded.failed == (1,)
    assert decoded.reasons == ("byte 6 is not UTF-8",)
    assert decoded.batch.column("a").to_pylist() == ["x", None, "y"]


@pytest.mark.parametrize(
    ("ddl", "text", "wanted"),
    [
        ("a BIGINT", "9223372036854775807", 2**63 - 1),
        ("a BIGINT", "-0", 0),
        ("a TINYINT", "-128", -128),
        ("a DOUBLE", "1e400", math.inf),
        ("a DOUBLE", '"-Infinity"', -math.inf),
        ("a FLOAT", "0.1", 0.10000000149011612),
        ("a FLOAT", "16777217.0000001", 16777218.0),
        ("a DECIMAL(5,2)", "1.255", Decimal("1.26")),
        ("a DECIMAL(5,2)", "-1.255", Decimal("-1.26")),
        ("a DECIMAL(5,2)", '"1e2"', Decimal("100.00")),
        ("a STRING", "1.50", "1.50"),
        ("a STRING", "true", "true"),
        ("a STRING", '{"b": [1, "x y"]}', '{"b":[1,"x y"]}'),
        ("a BINARY", '"aGk="', b"hi"),
        ("a BINARY", '""', b""),
        ("a DATE", '"2020-1-2"', datetime.date(2020, 1, 2)),
        ("a DATE", '"2020-01-02T03:04"', datetime.date(2020, 1, 2)),
        ("a DATE", '" 2020 "', datetime.date(2020, 1, 1)),
        ("a TIMESTAMP", "1577934245", datetime.datetime(2020, 1, 2, 3, 4, 5, 0, UTC)),
        ("a TIMESTAMP", '"2020-01-02 3:4"', datetime.datetime(2020, 1, 2, 3, 4, 0, 0, UTC)),
        (
            "a TIMESTAMP",
            '"2020-01-02T03:04:05.123456789+02:30"',
            datetime.datetime(2020, 1, 2, 0, 34, 5, 123456, UTC),
        ),
        ("a TIMESTAMP_NTZ", '"2020-01-02 03:04"', datetime.datetime(2020, 1, 2, 3, 4)),
        ("a MAP<STRING, INT>", '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
    ],
)
def test_what_spark_understands(ddl: str, text: str, wanted: Any) -> None:
    assert one(ddl, f'{{"a": {text}}}') == wanted


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("a BIGINT", "9223372036854775808"), ("a BIGINT", "1.0"), ("a BIGINT", '"1"'),
        ("a TINYINT", "128"), ("a BOOLEAN", "1"), ("a DOUBLE", '"1.5"'),
        ("a DECIMAL(5,2)", "12345.2"), ("a DECIMAL(5,2)", "999.995"), ("a DECIMAL(5,2)", '" 1"'),
        ("a DECIMAL(5,2)", "1e999999999"), ("a STRING", '"\\ud800"'),
        ("a BINARY", '"aGk"'), ("a BINARY", '"aG k="'), ("a BINARY", "1"), ("a BINARY", '"===="'),
        ("a DATE", "18000"), ("a DATE", '"2020-02-30"'), ("a DATE", '""'),
        ("a TIMESTAMP", '"03:04:05"'), ("a TIMESTAMP", '"2020-01-02T24:00"'),
        ("a TIMESTAMP", "9223372036855"), ("a TIMESTAMP", "1.5"),
        ("a TIMESTAMP_NTZ", '"2020-01-02T03:04:05Z"'), ("a TIMESTAMP_NTZ", "1"),
        ("a ARRAY<INT>", "1"), ("a STRUCT<b: INT>", "[]"), ("a MAP<STRING, INT>", "[1]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_column_fails(ddl: str, text: str) -> None:
    reason = one(ddl, f'{{"a": {text}}}')
    assert isinstance(reason, str)
    assert reason.startswith("a: ")


def test_of_two_members_with_one_name_the_last_counts() -> None:
    assert one("a INT", '{"a": 1, "a": 2}') == 2


def test_a_mark_before_the_document_is_dropped() -> None:
    assert one("a INT", '\ufeff{"a": 1}') == 1


def test_a_document_over_several_lines_is_one_row() -> None:
    assert one("a INT", '\n{"a":\n1}\n') == 1


def test_depth_alone_is_no_fault_and_no_danger() -> None:
    deep = '{"a": 1, "b": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert one("a INT", deep) == 1
    assert isinstance(one("a INT", '{"b": ' + "[" * 100_000 + "}"), str)


def test_two_documents_in_one_value_do_not_move_the_others() -> None:
    decoded = decode("a INT", '{"a":1}{"a":2}', "", '{"a":3}')
    assert decoded.batch.column("a").to_pylist() == [None, None, 3]
    assert decoded.failed == (0,)


# Random schemas and documents, good and bad

SCALARS = ["BOOLEAN", "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE",
           "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(5,2)", "DECIMAL(38,10)"]  # fmt: skip


def columns(kinds: list[str], separator: str) -> str:
    return ", ".join(f"{name}{separator}{kind}" for name, kind in zip("abc", kinds, strict=False))


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map("ARRAY<{}>".format),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: f"STRUCT<{columns(kinds, ': ')}>"
        ),
    )


kinds = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4)
schemas = st.lists(kinds, min_size=1, max_size=3).map(lambda kinds: columns(kinds, " "))
times = st.from_regex(
    r"\A(19|20)\d\d-(0?[1-9]|1[0-2])-[0-3]?\d([ T][0-2]?\d(:[0-5]?\d(:[0-5]\d(\.\d{0,9})?)?)?"
    r"(Z| UTC|[+-][01]\d(:?[0-5]\d)?)?)?\Z"
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-200, 200),
    st.floats(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.text(max_size=5),
    times,
    st.binary(max_size=7).map(lambda raw: base64.b64encode(raw).decode()),
)
names = st.sampled_from(["a", "b", "c", "d"])
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
objects = st.dictionaries(names, documents, max_size=4)


@settings(max_examples=400, deadline=None)
@given(schemas, objects)
def test_both_ways_agree(ddl: str, document: dict[str, Any]) -> None:
    """What Arrow's parser accepts, the rules for one document accept, and make the same of it."""
    schema = JsonFormat(schema_from_ddl(ddl)).schema
    value = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")
    by_rule: dict[str, Any] | None
    try:
        by_rule = JsonDocuments(schema).read(value)
    except UnparsableError:
        by_rule = None
    try:
        block = JsonFormat(schema)._block(pa.array([value], pa.binary()))
    except UnparsableError:
        return
    if _is_valid(value):
        assert by_rule is not None
        wanted = pa.array([by_rule], pa.struct(list(schema)))
        assert same(block.to_struct_array(), wanted)


def same(one: pa.Array[Any], other: pa.Array[Any]) -> bool:
    """Equal, and NaN is equal to NaN."""
    return one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist())


def _is_valid(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


matching: dict[str, st.SearchStrategy[Any]] = {
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "STRING": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "BOOLEAN": st.booleans(),
    "ARRAY<INT>": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
}
rows = st.lists(
    st.fixed_dictionaries({}, optional={f"c{i}": s for i, s in enumerate(matching.values())}),
    max_size=3 * SALVAGE_ROWS[1],
)
garbage = st.one_of(
    st.sampled_from([b"{", b"x", b"null", b"[1]", b'{"c0": "x"}', b"\xff", b'{"c0":1}{"c0":2}']),
    st.binary(min_size=1, max_size=12).filter(lambda raw: raw.strip() != b"" and b"{" not in raw),
)


@settings(max_examples=60, deadline=None)
@given(rows, st.data())
def test_bad_values_fail_and_nothing_else(good: list[dict[str, Any]], data: st.DataObject) -> None:
    schema = schema_from_ddl(", ".join(f"c{i} {kind}" for i, kind in enumerate(matching)))
    bad = data.draw(st.sets(st.integers(0, max(len(good) - 1, 0)), max_size=5))
    values = [
        data.draw(garbage) if row in bad else json.dumps(document).encode()
        for row, document in enumerate(good)
    ]
    decoded = JsonFormat(schema).decode(pa.array(values, pa.binary()))
    wanted = [{} if row in bad else document for row, document in enumerate(good)]
    assert same(
        decoded.batch.to_struct_array(), pa.array(wanted, pa.struct(list(decoded.batch.schema)))
    )
    assert decoded.failed == tuple(sorted(row for row in bad if row < len(good)))
