"""Reading a Queue: the visible rows of an epoch, in order. Another process may be appending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.shuffle.parcels import VNODE
from penstock.shuffle.queue.catalogue import Catalogue
from penstock.shuffle.queue.visible import Window

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.frontier.table import Frontier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Names, Order
    from penstock.shuffle.queue.segment import Loaded
    from penstock.shuffle.queue.visible import Mask


@dataclass(frozen=True, slots=True, eq=False)
class QueueBatch:
    """The visible rows of one part of a block, in queue order."""

    lsn: int
    """Of the block. Blocks come in queue order, which is not that of LSNs if there are survivors:
    these have the place of the rows they are."""
    stage: Stage
    batch: pa.RecordBatch
    """With the columns of a parcel, or those of them that were asked for and are there."""
    places: Order
    """The rows' places among all rows of the block, ascending: by them the batches of a block are
    put together."""
    names: Names
    """Binding and journal of each number in the column `_read`, and of others."""


Wanted: TypeAlias = "Collection[str] | None"
"""Names of columns; None: all."""


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

    def read(
        self, start: Frontier, end: Frontier, lsn: int, columns: Wanted = None
    ) -> Iterator[QueueBatch]:
        """The rows of (start, end], which were all written by `lsn`."""
        view = self._catalogue.view(lsn)
        window = Window(view, start, end)
        for index, loaded in enumerate(view.blocks):
            yield from batches_of(loaded, window.select(index), columns)

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
        """Lets go of the files. Batches stay whole."""
        self._catalogue.forget()

    def __enter__(self) -> QueueReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def batches_of(
    loaded: Loaded, selected: Sequence[bool | Mask], columns: Wanted = None
) -> Iterator[QueueBatch]:
    """The selected rows of a block, part by part."""
    if all(rows is False for rows in selected):
        return
    for part, rows, places in zip(loaded.block.parts, selected, loaded.places(), strict=True):
        if rows is False:
            continue
        batch = _chosen(loaded.decode(part), columns)
        if rows is not True:
            taken = np.flatnonzero(rows)
            batch, places = batch.take(taken), places[taken]  # noqa: PLW2901
        yield QueueBatch(loaded.block.lsn, part.stage, batch, places, loaded.names)


def _chosen(batch: pa.RecordBatch, columns: Wanted) -> pa.RecordBatch:
    """Before rows are moved: those of other columns need not be."""
    if columns is None:
        return batch
    names = [name for name in batch.schema.names if name in columns]
    return batch.select(names or [VNODE])  # a batch without columns has no rows
