"""Reclaim: disk space goes back when the consumer is done with an epoch.

1. **Drop.** A segment goes, the oldest first, if nobody will ask for any of its rows again: they
   were consumed, or forgotten by a rollback that no cut takes back, or a block of survivors that
   every reader reads has them.
2. **Rewrite.** If the oldest segments together are mostly such rows, the others (of open spans) are
   written again, as one block at the end that stands for those segments. They are dropped once the
   consumer is done with an epoch that has this block; until then some may read them.

So a span that stays open costs a few times its own size, whatever passes by meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import PARCEL_FIELDS
from penstock.shuffle.queue.block import BLOCK_ROWS_MAX
from penstock.shuffle.queue.errors import QueueWriteError
from penstock.shuffle.queue.reader import batches_of
from penstock.shuffle.queue.segment import segment_of
from penstock.shuffle.queue.visible import Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.frontier.table import Frontier
    from penstock.shuffle.queue.block import Order, Parcel
    from penstock.shuffle.queue.catalogue import View
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.reader import QueueBatch

SURVIVORS_SHARE_MAX: Final = 1 / 4
"""Of the bytes of the segments that a block of survivors stands for. So for each byte that is
written again three are freed."""
SURVIVORS_BYTES_MAX: Final = 64 * 1024 * 1024
"""It is one block, and is put together in memory."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    segments: tuple[int, ...] = ()
    """That were dropped."""
    freed_bytes: int = 0
    survivors_lsn: int | None = None
    """Of the block of survivors, if one was written. It is not durable yet."""
    survivors_rows: int = 0


def reclaim(log: QueueLog, consumed: Frontier, consumed_lsn: int) -> Reclaimed:
    """Frees what nobody needs who reads from `consumed` on, an epoch with `consumed_lsn`."""
    if consumed_lsn > log.durable_lsn:
        raise LocalProtocolError(
            f"the consumer cannot be done with LSN {consumed_lsn:#x}: durable is "
            f"{log.durable_lsn:#x}"
        )
    if segment_of(consumed_lsn) <= log.first_segment:
        return Reclaimed()
    view = log.catalogue.view(consumed_lsn)
    window = Window(view, consumed, None)
    segments = range(log.first_segment, segment_of(consumed_lsn))
    remains = _remains(view, window, segments)
    first = segments.start
    while first < segments.stop and (first in view.passed_over or not remains[first].rows_left):
        first += 1
    dropped, freed_bytes = range(segments.start, first), 0
    if dropped:
        freed_bytes = log.drop(first, consumed_lsn)
    rewritten = _worth_rewriting(
        remains, range(first, segments.stop), segment_of(log.survivors_lsn)
    )
    if not rewritten:
        return Reclaimed(tuple(dropped), freed_bytes)
    batches = _survivors(log, consumed, rewritten)
    if not batches:
        return Reclaimed(tuple(dropped), freed_bytes)
    parts, order, names = put_together(batches)
    try:
        lsn = log.append(parts, order, names, stands_for=tuple(rewritten))
    except QueueWriteError:  # a full disk; with the next epoch there may be room
        return Reclaimed(tuple(dropped), freed_bytes)
    return Reclaimed(tuple(dropped), freed_bytes, lsn, len(order))


def _survivors(log: QueueLog, consumed: Frontier, segments: range) -> list[tuple[int, QueueBatch]]:
    """With the index of their block. All rollbacks count that are stored by now: they may lie in
    segments that are dropped before the block of survivors is. A cut that takes one of them back
    takes that block, too."""
    view = log.catalogue.view(log.last_lsn)
    window = Window(view, consumed, None)
    return [
        (index, batch)
        for index, loaded in enumerate(view.blocks)
        if loaded.segment.segment in segments
        for batch in batches_of(loaded, window.select(index))
    ]


class _Remains:
    """What is left of a segment."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.bytes_left = 0.0
        self.rows_left = 0


def _remains(view: View, window: Window, segments: range) -> dict[int, _Remains]:
    found = {segment: _Remains() for segment in segments}
    for index, loaded in enumerate(view.blocks):
        remains = found.get(loaded.segment.segment)
        if remains is None:
            continue
        for part, rows in zip(loaded.block.parts, window.select(index), strict=True):
            left = part.rows if rows is True else int(np.count_nonzero(rows))
            remains.size_bytes += part.size_bytes
            remains.bytes_left += part.size_bytes * left / part.rows
            remains.rows_left += left
    return found


def _worth_rewriting(remains: dict[int, _Remains], segments: range, survivors_at: int) -> range:
    """The longest row of segments from the oldest on of which little enough is left. It has to
    include the last survivors: these are the oldest rows of all, and there is one block of them.
    So nothing is rewritten while the consumer is not yet beyond the last such block."""
    size_bytes, bytes_left, rows_left, stop = 0, 0.0, 0, segments.start
    for segment in segments:
        size_bytes += remains[segment].size_bytes
        bytes_left += remains[segment].bytes_left
        rows_left += remains[segment].rows_left
        if bytes_left > SURVIVORS_BYTES_MAX or rows_left > BLOCK_ROWS_MAX:
            break
        if segment >= survivors_at and bytes_left <= SURVIVORS_SHARE_MAX * size_bytes:
            stop = segment + 1
    return range(segments.start, stop)


def put_together(
    batches: Sequence[tuple[int, QueueBatch]],
) -> tuple[list[Parcel], Order, dict[int, tuple[int, str]]]:
    """As parcels of one block, and the order that the rows had."""
    numbers = _Numbers()
    parcels = [(batch.stage, numbers.renumber(batch)) for _, batch in batches]
    keys = [index << 32 | batch.places.astype(np.int64) for index, batch in batches]
    order = np.argsort(np.concatenate(keys), kind="stable")
    return parcels, order.astype(np.uint32), numbers.names


class _Numbers:
    """Numbers of reads that come from several segments. They mean the same everywhere, unless the
    reads were numbered anew between two."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[int, str]] = {}
        self._numbers: dict[tuple[int, str], int] = {}

    def renumber(self, batch: QueueBatch) -> pa.RecordBatch:
        distinct, places = np.unique(batch.batch.column(0).to_numpy(), return_inverse=True)
        numbers = [self._number(read, batch.names[read]) for read in distinct.tolist()]
        if numbers == distinct.tolist():
            return batch.batch
        reads = pa.array(np.array(numbers, np.uint32)[places])
        return batch.batch.set_column(0, PARCEL_FIELDS[0], reads)

    def _number(self, read: int, name: tuple[int, str]) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = read if read not in self.names else max(self.names) + 1
            self.names[number] = name
            self._numbers[name] = number
        return number
