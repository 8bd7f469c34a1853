"""Reclaim: disk space goes back when the consumer is done with an epoch.

1. **Drop.** A segment goes, the oldest first, if nobody will ask for any of its rows again: they
   were consumed, or forgotten by a rollback that no cut takes back, or a block of survivors that
   every reader reads has them.
2. **Rewrite.** If the oldest segments together are mostly such rows, the others (of open spans) are
   written again, in blocks at the end that stand for those segments. They are dropped once the
   consumer is done with an epoch that has these blocks; until then some may read them.

A block of survivors stands for whole segments that are neighbours in the order of rows, and is
alone in a segment of its own. So each is right by itself, whatever becomes of the next, and may be
written again like any other segment. A span that stays open costs a few times its own size,
whatever that is, and whatever passes by meanwhile.

The segment that is being written cannot go: epochs end in it. A queue that is short of room has a
block stand for that one too, of no rows if need be; the next epoch ends behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import PARCEL_FIELDS
from penstock.shuffle.queue.errors import QueueWriteError
from penstock.shuffle.queue.reader import batches_of
from penstock.shuffle.queue.segment import segment_of
from penstock.shuffle.queue.visible import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.frontier.table import Frontier
    from penstock.shuffle.queue.block import Order, Parcel
    from penstock.shuffle.queue.catalogue import View
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.reader import QueueBatch

SURVIVORS_SHARE_MAX: Final = 1 / 4
"""Of the bytes of the segments that are written again. So for each byte that is written again three
are freed."""
SURVIVORS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a block of survivors, unless one segment alone has more: it is put together in memory."""
SURVIVORS_BLOCKS_MAX: Final = 4
"""Written at once: the queue does nothing else meanwhile. The next epoch goes on with the rest."""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    segments: tuple[int, ...] = ()
    """That were dropped."""
    freed_bytes: int = 0
    survivors_lsn: int | None = None
    """Of the last block of survivors, if one was written. It is not durable yet."""
    survivors_rows: int = 0


def reclaim(
    log: QueueLog, consumed: Frontier, consumed_lsn: int, *, short_of_room: bool = False
) -> Reclaimed:
    """Frees what nobody needs who reads from `consumed` on, an epoch with `consumed_lsn`."""
    if consumed_lsn > log.durable_lsn:
        raise LocalProtocolError(
            f"the consumer cannot be done with LSN {consumed_lsn:#x}: durable is "
            f"{log.durable_lsn:#x}"
        )
    dropped, freed_bytes = _drop(log, consumed, consumed_lsn)
    stop = segment_of(consumed_lsn)
    if short_of_room and consumed_lsn == log.last_lsn:
        stop += 1
    segments = range(log.first_segment, stop)
    if not consumed_lsn or not segments:
        return Reclaimed(dropped, freed_bytes)
    lsn, rows = _rewrite(log, consumed, segments)
    return Reclaimed(dropped, freed_bytes, lsn, rows)


def _rewrite(log: QueueLog, consumed: Frontier, segments: range) -> tuple[int | None, int]:
    """Writes survivors of the oldest of these segments, if that is worth it."""
    # All rollbacks count that are stored by now: they may lie in segments that are dropped before
    # a block of survivors is. A cut that takes one of them back takes that block, too.
    view = log.catalogue.view(log.last_lsn)
    window = Window(view, consumed, None)
    remains = _remains(view, window, segments)
    # What nobody needs of a sealed segment goes by itself; the one being written has to be sealed.
    runs = [
        run
        for run in _runs(remains, _worth_rewriting(remains, segments))
        if any(each.rows_left or each.segment == log.segment for each in run)
    ]
    # Segments are dropped by number. So are rollbacks: not before what they forget.
    runs.sort(key=lambda run: min(each.segment for each in run))
    lsn, rows = None, 0
    for run in runs[:SURVIVORS_BLOCKS_MAX]:
        batches = [
            (index, batch)
            for each in run
            for index in each.blocks
            for batch in batches_of(view.blocks[index], window.select(index))
        ]
        stands_for = sorted({number for each in run for number in (each.place, each.segment)})
        try:
            lsn = log.append(*put_together(batches), stands_for=stands_for)
        except QueueWriteError:  # a full disk; with the next epoch there may be room
            break
        rows += sum(each.rows_left for each in run)
    return lsn, rows


