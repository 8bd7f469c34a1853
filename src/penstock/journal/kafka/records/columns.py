"""The fields of all records of a fetch, as columns.

Batches are unpacked and laid one behind the other into groups of about a megabyte, so that small
batches do not cost a round of NumPy calls each, and large ones stay in a core's cache.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.journal.kafka.records.batches import RECORD_BYTES_MIN, batches
from penstock.journal.kafka.records.boundaries import NotRecordsError, bodies
from penstock.journal.kafka.records.compression import unpacked
from penstock.journal.kafka.records.gathering import HEADERS, gathered, headers_of
from penstock.journal.kafka.records.varints import BYTES_MAX, signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from penstock.journal.kafka.records.batches import Batch, Partition

GROUP_BYTES: Final = 1 << 20
"""Unpacked. A larger batch is a group of its own."""
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
]
ROWS: Final = pa.schema(_FIELDS)
ROWS_WITH_HEADERS: Final = ROWS.append(pa.field("headers", HEADERS))
NO_MARKER, ABORT, COMMIT = -1, 0, 1
"""What a control batch says of its producer's transaction."""
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")


@dataclass(frozen=True, slots=True)
class BatchTable:
    """What the headers of record batches say, an array for each field."""

    base_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    rows: NDArray[np.int64]
    """How many of the rows are of this batch, in the order of batches: none of a control batch."""
    leader_epoch: NDArray[np.int32]
    producer_id: NDArray[np.int64]
    """-1: the producer has none."""
    producer_epoch: NDArray[np.int16]
    base_sequence: NDArray[np.int32]
    has_append_time: NDArray[np.bool_]
    is_transactional: NDArray[np.bool_]
    is_control: NDArray[np.bool_]
    marker: NDArray[np.int16]
    """COMMIT or ABORT in a control batch that ends a transaction, else NO_MARKER."""
    coordinator_epoch: NDArray[np.int32]
    """Of who wrote the marker; -1 without one."""

    def __len__(self) -> int:
        return len(self.base_offset)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a fetch brought of one partition."""

    rows: pa.Table
    """A row for each record of a producer, from the offset that was asked for on."""
    batches: BatchTable
    next_offset: int
    """Where the next fetch begins: behind the last whole batch."""


def decode(
    partition: Partition, data: bytes | memoryview, begin: int, *, with_headers: bool = False
) -> Decoded:
    """The records of a fetch from offset `begin`. Raises `CorruptRecordsError`."""
    whole = list(batches(partition, memoryview(data), begin))
    groups = [
        _rows(partition, group, with_headers)
        for group in _grouped(partition, (b for b in whole if b.records and not b.is_control))
    ]
    rows = pa.Table.from_batches(groups, ROWS_WITH_HEADERS if with_headers else ROWS)
    early = _early(rows, begin)
    next_offset = whole[-1].last_offset + 1 if whole else begin
    return Decoded(rows.slice(early), _table(partition, whole, early), next_offset)


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of several batches, one behind the other. Compaction leaves batches without any
    record; they are in no group."""

    batches: tuple[Batch, ...]
    sizes: tuple[int, ...]
    """Unpacked, of each batch."""
    data: bytes
    """With zeros behind, as `varints` wants it."""


def _grouped(partition: Partition, whole: Iterable[Batch]) -> Iterator[_Group]:
    members: list[Batch] = []
    sizes: list[int] = []
    pieces: list[bytes | memoryview] = []
    for batch in whole:
        records = unpacked(partition, batch)
        size = sum(map(len, records))
        if batch.records * RECORD_BYTES_MIN > size:
            reason = f"a batch that unpacks to {size} bytes claims to hold {batch.records} records"
            raise partition.corrupt(batch.base_offset, reason)
        members.append(batch)
        sizes.append(size)
        pieces += records
        if sum(sizes) >= GROUP_BYTES:
            yield _Group(tuple(members), tuple(sizes), b"".join((*pieces, bytes(BYTES_MAX))))
            members, sizes, pieces = [], [], []
    if members:
        yield _Group(tuple(members), tuple(sizes), b"".join((*pieces, bytes(BYTES_MAX))))


def _rows(partition: Partition, group: _Group, with_headers: bool) -> pa.RecordBatch:
    counts = np.array([batch.records for batch in group.batches], dtype=np.int64)
    octets = np.frombuffer(group.data, dtype=np.uint8)
    try:
        fields = _located(octets, group, counts)
    except NotRecordsError as error:
        behind = np.cumsum(group.sizes)
        batch = group.batches[min(int(np.searchsorted(behind, error.position, "right")),
                                  len(group.batches) - 1)]  # fmt: skip
        reason = f"a record of the batch is malformed ({batch.records} records)"
        raise partition.corrupt(batch.base_offset, reason) from None
    base_offset = np.array([batch.base_offset for batch in group.batches], dtype=np.int64)
    columns: list[pa.Array[Any]] = [
        pa.array(np.repeat(base_offset, counts) + fields.offset_deltas),
        pa.array(_timestamps(group.batches, counts, fields.timestamp_deltas)),
        gathered(group.data, fields.key_begins, fields.key_lengths),
        gathered(group.data, fields.value_begins, fields.value_lengths),
    ]
    if not with_headers:
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)
    try:
        columns.append(headers_of(group.data, octets, fields.headers_begins, fields.ends))
    except NotRecordsError as error:
        at = int(np.searchsorted(fields.ends, error.position, "right"))
        offset = columns[0][min(at, len(fields.ends) - 1)].as_py()
        raise partition.corrupt(offset, "the headers of a record are malformed") from None
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_WITH_HEADERS)


