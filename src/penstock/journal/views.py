"""The two views of a collection's rows, as record batches: committed documents with `_meta`, and
raw rows with everything that stands beside them. The command line and Spark show the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from penstock.columns import CLOCK, FLAGS, HINTS, JOURNAL, KIND, OFFSET, PRODUCER
from penstock.columns import META as OWN_META
from penstock.ids import UNIX_EPOCH_UNITS, Kind, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.journal.documents import Documents
    from penstock.journal.store import JournalBatch

    Columns = Mapping[str, Callable[[], pa.Array[Any]]]

META: Final = OWN_META
MOMENT: Final = pa.timestamp("us", tz="UTC")
META_FIELD: Final = pa.field(
    META,
    pa.struct(
        [
            ("journal", pa.string()),
            ("offset", pa.int64()),
            ("producer", pa.string()),
            ("clock", MOMENT),
            ("clock_raw", pa.int64()),
            ("binding", pa.int32()),
            ("commit_clock_raw", pa.int64()),
            ("member", pa.int32()),
            ("vnode", pa.int32()),
            ("epoch", pa.int64()),
            ("watermark", MOMENT),
        ]
    ),
)
"""Of each document: its place, its identity, and the binding that asked for it. `clock` is
`clock_raw` in microseconds of UTC. A batch read knows the clock of the commit that made a document
visible; a shuffled read the member and vnode of its key, the epoch that delivered it, and the
watermark of that epoch. What a read does not know is null."""

RAW_FIELDS: Final = (
    pa.field(JOURNAL, pa.string()),
    pa.field(OFFSET, pa.int64()),
    pa.field(PRODUCER, pa.string()),
    pa.field(CLOCK, pa.int64()),
    pa.field(FLAGS, pa.int32()),
    pa.field(KIND, pa.string()),
    pa.field(HINTS, pa.list_(pa.field("element", pa.string()))),
)
"""Beside the document's own columns, which are null where the row is an acknowledgement."""

_KIND_NAMES: Final = np.array(
    [Kind.OUTSIDE.name, Kind.CONTINUE.name, Kind.ACK.name, Kind.CONTINUE.name]
)
"""By the two low bits of the flags: both together are a CONTINUE."""


def document_batch(found: Documents, schema: pa.Schema, binding: int = 0) -> pa.RecordBatch:
    """Committed documents as the columns of `schema`: any of theirs, and any part of `_meta`."""
    count = len(found.offsets)
    meta: Columns = {
        "journal": lambda: pa.repeat(found.journal, count),
        "offset": lambda: pa.array(found.offsets),
        "producer": lambda: producer_names(pa.array(found.producers)),
        "clock": lambda: moments(found.times),
        "clock_raw": lambda: pa.array(found.clocks),
        "binding": lambda: pa.repeat(pa.scalar(binding, pa.int32()), count),
        "commit_clock_raw": lambda: pa.array(found.commit_clocks),
    }
    return with_meta(found.documents, schema, meta)


def with_meta(documents: pa.RecordBatch, schema: pa.Schema, meta: Columns) -> pa.RecordBatch:
    """The columns of `schema`: documents' own, null where they have none of that name, and of
    `_meta` what is asked for, null where it is not known."""
    count = documents.num_rows
    columns: list[pa.Array[Any]] = []
    for field in schema:
        if field.name == META:
            kind = cast("pa.StructType", field.type)
            members = [
                _as_type(meta[member.name](), member.type)
                if member.name in meta
                else pa.nulls(count, member.type)
                for member in kind
            ]
            columns.append(pa.StructArray.from_arrays(members, fields=list(kind)))
        elif (place := documents.schema.get_field_index(field.name)) >= 0:
            columns.append(_as_type(documents.column(place), field.type))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def raw_batch(found: JournalBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows as they were written, as the columns of `schema`."""
    beside: Columns = {
        "_journal": lambda: pa.repeat(found.journal, found.rows),
        "_offset": lambda: pa.array(found.offsets),
        "_producer": lambda: producer_names(pa.array(found.producers)),
        "_clock": lambda: pa.array(found.clocks),
        "_flags": lambda: pa.array(found.flags),
        "_kind": lambda: pa.array(_KIND_NAMES[found.flags & 3]),
        "_hints": lambda: _hints(found),
    }
    columns = [
        _as_type(
            beside[field.name]() if field.name in beside else found.documents.column(field.name),
            field.type,
        )
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_type(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return array if array.type.equals(kind) else array.cast(kind)


def producer_names(producers: pa.Array[Any]) -> pa.Array[Any]:
    """Twelve hexadecimal digits each."""
    return renamed(producers, lambda number: str(Producer.from_int64(number)))


def renamed(numbers: pa.Array[Any], name_of: Callable[[int], str]) -> pa.Array[Any]:
    """The names of numbers, of which few are different."""
    encoded = cast("Any", numbers).dictionary_encode()
    names = pa.array([name_of(number) for number in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def moments(clocks: np.ndarray[Any, np.dtype[np.uint64]]) -> pa.Array[Any]:
    """Microseconds of UTC; clocks before 1970 are 1970, as in `clock_to_datetime`."""
    units = np.maximum(clocks >> np.uint64(4), np.uint64(UNIX_EPOCH_UNITS))
    micros = (units - np.uint64(UNIX_EPOCH_UNITS)) // np.uint64(10)
    found: pa.Array[Any] = pa.array(micros.view(np.int64))
    return found.view(MOMENT)


def moment(clock: int) -> int:
    """The same of one clock, as a number."""
    return max((clock >> 4) - UNIX_EPOCH_UNITS, 0) // 10


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
        type=cast("Any", RAW_FIELDS[-1].type),
        mask=pa.array(found.flags & 3 != Kind.ACK),
    )
