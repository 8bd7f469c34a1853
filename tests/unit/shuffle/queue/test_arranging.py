"""Rows of a block, moved together by stage, against looking at one row at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import Stage
from penstock.shuffle.queue.arranging import arranged

if TYPE_CHECKING:
    from random import Random

Parcels = list[tuple[Stage, pa.RecordBatch]]


def parcels_of(sizes: list[tuple[int, int]]) -> Parcels:
    """Of these bindings and sizes. Every row says where it was."""
    found, count = [], 0
    for binding, size in sizes:
        numbers = list(range(count, count + size))
        columns: dict[str, Any] = {
            "number": numbers,
            "text": [f"{binding}:{number}" for number in numbers],
        }
        found.append((Stage(binding, 1), pa.RecordBatch.from_pydict(columns)))
        count += size
    return found


def rows_of(
    parcels: Parcels, order: np.ndarray[tuple[int], np.dtype[np.uint32]] | None
) -> list[str]:
    """As they come in the block."""
    rows = [str(text) for _, batch in parcels for text in batch.column("text").to_pylist()]
    return rows if order is None else [rows[place] for place in order.tolist()]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_a_block_has_the_rows_it_had(
    sizes: list[tuple[int, int]], chance: Random, ordered: bool
) -> None:
    parcels = parcels_of(sizes)
    count = sum(size for _, size in sizes)
    order = None
    if ordered:
        numbers = list(range(count))
        chance.shuffle(numbers)
        order = np.array(numbers, np.uint32)
    found, places = arranged(parcels, order)
    expected = rows_of(parcels, order)
    assert rows_of(list(found), places) == expected
    stages = [stage for stage, _ in found]
    assert len(set(stages)) == len(stages), "a stage has one part"
    for stage, batch in found:
        own = [row for row in expected if row.startswith(f"{stage.binding}:")]
        assert batch.column("text").to_pylist() == own, "it lies as it is read"
    if len(stages) == 1:
        assert places is None


def test_an_order_that_does_not_fit_is_refused() -> None:
    parcels = parcels_of([(0, 2), (0, 1)])
    for order in ([0, 1], [0, 0, 1], [0, 1, 3]):
        with pytest.raises(LocalProtocolError, match="the order of"):
            arranged(parcels, np.array(order, np.uint32))
