"""Rolling: the header of a journal's next segment, from the frames of the last one.

A segment's frame headers sum its rows up; only a frame that repeats a part of what was there is
looked into. So the work of a roll goes with the producers of one segment.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.ids import clock_duration
from penstock.journal.file.segment import BatchBuilder, SegmentReader
from penstock.journal.file.segment_header import SegmentHeader
from penstock.sequence import (
    UNSEEN,
    Place,
    ProducerState,
    SequenceFaultError,
    StateColumns,
    sequence_batch,
    sequence_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Collection as Members
    from pathlib import Path

    from penstock.journal.collection import Collection
    from penstock.journal.file.head import Position
    from penstock.journal.frames import FrameHeader

Bools: TypeAlias = npt.NDArray[np.bool_]

HORIZON: Final = clock_duration(86_400)
"""A producer without a ledger cannot write. That its last commit is a day behind the journal's
newest besides is for those who write without one: importers, and tests."""


def next_header(
    journal: str,
    folder: Path,
    written: Position,
    collection: Collection,
    registered: Callable[[], Members[int]],
) -> SegmentHeader:
    """Of the segment that begins where the last one ends. `registered` gives the producers that
    have a ledger, as seen under the journal's append lock."""
    with SegmentReader(journal, folder, written.segment) as reader:
        header, position = reader.header()
        builder = BatchBuilder(journal, collection, columns=())
        changed, fault = _changed(
            reader, header, reader.headers(position, header.first_offset, written.bytes), builder
        )
    states = header.columns.updated(StateColumns.of(changed.items()))
    departed = _departed(states, registered)
    return SegmentHeader(
        journal,
        written.offset,
        collection.to_json(),
        states.select(~departed),
        fault,
        states.select(departed),
        header.first_offset if header.departed else header.departed_before,
        None if header.bytes_before is None else header.bytes_before + written.bytes,
    )


def _changed(
    reader: SegmentReader,
    header: SegmentHeader,
    frames: Iterable[tuple[int, FrameHeader]],
    builder: BatchBuilder,
) -> tuple[dict[int, ProducerState], str | None]:
    """The states at the end of a segment that are others than at its begin."""
    changed: dict[int, ProducerState] = {}
    if header.fault is not None:
        return changed, header.fault
    known = [header.columns] if header.states else []
    states = ChainMap(changed, *known)  # type: ignore[arg-type] # only the first is changed
    for at, frame in frames:
        run = frame.run
        state = states.get(frame.producer, UNSEEN)
        try:
            after = None if run is None else sequence_run(run, state)
            if after is None:
                batch = builder.build([reader.frame(at, frame)])
                found = sequence_batch(
                    batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags, states
                )
                changed.update(found.changed)
                found.raise_fault(header.journal)
            elif after != state:
                changed[frame.producer] = after
        except SequenceFaultError as error:
            # Appends go on: it is the readers who must be told.
            place = Place(header.journal, frame.first_offset, frame.producer)
            return changed, str(error.at(place))
    return changed, None


def _departed(states: StateColumns, registered: Callable[[], Members[int]]) -> Bools:
    """The producers that will never write to this journal again.

    Every append is checked against its producer's ledger under the append lock, which is held now.
    Who has no ledger was settled, and forgotten an hour after; or never had one.
    """
    newest = int(states.last_commits.max(initial=0))
    old = states.last_commits <= np.uint64(max(newest - HORIZON, 0))
    departed: Bools = old & (states.max_continues == 0)
    if departed.any():
        alive = np.fromiter(registered(), np.int64)
        departed &= ~np.isin(states.producers, alive)
    return departed
