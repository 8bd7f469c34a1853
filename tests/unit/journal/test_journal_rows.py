"""Users' rows: what fits goes in unchanged; what does not is refused, with row and column."""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal import Collection
from penstock.journal.errors import BadRowsError
from penstock.journal.names import journal_name
from penstock.journal.rows import ROW_BYTES_MAX, Rows, conform, row_bytes, split_by_journal

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = Collection.define(
    "orders",
    "id BIGINT NOT NULL, name STRING, small TINYINT, price DECIMAL(6,2), at TIMESTAMP, "
    "ship STRUCT<street: STRING, zip: INT NOT NULL>, "
    "lines ARRAY<STRUCT<sku: STRING NOT NULL, count: INT>>, counts MAP<STRING, INT>, "
    "needed STRING NOT NULL, day DATE",
    key="id",
)
AT = datetime.datetime(2026, 11, 15, 20, tzinfo=datetime.UTC)
GOOD: dict[str, Any] = {
    "id": 1,
    "name": "ä",
    "small": -128,
    "price": decimal.Decimal("12.50"),
    "at": AT,
    "ship": {"street": None, "zip": 8000},
    "lines": [{"sku": "a", "count": 2}, {"sku": "b", "count": None}],
    "counts": [("x", 1), ("y", None)],
    "needed": "",
    "day": datetime.date(2026, 11, 15),
}
LEAST: dict[str, Any] = {"id": 2, "needed": "n"}


def filled(row: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(ORDERS.schema.names) | row


def test_dicts() -> None:
    batch = conform(ORDERS, [GOOD, LEAST])
    assert batch.schema.equals(ORDERS.schema)
    assert batch.to_pylist() == [filled(GOOD), filled(LEAST)]


def test_whole_numbers_in_other_clothes_are_taken() -> None:
    rows = [
        {**LEAST, "id": 3.0, "small": np.int16(4), "day": datetime.datetime(2026, 1, 1)},
        {**LEAST, "id": decimal.Decimal(5), "counts": {"x": 1}, "lines": []},
    ]
    first, second = conform(ORDERS, rows).to_pylist()
    assert (first["id"], first["small"], first["day"]) == (3, 4, datetime.date(2026, 1, 1))
    assert (second["id"], second["counts"], second["lines"]) == (5, [("x", 1)], [])


def test_a_single_dict_is_one_row() -> None:
    assert conform(ORDERS, LEAST).to_pylist() == [filled(LEAST)]


def test_arrow_tables_and_batches() -> None:
    expected = conform(ORDERS, [GOOD, LEAST] * 3)
    table = pa.Table.from_batches([expected.slice(0, 2), expected.slice(2, 1), expected.slice(3)])
    assert conform(ORDERS, table).equals(expected)
    assert conform(ORDERS, expected).equals(expected)
    assert conform(ORDERS, expected.slice(1, 4)).equals(expected.slice(1, 4))
    shuffled = table.select(list(reversed(table.schema.names)))
    assert conform(ORDERS, shuffled).equals(expected)
    fewer = table.select(["needed", "id"])
    assert conform(ORDERS, fewer).to_pylist()[1] == filled(LEAST)


def test_other_arrow_types_are_cast() -> None:
    given_ = pa.table(
        {
            "id": pa.array([1, 2], pa.int16()),
            "name": pa.array(["a", "b"]).dictionary_encode(),
            "needed": pa.array(["c", None], pa.large_string()).fill_null("d"),
            "ship": pa.array([{"zip": 1}, None], pa.struct([("zip", pa.int64())])),
        }
    )
    rows = conform(ORDERS, given_).to_pylist()
    assert rows[0] == filled(
        {"id": 1, "name": "a", "needed": "c", "ship": {"street": None, "zip": 1}}
    )
    assert rows[1] == filled({"id": 2, "name": "b", "needed": "d"})


def test_pandas() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "small": [1.0, float("nan"), -3.0],
            "name": ["a", None, "c"],
            "needed": pd.Categorical(["x", "y", "x"]),
            "at": [pd.Timestamp(AT), pd.NaT, pd.Timestamp(AT)],
            "ship": [{"street": "s", "zip": 1}, None, {"street": None, "zip": 2}],
        },
        index=[7, 7, 7],
    )
    rows = conform(ORDERS, frame).to_pylist()
    assert [row["small"] for row in rows] == [1, None, -3]
    assert [row["name"] for row in rows] == ["a", None, "c"]
    assert [row["needed"] for row in rows] == ["x", "y", "x"]
    assert [row["at"] for row in rows] == [AT, None, AT]
    assert rows[2]["ship"] == {"street": None, "zip": 2}


