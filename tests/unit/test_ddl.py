"""Schemas as DDL text: what is written reads back the same, and what cannot be is explained."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ddl import DdlError, normal_schema, schema_from_ddl, schema_to_ddl

SIMPLE_TYPES: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"),
]  # fmt: skip

names = st.one_of(
    st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,8}", fullmatch=True),
    st.sampled_from(["not", "NULL", "struct", "a b", "`", "``", "a`b", "é", "1", "a:b", "<>", "'"]),
    st.text(min_size=1, max_size=6).filter(lambda text: text.isprintable()),
)


def decimals() -> st.SearchStrategy[pa.DataType]:
    return st.integers(1, 38).flatmap(
        lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
    )


def fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field[pa.DataType]]]:
    each = st.builds(
        lambda name, kind, nullable: pa.field(name, kind, nullable=nullable),
        names, kinds, st.booleans(),
    )  # fmt: skip
    return st.lists(each, min_size=1, max_size=4, unique_by=lambda field: field.name.lower())


leaves: st.SearchStrategy[pa.DataType] = st.one_of(st.sampled_from(SIMPLE_TYPES), decimals())
types: st.SearchStrategy[pa.DataType] = st.recursive(
    leaves,
    lambda below: st.one_of(
        below.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(below, below).map(lambda pair: pa.map_(*pair)),
        fields(below).map(pa.struct),
    ),
    max_leaves=6,
)
schemas = fields(types).map(pa.schema)


@given(schemas)
def test_a_schema_reads_back_the_same(schema: pa.Schema) -> None:
    back = schema_from_ddl(schema_to_ddl(schema))
    assert back.equals(schema), schema_to_ddl(schema)
    assert [field.nullable for field in back] == [field.nullable for field in schema]
    assert normal_schema(schema).equals(schema)


@given(schemas)
def test_nested_nullability_survives(schema: pa.Schema) -> None:
    # Types compare their fields' nullability; this shows that they do.
    wrapped = pa.schema([pa.field("outer", pa.struct(list(schema)), nullable=False)])
    back = schema_from_ddl(schema_to_ddl(wrapped))
    inner = back.field("outer").type
    assert [inner.field(i).nullable for i in range(inner.num_fields)] == [
        field.nullable for field in schema
    ]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_our_words(text: str) -> None:
    try:
        schema = schema_from_ddl(text)
    except DdlError:
        return  # any other error fails
    assert schema_from_ddl(schema_to_ddl(schema)).equals(schema)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BYTE", pa.int8()),
        ("SHORT", pa.int16()),
        ("INTEGER", pa.int32()),
        ("long", pa.int64()),
        ("REAL", pa.float32()),
        ("TIMESTAMP_LTZ", pa.timestamp("us", tz="UTC")),
        ("VARCHAR(12)", pa.string()),
        ("CHAR(1)", pa.string()),
        ("DEC(7, 2)", pa.decimal128(7, 2)),
        ("NUMERIC", pa.decimal128(10, 0)),
        ("DECIMAL(5)", pa.decimal128(5, 0)),
        ("array < int >", pa.list_(pa.int32())),
        ("struct<a int, b: string NOT NULL>", pa.struct([
            pa.field("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])),
    ],
)  # fmt: skip
def test_synonyms_and_other_spellings(text: str, kind: pa.DataType) -> None:
    assert schema_from_ddl(f"c {text}").field("c").type == kind
    assert schema_from_ddl(f"c: {text} not null").field("c").nullable is False
    commented = schema_from_ddl(f"c {text} COMMENT 'it''s' , d INT".replace("''", "\\'"))
    assert commented.names == ["c", "d"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.large_string(), "STRING"),
        (pa.string_view(), "STRING"),
        (pa.large_binary(), "BINARY"),
        (pa.dictionary(pa.int8(), pa.string()), "STRING"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "TIMESTAMP"),
        (pa.timestamp("ms"), "TIMESTAMP_NTZ"),
        (pa.large_list(pa.int8()), "ARRAY<TINYINT>"),
    ],
)
def test_arrow_spellings_become_the_plain_ones(kind: pa.DataType, text: str) -> None:
    assert schema_to_ddl(pa.schema([("c", kind)])) == f"c {text}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one column"),
        ("id", "ends where a type should be"),
        ("id BIGNUM", "unknown type BIGNUM"),
        ("id INT NOT", "ends where NULL should be"),
        ("id INT NOT 5", "expected 'NULL', found '5'"),
        ("id INT x", "expected ',', found 'x'"),
        ("id INT, id STRING", "column 'id' appears twice"),
        ("1d INT", "expected a column name, found '1'"),
        ("größe INT", "cannot read the schema at 'größe INT'|cannot read the schema at 'öße INT'"),
        ("a ARRAY", "ends where < should be"),
        ("a ARRAY<INT", "ends where > should be"),
        ("a MAP<STRING>", "expected ',', found '>'"),
        ("a STRUCT<b INT", "ends where"),
        ("a DECIMAL(39)", re.escape("DECIMAL(39,0) is not possible")),
        ("a DECIMAL(0)", re.escape("DECIMAL(0,0) is not possible")),
        ("a DECIMAL(3,4)", re.escape("DECIMAL(3,4) is not possible")),
        ("a DECIMAL(x)", "expected a number, found 'x'"),
        ("a VARCHAR", "ends where"),
        ("a INT; b INT", "cannot read the schema at '; b INT'"),
        ("`a INT", "cannot read the schema at '`a INT'"),
    ],
)  # fmt: skip
def test_every_error_says_what_was_wrong(text: str, said: str) -> None:
    with pytest.raises(DdlError, match=said):
        schema_from_ddl(text)


@pytest.mark.parametrize(
    "kind", [pa.uint8(), pa.time32("s"), pa.date64(), pa.null(), pa.decimal256(40, 2), pa.float16()]
)
def test_a_type_that_spark_lacks_is_refused_with_its_column(kind: pa.DataType) -> None:
    for wrapped in (kind, pa.list_(kind), pa.map_(pa.string(), kind)):
        with pytest.raises(DdlError, match=f"column 'c' has type .*{re.escape(str(kind))}"):
            schema_to_ddl(pa.schema([("c", wrapped)]))
    with pytest.raises(DdlError, match="column 'inner'"):
        schema_to_ddl(pa.schema([("c", pa.struct([("inner", kind)]))]))