@dataclass(frozen=True, slots=True)
class _Fields:
    """Numbers of each record, and where its bytes are."""

    timestamp_deltas: NDArray[np.int64]
    offset_deltas: NDArray[np.int64]
    key_begins: NDArray[np.int64]
    key_lengths: NDArray[np.int64]
    value_begins: NDArray[np.int64]
    value_lengths: NDArray[np.int64]
    headers_begins: NDArray[np.int64]
    ends: NDArray[np.int64]


def _located(octets: NDArray[np.uint8], group: _Group, counts: NDArray[np.int64]) -> _Fields:
    size = len(octets) - BYTES_MAX
    position, ends = bodies(octets, size, int(counts.sum()))
    # A batch ends with its last record: records of one batch do not reach into the next.
    if not np.array_equal(ends[np.cumsum(counts) - 1], np.cumsum(group.sizes)):
        raise NotRecordsError(0)
    timestamp_deltas, position = signed(octets, _within(position + 1, ends))
    offset_deltas, position = signed(octets, _within(position, ends))
    key_lengths, key_begins = signed(octets, _within(position, ends))
    position = _within(key_begins + np.maximum(key_lengths, 0), ends)
    value_lengths, value_begins = signed(octets, position)
    headers_begins = _within(value_begins + np.maximum(value_lengths, 0), ends)
    return _Fields(
        timestamp_deltas, offset_deltas, key_begins, key_lengths, value_begins, value_lengths,
        headers_begins, ends,
    )  # fmt: skip


def _within(position: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Checks that every field begins within its record."""
    beyond = position >= ends
    if beyond.any():
        raise NotRecordsError(int(ends[beyond][0]) - 1)
    return position


def _timestamps(
    members: tuple[Batch, ...], counts: NDArray[np.int64], deltas: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A record has its own, or its batch's if the broker stamps them."""
    base = [b.max_timestamp if b.has_append_time else b.base_timestamp for b in members]
    stamped = np.array([batch.has_append_time for batch in members])
    if stamped.any():
        deltas = np.where(np.repeat(stamped, counts), 0, deltas)
    return np.repeat(np.array(base, dtype=np.int64), counts) + deltas


def _early(rows: pa.Table, begin: int) -> int:
    """How many rows are below the offset that was asked for: a batch comes whole."""
    if not rows.num_rows or rows["offset"][0].as_py() >= begin:
        return 0
    return int(np.searchsorted(rows["offset"].to_numpy(), begin))


def _table(partition: Partition, whole: list[Batch], early: int) -> BatchTable:
    rows = np.array([0 if b.is_control else b.records for b in whole], dtype=np.int64)
    before = np.cumsum(rows) - rows
    markers = [_marker(partition, batch) for batch in whole]

    return BatchTable(
        base_offset=np.array([b.base_offset for b in whole], dtype=np.int64),
        last_offset=np.array([b.last_offset for b in whole], dtype=np.int64),
        rows=rows - np.clip(early - before, 0, rows),
        leader_epoch=np.array([b.leader_epoch for b in whole], dtype=np.int32),
        producer_id=np.array([b.producer_id for b in whole], dtype=np.int64),
        producer_epoch=np.array([b.producer_epoch for b in whole], dtype=np.int16),
        base_sequence=np.array([b.base_sequence for b in whole], dtype=np.int32),
        has_append_time=np.array([b.has_append_time for b in whole], dtype=np.bool_),
        is_transactional=np.array([b.is_transactional for b in whole], dtype=np.bool_),
        is_control=np.array([b.is_control for b in whole], dtype=np.bool_),
        marker=np.array([marker for marker, _ in markers], dtype=np.int16),
        coordinator_epoch=np.array([epoch for _, epoch in markers], dtype=np.int32),
    )


def _marker(partition: Partition, batch: Batch) -> tuple[int, int]:
    """What a control batch says, and its coordinator's epoch. Raft's own control records are in no
    topic of a user's; whatever is no marker is none."""
    if not batch.is_control or batch.records == 0:
        return NO_MARKER, -1
    key, value = _control_record(partition, batch)
    _version, kind = _CONTROL_KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return NO_MARKER, -1
    _version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    return kind, coordinator_epoch


def _control_record(partition: Partition, batch: Batch) -> tuple[bytes, bytes]:
    (group,) = _grouped(partition, [batch])
    row = _rows(partition, group, with_headers=False)
    key, value = row["key"][0].as_py(), row["value"][0].as_py()
    if key is None or len(key) < _CONTROL_KEY.size:
        raise partition.corrupt(batch.base_offset, "a control record has no type")
    if value is None or len(value) < _CONTROL_VALUE.size:
        value = _CONTROL_VALUE.pack(0, -1)
    return key, value
