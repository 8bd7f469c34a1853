"""Random columns of Spark's types, with rows in them: what encoders are tried on."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.ddl import schema_from_ddl

SCALARS = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY",
           "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(5,2)", "DECIMAL(38,10)"]  # fmt: skip
ROWS_MAX = 5


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map("ARRAY<{}>".format),
        inner.map("MAP<STRING, {}>".format),
        members.map(lambda kinds: f"STRUCT<{_listed(kinds, ': ')}>"),
    )


def _listed(kinds: list[str], separator: str) -> str:
    return ", ".join(f"{name}{separator}{kind}" for name, kind in zip("abc", kinds, strict=False))


schemas = (
    st.lists(st.recursive(st.sampled_from(SCALARS), _nested, max_leaves=4), min_size=1, max_size=3)
    .map(lambda kinds: _listed(kinds, " "))
    .map(schema_from_ddl)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, and nulls."""
    return st.none() | _there(kind)


def _there(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if isinstance(kind, pa.StructType):
        return st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    if isinstance(kind, pa.MapType):
        items = values_of(kind.item_type)
        return st.dictionaries(texts, items, max_size=3).map(lambda each: list(each.items()))
    if isinstance(kind, pa.ListType):
        return st.lists(values_of(kind.value_type), max_size=3)
    if isinstance(kind, pa.Decimal128Type):
        limit = 10**kind.precision - 1
        return st.integers(-limit, limit).map(lambda number: _decimal(number, kind.scale))
    if isinstance(kind, pa.TimestampType):
        moments = st.datetimes()
        zone = datetime.UTC if kind.tz else None
        return moments.map(lambda each: each.replace(tzinfo=zone))
    if pa.types.is_signed_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return st.integers(-limit, limit - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=32 if kind.bit_width == 32 else 64)
    simple: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.bool_(): st.booleans(),
        pa.string(): texts,
        pa.binary(): st.binary(max_size=8),
        pa.date32(): st.dates(),
    }
    return simple[kind]


def _decimal(number: int, scale: int) -> Any:
    import decimal  # noqa: PLC0415

    return decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=60))


@st.composite
def frames(draw: st.DrawFn) -> pa.RecordBatch:
    """A few rows, as a part of a larger batch: what Arrow calls a slice."""
    schema = draw(schemas)
    rows = draw(st.integers(1, ROWS_MAX))
    columns = [
        pa.array(draw(st.lists(values_of(field.type), min_size=rows, max_size=rows)), field.type)
        for field in schema
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    return whole.slice(draw(st.integers(0, rows - 1)))


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Equal, and NaN is equal to NaN."""
    return repr(one.to_pylist()) == repr(other.to_pylist())
