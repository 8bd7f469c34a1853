"""What a task does: reads one member's queue between two epochs, and hands the rows to Spark.

Rows are in queue order: by priority, then by clock with the binding's delay, and of each journal in
the journal's own order.
"""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import PenstockError
from penstock.frontier import decode_chunks, encode_chunks
from penstock.journal.names import name_of
from penstock.journal.views import (
    META,
    MOMENT,
    moment,
    moments,
    producer_names,
    renamed,
    with_meta,
)
from penstock.routing import VNODES
from penstock.shuffle.finding import find_share
from penstock.shuffle.parcels import CLOCK, OFFSET, PRODUCER, READ, TIME, VNODE
from penstock.shuffle.serving import RemoteQueue, open_queue, this_machine
from penstock.spark.streaming import steps
from penstock.spark.streaming.steps import Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.frontier import Frontier
    from penstock.journal.views import Columns
    from penstock.shuffle.outlet import Share
    from penstock.shuffle.queue.block import Order
    from penstock.shuffle.queue.reader import QueueBatch, QueueReader
    from penstock.shuffle.serving import Served
    from penstock.spark.streaming.offset import Offset

LOST_SECONDS_MAX: Final = 60.0
"""A member may be gone for some time before the Session notices, and all begin anew."""
PAUSE_SECONDS: Final = 0.25
_READERS_OPEN_MAX: Final = 16
"""A Python worker of Spark's lives on, and its next task mostly reads the same queue."""


class StretchPartition(InputPartition):
    """What one task reads: a share, between two epochs, of some vnodes."""

    def __init__(
        self,
        share: Share,
        vnodes: Sequence[int] | None,
        start: Frontier,
        end: Frontier,
        last: Offset,
    ) -> None:
        super().__init__(None)
        self.share = share
        self.vnodes = vnodes
        """None: all of the member's."""
        self.start = list(encode_chunks(start))
        self.end = list(encode_chunks(end))
        self.epoch = last.epoch
        self.watermark_moment = moment(int(last.watermark)) if last.watermark else None


def split(vnodes: Sequence[int], splits: int) -> list[Sequence[int] | None]:
    """A member's vnodes in parts of about the same number."""
    if splits == 1:
        return [None]
    bounds = np.linspace(0, len(vnodes), splits + 1).round().astype(int).tolist()
    parts = [vnodes[begin:end] for begin, end in itertools.pairwise(bounds)]
    return [part for part in parts if part]


def read_stretch(partition: StretchPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows as the columns of `schema`."""
    start, end = decode_chunks(partition.start), decode_chunks(partition.end)
    wanted = None
    if partition.vnodes is not None:
        wanted = np.zeros(VNODES, bool)
        wanted[list(partition.vnodes)] = True
    columns = _columns(schema, splits=wanted is not None)
    drawn = _draw(partition.share, start, end, columns)
    constants = _Constants()
    for _, of_block in itertools.groupby(drawn, lambda found: found.lsn):
        parts = [_rows(found, partition, schema, wanted, constants) for found in of_block]
        parts = [part for part in parts if part[0].num_rows]
        if parts:
            yield parts[0][0] if len(parts) == 1 else _in_queue_order(parts)
            steps.reached(Step.READ)


def _columns(schema: pa.Schema, *, splits: bool) -> set[str]:
    """Those of the queue that are needed. What is not read costs next to nothing."""
    columns = set(schema.names) - {META}
    if META in schema.names:
        columns |= {READ, OFFSET, PRODUCER, CLOCK, TIME, VNODE}
    return columns | {VNODE} if splits else columns


class _Constants:
    """Columns of one value. The longest of each is kept, and shorter ones are parts of it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int | None, pa.DataType], pa.Array[Any]] = {}

    def of(self, value: int | None, kind: pa.DataType, count: int) -> pa.Array[Any]:
        kept = self._kept.get((value, kind))
        if kept is None or len(kept) < count:
            one: Any = pa.scalar(value, kind)
            kept = self._kept[value, kind] = pa.repeat(one, count)
        return kept.slice(0, count)


def _rows(
    found: QueueBatch,
    partition: StretchPartition,
    schema: pa.Schema,
    wanted: np.ndarray[Any, np.dtype[np.bool_]] | None,
    constants: _Constants,
) -> tuple[pa.RecordBatch, Order]:
    """Rows of one binding as Spark wants them, and their places in the block."""
    batch, places = found.batch, found.places
    if wanted is not None:
        keep = np.flatnonzero(wanted[batch.column(VNODE).to_numpy()])
        batch, places = batch.take(keep), places[keep]
    return with_meta(batch, schema, _meta(found, batch, partition, constants)), places


def _meta(
    found: QueueBatch,
    batch: pa.RecordBatch,
    partition: StretchPartition,
    constants: _Constants,
) -> Columns:
    count = batch.num_rows
    timed = TIME if TIME in batch.schema.names else CLOCK
    return {
        "journal": lambda: _journals(found, batch),
        "offset": lambda: batch.column(OFFSET),
        "producer": lambda: producer_names(batch.column(PRODUCER)),
        "clock": lambda: moments(batch.column(timed).to_numpy()),
        "clock_raw": lambda: batch.column(CLOCK),
        "binding": lambda: constants.of(found.stage.binding, pa.int32(), count),
        "member": lambda: constants.of(partition.share.member, pa.int32(), count),
        "vnode": lambda: batch.column(VNODE),
        "epoch": lambda: constants.of(partition.epoch, pa.int64(), count),
        "watermark": lambda: constants.of(partition.watermark_moment, MOMENT, count),
    }


def _journals(found: QueueBatch, batch: pa.RecordBatch) -> pa.Array[Any]:
    return renamed(batch.column(READ), lambda number: name_of(found.names[number][1]))


def _in_queue_order(parts: list[tuple[pa.RecordBatch, Order]]) -> pa.RecordBatch:
    order = np.argsort(np.concatenate([places for _, places in parts]), kind="stable")
    table = pa.Table.from_batches([batch for batch, _ in parts])
    return table.take(order).combine_chunks().to_batches()[0]


def _draw(
    share: Share, start: Frontier, end: Frontier, columns: Collection[str]
) -> Iterator[QueueBatch]:
    """If the queue is not there any more, it is where the driver says. Once rows have come it is
    too late for that; but Spark runs the task again, if it may."""
    finder = None if share.served is None else share.served.finder
    deadline = time.monotonic() + LOST_SECONDS_MAX
    while True:
        try:
            found = open_share(share).read(start, end, share.lsn, columns)
            first = next(found, None)
            break
        except PenstockError:
            if finder is None or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)
            share = find_share(finder, share.member)
    if first is not None:
        yield first
        yield from found


def open_share(share: Share) -> QueueReader | RemoteQueue:
    """The queue's own files, if they are on this machine."""
    served = share.served
    if served is None or (served.machine == this_machine() and Path(share.folder).is_dir()):
        return open_reader(share.folder, share.generation)
    return open_remote(served, share.generation)


@functools.lru_cache(maxsize=_READERS_OPEN_MAX)
def open_reader(folder: str, generation: int) -> QueueReader:
    """Which remembers blocks it has looked at. A queue that was begun anew needs another one."""
    return open_queue(Path(folder), generation)


@functools.lru_cache(maxsize=_READERS_OPEN_MAX)
def open_remote(served: Served, generation: int) -> RemoteQueue:
    return RemoteQueue(served, generation)
