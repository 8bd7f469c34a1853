"""What happens to a Queue, what it wants done about it, and what its snapshot has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import pyarrow as pa

    from penstock.checkpoint import Barrier
    from penstock.shuffle.parcels import Stage
    from penstock.shuffle.queue.merge import Merged


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A parcel, or rollbacks, as they came in a stream."""

    stage: Stage
    batch: pa.RecordBatch
    size_bytes: int
    number: int = 0
    """Counts what came, over all streams."""
    ticket: object = None
    """The receiver's: with it the sender's credit is given back, once the part is written."""


@dataclass(frozen=True, slots=True)
class ReadNames:
    """What read numbers of a stream stand for: binding and journal."""

    names: Mapping[int, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class FlushAsked:
    cycle: int


Item: TypeAlias = Part | ReadNames | Mark | FlushAsked
"""What a stream delivers, beside barriers."""


# Events


@dataclass(frozen=True, slots=True)
class Arrived:
    stream: int
    item: Item


@dataclass(frozen=True, slots=True)
class BarrierCame:
    stream: int
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class StreamEnded:
    stream: int


@dataclass(frozen=True, slots=True)
class EpochGivenUp:
    epoch: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """The last Write is in the segment, not yet durable."""

    lsn: int
    size_bytes: int
    """What all segments take now."""


@dataclass(frozen=True, slots=True)
class Synced:
    lsn: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """The consumer is done up to here, and what could be dropped was."""

    lsn: int
    size_bytes: int
    last_lsn: int
    """Of the queue: survivors may have been written."""


@dataclass(frozen=True, slots=True)
class TimeIs:
    """Nothing but the time, which comes with every event."""


QueueEvent: TypeAlias = (
    Arrived | BarrierCame | StreamEnded | EpochGivenUp | Wrote | Synced | Consumed | TimeIs
)


# Effects


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One block. The next comes after Wrote."""

    merged: Merged[Part]
    overdraws: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """Make everything durable that was written; then Synced."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The flush of a stream is done."""

    stream: int
    cycle: int
    lsn: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """These parts are written: their credit goes back."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WaitingPart:
    """Rows that were not yet written, with the keys that they had reached."""

    stage: Stage
    batch: pa.RecordBatch
    keys: np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True, eq=False)
class StreamState:
    mark: Mark
    greatest: int
    reached: Mapping[int, int]
    waiting: tuple[WaitingPart, ...]
    in_flight: tuple[Item, ...] = ()
    """What came after the state was captured and before the stream's barrier."""
    cap: int = CLOCK_MAX
    """What rows count as at most, until the next mark."""


@dataclass(frozen=True, slots=True, eq=False)
class QueueState:
    """A Queue where a barrier cuts its streams."""

    lsn: int
    names: Mapping[int, tuple[int, str]]
    streams: tuple[StreamState, ...]

    @property
    def next_read(self) -> int:
        """Above all numbers of reads that occur in it."""
        items = [item for stream in self.streams for item in stream.in_flight]
        later = [max(item.names) for item in items if isinstance(item, ReadNames) and item.names]
        return max([*self.names, *later], default=-1) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The snapshot of an epoch is whole."""

    barrier: Barrier
    state: QueueState


@dataclass(frozen=True, slots=True)
class NotCaptured:
    epoch: int
    reason: str


QueueEffect: TypeAlias = Write | Sync | Answer | GiveBack | Captured | NotCaptured
