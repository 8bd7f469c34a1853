"""Reducing two frontiers: ours in columns beside a plain merge of dictionaries.

Half of the journals are in both, as when two members report; so no short cut for equal lists helps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from bench.report import Line, compare
from penstock.frontier import Frontier, reduce
from penstock.ids import CLOCK_TICK, clock_from_unix

if TYPE_CHECKING:
    from collections.abc import Iterator

JOURNALS: Final = 100_000
PRODUCERS: Final = 4
ENTRIES: Final = 2 * JOURNALS * PRODUCERS
"""Of both sides together."""
BEGIN: Final = clock_from_unix(1_750_000_000)

Entry: TypeAlias = tuple[int, int, int]
"""Last commit, hinted commit, offset."""
Entries: TypeAlias = dict[tuple[str, int], dict[int, Entry]]


def frontier(first: int, seed: int) -> Frontier:
    """So many journals from the first one on, each written by four of a thousand producers.

    Who writes a journal is a matter of the journal, so both sides mostly have the same four; one
    in eight is a producer that only one side has met.
    """
    random = np.random.default_rng(seed)
    names = [f"acme/orders/{number:08x}/pivot=00" for number in range(first, first + JOURNALS)]
    usual = np.arange(first, first + JOURNALS)[:, np.newaxis] * np.array([7, 11, 13, 17]) % 250
    strange = random.integers(0, 250, (JOURNALS, PRODUCERS))
    writers = np.where(random.integers(0, 8, strange.shape) == 0, strange, usual)
    writers += 250 * np.arange(PRODUCERS)
    count = JOURNALS * PRODUCERS
    clocks = (BEGIN + CLOCK_TICK * random.integers(0, 10**9, count)).astype(np.uint64)
    ahead = random.integers(0, 10, count) == 0
    return Frontier(
        journal_names=pa.array(names, pa.string()),
        bindings=np.zeros(JOURNALS, np.uint16),
        bytes_read_delta=random.integers(0, 10**6, JOURNALS),
        bytes_behind_delta=random.integers(0, 10**6, JOURNALS),
        producer_starts=np.arange(0, count + 1, PRODUCERS, dtype=np.int64),
        producers=writers.reshape(-1) << 32 | 1 << 56,
        last_commits=clocks,
        hinted_commits=np.where(ahead, clocks + np.uint64(CLOCK_TICK), np.uint64(0)),
        offsets=random.integers(-(10**12), 10**12, count),
        flushed_lsn=np.arange(4, dtype=np.uint64),
        backfill_begin={},
        backfill_complete={},
        gap_floor={},
    )


def entries_of(side: Frontier) -> Entries:
    starts, producers = side.producer_starts.tolist(), side.producers.tolist()
    values = list(
        zip(
            side.last_commits.tolist(),
            side.hinted_commits.tolist(),
            side.offsets.tolist(),
            strict=True,
        )
    )
    names = [str(name) for name in side.journal_names.to_pylist()]
    return {
        (name, binding): dict(zip(producers[start:stop], values[start:stop], strict=True))
        for name, binding, start, stop in zip(
            names, side.bindings.tolist(), starts[:-1], starts[1:], strict=True
        )
    }


def merge(left: Entries, right: Entries) -> Entries:
    """The same rule, an entry at a time. It need not sort, as dictionaries have no order."""
    merged = {key: dict(row) for key, row in left.items()}
    for key, row in right.items():
        mine = merged.setdefault(key, {})
        for producer, entry in row.items():
            known = mine.get(producer)
            mine[producer] = entry if known is None else merge_entries(known, entry)
    return merged


def merge_entries(left: Entry, right: Entry) -> Entry:
    last_commit = max(left[0], right[0])
    farthest = max(abs(left[2]), abs(right[2]))
    opens = (last_commit, farthest)
    is_open = (left[0], left[2]) == opens or (right[0], right[2]) == opens
    return last_commit, max(left[1], right[1]), farthest if is_open else -farthest


def run() -> Iterator[Line]:
    left, right = frontier(0, seed=1), frontier(JOURNALS // 2, seed=2)
    left_entries, right_entries = entries_of(left), entries_of(right)
    merged = merge(left_entries, right_entries)
    if entries_of(reduce(left, right)) != merged:
        raise RuntimeError("the two sides do not compute the same")
    yield compare(
        "frontier.reduce",
        partial(reduce, left, right),
        partial(merge, left_entries, right_entries),
        amount=ENTRIES,
        unit="entries/s",
    )
