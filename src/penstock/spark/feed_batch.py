"""A batch read of a feed file: the rows that a stream of the same file has, as they are now.

One cut goes through the journals of all bindings, so a transaction is seen whole in all of them. A
Spark partition has rows of one binding; those of higher priorities come first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import ConfigurationError
from penstock.frontier import Frontier
from penstock.ids import CLOCK_MAX, CLOCK_UNIX_EPOCH
from penstock.journal.cut import AsOf, JournalCut, parse_as_of
from penstock.journal.documents import read_range
from penstock.journal.views import META
from penstock.shuffle.beginning import cluster_in, starts_of
from penstock.shuffle.plan import BindingPlan, make_plan
from penstock.spark.options import Order, choice_option
from penstock.spark.plan import ReadPartition, opened, shared
from penstock.spark.rows import Rows, document_rows, in_order
from penstock.spark.streaming.options import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.journal.store import ReadableStore


def is_of_feed(options: Mapping[str, str]) -> bool:
    return "feed" in {name.lower() for name in options}


@dataclass(frozen=True, slots=True)
class FeedRead:
    """The options of a stream of a feed file, and those that a batch has beside them."""

    feed: StreamOptions = field(repr=False)
    order: Order | None = None
    as_of: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> FeedRead:
        values = {name.lower(): value for name, value in given.items()}
        order, as_of = choice_option(values, "order", Order), values.get("as_of")
        if as_of is not None:
            parse_as_of(as_of)
        for name in ("order", "as_of"):
            values.pop(name, None)
        return cls(StreamOptions.parse(values), order, as_of)

    @property
    def at(self) -> AsOf:
        return None if self.as_of is None else parse_as_of(self.as_of)


class FeedPartition(InputPartition):
    """What one task reads: shares of journals, as one binding has them."""

    def __init__(self, binding: BindingPlan, part: ReadPartition) -> None:
        super().__init__(None)
        self.binding = binding
        self.part = part


class FeedReader(DataSourceReader):
    """One read: planned on the driver, carried out in tasks. It has no `pushFilters`, for the same
    reason as `PenstockReader`."""

    def __init__(self, options: FeedRead, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options.feed
        store = opened(options.store)
        bindings = make_plan(options.feed, store).bindings
        _check_beginnings(store)
        store.recover_if_possible()
        starts = starts_of(options.feed, store)
        cuts = feed_cuts(store, bindings, self._options.at)
        found: list[InputPartition] = []
        for binding in sorted(bindings, key=lambda one: (one.lane, one.place)):
            of_binding = cuts[binding.place]
            if binding.collection in starts:
                from penstock.spark.kafka_batch import begun_at  # noqa: PLC0415 - it is an extra

                of_binding = [
                    begun_at(store, cut, starts[binding.collection]) for cut in of_binding
                ]
            found += [FeedPartition(binding, part) for part in shared(store, of_binding)]
        # Spark makes a partition of its own out of none at all, so there is always one.
        return found or [FeedPartition(bindings[0], ReadPartition(store.address, ()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, FeedPartition):
            raise TypeError(f"not a partition of this reader: {partition!r}")
        return in_order(self._rows(partition), self._options.order)

    def _rows(self, partition: FeedPartition) -> Iterator[Rows]:
        store, binding = opened(partition.part.store), partition.binding
        there = set(store.collection(binding.collection).schema.names)
        columns = [name for name in self._schema.names if name != META and name in there]
        for share in partition.part.shares:
            for found in read_range(store, share.range, share.cut, columns):
                rows = document_rows(found, self._schema, binding.place)
                yield _timely(rows, binding)


def feed_cuts(
    store: ReadableStore, bindings: Sequence[BindingPlan], as_of: AsOf = None
) -> dict[int, list[JournalCut]]:
    """By binding, what is read of its journals."""
    journals: dict[int, set[str]] = {binding.place: set() for binding in bindings}

    def listed() -> list[str]:
        """Of all bindings together; a transaction may make one just now."""
        for binding in bindings:
            found = store.journals(binding.collection, binding.selector)
            journals[binding.place].update(journal.name for journal in found)
        return sorted(set().union(*journals.values()))

    if isinstance(as_of, Frontier):  # it says of each binding how far it was
        listed()
        return {place: store.cut(sorted(names), as_of, place) for place, names in journals.items()}
    cuts = store.cut(listed, as_of)
    return {
        place: [cut for cut in cuts if cut.journal in names] for place, names in journals.items()
    }


def _timely(rows: Rows, binding: BindingPlan) -> Rows:
    """Those between the binding's moments. A delay holds nothing back here."""
    if (binding.not_before, binding.not_after) == (CLOCK_UNIX_EPOCH, CLOCK_MAX):
        return rows
    times: Any = rows.times
    is_timely = (times >= np.uint64(binding.not_before)) & (times < np.uint64(binding.not_after))
    return rows if is_timely.all() else rows.where(is_timely)


def _check_beginnings(store: ReadableStore) -> None:
    cluster = cluster_in(store.address)
    if cluster is None:
        return
    from penstock.journal.kafka.edges import LATEST, Edge  # noqa: PLC0415 - it is an extra

    for name, subscription in cluster.subscriptions.items():
        if subscription.starting == Edge(LATEST):
            raise ConfigurationError(
                f"{subscription.starting.option} of {name} cannot be 'latest' in a batch read: "
                "nothing is behind it"
            )
