"""The fields of all records of a fetch, as columns.

Batches are unpacked and laid one behind the other into groups of about a megabyte, so that small
batches do not cost a round of NumPy calls each, and large ones stay in a core's cache.
"""

from __future__ import annotations

import functools
import itertools
import struct
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.journal.kafka.errors import CorruptRecordsError
from penstock.journal.kafka.records.batches import (
    HEADER,
    RECORD_BYTES_MIN,
    Batch,
    Partition,
    batches,
)
from penstock.journal.kafka.records.boundaries import NotRecordsError, bodies
from penstock.journal.kafka.records.compression import unpacked
from penstock.journal.kafka.records.gathering import HEADERS, gathered, headers_of
from penstock.journal.kafka.records.varints import BYTES_MAX, signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

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
_NO_LIMIT: Final = 1 << 62
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")
_CONTROL_RECORDS_KEPT: Final = 256
"""Markers of one kind and coordinator epoch have the same bytes: a few are known soon."""


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
    """Where the next fetch begins: behind the last whole batch, or at what was left for later."""
    batch_bytes_max: int = 0
    """Of the largest whole batch that came, as it is stored: brokers give none of a larger one than
    they are asked for."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a broker gave of a partition, to be decoded from offset `begin` on."""

    partition: Partition
    data: bytes | memoryview
    begin: int
    bytes_max: int | None = None
    """Of keys and values: as many records as fit, but one at least. None: all."""


def decode(
    partition: Partition, data: bytes | memoryview, begin: int, *, with_headers: bool = False
) -> Decoded:
    """The records of a fetch from offset `begin`. Raises `CorruptRecordsError`."""
    (decoded,) = decode_all([Bytes(partition, data, begin)], with_headers=with_headers)
    return decoded