@pytest.mark.parametrize("rows", [[], pa.table({"id": pa.array([], pa.int64())}), pd.DataFrame()])
def test_no_rows_are_no_rows(rows: Rows) -> None:
    assert conform(ORDERS, rows).num_rows == 0
    assert conform(ORDERS, rows).schema.equals(ORDERS.schema)


BAD: list[tuple[dict[Any, Any], str | None, str]] = [
    ({"id": "7"}, "id", "value '7' does not fit int64"),
    ({"id": 1.5}, "id", "value '1.5' does not fit int64"),
    ({"id": True}, "id", "value 'True' does not fit int64"),
    ({"id": 2**63}, "id", "value '9223372036854775808' does not fit int64"),
    ({"id": None}, "id", "has no value, but is a key column"),
    ({"id": decimal.Decimal("1.5")}, "id", "does not fit int64: it would lose its fraction"),
    ({"id": np.float64(-0.5)}, "id", "does not fit int64: it would lose its fraction"),
    ({"id": float("nan")}, "id", "value 'nan' does not fit int64"),
    ({"at": 7.5}, "at", "would lose its fraction"),
    ({"at": pd.Timestamp("2026-01-01T00:00:00.000000001Z")}, "at", "would lose its nanoseconds"),
    ({"day": datetime.datetime(2026, 1, 1, 5)}, "day", "would lose its time of day"),
    ({"lines": [{"sku": "a", "count": 1.5}]}, "lines.count", "would lose its fraction"),
    ({"counts": [("x", 1.5)]}, "counts", "would lose its fraction"),
    ({"counts": {"x": 1.5}}, "counts", "would lose its fraction"),
    ({"small": 128}, "small", "value '128' does not fit int8"),
    ({"name": 5}, "name", "value '5' does not fit string"),
    ({"name": b"\xff"}, "name", "does not fit string"),
    ({"name": "\ud800"}, "name", "does not fit string"),
    ({"price": decimal.Decimal("1.555")}, "price", "value '1.555' does not fit decimal"),
    ({"price": decimal.Decimal(10**6)}, "price", "value '1000000' does not fit decimal"),
    ({"at": "yesterday"}, "at", "value 'yesterday' does not fit timestamp"),
    ({"needed": None}, "needed", "has no value, but is NOT NULL"),
    ({"colour": "red"}, "colour", "no such column .it has id, name, .*evolve it first, or drop"),
    ({"ship": "Main Street"}, "ship", "value 'Main Street' does not fit struct"),
    ({"ship": {"zip": "x"}}, "ship", "does not fit struct"),
    ({"ship": {"street": "s"}}, "ship.zip", "has no value, but is NOT NULL"),
    ({"ship": {"zip": None}}, "ship.zip", "has no value, but is NOT NULL"),
    ({"ship": {"zip": 1, "city": "Z"}}, "ship.city", "there is no such field; evolve"),
    ({"ship": {"zip": 1, 3: "Z"}}, "ship.3", "there is no such field"),
    ({"lines": [{"sku": "a"}, {"count": 1}]}, "lines.sku", "has no value, but is NOT NULL"),
    ({"lines": [{"sku": "a"}, {"sku": "b", "cuont": 1}]}, "lines.cuont", "no such field"),
    ({"lines": {"sku": "a"}}, "lines", "does not fit list"),
    ({"lines": [{"sku": "a", "count": 2**31}]}, "lines", "does not fit list"),
    ({"counts": [("x", "y")]}, "counts", "does not fit map"),
    ({"counts": [(None, 1)]}, "counts", "does not fit map"),
    ({5: "five"}, None, "has the key 5; column names are text"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "column", "said"), BAD)
@pytest.mark.parametrize("row", [0, 5, 9])
def test_a_bad_dict_is_named(change: dict[str, Any], column: str, said: str, row: int) -> None:
    rows = [dict(GOOD) for _ in range(10)]
    rows[row] |= change
    with pytest.raises(BadRowsError, match=said) as caught:
        conform(ORDERS, rows)
    assert (caught.value.row, caught.value.column) == (row, column)
    assert caught.value.collection == "orders"
    assert f"row {row}" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_missing_key_is_a_missing_value() -> None:
    rows: list[dict[str, Any]] = [dict(LEAST) for _ in range(4)]
    del rows[2]["needed"]
    with pytest.raises(BadRowsError, match="NOT NULL") as caught:
        conform(ORDERS, rows)
    assert (caught.value.row, caught.value.column) == (2, "needed")


