"""`spark.read.format("penstock")`: what Spark asks of a data source.

Spark makes the reader in a planning process, asks it for partitions there, and sends it with each
of them to a task. A task shares nothing with the driver but what is pickled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from penstock.journal.documents import read_range
from penstock.journal.views import META
from penstock.spark.buckets import in_bucket
from penstock.spark.columns import RAW_FIELDS, arrow_schema, check_chosen, full_schema
from penstock.spark.feed_batch import FeedRead, FeedReader, is_of_feed
from penstock.spark.options import ReadOptions, View, is_kafka
from penstock.spark.plan import ReadPartition, cut_of_now, opened, plan
from penstock.spark.rows import Rows, document_rows, in_order, raw_rows
from penstock.spark.streaming.options import StreamOptions, check_known, is_streaming
from penstock.spark.streaming.process import settle_process
from penstock.spark.streaming.reader import PenstockStreamReader
from penstock.spark.streaming.schema import feed_schema, kafka_schema
from penstock.spark.writing import frame_writer, stream_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.journal.cut import JournalCut
    from penstock.journal.store import ReadableStore


class PenstockSource(DataSource):
    """Registered by itself as `penstock`, through the package `pyspark_penstock`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    _cuts: list[JournalCut] | None = None

    def schema(self) -> StructType:
        """Spark asks this when a DataFrame is loaded, and keeps this object for all its uses: so
        the cut of a batch read is taken here. Who gives a schema is not asked; their first use
        takes the cut."""
        check_known(self.options)
        if is_kafka(self.options) and not is_of_feed(self.options):
            # Which kind of read it is, Spark does not say yet. The columns are the same.
            return kafka_schema(self.options)
        if is_of_feed(self.options):
            return feed_schema(FeedRead.parse(self.options).feed)
        if is_streaming(self.options):
            return feed_schema(StreamOptions.parse(self.options))
        options = ReadOptions.parse(self.options)
        self._cuts = cut_of_now(options)
        return full_schema(opened(options.store).collection(options.collection), options.view)

    def reader(self, schema: StructType) -> DataSourceReader:
        if is_of_feed(self.options):
            read = FeedRead.parse(self.options)
            check_chosen(schema, feed_schema(read.feed))
            return FeedReader(read, arrow_schema(schema))
        options = ReadOptions.parse(self.options)
        collection = opened(options.store).collection(options.collection)
        check_chosen(schema, full_schema(collection, options.view))
        cuts = cut_of_now(options) if self._cuts is None else self._cuts
        return PenstockReader(options, arrow_schema(schema), cuts)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        settle_process()
        options = StreamOptions.parse(self.options)
        check_chosen(schema, feed_schema(options))
        return PenstockStreamReader(options, arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return frame_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return stream_writer(self.options, schema, overwrite)


class PenstockReader(DataSourceReader):
    """One read: planned on the driver, carried out in tasks.

    It has no `pushFilters`. Spark 4.3 keeps a reader that took filters over, and uses it again,
    filters and all, whenever the same DataFrame is read without them: rows would be missing. The
    option `partitions` is the way to read less.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema, cuts: list[JournalCut]) -> None:
        self._options = options
        self._schema = schema
        self._cuts = cuts

    def partitions(self) -> Sequence[InputPartition]:
        return plan(self._options, self._cuts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ReadPartition):
            raise TypeError(f"not a partition of this reader: {partition!r}")
        store = opened(partition.store)
        if self._options.view is View.RAW:
            rows = self._raw(store, partition)
        else:
            rows = self._documents(store, partition)
        return in_order(rows, self._options.order)

    def _documents(self, store: ReadableStore, partition: ReadPartition) -> Iterator[Rows]:
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

    def _raw(self, store: ReadableStore, partition: ReadPartition) -> Iterator[Rows]:
        beside = {field.name for field in RAW_FIELDS}
        columns = [name for name in self._schema.names if name not in beside]
        for share in partition.shares:
            part = share.range
            for found in store.read(part.journal, part.begin, part.end, columns):
                yield raw_rows(found, self._schema)
