"""Putting several frontiers side by side: which of their rows speak of the same thing.

Names and producers become small numbers with the order of what they stand for. Equal things get
equal numbers in all frontiers, and each frontier's own numbers ascend as its rows do; so merging
is one stable sort over runs that are already sorted, and looking up is one binary search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.frontier.table import Frontier, Int64Array


@dataclass(frozen=True, slots=True)
class Alignment:
    """The journals of several frontiers as one ascending list, and where each one's lie in it."""

    journal_count: int
    """How many different (journal, binding) there are in all of them."""
    positions: tuple[Int64Array, ...]
    """Per frontier and journal, its place in that list."""

    def entry_keys(self, frontiers: Sequence[Frontier]) -> tuple[Int64Array, ...]:
        """Per frontier and entry, a number that orders as (journal, binding, producer) does."""
        producers = pa.concat_arrays([pa.array(frontier.producer_bytes) for frontier in frontiers])
        encoded = producers.dictionary_encode()
        # There are far fewer producers than entries, so only the few are sorted.
        ranks = _ranks(np.argsort(encoded.dictionary.to_numpy()))
        codes = ranks[encoded.indices.to_numpy()]
        keys, start = [], 0
        for frontier, positions in zip(frontiers, self.positions, strict=True):
            stop = start + frontier.entry_count
            own = np.repeat(positions * len(ranks), frontier.producer_counts)
            own += codes[start:stop]
            keys.append(own)
            start = stop
        return tuple(keys)


def align(frontiers: Sequence[Frontier]) -> Alignment:
    """Lines the journals of one or more frontiers up."""
    first = frontiers[0]
    if all(same_journals(first, other) for other in frontiers[1:]):
        own = np.arange(first.journal_count)
        return Alignment(first.journal_count, (own,) * len(frontiers))
    names = pa.concat_arrays([frontier.journal_names for frontier in frontiers])
    # Sorting runs that are sorted already is quicker than hashing names to find the equal ones.
    by_name = pc.sort_indices(names).to_numpy()
    bindings = np.concatenate([frontier.bindings for frontier in frontiers])
    keys = _distinct_names(names.take(by_name)) << 16 | bindings[by_name]
    by_key = np.argsort(keys, kind="stable")
    keys = keys[by_key]
    new = np.ones(len(keys), np.int64)
    new[1:] = keys[1:] != keys[:-1]
    positions = np.empty(len(keys), np.int64)
    positions[by_name[by_key]] = np.cumsum(new) - 1
    stops = np.cumsum([frontier.journal_count for frontier in frontiers])
    return Alignment(int(new.sum()), tuple(np.split(positions, stops[:-1])))


def same_journals(left: Frontier, right: Frontier) -> bool:
    """Whether both list the same (journal, binding) pairs."""
    return np.array_equal(left.bindings, right.bindings) and left.journal_names.equals(
        right.journal_names
    )


def matching_rows(frontier: Frontier, other: Frontier, rows: Int64Array) -> Int64Array:
    """For these entries of one frontier, the row of the same entry in another; -1 where none."""
    if not other.entry_count or not len(rows):
        return np.full(len(rows), -1, np.int64)
    both = (frontier, other)
    keys, other_keys = align(both).entry_keys(both)
    sought = keys[rows]
    found = np.minimum(np.searchsorted(other_keys, sought), other.entry_count - 1)
    return np.where(other_keys[found] == sought, found, -1)


def _distinct_names(ordered: pa.StringArray) -> Int64Array:
    """Numbers names that are in order: equal names alike, and every other one more."""
    count = len(ordered)
    same = pc.equal(ordered.slice(0, count - 1), ordered.slice(1)).to_numpy(zero_copy_only=False)
    numbers = np.zeros(count, np.int64)
    np.cumsum(~same, out=numbers[1:])
    return numbers


def _ranks(order: Int64Array) -> Int64Array:
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
