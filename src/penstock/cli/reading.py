"""Documents of a collection as record batches, straight from the journals: no Spark, no Java."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigurationError
from penstock.journal.cut import parse_as_of
from penstock.journal.documents import read_documents
from penstock.journal.names import Selector
from penstock.journal.views import META_FIELD, RAW_FIELDS, document_batch, raw_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.journal import Collection
    from penstock.journal.store import ReadableStore


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read of a collection."""

    collection: Collection
    columns: tuple[str, ...]
    partitions: str = ""
    as_of: str | None = None
    meta: bool = False
    raw: bool = False
    by_clock: bool = False

    @classmethod
    def of(cls, collection: Collection, columns: tuple[str, ...], **more: Any) -> Wanted:
        """Checks the columns; none named means all."""
        names = collection.schema.names
        for column in columns:
            if column not in names:
                raise ConfigurationError(
                    f"collection {collection.name!r} has no column {column!r}; "
                    f"it has {', '.join(names)}"
                )
        return cls(collection, columns or tuple(names), **more)

    @property
    def schema(self) -> pa.Schema:
        fields = [self.collection.schema.field(name).with_nullable(True) for name in self.columns]
        if self.raw:
            return pa.schema([*fields, *RAW_FIELDS])
        return pa.schema([*fields, META_FIELD] if self.meta else fields)

    def journals(self, store: ReadableStore) -> list[str]:
        selector = Selector.parse(self.partitions, self.collection.partition_by)
        return [journal.name for journal in store.journals(self.collection.name, selector)]


def read(store: ReadableStore, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """All that is wanted and there is now, in batches of `wanted.schema`."""
    found = _raw(store, wanted) if wanted.raw else _documents(store, wanted)
    if wanted.by_clock:
        yield from _sorted_by_clock(found)
        return
    for batch, _ in found:
        yield batch


Times = np.ndarray[Any, np.dtype[np.uint64]]


def _documents(store: ReadableStore, wanted: Wanted) -> Iterator[tuple[pa.RecordBatch, Times]]:
    as_of = None if wanted.as_of is None else parse_as_of(wanted.as_of)
    store.recover_if_possible()
    for cut in store.cut(lambda: wanted.journals(store), as_of):
        for found in read_documents(store, cut, wanted.columns):
            yield document_batch(found, wanted.schema), found.times


def _raw(store: ReadableStore, wanted: Wanted) -> Iterator[tuple[pa.RecordBatch, Times]]:
    for journal, probe in store.probes(wanted.journals(store)).items():
        for batch in store.read(journal, probe.first_kept, None, wanted.columns):
            yield raw_batch(batch, wanted.schema), batch.times


def _sorted_by_clock(
    found: Iterable[tuple[pa.RecordBatch, Times]],
) -> Iterator[pa.RecordBatch]:
    """Holds everything in memory: the last row read may be the first by clock."""
    held = list(found)
    if not held:
        return
    order = np.argsort(np.concatenate([times for _, times in held]), kind="stable")
    table = pa.Table.from_batches([batch for batch, _ in held]).take(order)
    yield from table.combine_chunks().to_batches()
