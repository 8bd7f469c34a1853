"""What a fetch brought, as rows of a journal: data and transaction markers in the log's order.

A row's clock is its offset; a row of a transaction counts once a marker commits it; a marker that
aborts has a clock that no commit is below (`offset_identity.py`). Where users name producers, their
rows have their numbers for clocks (`identities.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.ddl import schema_from_ddl
from penstock.errors import RemoteProtocolError
from penstock.ids import UNIX_EPOCH_UNITS, Kind
from penstock.journal.kafka.records.columns import COMMIT, NO_MARKER
from penstock.journal.offset_identity import (
    PRODUCER_ID_MAX,
    ROLLBACK_CLOCK,
    clocks_of,
    producers_of,
)
from penstock.journal.store import JournalBatch

if TYPE_CHECKING:
    from collections.abc import Collection as Names

    from numpy.typing import NDArray

    from penstock.journal.kafka.client.fetching import Want
    from penstock.journal.kafka.identities import Named
    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import BatchTable, Decoded
    from penstock.journal.store import Probe

_RAW: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)
RAW_SCHEMA: Final = schema_from_ddl(_RAW)
"""Spark's own Kafka columns."""
RAW_SCHEMA_WITH_HEADERS: Final = schema_from_ddl(
    f"{_RAW}, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_UNITS_PER_MS: Final = 10_000


def journal_batch(
    journal: str,
    partition: Partition,
    decoded: Decoded,
    next_offset: int,
    documents: pa.RecordBatch,
    *,
    kept: NDArray[np.int64] | None = None,
    named: Named | None = None,
    lost: NDArray[np.int64] | None = None,
    probe: Probe | None = None,
) -> JournalBatch:
    """`documents` has a row for each row of `decoded`, or for each that is kept of them, and so has
    `named`, if users name producers. `lost` as of `lost_before`; `probe` is what came with them."""
    batches, rows = decoded.batches, decoded.rows
    offsets = rows.column("offset").to_numpy()
    is_transactional = np.repeat(batches.is_transactional, batches.rows)
    producers = producers_of(_ids(partition, batches), is_transactional)
    columns: dict[str, NDArray[Any]] = {
        "offsets": offsets,
        "producers": producers,
        "clocks": clocks_of(offsets),
        "times": _times(rows.column("timestamp_ms").to_numpy()),
        "flags": np.where(is_transactional, np.uint16(Kind.CONTINUE), np.uint16(Kind.OUTSIDE)),
    }
    if kept is not None:
        columns = {name: column[kept] for name, column in columns.items()}
        offsets = columns["offsets"]
    if named is not None:
        columns["producers"] = np.where(named.is_named, named.producers, columns["producers"])
        columns["clocks"] = np.where(named.is_named, named.clocks, columns["clocks"])
    epochs: dict[int, int] = {}
    marking = np.flatnonzero(batches.marker != NO_MARKER)
    if len(marking):
        columns, order = _with_markers(columns, batches, marking)
        places = np.where(order < len(offsets), order, 0)
        taken: Any = pa.array(places, mask=order >= len(offsets))
        documents = documents.take(taken)
        rows_of_markers = np.flatnonzero(order >= len(offsets))
        found = batches.producer_epoch[marking][order[rows_of_markers] - len(offsets)]
        epochs = dict(zip(rows_of_markers.tolist(), found.tolist(), strict=True))
    behind_lost: frozenset[int] = frozenset()
    if lost is not None and len(lost):
        places = np.searchsorted(columns["offsets"], lost)
        behind_lost = frozenset(places[places < len(columns["offsets"])].tolist())
    return JournalBatch(
        journal=journal,
        ends=columns["offsets"] + 1,
        next_offset=next_offset,
        documents=documents,
        hints={},
        epochs=epochs,
        behind_lost=behind_lost,
        probe=probe,
        **columns,
    )


def lost_before(want: Want, decoded: Decoded, next_offset: int) -> NDArray[np.int64]:
    """The offsets right before which whole batches are gone, of what was read from `want` on up to
    the next offset. Compaction takes them, the markers of transactions among them; of the last one
    of a producer it leaves a batch without a record."""
    batches = decoded.batches
    if not len(batches):
        return np.array([next_offset], np.int64)
    ends = batches.last_offset + 1
    expected = np.concatenate([[want.offset], ends[:-1]])
    emptied = batches.is_control & (batches.marker == NO_MARKER)
    told_late = [want.offset] if want.is_behind_lost else []
    found = [told_late, batches.base_offset[batches.base_offset > expected], ends[emptied]]
    return np.unique(np.concatenate(found)).astype(np.int64)


def _with_markers(
    columns: dict[str, NDArray[Any]], batches: BatchTable, marking: NDArray[np.intp]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.intp]]:
    """The columns with a row for each marker, and where each of their rows comes from: markers are
    numbered behind the others."""
    offsets = batches.base_offset[marking]
    commits = batches.marker[marking] == COMMIT
    every = np.ones(len(marking), np.bool_)
    added: dict[str, NDArray[Any]] = {
        "offsets": offsets,
        "producers": producers_of(batches.producer_id[marking], every),
        "clocks": np.where(commits, clocks_of(offsets), np.uint64(ROLLBACK_CLOCK)),
        # No time of its own: it goes with the row before it.
        "times": np.zeros(len(marking), np.uint64),
        "flags": np.full(len(marking), Kind.ACK, np.uint16),
    }
    together = {name: np.concatenate([columns[name], added[name]]) for name in columns}
    order = np.argsort(together["offsets"], kind="stable")
    return {name: column[order] for name, column in together.items()}, order


