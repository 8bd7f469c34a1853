"""Reading a Queue: the visible rows of an epoch, in order. Another process may be appending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.shuffle.queue.catalogue import Catalogue
from penstock.shuffle.queue.visible import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.frontier.table import Frontier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Names, Order
    from penstock.shuffle.queue.segment import Loaded
    from penstock.shuffle.queue.visible import Mask


@dataclass(frozen=True, slots=True, eq=False)
class QueueBatch:
    """The visible rows of one binding and version in one block, in queue order."""

    lsn: int
    """Of the block. Blocks come in queue order, which is not that of LSNs if there are survivors:
    these have the place of the rows they are."""
    stage: Stage
    batch: pa.RecordBatch
    """With the columns of a parcel. It may point into the segment's file."""
    places: Order
    """The rows' places among all rows of the block, ascending: by them the batches of a block are
    put together."""
    names: Names
    """Binding and journal of each number in the column `_read`, and of others."""


@dataclass(frozen=True, slots=True)
class Measure:
    documents: int
    bytes: int
    """As they lie on disk."""

    def __add__(self, other: Measure) -> Measure:
        return Measure(self.documents + other.documents, self.bytes + other.bytes)


class QueueReader:
    """Reads the queue in a folder, for as long as its log is not opened anew."""

    def __init__(self, folder: Path) -> None:
        self._catalogue = Catalogue(folder)

    def read(self, start: Frontier, end: Frontier, lsn: int) -> Iterator[QueueBatch]:
        """The rows of (start, end], which were all written by `lsn`."""
        view = self._catalogue.view(lsn)
        window = Window(view, start, end)
        for index, loaded in enumerate(view.blocks):
            yield from batches_of(loaded, window.select(index))

    def measure(self, start: Frontier, end: Frontier, lsn: int) -> Measure:
        """How much that would be. Most of it is told by the blocks' metadata."""
        view = self._catalogue.view(lsn)
        window = Window(view, start, end)
        total, size_bytes = 0, 0.0
        for index, loaded in enumerate(view.blocks):
            for part, selected in zip(loaded.block.parts, window.select(index), strict=True):
                if selected is False:
                    continue
                rows = part.rows if selected is True else int(np.count_nonzero(selected))
                total += rows
                size_bytes += part.size_bytes * rows / part.rows
        return Measure(total, round(size_bytes))

    def close(self) -> None:
        """Lets go of the files. Batches that point into them stay whole."""
        self._catalogue.forget()

    def __enter__(self) -> QueueReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def batches_of(loaded: Loaded, selected: Sequence[bool | Mask]) -> Iterator[QueueBatch]:
    """The selected rows of a block, by stage."""
    parts = loaded.block.parts
    stages = {
        part.stage: None for part, rows in zip(parts, selected, strict=True) if rows is not False
    }
    if not stages:
        return
    order = loaded.order()
    for stage in stages:
        batches, rows_of_stage = _gather(loaded, stage, selected)
        if order is None:
            places = np.flatnonzero(rows_of_stage >= 0)
            rows = rows_of_stage[places]
        else:
            ordered = rows_of_stage[order]
            places = np.flatnonzero(ordered >= 0)
            rows = ordered[places]
        yield QueueBatch(
            loaded.block.lsn,
            stage,
            _take(batches, rows),
            places.astype(np.uint32),
            loaded.names,
        )


def _gather(
    loaded: Loaded, stage: Stage, selected: Sequence[bool | Mask]
) -> tuple[list[pa.RecordBatch], np.ndarray[Any, np.dtype[np.int64]]]:
    """The parts of a stage, and for every row of the block its number in them; -1 for others."""
    rows_of_stage = np.full(loaded.block.rows, -1, np.int64)
    batches: list[pa.RecordBatch] = []
    begin = own = 0
    for part, rows in zip(loaded.block.parts, selected, strict=True):
        if part.stage == stage and rows is not False:
            batches.append(loaded.decode(part))
            numbers = np.arange(own, own + part.rows)
            rows_of_stage[begin : begin + part.rows] = (
                numbers if rows is True else np.where(rows, numbers, -1)
            )
            own += part.rows
        begin += part.rows
    return batches, rows_of_stage


def _take(
    batches: list[pa.RecordBatch], rows: np.ndarray[Any, np.dtype[np.int64]]
) -> pa.RecordBatch:
    total = sum(batch.num_rows for batch in batches)
    if len(rows) == total and (rows == np.arange(total)).all():
        return batches[0] if len(batches) == 1 else joined(batches)
    if len(batches) == 1:
        return batches[0].take(pa.array(rows))
    # A table takes from its chunks at once; to join them before costs five times as much.
    return pa.Table.from_batches(batches).take(pa.array(rows)).combine_chunks().to_batches()[0]


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
