"""Planning a read, on the driver: the cut is taken once, and the tasks get their shares of it."""

from __future__ import annotations

import functools
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from penstock.errors import ConfigurationError
from penstock.journal import open_readable
from penstock.journal.cut import JournalCut
from penstock.journal.names import Selector
from penstock.spark.buckets import check_key
from penstock.spark.options import ReadOptions, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.store import Range, ReadableStore

PARTITIONS_MAX: Final = 256
"""More tasks than this keep no cluster busier; ranges share them."""
PARTITIONS_SMALL_MAX: Final = 32
"""Up to here each range has its own task, however little it holds."""
PARTITION_ROWS_MIN: Final = 20_000
"""Beyond that, only with so many rows for each: a task costs some 20 ms before its first row."""
SHUFFLE_PARTITIONS_DEFAULT: Final = 8
"""Each reads all rows, so few are better than many."""
_RANGE_COST_ROWS: Final = 100
"""Opening a range takes about as long as reading this many rows."""
_STORES_OPEN_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Share:
    """A range of a journal, and the cut that it belongs to."""

    range: Range
    cut: JournalCut


class ReadPartition(InputPartition):
    """What one task reads: its shares by journal and offset, and which bucket of their keys."""

    def __init__(
        self, store: str, shares: Sequence[Share], bucket: int = 0, buckets: int = 1
    ) -> None:
        super().__init__(None)
        self.store = store
        self.shares = tuple(shares)
        self.bucket = bucket
        self.buckets = buckets


@functools.lru_cache(maxsize=_STORES_OPEN_MAX)
def opened(url: str) -> ReadableStore:
    """The store, opened once in each process."""
    return open_readable(url)


def cut_of_now(options: ReadOptions) -> list[JournalCut]:
    """The cut that a loaded DataFrame shows from now on, however often it is used."""
    store = opened(options.store)
    check_key(store.collection(options.collection), options.shuffle_key)
    if options.view is View.RAW:
        return _raw_cuts(store, options, select_journals(store, options))
    store.recover_if_possible()
    if options.kafka is not None:
        from penstock.spark.kafka_batch import kafka_cuts  # noqa: PLC0415 - it is an extra

        return kafka_cuts(store, options.kafka, lambda: select_journals(store, options))
    return store.cut(lambda: select_journals(store, options), options.cut_at(), options.binding)


def plan(options: ReadOptions, cuts: Sequence[JournalCut]) -> list[InputPartition]:
    """The cut, in shares for tasks."""
    store = opened(options.store)
    shares = _shares(store, cuts)
    if options.shuffle_key:
        wanted = options.shuffle_partitions or min(SHUFFLE_PARTITIONS_DEFAULT, len(shares))
        buckets = max(wanted, 1)
        return [ReadPartition(store.address, shares, bucket, buckets) for bucket in range(buckets)]
    # Spark makes a partition of its own out of none at all, so there is always one.
    return [*shared(store, cuts)] or [ReadPartition(store.address, ())]


def shared(store: ReadableStore, cuts: Sequence[JournalCut]) -> list[ReadPartition]:
    """The rows of cuts among tasks."""
    return [ReadPartition(store.address, group) for group in _groups(_shares(store, cuts))]


def _shares(store: ReadableStore, cuts: Sequence[JournalCut]) -> list[Share]:
    return [
        Share(part, cut) for cut in cuts for part in store.ranges(cut.journal, cut.begin, cut.end)
    ]


def select_journals(store: ReadableStore, options: ReadOptions) -> list[str]:
    collection = store.collection(options.collection)
    selector = Selector.parse(options.partitions, collection.partition_by)
    return [journal.name for journal in store.journals(collection.name, selector)]


def _raw_cuts(store: ReadableStore, options: ReadOptions, journals: list[str]) -> list[JournalCut]:
    if options.bounds is None:
        probes = store.probes(journals)
        return [
            JournalCut(journal, probe.first_kept, probe.write_head)
            for journal, probe in probes.items()
        ]
    strange = options.bounds.keys() - set(journals)
    if strange and not options.partitions:
        raise ConfigurationError(f"option 'bounds' names {min(strange)!r}, which is not here")
    return [
        JournalCut(journal, *options.bounds[journal])
        for journal in journals
        if journal in options.bounds
    ]


def _groups(shares: Sequence[Share]) -> list[list[Share]]:
    """A bounded number of groups with about as many rows each: largest shares go first."""
    enough = max(PARTITIONS_SMALL_MAX, sum(map(_cost, shares)) // PARTITION_ROWS_MIN)
    count = min(enough, PARTITIONS_MAX)
    if len(shares) <= count:
        return [[share] for share in shares]
    lightest = [(0, group) for group in range(count)]
    groups: list[list[Share]] = [[] for _ in range(count)]
    for share in sorted(shares, key=_cost, reverse=True):
        cost, group = lightest[0]
        groups[group].append(share)
        heapq.heapreplace(lightest, (cost + _cost(share), group))
    for members in groups:
        members.sort(key=lambda share: (share.range.journal.encode(), share.range.begin))
    return groups


def _cost(share: Share) -> int:
    return share.range.end - share.range.begin + _RANGE_COST_ROWS
