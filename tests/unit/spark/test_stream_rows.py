"""How a member's vnodes are divided among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.streaming.rows import split


@given(st.sets(st.integers(0, 255)), st.integers(1, 40))
def test_every_vnode_is_in_one_part_and_parts_are_about_as_large(
    owned: set[int], splits: int
) -> None:
    vnodes = tuple(sorted(owned))
    parts = split(vnodes, splits)
    if splits == 1:
        assert parts == [None]
        return
    found = [vnode for part in parts for vnode in part or ()]
    assert found == list(vnodes)
    sizes = [len(part or ()) for part in parts]
    assert len(parts) == min(splits, len(vnodes))
    assert max(sizes, default=1) - min(sizes, default=1) <= 1
