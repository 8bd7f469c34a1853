"""Record batches of every kind that Arrow has, as plain lists and as hypothesis draws them."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

Values: TypeAlias = "st.SearchStrategy[Any]"
Type: TypeAlias = "pa.DataType"

SIMPLE: list[tuple[Type, Values]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=20)),
    (pa.large_string(), st.text(max_size=20)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("ns", "UTC"), st.integers(0, 2**62)),
    (pa.time64("us"), st.times()),
    (pa.duration("ms"), st.integers(-(2**40), 2**40)),
    (pa.decimal128(20, 2), st.integers(-(10**9), 10**9).map(decimal.Decimal)),
    (pa.decimal256(40, 0), st.integers(-(10**30), 10**30).map(decimal.Decimal)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "bb", "ü", ""])),
]


def nested(inner: st.SearchStrategy[tuple[Type, Values]]) -> st.SearchStrategy[tuple[Type, Values]]:
    def lists_of(each: tuple[Type, Values]) -> st.SearchStrategy[tuple[Type, Values]]:
        kind, values = each
        lists = st.lists(st.none() | values, max_size=3)
        pairs = st.lists(st.tuples(st.text(max_size=3), values), max_size=3)
        structs = st.fixed_dictionaries({"x": st.none() | values})
        choices: list[tuple[Type, Values]] = [
            (pa.list_(kind), lists),
            (pa.large_list(kind), lists),
            (pa.list_view(kind), lists),
            (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
            (pa.struct([pa.field("x", kind)]), structs),
            (pa.map_(pa.string(), kind), pairs),
        ]
        return st.sampled_from(choices)

    return inner.flatmap(lists_of)


COLUMNS = st.recursive(st.sampled_from(SIMPLE), nested, max_leaves=2)


@st.composite
def batch_lists(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches of one schema, some of them slices."""
    columns = draw(st.lists(COLUMNS, max_size=4))
    fields: list[pa.Field[Any]] = [
        pa.field(f"c{index}", kind, metadata={"is": "drawn"})
        for index, (kind, _) in enumerate(columns)
    ]
    schema = pa.schema(fields, metadata={"of": "a test"})
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 6))
        arrays = [
            pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
            for kind, values in columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assume(is_valid(batch))
        begin = draw(st.integers(0, rows))
        batches.append(batch.slice(begin, draw(st.integers(0, rows - begin))))
    return batches


def is_valid(batch: pa.RecordBatch) -> bool:
    """Arrow itself makes some that are not: a null struct, say, with a dictionary that is empty."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def one_of_each() -> dict[str, pa.Array[Any]]:
    """The kinds that are not drawn above, and some that are."""
    words = ["a", None, "ccc", "a longer one that is not stored inline"]
    points = pa.array([1, 2, None, 4])
    kinds = pa.array([0, 1, 0, 1], pa.int8())
    return {
        "text": pa.array(words),
        "text view": pa.array(words, pa.string_view()),
        "dictionary": pa.array(words).dictionary_encode(),
        "list": pa.array([[1, 2], None, [], [3]]),
        "list view": pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64())),
        "dictionaries in lists": pa.array(
            [["a", "b"], None, ["a"], []], pa.list_(pa.dictionary(pa.int16(), pa.string()))
        ),
        "dictionaries in structs": pa.StructArray.from_arrays(
            [pa.array(words).dictionary_encode()], ["x"]
        ),
        "lists in dictionaries": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None, 0]), pa.array([[1, 2], [3]])
        ),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([3, 4], pa.int32()), pa.array(["x", None])
        ),
        "dense union": pa.UnionArray.from_dense(
            kinds, pa.array([0, 0, 1, 1], pa.int32()), [pa.array([1, 2]), pa.array(["x", "y"])]
        ),
        "sparse union": pa.UnionArray.from_sparse(kinds, [points, pa.array(words)]),
        "extension": pa.array([uuid.UUID(int=number) for number in range(4)], pa.uuid()),
        "tensor": pa.FixedShapeTensorArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2]] * 4, pa.list_(pa.int32(), 2))
        ),
        "interval": pa.array([(1, 2, 3), None] * 2, pa.month_day_nano_interval()),
        "half floats": pa.array([1.0, None, 2.0, 3.0], pa.float16()),
        "dates": pa.array([datetime.date(2026, 11, 15)] * 4, pa.date64()),
    }
