"""Taking batches apart: against an oracle that goes row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing import (
    VNODE_COLUMN,
    VNODE_FIELD,
    VNODES,
    Assignment,
    assign,
    split_by_target,
    split_by_vnode,
    split_vnode_column,
    vnodes_of,
)

Row = dict[str, Any]
Vnodes = np.ndarray[Any, np.dtype[np.uint16]]

FIELDS: list[pa.Field[Any]] = [
    pa.field("row", pa.int64(), nullable=False),
    pa.field("text", pa.string()),
    pa.field("flag", pa.bool_()),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("place", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int8()))])),
    pa.field("word", pa.dictionary(pa.int8(), pa.string())),
    pa.field("map", pa.map_(pa.string(), pa.int64())),
    pa.field("fixed", pa.binary(3)),
    pa.field("nothing", pa.null()),
]
SCHEMA = pa.schema(FIELDS, metadata={"of": "the batch"})


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, Vnodes]:
    """A batch, at times a slice of a longer one, and vnodes for it."""
    rows, before = draw(st.integers(0, 40)), draw(st.integers(0, 5))
    letters = draw(st.text("abc", min_size=3, max_size=3))
    numbers = range(-before, rows)
    columns: list[Any] = [
        pa.array(numbers, pa.int64()),
        pa.array([None if n % 5 == 0 else f"{letters}{n}" for n in numbers], pa.string()),
        pa.array([(None, True, False)[n % 3] for n in numbers]),
        pa.array([None if n % 4 == 0 else ["t"] * (n % 3) for n in numbers], pa.list_(pa.string())),
        pa.array([{"x": n, "y": [n % 7] * (n % 2)} for n in numbers], SCHEMA.field("place").type),
        pa.DictionaryArray.from_arrays(
            pa.array([None if n % 6 == 0 else n % 3 for n in numbers], pa.int8()),
            pa.array(list(letters)),
        ),
        pa.array([[("k", n)] * (n % 3) for n in numbers], SCHEMA.field("map").type),
        pa.array([None if n % 7 == 0 else b"%03d" % (n % 999) for n in numbers], pa.binary(3)),
        pa.nulls(len(numbers)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(before)
    few = draw(st.lists(st.integers(0, VNODES - 1), min_size=1, max_size=4))
    some = st.sampled_from(few) if draw(st.booleans()) else st.integers(0, VNODES - 1)
    return batch, np.array(draw(st.lists(some, min_size=rows, max_size=rows)), np.uint16)


def rows_by(batch: pa.RecordBatch, groups: list[int]) -> dict[int, list[Row]]:
    """The oracle: one row after the other, each to its group."""
    found: dict[int, list[Row]] = {}
    for row, group in zip(batch.to_pylist(), groups, strict=True):
        found.setdefault(group, []).append(row)
    return found


def check_parts(parts: list[tuple[int, pa.RecordBatch]], expected: dict[int, list[Row]]) -> None:
    assert [group for group, _ in parts] == sorted(expected)
    for group, part in parts:
        part.validate(full=True)
        assert part.schema.equals(SCHEMA, check_metadata=True)
        assert part.to_pylist() == expected[group]


@given(batches())
def test_by_vnode(drawn: tuple[pa.RecordBatch, Vnodes]) -> None:
    batch, vnodes = drawn
    check_parts(split_by_vnode(batch, vnodes), rows_by(batch, vnodes.tolist()))


@given(batches(), st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=5))
def test_by_target_and_again_by_vnode(
    drawn: tuple[pa.RecordBatch, Vnodes], members: set[int]
) -> None:
    batch, vnodes = drawn
    assignment = assign(members)
    parts = split_by_target(batch, vnodes, assignment)
    owners = [assignment.owner_of(vnode) for vnode in vnodes.tolist()]
    marked = [
        {**row, VNODE_COLUMN: vnode}
        for row, vnode in zip(batch.to_pylist(), vnodes.tolist(), strict=True)
    ]
    expected: dict[int, list[Row]] = {}
    for row, owner in zip(marked, owners, strict=True):
        expected.setdefault(owner, []).append(row)
    assert list(parts) == sorted(expected)
    for member, part in parts.items():
        part.validate(full=True)
        assert part.schema.equals(SCHEMA.append(VNODE_FIELD), check_metadata=True)
        assert part.to_pylist() == expected[member]

    by_vnode = rows_by(batch, vnodes.tolist())
    arrived: dict[int, list[Row]] = {}
    for member, part in parts.items():
        split = split_vnode_column(part)
        assert split is not None
        assert {assignment.owner_of(vnode) for vnode, _ in split} == {member}
        check_parts(split, {vnode: by_vnode[vnode] for vnode, _ in split})
        arrived |= {vnode: rows.to_pylist() for vnode, rows in split}
    assert arrived == by_vnode


def small(rows: int = 3) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(rows)), pa.array([f"text {row}" for row in range(rows)])], ["id", "text"]
    )


def vnodes(*numbers: int) -> Vnodes:
    return np.array(numbers, np.uint16)


def addresses(batch: pa.RecordBatch) -> list[int]:
    return [
        buffer.address
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None
    ]


def test_an_empty_batch_has_no_parts() -> None:
    empty = small(0)
    assert split_by_vnode(empty, vnodes()) == []
    assert split_by_target(empty, vnodes(), assign([1, 2])) == {}
    assert split_vnode_column(empty.append_column(VNODE_FIELD, pa.array([], pa.uint16()))) == []


def test_nothing_is_copied_when_all_go_one_way() -> None:
    batch, own = small(), vnodes(7, 7, 7)
    ((vnode, part),) = split_by_vnode(batch, own)
    assert (vnode, addresses(part)) == (7, addresses(batch))
    # Two vnodes, one target: the vnodes themselves are not copied either.
    mixed = vnodes(7, 200, 7)
    ((member, sent),) = split_by_target(batch, mixed, assign([5])).items()
    assert member == 5
    assert addresses(sent) == [*addresses(batch), mixed.ctypes.data]
    ((_, received),) = split_vnode_column(split_by_target(batch, own, assign([5]))[5]) or []
    assert addresses(received) == addresses(batch)


def test_parts_share_one_copy() -> None:
    parts = split_by_vnode(small(4), vnodes(1, 0, 1, 0))
    assert addresses(parts[0][1]) == addresses(parts[1][1])
    assert [part.column(0).to_pylist() for _, part in parts] == [[1, 3], [0, 2]]


def test_all_members_and_all_vnodes() -> None:
    rows = 5_000
    batch = small(rows)
    found = vnodes_of([batch.column(0)])
    assignment = assign(range(1, VNODES + 1))
    parts = split_by_target(batch, found, assignment)
    assert list(parts) == list(range(1, VNODES + 1))
    assert [vnode for vnode, _ in split_by_vnode(batch, found)] == list(range(VNODES))
    together = [row["id"] for part in parts.values() for row in part.to_pylist()]
    assert sorted(together) == list(range(rows))


def test_batches_of_nothing_but_vnodes() -> None:
    marked = pa.RecordBatch.from_arrays([pa.array([4, 2, 4], pa.uint16())], [VNODE_COLUMN])
    parts = split_vnode_column(marked)
    assert parts is not None
    assert [(vnode, part.num_rows, part.num_columns) for vnode, part in parts] == [
        (2, 1, 0),
        (4, 2, 0),
    ]


def test_no_vnode_column_is_not_an_error() -> None:
    assert split_vnode_column(small()) is None


def test_the_vnode_column_is_found_wherever_it_is() -> None:
    marked = small(2).add_column(0, VNODE_FIELD, pa.array([9, 3], pa.uint16()))
    parts = split_vnode_column(marked)
    assert parts is not None
    assert [(vnode, part.to_pylist()) for vnode, part in parts] == [
        (3, [{"id": 1, "text": "text 1"}]),
        (9, [{"id": 0, "text": "text 0"}]),
    ]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1, 2, 3], pa.int64()), "'__penstock_vnode' came as int64, and must be uint16"),
        (pa.array([1, 2, 3], pa.uint8()), "came as uint8"),
        (pa.array([1, None, 3], pa.uint16()), "'__penstock_vnode' came with nulls"),
        (pa.array([1, 256, 3], pa.uint16()), "'__penstock_vnode' came with vnode 256"),
    ],
)
def test_a_bad_vnode_column_is_the_senders_fault(column: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        split_vnode_column(small().append_column(VNODE_COLUMN, column))


def test_two_vnode_columns_are_the_senders_fault() -> None:
    twice = small().append_column(VNODE_FIELD, pa.array([1, 2, 3], pa.uint16()))
    twice = twice.append_column(VNODE_FIELD, pa.array([1, 2, 3], pa.uint16()))
    with pytest.raises(RemoteProtocolError, match="2 columns '__penstock_vnode'"):
        split_vnode_column(twice)


def test_the_name_of_the_column_is_taken() -> None:
    batch = small().append_column(VNODE_COLUMN, pa.array(["a", "b", "c"]))
    with pytest.raises(ConfigurationError, match="'__penstock_vnode' is Penstock's own: rename"):
        split_by_target(batch, vnodes(1, 2, 3), assign([1]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (vnodes(1, 2), "3 rows needs as many vnodes of uint16, not uint16 of shape"),
        (np.array([1, 2, 3]), "not int64 of shape"),
        (vnodes(1, 2, 3).reshape(3, 1), "of shape"),
        (vnodes(1, 256, 3), "vnodes end at 255, and 256 was given"),
    ],
)
def test_vnodes_that_are_refused(given: Any, words: str) -> None:
    assignment: Assignment = assign([1, 2])
    with pytest.raises(LocalProtocolError, match=words):
        split_by_vnode(small(), given)
    with pytest.raises(LocalProtocolError, match=words):
        split_by_target(small(), given, assignment)


def test_what_arrow_cannot_take_apart() -> None:
    """Remove this, and the error, when Arrow can."""
    views: Any = pa.array(["a", "b", "c"], pa.string_view())
    batch = small().append_column("view", views)
    with pytest.raises(
        ConfigurationError, match=r"view string_view\. Cast views and run-end encoded"
    ):
        split_by_vnode(batch, vnodes(1, 2, 3))