@pytest.mark.parametrize(
    ("rows", "row", "said"),
    [
        ([LEAST, "text"], 1, "is str, not a dict"),
        ([LEAST, None], 1, "is NoneType, not a dict"),
        ([[1, 2]], 0, "is list, not a dict"),
        ("text", None, "cannot read rows from str; give a pyarrow Table"),
        (7, None, "cannot read rows from int"),
        ({1, 2}, None, "cannot read rows from set"),
        (np.zeros(3), None, "cannot read rows from ndarray"),
    ],
)
def test_what_is_not_rows_at_all(rows: Any, row: int | None, said: str) -> None:
    with pytest.raises(BadRowsError, match=said) as caught:
        conform(ORDERS, rows)
    assert caught.value.row == row


MIDDLE = 7_321


def as_dicts(column: str, value: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"id": number, "needed": "n"} for number in range(10_000)]
    rows[MIDDLE][column] = value
    return rows


def as_pandas(column: str, value: object) -> Rows:
    return pd.DataFrame(as_dicts(column, value)).astype({column: object})


def as_arrow(column: str, value: object) -> Rows:
    filler: object = {"id": 1, "needed": "n", "small": 1}[column]
    values = [filler] * 10_000
    values[MIDDLE] = value
    table = pa.table({"id": list(range(10_000)), "needed": ["n"] * 10_000})
    if column in table.schema.names:
        table = table.drop([column])
    return table.append_column(column, [values])


@pytest.mark.parametrize(
    ("shape", "column", "value", "said"),
    [
        (as_dicts, "id", "x", "value 'x' does not fit int64"),
        (as_dicts, "small", 1000, "value '1000' does not fit int8"),
        (as_dicts, "needed", None, "NOT NULL"),
        (as_pandas, "id", "x", "value 'x' does not fit int64"),
        (as_pandas, "small", 1000, "value '1000.*' does not fit int8"),
        (as_pandas, "needed", None, "NOT NULL"),
        (as_arrow, "id", 2.5, "value '2.5' does not fit int64"),
        (as_arrow, "small", 1000, "value '1000' does not fit int8"),
        (as_arrow, "needed", None, "NOT NULL"),
    ],
)
def test_one_bad_row_in_ten_thousand_is_found(
    shape: Callable[[str, object], Rows], column: str, value: object, said: str
) -> None:
    rows = shape(column, value)
    with pytest.raises(BadRowsError, match=said) as caught:
        conform(ORDERS, rows)
    assert (caught.value.row, caught.value.column) == (MIDDLE, column)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_the_bad_row_is_found_wherever_it_is(count: int) -> None:
    for row in range(count):
        rows: list[dict[str, Any]] = [dict(LEAST) for _ in range(count)]
        rows[row]["small"] = 500
        for given_ in (rows, pa.Table.from_pylist(rows, pa.schema([*WIDE]))):
            with pytest.raises(BadRowsError) as caught:
                conform(ORDERS, given_)
            assert (caught.value.row, caught.value.column) == (row, "small")


WIDE: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("needed", pa.string()),
    pa.field("small", pa.int64()),
]


def test_of_several_bad_rows_the_first_is_named() -> None:
    rows: list[dict[str, Any]] = [dict(GOOD) for _ in range(1_000)]
    for row in (900, 333, 334, 999):
        rows[row]["small"] = 500
    with pytest.raises(BadRowsError) as caught:
        conform(ORDERS, rows)
    assert caught.value.row == 333


def test_an_unknown_arrow_column_is_refused() -> None:
    with pytest.raises(BadRowsError, match="no such column") as caught:
        conform(ORDERS, pa.table({"id": [1], "needed": ["n"], "colour": ["red"]}))
    assert (caught.value.row, caught.value.column) == (None, "colour")


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ({"ship": {"zip": 1, "city": "Z"}}, "ship.city"),
        ({"lines": [{"sku": "a", "colour": 1}]}, "lines.colour"),
    ],
)
def test_an_unknown_nested_arrow_field_is_refused(value: dict[str, Any], column: str) -> None:
    table = pa.Table.from_pylist([{"id": 1, "needed": "n", **value}])
    with pytest.raises(BadRowsError, match="no such field") as caught:
        conform(ORDERS, table)
    assert caught.value.column == column


def test_a_nested_null_in_arrow_is_refused_also_in_a_slice() -> None:
    rows = [{"id": n, "needed": "n", "lines": [{"sku": "a"}] * n} for n in range(6)]
    rows[4]["lines"][2] = {"sku": None}  # type: ignore[index]
    table = pa.Table.from_pylist(rows)
    with pytest.raises(BadRowsError) as caught:
        conform(ORDERS, table.slice(3))
    assert (caught.value.row, caught.value.column) == (1, "lines.sku")
    assert conform(ORDERS, table.slice(0, 4)).num_rows == 4
    assert conform(ORDERS, table.slice(5)).num_rows == 1


