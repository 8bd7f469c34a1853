"""Handing vnodes over: rows that are still needed go from one queue to another, as they are.

Of the queues of an epoch nothing waits any more when vnodes change hands: what waited for the merge
is written, in the order in which it would have been if every stream had ended. So a queue is its
rows and nothing else, and the streams of the next session begin anew.

1. **Settle.** A queue that stays writes what waited.
2. **Give.** It says which vnodes are not its own any more: a block, which makes readers pass over
   their rows before it.
3. **Take.** Rows of vnodes that are new here are read from the queues that had them, as the epoch
   left those, and written behind all others, in their order.

Nothing up to the epoch's LSN is changed: if it comes to nothing, the rest is cut off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptStorageError, LocalProtocolError
from penstock.routing import VNODES
from penstock.shuffle.queue.block import Introduced, PartEncoder, encode_block
from penstock.shuffle.queue.budget import Budget
from penstock.shuffle.queue.catalogue import Catalogue, View
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.events import StreamEnded, Write, Wrote
from penstock.shuffle.queue.machine import (
    MERGED_BYTES_MAX,
    MERGED_ROWS_MAX,
    QueueMachine,
    rows_of,
)
from penstock.shuffle.queue.reader import batches_of
from penstock.shuffle.queue.reclaim import put_together
from penstock.shuffle.queue.segment import (
    OpenSegment,
    ReadIds,
    SegmentHeader,
    lsn_of,
    read_floor,
    segment_of,
)
from penstock.shuffle.queue.visible import Window
from penstock.shuffle.queue.vnodes import select_vnodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.frontier import Frontier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.block import Names, Order, Parcel, Piece
    from penstock.shuffle.queue.events import QueueEffect, QueueState
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.reader import QueueBatch


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """What waited in a queue, as blocks that are not written yet."""

    blocks: list[tuple[list[Parcel], Order | None]]
    names: Names

    def append_to(self, log: QueueLog) -> None:
        for parcels, order in self.blocks:
            log.append(parcels, order, self.names)


def settle(state: QueueState, lanes: Sequence[int], delays: Mapping[int, int]) -> Settled:
    """`lanes` has the lane of each stream of the state, `delays` the delay of each binding."""
    budget = Budget(0, recovering=True)  # no limit
    machine = QueueMachine(lanes, delays, budget, aligned_seconds_max=0.0, restored=state)
    blocks: list[tuple[list[Parcel], Order | None]] = []
    for stream in range(len(lanes)):
        effects: deque[QueueEffect] = deque(machine.handle(StreamEnded(stream), 0.0))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Write):
                parcels = [(taken.part.stage, rows_of(taken)) for taken in effect.merged.parts]
                blocks.append((parcels, effect.merged.order))
                effects += machine.handle(Wrote(state.lsn, 0), 0.0)
    return Settled(blocks, machine.names)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A queue as an epoch left it. Its member may be writing behind that, or be gone."""

    folder: Path
    generation: int | None
    lsn: int
    settled: Settled

    def alive(self, consumed: Frontier, vnodes: Iterable[int]) -> Iterator[tuple[int, QueueBatch]]:
        """The rows of these vnodes that somebody who reads from `consumed` on may ask for, in queue
        order, with the number of their block. QueueLostError if they are not all there."""
        wanted = np.zeros(VNODES, np.bool_)
        wanted[list(vnodes)] = True
        catalogue = Catalogue(self.folder)
        try:
            self._check()
            view = self._view(catalogue)
            window = Window(view, consumed, None)
            for index, loaded in enumerate(view.blocks):
                selected = select_vnodes(loaded, window.select(index), wanted)
                for batch in batches_of(loaded, selected):
                    yield index, batch
        except (CorruptStorageError, LocalProtocolError, OSError) as error:
            raise QueueLostError(str(self.folder), segment_of(self.lsn), str(error)) from error
        finally:
            catalogue.forget()

    def _check(self) -> None:
        floor = read_floor(self.folder) if self.lsn else None
        if self.lsn and (floor is None or floor.generation != self.generation):
            raise LocalProtocolError("there is no queue, or another one was begun since")

    def _view(self, catalogue: Catalogue) -> View:
        """What waited counts too: its rollbacks forget rows that are written."""
        view = catalogue.view(self.lsn)
        held = _HeldSegment(self.settled, segment_of(self.lsn) + 1, catalogue.ids)
        return View((*view.blocks, *held.loaded), view.passed_over, catalogue.ids)


def take(log: QueueLog, rows: Iterable[tuple[int, QueueBatch]]) -> int:
    """Writes rows of another queue behind what the log has; gives how many."""
    total = count = size_bytes = 0
    pending: list[tuple[int, QueueBatch]] = []
    for index, batch in rows:
        is_full = count >= MERGED_ROWS_MAX or size_bytes >= MERGED_BYTES_MAX
        if is_full and pending[-1][0] != index:  # what is of one block stays together
            log.append(*put_together(pending))
            pending, count, size_bytes = [], 0, 0
        pending.append((index, batch))
        count += batch.batch.num_rows
        size_bytes += batch.batch.nbytes
        total += batch.batch.num_rows
    if pending:
        log.append(*put_together(pending))
    return total


class _HeldSegment(OpenSegment):
    """A segment that is in no file."""

    def __init__(self, settled: Settled, segment: int, ids: ReadIds) -> None:
        self._held = b"".join(_pieces(settled, segment))
        super().__init__(Path("(what waited)"), segment, 0, ids)
        self.load(len(settled.blocks))

    def _open(self) -> pa.Buffer:
        return pa.py_buffer(self._held)


def _pieces(settled: Settled, segment: int) -> Iterator[Piece]:
    yield SegmentHeader(0, segment, 0).encode()
    encoder = PartEncoder()
    known: set[Stage] = set()
    for number, (parcels, order) in enumerate(settled.blocks):
        schemas = {stage: batch.schema for stage, batch in parcels if stage not in known}
        known |= schemas.keys()
        parts, places = encoder.encode(parcels, order)
        introduced = Introduced({} if number else settled.names, schemas)
        yield from encode_block(lsn_of(segment, number), parts, places, introduced, ())
