"""What a task hands to Spark: record batches of just the columns asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ids import UNIX_EPOCH_UNITS, Kind, Producer
from penstock.spark.columns import META
from penstock.spark.options import Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.journal.documents import Documents
    from penstock.journal.store import JournalBatch

SORTED_BATCH_ROWS: Final = 32_768
"""Sorted rows go to Spark in pieces, or it would hold a whole partition once more."""

Numbers = np.ndarray[Any, Any]
_KIND_NAMES: Final = np.array(
    [Kind.OUTSIDE.name, Kind.CONTINUE.name, Kind.ACK.name, Kind.CONTINUE.name]
)
"""By the two low bits of the flags: both together are a CONTINUE."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one journal in offset order, with what they may have to be sorted by."""

    journal: str
    offsets: Numbers
    clocks: Numbers
    batch: pa.RecordBatch

    def where(self, mask: Numbers) -> Rows:
        """The rows for which the mask is true."""
        keep = np.flatnonzero(mask)
        return Rows(self.journal, self.offsets[keep], self.clocks[keep], self.batch.take(keep))


def document_rows(found: Documents, schema: pa.Schema, binding: int) -> Rows:
    """Committed documents as the columns of `schema`."""
    count = len(found.offsets)
    parts: Mapping[str, Callable[[], pa.Array[Any]]] = {
        "journal": lambda: pa.repeat(found.journal, count),
        "offset": lambda: pa.array(found.offsets),
        "producer": lambda: _producer_names(found.producers),
        "clock": lambda: _moments(found.clocks),
        "clock_raw": lambda: pa.array(found.clocks),
        "binding": lambda: pa.repeat(pa.scalar(binding, pa.int32()), count),
        "commit_clock_raw": lambda: pa.array(found.commit_clocks),
    }
    columns: list[pa.Array[Any]] = []
    for field in schema:
        if field.name == META:
            kind = cast("pa.StructType", field.type)
            members = [_as_type(parts[member.name](), member.type) for member in kind]
            columns.append(pa.StructArray.from_arrays(members, fields=list(kind)))
        else:
            columns.append(_as_type(found.documents.column(field.name), field.type))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return Rows(found.journal, found.offsets, found.clocks, batch)


def raw_rows(found: JournalBatch, schema: pa.Schema) -> Rows:
    """Rows as they were written, as the columns of `schema`."""
    parts: Mapping[str, Callable[[], pa.Array[Any]]] = {
        "_journal": lambda: pa.repeat(found.journal, found.rows),
        "_offset": lambda: pa.array(found.offsets),
        "_producer": lambda: _producer_names(found.producers),
        "_clock": lambda: pa.array(found.clocks),
        "_flags": lambda: pa.array(found.flags),
        "_kind": lambda: pa.array(_KIND_NAMES[found.flags & 3]),
        "_hints": lambda: _hints(found),
    }
    columns = [
        _as_type(
            parts[field.name]() if field.name in parts else found.documents.column(field.name),
            field.type,
        )
        for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return Rows(found.journal, found.offsets, found.clocks, batch)


def in_order(parts: Iterable[Rows], order: Order | None) -> Iterator[pa.RecordBatch]:
    """The rows' batches, sorted if asked. Parts come by journal and offset already; sorting by
    clock holds all of them in memory."""
    if order is not Order.CLOCK:
        yield from (part.batch for part in parts if part.batch.num_rows)
        return
    held = [part for part in parts if part.batch.num_rows]
    if not held:
        return
    # Text is sorted by its bytes, as Spark does.
    names = sorted({part.journal for part in held}, key=str.encode)
    rank = {name: place for place, name in enumerate(names)}
    keys = pa.table(
        {
            "clock": pa.array(np.concatenate([part.clocks for part in held])),
            "journal": pa.array(
                np.repeat(
                    [rank[part.journal] for part in held], [len(part.clocks) for part in held]
                )
            ),
            "offset": pa.array(np.concatenate([part.offsets for part in held])),
        }
    )
    places = pc.sort_indices(
        keys, sort_keys=[("clock", "ascending"), ("journal", "ascending"), ("offset", "ascending")]
    )
    table = pa.Table.from_batches([part.batch for part in held]).take(places)
    yield from table.combine_chunks().to_batches(max_chunksize=SORTED_BATCH_ROWS)


def _as_type(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return array if array.type.equals(kind) else array.cast(kind)


def _producer_names(producers: Numbers) -> pa.Array[Any]:
    """Twelve hexadecimal digits each. Producers are few, rows are many."""
    distinct, places = np.unique(producers, return_inverse=True)
    names = pa.array(
        [str(Producer.from_int64(number)) for number in distinct.tolist()], pa.string()
    )
    return names.take(places)


def _moments(clocks: Numbers) -> pa.Array[Any]:
    """Microseconds of UTC; clocks before 1970 are 1970, as in `clock_to_datetime`."""
    units = (clocks >> np.uint64(4)).astype(np.int64) - UNIX_EPOCH_UNITS
    micros: pa.Array[Any] = pa.array(np.maximum(units, 0) // 10)
    return micros.cast(pa.timestamp("us", tz="UTC"))


def _hints(found: JournalBatch) -> pa.Array[Any]:
    """The hints of acknowledgements, empty where they have none; null for documents."""
    lengths = np.zeros(found.rows, dtype=np.int32)
    names: list[str] = []
    for row in sorted(found.hints):
        lengths[row] = len(found.hints[row])
        names += found.hints[row]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        pa.array(names, pa.string()),
        type=pa.list_(pa.field("element", pa.string())),
        mask=pa.array(found.flags & 3 != Kind.ACK),
    )
