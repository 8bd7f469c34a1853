"""Documents of a collection as record batches, straight from the journals: no Spark, no Java."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigurationError, PenstockError
from penstock.ids import UNIX_EPOCH_UNITS, Kind, Producer
from penstock.journal.cut import parse_as_of, take_cut
from penstock.journal.documents import Documents, read_documents
from penstock.journal.names import Selector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.journal import Collection, OpenStore
    from penstock.journal.store import JournalBatch

META: Final = pa.field(
    "_meta",
    pa.struct(
        [
            ("journal", pa.string()),
            ("offset", pa.int64()),
            ("producer", pa.string()),
            ("clock", pa.timestamp("us", tz="UTC")),
            ("clock_raw", pa.int64()),
            ("commit_clock_raw", pa.int64()),
        ]
    ),
)
RAW_FIELDS: Final = (
    pa.field("_journal", pa.string()),
    pa.field("_offset", pa.int64()),
    pa.field("_producer", pa.string()),
    pa.field("_clock", pa.int64()),
    pa.field("_flags", pa.int32()),
    pa.field("_kind", pa.string()),
    pa.field("_hints", pa.list_(pa.string())),
)
"""Beside the document's columns in a raw read: the same as Spark's raw view."""
_KINDS: Final = np.array([Kind.OUTSIDE.name, Kind.CONTINUE.name, Kind.ACK.name, Kind.CONTINUE.name])


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
        return pa.schema([*fields, META] if self.meta else fields)

    def journals(self, store: OpenStore) -> list[str]:
        selector = Selector.parse(self.partitions, self.collection.partition_by)
        return [journal.name for journal in store.journals(self.collection.name, selector)]


def read(store: OpenStore, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """All that is wanted and there is now, in batches of `wanted.schema`."""
    found = _raw(store, wanted) if wanted.raw else _documents(store, wanted)
    if wanted.by_clock:
        yield from _sorted_by_clock(found)
        return
    for batch, _ in found:
        yield batch


def document_batch(found: Documents, wanted: Wanted) -> pa.RecordBatch:
    """Committed documents in the shape of `wanted.schema`."""
    columns: list[Any] = list(found.documents.columns)
    if wanted.meta:
        members: list[Any] = [
            pa.repeat(found.journal, len(found.offsets)),
            pa.array(found.offsets),
            _producers(found.producers),
            _moments(found.clocks),
            pa.array(found.clocks.astype(np.int64)),
            pa.array(found.commit_clocks.astype(np.int64)),
        ]
        kind: Any = META.type
        columns.append(pa.StructArray.from_arrays(members, fields=list(kind)))
    return pa.RecordBatch.from_arrays(columns, schema=wanted.schema)


def settle_the_dead(store: OpenStore) -> None:
    """Lets decided transactions of dead producers be seen, as far as we may write here."""
    with suppress(OSError, PenstockError):
        store.recover()


Clocks = np.ndarray[Any, np.dtype[np.uint64]]


def _documents(store: OpenStore, wanted: Wanted) -> Iterator[tuple[pa.RecordBatch, Clocks]]:
    as_of = None if wanted.as_of is None else parse_as_of(wanted.as_of)
    settle_the_dead(store)
    for cut in take_cut(store, lambda: wanted.journals(store), as_of):
        for found in read_documents(store, cut, wanted.columns):
            yield document_batch(found, wanted), found.clocks


def _raw(store: OpenStore, wanted: Wanted) -> Iterator[tuple[pa.RecordBatch, Clocks]]:
    for journal in wanted.journals(store):
        for batch in store.read(journal, store.probe(journal).first_kept, None, wanted.columns):
            yield _raw_batch(batch, wanted), batch.clocks


def _raw_batch(batch: JournalBatch, wanted: Wanted) -> pa.RecordBatch:
    is_ack = batch.flags & 3 == Kind.ACK
    hints = [
        list(batch.hints.get(row, ())) if acknowledges else None
        for row, acknowledges in enumerate(is_ack.tolist())
    ]
    beside: list[Any] = [
        pa.repeat(batch.journal, batch.rows),
        pa.array(batch.offsets),
        _producers(batch.producers),
        pa.array(batch.clocks.astype(np.int64)),
        pa.array(batch.flags.astype(np.int32)),
        pa.array(_KINDS[batch.flags & 3], pa.string()),
        pa.array(hints, RAW_FIELDS[-1].type),
    ]
    return pa.RecordBatch.from_arrays([*batch.documents.columns, *beside], schema=wanted.schema)


def _sorted_by_clock(
    found: Iterable[tuple[pa.RecordBatch, Clocks]],
) -> Iterator[pa.RecordBatch]:
    """Holds everything in memory: the last row read may be the first by clock."""
    held = list(found)
    if not held:
        return
    order = np.argsort(np.concatenate([clocks for _, clocks in held]), kind="stable")
    table = pa.Table.from_batches([batch for batch, _ in held]).take(order)
    yield from table.combine_chunks().to_batches()


def _producers(producers: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    distinct, places = np.unique(producers, return_inverse=True)
    names: Any = pa.array([str(Producer.from_int64(one)) for one in distinct.tolist()], pa.string())
    return names.take(pa.array(places))


def _moments(clocks: Clocks) -> Any:
    units = (clocks >> np.uint64(4)).astype(np.int64) - UNIX_EPOCH_UNITS
    micros: Any = pa.array(np.maximum(units, 0) // 10)
    return micros.cast(pa.timestamp("us", tz="UTC"))
