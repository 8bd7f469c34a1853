"""Rows without a key are spread; rows with one are not moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.routing import vnodes_of
from penstock.shuffle.keys import vnodes_of_rows
from tests.unit.shuffle.slice.model import binding

COUNT = 2_000


def batch(keys: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], names=["key"])


@pytest.mark.parametrize("spreads", [False, True])
def test_rows_with_a_key_go_by_it(spreads: bool) -> None:
    plan = replace(binding(0), key=("key",), spreads_null_keys=spreads)
    rows = batch([b"%d" % (number % 7) for number in range(COUNT)])
    found = vnodes_of_rows(plan, rows, np.arange(COUNT), [("orders/000", COUNT)])
    assert found.tolist() == vnodes_of([rows.column("key")]).tolist()


def test_rows_without_a_key_are_spread_by_where_they_stand() -> None:
    """Each by its own journal and offset, whatever comes with it."""
    plan = replace(binding(0), key=("key",), spreads_null_keys=True)
    rows = batch([None if number % 3 else b"k" for number in range(COUNT)])
    journals = [("orders/partition=0/000", 500), ("orders/partition=1/000", COUNT - 500)]
    offsets = np.concatenate([np.arange(500), np.arange(COUNT - 500)])
    found = vnodes_of_rows(plan, rows, offsets, journals)
    keyless = [number for number in range(COUNT) if number % 3]
    assert len({int(found[number]) for number in keyless}) > 200
    assert len({int(found[number]) for number in range(0, COUNT, 3)}) == 1
    for number in (1, 2, 499, 500, 1_001):
        journal = journals[number >= 500][0]
        alone = vnodes_of_rows(plan, batch([None]), offsets[[number]], [(journal, 1)])
        assert number % 3 == 0 or alone[0] == found[number]
    assert found[1] != found[501] or found[2] != found[502]


def test_a_null_is_a_key_like_any_other_elsewhere() -> None:
    plan = replace(binding(0), key=("key",))
    found = vnodes_of_rows(plan, batch([None] * 50), np.arange(50), [("orders/000", 50)])
    assert len(set(found.tolist())) == 1