def _drop(log: QueueLog, consumed: Frontier, consumed_lsn: int) -> tuple[tuple[int, ...], int]:
    """Drops the oldest segments that nobody needs, and gives what that frees."""
    stop = segment_of(consumed_lsn)
    if stop <= log.first_segment:
        return (), 0
    segments = range(log.first_segment, stop)
    view = log.catalogue.view(consumed_lsn)
    remains = _remains(view, Window(view, consumed, None), segments)
    needed = {each.segment for each in remains if each.rows_left}
    dropped = range(segments.start, min(needed, default=stop))
    return tuple(dropped), log.drop(dropped.stop, consumed_lsn) if dropped else 0


@dataclass(slots=True)
class _Remains:
    """What is left of a segment."""

    segment: int
    place: int
    """In the order of rows: of the oldest segment that its blocks stand for, or its own."""
    is_compressed: bool
    blocks: list[int] = field(default_factory=list)
    """Their indices in the view."""
    size_bytes: int = 0
    bytes_left: float = 0.0
    rows_left: int = 0
    is_split: bool = False
    """Rows of other segments come between its own: it has blocks of survivors among others, as
    earlier releases wrote them."""

    @property
    def memory_bytes(self) -> float:
        """What its rows take when they are put together."""
        if not self.is_compressed:
            return self.bytes_left
        return SURVIVORS_BYTES_MAX * self.bytes_left / max(self.size_bytes, 1)


def _remains(view: View, window: Window, measured: range) -> list[_Remains]:
    """All segments of a view in the order of their rows, and of some what is left of them."""
    found: dict[int, _Remains] = {}
    last = None
    for index, loaded in enumerate(view.blocks):
        number, block = loaded.segment.segment, loaded.block
        remains = found.get(number)
        if remains is None:
            place = min(block.stands_for, default=number)
            remains = _Remains(number, place, loaded.segment.header.compressed)
            found[number] = remains
        elif last is not remains:
            remains.is_split = True
        last = remains
        remains.blocks.append(index)
        selected = window.select(index) if number in measured else [False] * len(block.parts)
        for part, rows in zip(block.parts, selected, strict=True):
            left = part.rows if rows is True else int(np.count_nonzero(rows))
            remains.size_bytes += part.size_bytes
            remains.bytes_left += part.size_bytes * left / part.rows
            remains.rows_left += left
    return list(found.values())


def _worth_rewriting(remains: Sequence[_Remains], segments: range) -> set[int]:
    """The longest row of segments from the oldest on of which little enough is left. Those that
    others stand for already are not among the remains."""
    by_number = sorted(
        (each for each in remains if each.segment in segments), key=lambda each: each.segment
    )
    size_bytes, bytes_left, stop = 0, 0.0, segments.start
    for each in by_number:
        size_bytes += each.size_bytes
        bytes_left += each.bytes_left
        if size_bytes and bytes_left <= SURVIVORS_SHARE_MAX * size_bytes:
            stop = each.segment + 1
    if any(each.is_split and each.segment >= stop for each in remains):
        return set()  # what lies between its rows has to come with it
    return {each.segment for each in by_number if each.segment < stop}


def _runs(remains: Sequence[_Remains], chosen: set[int]) -> Iterator[list[_Remains]]:
    """The chosen segments as rows of neighbours, each for a block of its own. Rows of a segment
    that is split come together only with all that lies between them."""
    run: list[_Remains] = []
    size_bytes, is_split = 0.0, any(each.is_split for each in remains)
    for each in remains:
        if each.segment not in chosen:
            if run:
                yield run
            run, size_bytes = [], 0.0
            continue
        if run and not is_split and size_bytes + each.memory_bytes > SURVIVORS_BYTES_MAX:
            yield run
            run, size_bytes = [], 0.0
        run.append(each)
        size_bytes += each.memory_bytes
    if run:
        yield run


def put_together(
    batches: Sequence[tuple[int, QueueBatch]],
) -> tuple[list[Parcel], Order | None, dict[int, tuple[int, str]]]:
    """As parcels of one block, and the order that the rows had."""
    numbers = _Numbers()
    if not batches:
        return [], None, {}
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