def test_a_column_that_comes_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    for rows in (
        twice,
        twice.to_batches()[0],
        pd.DataFrame([[1, 2]], columns=["id", "id"]),
        pd.DataFrame({1: [1], "1": [2]}),
    ):
        with pytest.raises(BadRowsError, match="is there twice"):
            conform(ORDERS, rows)


def test_an_append_too_large_for_one_column_is_refused_and_not_cut() -> None:
    # Lists of nulls take no memory, but their offsets end at 2**31 like those of strings do.
    lists = pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1))
    table = pa.Table.from_arrays(
        [pa.chunked_array([[1], [2]]), pa.chunked_array([lists, lists])], names=["id", "x"]
    )
    with pytest.raises(BadRowsError, match="more than 2 GiB"):
        conform(ORDERS, table)


def test_an_oversized_row_is_named() -> None:
    rows = [dict(LEAST) for _ in range(5)]
    rows[3] = {"id": 3, "needed": "n", "name": "x" * (ROW_BYTES_MAX + 1)}
    with pytest.raises(BadRowsError, match=f"is {ROW_BYTES_MAX + 10} bytes; .* at most") as caught:
        conform(Collection.define("o", "id BIGINT, needed STRING, name STRING", "id"), rows)
    assert caught.value.row == 3


def test_many_rows_together_may_be_large() -> None:
    rows = [{"id": n, "needed": "x" * (ROW_BYTES_MAX // 4)} for n in range(6)]
    assert conform(ORDERS, rows).num_rows == 6


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 11), st.integers(0, 11))
def test_row_bytes_of_a_slice_are_those_of_its_rows(sizes: list[int], a: int, b: int) -> None:
    begin, end = sorted((min(a, len(sizes)), min(b, len(sizes))))
    rows = [
        {"id": n, "needed": "é" * n, "lines": [{"sku": "s" * n}] * n, "counts": [("k" * n, 1)] * n}
        for n in sizes
    ]
    batch = conform(ORDERS, rows)
    sliced = row_bytes(batch.slice(begin, end - begin))
    assert sliced.tolist() == row_bytes(batch)[begin:end].tolist()
    each = [int(row_bytes(conform(ORDERS, [row]))[0]) for row in rows]
    assert row_bytes(batch).tolist() == each


PARTITIONED = Collection.define(
    "orders",
    "id BIGINT NOT NULL, region STRING, tier INT, day DATE, raw BINARY, ok BOOLEAN",
    key="id",
    partition_by=("region", "tier", "day", "raw", "ok"),
)
partitions = st.fixed_dictionaries(
    {
        "region": st.sampled_from([None, "", "eu", "null", "a/b"]),
        "tier": st.sampled_from([None, 0, 1, -1]),
        "day": st.sampled_from([None, datetime.date(2026, 1, 1)]),
        "raw": st.sampled_from([None, b"", b"b"]),
        "ok": st.sampled_from([None, True, False]),
    }
)


def hashable(found: tuple[str, dict[str, Any]]) -> tuple[str, tuple[tuple[str, Any], ...]]:
    return found[0], tuple(sorted(found[1].items()))


@given(st.lists(partitions, max_size=40))
def test_rows_are_split_by_journal_in_their_order_and_none_is_lost(
    rows: list[dict[str, Any]],
) -> None:
    columns = PARTITIONED.partition_by
    rows = [{"id": number, **row} for number, row in enumerate(rows)]
    split = list(split_by_journal(PARTITIONED, conform(PARTITIONED, rows)))
    assert len({name for name, _ in split}) == len(split)
    found = [(name, row) for name, part in split for row in part.to_pylist()]
    expected = [
        (
            journal_name("orders", PARTITIONED.partition_by, [row[c] for c in columns]),
            row,
        )
        for row in rows
    ]
    assert Counter(map(hashable, found)) == Counter(map(hashable, expected))
    for name, part in split:
        assert part.num_rows > 0
        ids = part.column("id").to_numpy()
        assert (np.diff(ids) > 0).all()
        assert [row for where, row in expected if where == name] == part.to_pylist()


def test_many_combinations_of_values_do_not_multiply() -> None:
    columns = [f"p{n}" for n in range(12)]
    collection = Collection.define(
        "wide", "id BIGINT, " + ", ".join(f"{c} INT" for c in columns), "id", columns
    )
    rows = [{"id": n, **dict.fromkeys(columns, n)} for n in range(500)]
    split = list(split_by_journal(collection, conform(collection, rows)))
    assert len(split) == 500
    assert sorted(part.column("id")[0].as_py() for _, part in split) == list(range(500))


def test_without_partitions_there_is_one_journal() -> None:
    batch = conform(ORDERS, [GOOD, LEAST])
    assert list(split_by_journal(ORDERS, batch)) == [("orders/000", batch)]
