"""Reducing: what several frontiers know together.

Reducing the entries of a producer is commutative, associative and idempotent, so deltas may arrive
in any order and more than once. The byte deltas of journals are sums: there, each counts once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.frontier.align import Alignment, align, same_journals
from penstock.frontier.table import Frontier, Int64Array, ProducerFrontier, UInt64Array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class DifferentProducersError(LocalProtocolError):
    """Entries of two producers were to be reduced into one. Fix the code that paired them."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(left, right)
        self.left = left
        self.right = right

    def __str__(self) -> str:
        return f"entries of producers {self.left} and {self.right} cannot be reduced into one"


def reduce_entries(first: ProducerFrontier, *others: ProducerFrontier) -> ProducerFrontier:
    """What the entries of one producer in one journal say together.

    The farthest offset wins. It is the begin of an open span only if an entry that says so also
    knows the latest commit: otherwise that commit came later, and closed the span.
    """
    entries = (first, *others)
    for other in others:
        if other.producer != first.producer:
            raise DifferentProducersError(str(first.producer), str(other.producer))
    last_commit = max(entry.last_commit for entry in entries)
    farthest = max(abs(entry.offset) for entry in entries)
    is_open = any(e.offset == farthest and e.last_commit == last_commit for e in entries)
    return ProducerFrontier(
        producer=first.producer,
        last_commit=last_commit,
        hinted_commit=max(entry.hinted_commit for entry in entries),
        offset=farthest if is_open else -farthest,
    )


def reduce(left: Frontier, right: Frontier) -> Frontier:
    """What two frontiers know together."""
    return reduce_all((left, right))


def reduce_all(frontiers: Iterable[Frontier]) -> Frontier:
    """What any number of frontiers know together: as reducing them two by two, in any order."""
    given = list(frontiers)
    if len(given) == 1:
        return given[0]
    # Only those with journals take part in the merge; the marks of all of them do.
    parts = [frontier for frontier in given if frontier.journal_count] or [Frontier.of()]
    if len(parts) == 1:
        merged = parts[0]
    elif all(_same_rows(parts[0], part) for part in parts[1:]):
        merged = _reduce_same_rows(parts)
    else:
        merged = _reduce_aligned(parts, align(parts))
    return replace(
        merged,
        flushed_lsn=_reduce_lsn([frontier.flushed_lsn for frontier in given]),
        backfill_begin=_reduce_clocks([frontier.backfill_begin for frontier in given]),
        backfill_complete=_reduce_clocks([frontier.backfill_complete for frontier in given]),
        gap_floor=_reduce_clocks([frontier.gap_floor for frontier in given]),
    )


def _same_rows(left: Frontier, right: Frontier) -> bool:
    """Whether both have the same entries: then no row has to be looked for."""
    return (
        np.array_equal(left.producers, right.producers)
        and np.array_equal(left.producer_starts, right.producer_starts)
        and same_journals(left, right)
    )


def _reduce_same_rows(parts: Sequence[Frontier]) -> Frontier:
    last_commits = np.maximum.reduce([part.last_commits for part in parts])
    farthest = np.maximum.reduce([np.abs(part.offsets) for part in parts])
    is_open = np.logical_or.reduce(
        [(part.offsets == farthest) & (part.last_commits == last_commits) for part in parts]
    )
    return replace(
        parts[0],
        bytes_read_delta=np.add.reduce([part.bytes_read_delta for part in parts]),
        bytes_behind_delta=np.add.reduce([part.bytes_behind_delta for part in parts]),
        last_commits=last_commits,
        hinted_commits=np.maximum.reduce([part.hinted_commits for part in parts]),
        offsets=np.where(is_open, farthest, -farthest),
    )


def _reduce_aligned(parts: Sequence[Frontier], alignment: Alignment) -> Frontier:
    positions = np.concatenate(alignment.positions)
    sources = np.empty(alignment.journal_count, np.int64)
    sources[positions] = np.arange(len(positions))  # any of the equal rows will do
    names = pa.concat_arrays([part.journal_names for part in parts])
    bindings = np.concatenate([part.bindings for part in parts])

    def sums(deltas: Sequence[Int64Array]) -> Int64Array:
        totals = np.zeros(alignment.journal_count, np.int64)
        np.add.at(totals, positions, np.concatenate(deltas))
        return totals

    keys = np.concatenate(alignment.entry_keys(parts))
    order = np.argsort(keys, kind="stable")  # stable: fast on runs that are sorted already
    keys = keys[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    group_lengths = np.diff(np.append(starts, len(keys)))

    commits = np.concatenate([part.last_commits for part in parts])[order]
    hints = np.concatenate([part.hinted_commits for part in parts])[order]
    offsets = np.concatenate([part.offsets for part in parts])[order]
    last_commits = np.maximum.reduceat(commits, starts)
    farthest = np.maximum.reduceat(np.abs(offsets), starts)
    says_open = (offsets == np.repeat(farthest, group_lengths)) & (
        commits == np.repeat(last_commits, group_lengths)
    )
    is_open = np.maximum.reduceat(says_open.view(np.uint8), starts).view(np.bool_)

    rows = order[starts]
    journals = np.concatenate(
        [
            np.repeat(own, part.producer_counts)
            for own, part in zip(alignment.positions, parts, strict=True)
        ]
    )
    producer_starts = np.zeros(alignment.journal_count + 1, np.int64)
    np.cumsum(
        np.bincount(journals[rows], minlength=alignment.journal_count), out=producer_starts[1:]
    )
    return replace(
        parts[0],
        journal_names=names.take(sources),
        bindings=bindings[sources],
        bytes_read_delta=sums([part.bytes_read_delta for part in parts]),
        bytes_behind_delta=sums([part.bytes_behind_delta for part in parts]),
        producer_starts=producer_starts,
        producers=np.concatenate([part.producers for part in parts])[rows],
        last_commits=last_commits,
        hinted_commits=np.maximum.reduceat(hints, starts),
        offsets=np.where(is_open, farthest, -farthest),
    )


def _reduce_lsn(lists: Sequence[UInt64Array]) -> UInt64Array:
    longest = max((len(lsns) for lsns in lists), default=0)
    highest = np.zeros(longest, np.uint64)
    for lsns in lists:
        np.maximum(highest[: len(lsns)], lsns, out=highest[: len(lsns)])
    return highest


def _reduce_clocks(maps: Sequence[Mapping[int, int]]) -> dict[int, int]:
    latest: dict[int, int] = {}
    for clocks in maps:
        for binding, clock in clocks.items():
            latest[binding] = max(clock, latest.get(binding, clock))
    return latest