def _ids(partition: Partition, batches: BatchTable) -> NDArray[np.int64]:
    if len(batches) and int(batches.producer_id.max()) > PRODUCER_ID_MAX:
        raise RemoteProtocolError(
            f"{partition} has rows of producer id {batches.producer_id.max()}; ids above "
            f"{PRODUCER_ID_MAX} do not fit our own"
        )
    return np.repeat(batches.producer_id, batches.rows)


def _times(timestamps: NDArray[np.int64]) -> NDArray[np.uint64]:
    """In units of a clock. Rows without a timestamp (-1) are of 1970."""
    units = np.maximum(timestamps, 0).astype(np.uint64) * np.uint64(_UNITS_PER_MS)
    return (units + np.uint64(UNIX_EPOCH_UNITS)) << np.uint64(4)


def raw_documents(
    partition: Partition, decoded: Decoded, schema: pa.Schema, columns: Names[str] | None
) -> pa.RecordBatch:
    """Rows as Spark's Kafka source shows them; only some columns, if these are given."""
    rows, batches = decoded.rows, decoded.batches
    count = rows.num_rows

    def column(name: str) -> pa.Array[Any]:
        match name:
            case "topic":
                return pa.repeat(partition.topic, count)
            case "partition":
                return pa.repeat(pa.scalar(partition.number, pa.int32()), count)
            case "timestamp":
                return whole_column(rows, "timestamp_ms").cast(pa.timestamp("ms", "UTC"))
            case "timestampType":
                kinds = np.repeat(batches.has_append_time, batches.rows)
                return pa.array(kinds.astype(np.int32))
            case "headers":
                return _null_where_empty(whole_column(rows, name))
            case _:
                return whole_column(rows, name)

    fields = [field for field in schema if columns is None or field.name in columns]
    arrays = [_as(column(field.name), field.type) for field in fields]
    if not arrays:
        return without_columns(count)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def without_columns(rows: int) -> pa.RecordBatch:
    nothing: Any = pa.array([{}] * rows, pa.struct([]))
    return pa.RecordBatch.from_struct_array(nothing)


def selected(documents: pa.RecordBatch, columns: Names[str]) -> pa.RecordBatch:
    """Some columns, also if these are none."""
    kept = [name for name in documents.schema.names if name in columns]
    return documents.select(kept) if kept else without_columns(documents.num_rows)


def whole_column(rows: pa.Table, name: str) -> pa.Array[Any]:
    found: Any = rows.column(name)
    whole: pa.Array[Any] = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    return whole


def _null_where_empty(lists: Any) -> pa.Array[Any]:
    """As Spark's Kafka source has it: a row without headers has no list at all."""
    ends = lists.offsets.to_numpy()
    empty: Any = pa.array(ends[1:] == ends[:-1])
    # Arrow takes a mask only with offsets of an array's own: those of a slice begin elsewhere.
    own = pa.array(ends - ends[0], pa.int32())
    found: pa.Array[Any] = pa.ListArray.from_arrays(own, lists.flatten(), mask=empty)
    return found


def _as(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return array if array.type.equals(kind) else array.cast(kind)
