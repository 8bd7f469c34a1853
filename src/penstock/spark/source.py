"""`spark.read.format("penstock")`: what Spark asks of a data source.

Spark makes the reader in a planning process, asks it for partitions there, and sends it with each
of them to a task. A task shares nothing with the driver but what is pickled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from penstock.journal.documents import read_range
from penstock.spark.buckets import in_bucket
from penstock.spark.columns import META, RAW_FIELDS, arrow_schema, check_chosen, full_schema
from penstock.spark.filters import answer_all, can_answer
from penstock.spark.options import ReadOptions, View
from penstock.spark.plan import ReadPartition, opened, plan
from penstock.spark.rows import Rows, document_rows, in_order, raw_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.journal.store import JournalStore


class PenstockSource(DataSource):
    """Registered by itself as `penstock`, through the package `pyspark_penstock`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        options = ReadOptions.parse(self.options)
        return full_schema(opened(options.store).collection(options.collection), options.view)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.parse(self.options)
        collection = opened(options.store).collection(options.collection)
        check_chosen(schema, full_schema(collection, options.view))
        return PenstockReader(options, arrow_schema(schema))


class PenstockReader(DataSourceReader):
    """One read: planned on the driver, carried out in tasks."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._conditions: tuple[Filter, ...] = ()

    @property
    def pushFilters(self) -> Any:  # noqa: N802 - Spark's name
        """Takes over the filters that can be answered here, gives the others back."""
        return _OfferedFilters(self._push_filters)

    def _push_filters(self, filters: list[Filter]) -> list[Filter]:
        taken = [condition for condition in filters if can_answer(condition, self._schema)]
        self._conditions = tuple(taken)
        return [condition for condition in filters if not any(condition is one for one in taken)]

    def partitions(self) -> Sequence[InputPartition]:
        return plan(self._options, self._conditions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ReadPartition):
            raise TypeError(f"not a partition of this reader: {partition!r}")
        store = opened(partition.store)
        if self._options.view is View.RAW:
            rows = self._raw(store, partition)
        else:
            rows = self._documents(store, partition)
        return in_order(self._fulfilling(rows), self._options.order)

    def _documents(self, store: JournalStore, partition: ReadPartition) -> Iterator[Rows]:
        key = self._options.shuffle_key
        own = [name for name in self._schema.names if name != META]
        columns = list(dict.fromkeys([*own, *key]))
        for share in partition.shares:
            for found in read_range(store, share.range, share.cut, columns):
                rows = document_rows(found, self._schema, self._options.binding)
                if key and partition.buckets > 1:
                    values = [found.documents.column(name) for name in key]
                    rows = rows.where(in_bucket(values, partition.bucket, partition.buckets))
                yield rows

    def _raw(self, store: JournalStore, partition: ReadPartition) -> Iterator[Rows]:
        beside = {field.name for field in RAW_FIELDS}
        columns = [name for name in self._schema.names if name not in beside]
        for share in partition.shares:
            part = share.range
            for found in store.read(part.journal, part.begin, part.end, columns):
                yield raw_rows(found, self._schema)

    def _fulfilling(self, parts: Iterator[Rows]) -> Iterator[Rows]:
        for rows in parts:
            mask = answer_all(self._conditions, rows.batch)
            yield rows if mask is None else rows.where(mask)


class _OfferedFilters:
    """The method `pushFilters`, in a form that Spark takes in every session.

    With `spark.sql.python.filterPushdown.enabled` off, as it is by default, Spark refuses readers
    that have this method instead of leaving it alone. It knows them by `__func__`, which is
    therefore that of a reader without: our users need not set anything, and those who set it
    gain.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, push: Callable[[list[Filter]], list[Filter]]) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._push(filters)