def decode_all(fetched: Sequence[Bytes], *, with_headers: bool = False) -> list[Decoded]:
    """The records of each. Small pieces of many partitions cost little more than one large piece.
    Raises `CorruptRecordsError`."""
    whole = [tuple(batches(one.partition, memoryview(one.data), one.begin)) for one in fetched]
    parts: list[list[_Part]] = [[] for _ in fetched]
    runs = (
        run
        for place, one in enumerate(fetched)
        for run in _runs(place, one, [b for b in whole[place] if b.records and not b.is_control])
    )
    for group in _grouped(runs):
        for run, part in zip(group.runs, _parts(group, with_headers), strict=True):
            parts[run.place].append(part)
    schema = ROWS_WITH_HEADERS if with_headers else ROWS
    return [_decoded(*each, schema) for each in zip(fetched, whole, parts, strict=True)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Batches of one partition, unpacked. Compaction leaves batches without any record; they and
    control batches are in no run."""

    place: int
    """Of the partition, among those that are decoded together."""
    wanted: Bytes
    batches: tuple[Batch, ...]
    sizes: tuple[int, ...]
    """Unpacked, of each batch."""
    pieces: tuple[bytes | memoryview, ...]
    rest_at: int | None = None
    """Where the batches begin that are left for later."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of several batches, one behind the other."""

    runs: tuple[_Run, ...]
    batches: tuple[Batch, ...]
    sizes: tuple[int, ...]
    """Unpacked, of each batch."""
    data: bytes
    """With zeros behind, as `varints` wants it."""

    def corrupt(self, batch: int, offset: int, reason: str) -> CorruptRecordsError:
        for run in self.runs:
            if batch < len(run.batches):
                return run.wanted.partition.corrupt(offset, reason)
            batch -= len(run.batches)
        raise IndexError(batch)


def _runs(place: int, wanted: Bytes, filled: Sequence[Batch]) -> Iterator[_Run]:
    """The batches of a partition with records in them. If only so many bytes are wanted, one run
    has all of these."""
    members: list[Batch] = []
    sizes: list[int] = []
    pieces: list[bytes | memoryview] = []
    for batch in filled:
        # Of the first one, nobody knows yet how many records are below the offset.
        if wanted.bytes_max is not None and sum(sizes[1:]) >= wanted.bytes_max:
            yield _Run(
                place, wanted, tuple(members), tuple(sizes), tuple(pieces), batch.base_offset
            )
            return
        records = _records(wanted.partition, batch)
        members.append(batch)
        sizes.append(sum(map(len, records)))
        pieces += records
        if wanted.bytes_max is None and sum(sizes) >= GROUP_BYTES:
            yield _Run(place, wanted, tuple(members), tuple(sizes), tuple(pieces))
            members, sizes, pieces = [], [], []
    if members:
        yield _Run(place, wanted, tuple(members), tuple(sizes), tuple(pieces))


def _records(partition: Partition, batch: Batch) -> list[bytes | memoryview]:
    records = unpacked(partition, batch)
    size = sum(map(len, records))
    if batch.records * RECORD_BYTES_MIN > size:
        reason = f"a batch that unpacks to {size} bytes claims to hold {batch.records} records"
        raise partition.corrupt(batch.base_offset, reason)
    return records


def _grouped(runs: Iterable[_Run]) -> Iterator[_Group]:
    members: list[_Run] = []
    size = 0
    for run in runs:
        members.append(run)
        size += sum(run.sizes)
        if size >= GROUP_BYTES:
            yield _group(members)
            members, size = [], 0
    if members:
        yield _group(members)


def _group(runs: list[_Run]) -> _Group:
    return _Group(
        tuple(runs),
        tuple(batch for run in runs for batch in run.batches),
        tuple(size for run in runs for size in run.sizes),
        b"".join((*(piece for run in runs for piece in run.pieces), bytes(BYTES_MAX))),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What is wanted of a run."""

    rows: pa.Table
    counts: Mapping[int, int]
    """How many of the rows each batch has, by its base offset."""
    cut_at: int | None
    """Where what is left for later begins."""


def _parts(group: _Group, with_headers: bool) -> list[_Part]:
    """What is wanted of each run of the group."""
    counts = np.array([batch.records for batch in group.batches], dtype=np.int64)
    octets = np.frombuffer(group.data, dtype=np.uint8)
    try:
        fields = _located(octets, group, counts)
    except NotRecordsError as error:
        behind = np.cumsum(group.sizes)
        at = min(int(np.searchsorted(behind, error.position, "right")), len(group.batches) - 1)
        batch = group.batches[at]
        reason = f"a record of the batch is malformed ({batch.records} records)"
        raise group.corrupt(at, batch.base_offset, reason) from None
    base_offset = np.array([batch.base_offset for batch in group.batches], dtype=np.int64)
    offsets = np.repeat(base_offset, counts) + fields.offset_deltas
    timestamps = _timestamps(group.batches, counts, fields.timestamp_deltas)
    starts = np.cumsum(counts) - counts
    firsts = np.cumsum([0, *(len(run.batches) for run in group.runs)])
    begins = np.append(starts, len(offsets))[firsts]
    wanted = _wanted(group, offsets, fields, begins)
    cuts = _cuts(offsets, wanted, begins)
    if not wanted.all():
        offsets, timestamps, fields = offsets[wanted], timestamps[wanted], fields.of(wanted)
        counts = np.add.reduceat(wanted, starts, dtype=np.int64)
    columns: list[pa.Array[Any]] = [
        pa.array(offsets),
        pa.array(timestamps),
        gathered(group.data, fields.key_begins, fields.key_lengths),
        gathered(group.data, fields.value_begins, fields.value_lengths),
    ]
    if with_headers:
        columns.append(_headers(group, octets, fields, offsets, counts))
    schema = ROWS_WITH_HEADERS if with_headers else ROWS
    rows = pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=schema)])
    parts, row_at = [], 0
    for place, (run, cut_at) in enumerate(zip(group.runs, cuts, strict=True)):
        own = counts[firsts[place] : firsts[place + 1]].tolist()
        by_batch = dict(zip((batch.base_offset for batch in run.batches), own, strict=True))
        cut = run.rest_at if cut_at is None else cut_at
        parts.append(_Part(rows.slice(row_at, sum(own)), by_batch, cut))
        row_at += sum(own)
    return parts


def _headers(
    group: _Group,
    octets: NDArray[np.uint8],
    fields: _Fields,
    offsets: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> pa.Array[Any]:
    try:
        return headers_of(group.data, octets, fields.headers_begins, fields.ends)
    except NotRecordsError as error:
        at = min(int(np.searchsorted(fields.ends, error.position, "right")), len(offsets) - 1)
        batch = int(np.searchsorted(np.cumsum(counts), at, "right"))
        reason = "the headers of a record are malformed"
        raise group.corrupt(batch, int(offsets[at]), reason) from None


def _wanted(
    group: _Group, offsets: NDArray[np.int64], fields: _Fields, begins: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which records are wanted. A batch comes whole: its first records may be below the offset that
    was asked for, and its last ones more than there is room for. `begins` has the first record of
    each run, and the end of the last."""
    rows = np.diff(begins)
    wanted: NDArray[np.bool_] = offsets >= np.repeat([run.wanted.begin for run in group.runs], rows)
    limits = [run.wanted.bytes_max for run in group.runs]
    if any(limit is not None for limit in limits):
        sizes = np.maximum(fields.key_lengths, 0) + np.maximum(fields.value_lengths, 0)
        sizes[~wanted] = 0
        before = np.cumsum(sizes) - sizes
        room = [_NO_LIMIT if limit is None else max(limit, 1) for limit in limits]
        wanted &= before - np.repeat(before[begins[:-1]], rows) < np.repeat(room, rows)
    return wanted


def _cuts(
    offsets: NDArray[np.int64], wanted: NDArray[np.bool_], begins: NDArray[np.int64]
) -> list[int | None]:
    """Of each run, the offset of the first record that is left for later. Those that are wanted
    stand together."""
    if wanted.all():
        return [None] * (len(begins) - 1)
    cuts: list[int | None] = []
    for begin, end in itertools.pairwise(begins.tolist()):
        own = np.flatnonzero(wanted[begin:end])
        behind = begin + int(own[-1]) + 1 if len(own) else end
        cuts.append(int(offsets[behind]) if behind < end else None)
    return cuts


def _decoded(
    wanted: Bytes, whole: Sequence[Batch], parts: Sequence[_Part], schema: pa.Schema
) -> Decoded:
    next_offset = whole[-1].last_offset + 1 if whole else wanted.begin
    largest = max((HEADER.size + len(batch.payload) for batch in whole), default=0)
    rows = pa.concat_tables([part.rows for part in parts]) if parts else schema.empty_table()
    if parts and parts[-1].cut_at is not None:
        next_offset = parts[-1].cut_at
        whole = [batch for batch in whole if batch.base_offset < next_offset]
    counts = {offset: count for part in parts for offset, count in part.counts.items()}
    return Decoded(rows, _table(wanted.partition, whole, counts), next_offset, largest)


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

    def of(self, chosen: NDArray[np.bool_]) -> _Fields:
        return _Fields(*(getattr(self, one.name)[chosen] for one in dataclass_fields(self)))


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


def _table(partition: Partition, whole: Sequence[Batch], rows: Mapping[int, int]) -> BatchTable:
    """`rows` has how many each batch has, by base offset, if it has any."""
    markers = [_marker(partition, batch) for batch in whole]

    return BatchTable(
        base_offset=np.array([b.base_offset for b in whole], dtype=np.int64),
        last_offset=np.array([b.last_offset for b in whole], dtype=np.int64),
        rows=np.array([rows.get(b.base_offset, 0) for b in whole], dtype=np.int64),
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
    """What a control batch says, and its coordinator's epoch."""
    if not batch.is_control or batch.records == 0:
        return NO_MARKER, -1
    try:
        return _said(batch.attributes, batch.records, batch.payload.tobytes())
    except CorruptRecordsError as error:
        raise partition.corrupt(batch.base_offset, error.reason) from None


@functools.lru_cache(_CONTROL_RECORDS_KEPT)
def _said(attributes: int, records: int, payload: bytes) -> tuple[int, int]:
    """By the bytes of a control record. Raft's own are in no topic of a user's; whatever is no
    marker is none. To decode one costs as much as to decode thousands of rows, and a busy
    transactional topic has one for every few rows: so what they say is remembered."""
    nowhere = Partition("", 0)
    batch = Batch(0, 0, 0, attributes, 0, 0, 0, 0, 0, records, memoryview(payload))
    (run,) = _runs(0, Bytes(nowhere, b"", 0), [batch])
    (part,) = _parts(_group([run]), with_headers=False)
    key, value = part.rows["key"][0].as_py(), part.rows["value"][0].as_py()
    if key is None or len(key) < _CONTROL_KEY.size:
        raise nowhere.corrupt(0, "a control record has no type")
    _version, kind = _CONTROL_KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return NO_MARKER, -1
    if value is None or len(value) < _CONTROL_VALUE.size:
        return kind, -1
    _version, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    return kind, coordinator_epoch
