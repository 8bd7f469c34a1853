"""What happens to an alignment, and what it wants done about it. alignment.py has the rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias

from penstock.checkpoint.barrier import Barrier, ItemT

# Events: what happened.


@dataclass(frozen=True, slots=True)
class DataArrived(Generic[ItemT]):
    """An item in its place on an input. It may be held: its credit goes back to the sender when it
    is delivered and not before, and so the sender's window is the limit of what is held."""

    input: int
    item: ItemT
    cost_bytes: int = 1


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """A barrier in its place on an input. A cancelling one acts at once, whatever is held."""

    input: int
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class BarrierOvertook(Generic[ItemT]):
    """A barrier seen ahead of its place, by a caller with a queue of its own. `passed` are all the
    items of the input in front of it that were not handed in yet. They are recorded now; they and
    the barrier itself are still to be handed in, each in its place. Barriers of one input overtake
    in their order. The checkpoint is unaligned from here on."""

    input: int
    barrier: Barrier
    passed: tuple[DataArrived[ItemT], ...]


@dataclass(frozen=True, slots=True)
class InputEnded:
    """Nothing more comes on an input: it is done, or its member left. In its place, after the
    input's last item."""

    input: int


@dataclass(frozen=True, slots=True)
class CheckpointCancelled:
    """The coordinator gave a checkpoint up, seen here or not."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but the time, which comes with every event."""


ArrivalEvent: TypeAlias = DataArrived[ItemT] | BarrierArrived | InputEnded
AlignmentEvent: TypeAlias = (
    ArrivalEvent[ItemT] | BarrierOvertook[ItemT] | CheckpointCancelled | TimePassed
)


# Effects: what the caller does about it, in their order.


@dataclass(frozen=True, slots=True)
class Deliver(Generic[ItemT]):
    """The operator processes an item."""

    input: int
    item: ItemT


@dataclass(frozen=True, slots=True)
class Hold:
    """What arrives on the input from here on is kept. The caller may stop to read it."""

    input: int


@dataclass(frozen=True, slots=True)
class Release:
    """The input is read again; what was held of it follows."""

    input: int


@dataclass(frozen=True, slots=True)
class Capture:
    """The state as it is now is the state of the checkpoint."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Forward:
    """The barrier goes to all outputs, after what was delivered so far."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[ItemT]):
    """The snapshot is whole: the captured state, and these items of each input."""

    barrier: Barrier
    in_flight: tuple[tuple[ItemT, ...], ...]


class AbortReason(Enum):
    CANCELLED = "it was cancelled"
    SKIPPED = "an input went on to a newer checkpoint without it"
    CROWDED_OUT = "newer checkpoints started, and more are in flight than in_flight_max"
    TOO_LARGE = "more items are in flight than recorded_bytes_max"
    DISAGREEMENT = "inputs do not agree on its epoch"


@dataclass(frozen=True, slots=True)
class Aborted:
    """The checkpoint will not complete here: what was captured for it is dropped."""

    checkpoint: int
    reason: AbortReason


class IgnoreReason(Enum):
    DUPLICATE = "the input delivered it before"
    STALE = "the checkpoint, or a newer one, was opened and settled before"


@dataclass(frozen=True, slots=True)
class Ignored:
    """A barrier that changes nothing. Worth a line in the log."""

    input: int
    barrier: Barrier
    reason: IgnoreReason


AlignmentEffect: TypeAlias = (
    Deliver[ItemT] | Hold | Release | Capture | Forward | Snapshot[ItemT] | Aborted | Ignored
)
