"""How the ranges of a cut are shared out among tasks."""

from __future__ import annotations

import pickle

import pytest

from penstock.journal.cut import JournalCut
from penstock.journal.store import Range
from penstock.spark.plan import (
    PARTITION_ROWS_MIN,
    PARTITIONS_MAX,
    PARTITIONS_SMALL_MAX,
    ReadPartition,
    Share,
    _groups,
)


def shares_of(*rows: int) -> list[Share]:
    return [
        Share(
            Range(f"c/{number:05}", 0, count), JournalCut(f"c/{number:05}", 0, count, limits={7: 8})
        )
        for number, count in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([], 0),
        ([1] * PARTITIONS_SMALL_MAX, PARTITIONS_SMALL_MAX),
        ([1] * 10_000, 10_000 * 101 // PARTITION_ROWS_MIN),
        ([1] * 100, PARTITIONS_SMALL_MAX),
        ([PARTITION_ROWS_MIN] * 100, 100),
        ([PARTITION_ROWS_MIN * 10] * 1_000, PARTITIONS_MAX),
    ],
)
def test_number_of_groups_is_bounded(rows: list[int], count: int) -> None:
    shares = shares_of(*rows)
    groups = _groups(shares)
    assert len(groups) == count
    together = sorted((share for group in groups for share in group), key=_journal)
    assert together == shares


def test_groups_are_balanced_and_in_order() -> None:
    rows = [10_000 if number % 50 == 0 else number % 97 for number in range(2_000)]
    groups = _groups(shares_of(*rows))
    sizes = [sum(share.range.end for share in group) for group in groups]
    assert max(sizes) < 2 * min(sizes)
    for group in groups:
        assert group == sorted(group, key=_journal)


def test_partitions_pickle() -> None:
    partition = ReadPartition("file:///x", shares_of(1, 2), 3, 4)
    copy = pickle.loads(pickle.dumps(partition))
    assert (copy.store, copy.shares, copy.bucket, copy.buckets) == (
        "file:///x", tuple(shares_of(1, 2)), 3, 4,
    )  # fmt: skip


def _journal(share: Share) -> str:
    return share.range.journal
