"""Alignment: what an operator with several inputs does about barriers. Pure: no threads, no clock.

Aligned, an input that delivered its barrier is held back until all the others have delivered
theirs; then the state is captured, and it is the whole snapshot. Unaligned, the state is captured
at the first barrier, which goes on at once; what still arrives before the barrier on the other
inputs is delivered, and recorded as the snapshot's in-flight part. Aligned with a timeout starts
as the one and turns into the other.

Rules that hold in every mode:

1. Checkpoints rise on each input. A barrier opens a checkpoint only when it is above every
   checkpoint that was ever opened or cancelled here: a repeat or a straggler never opens one.
2. An input that delivers a newer barrier will never deliver an older one. Whatever older
   checkpoint waits for that input is aborted.
3. An input that ended has delivered every barrier.
4. What is aborted here is cancelled downstream, so that nobody holds an input back for it.

After a restart the in-flight part of each input is delivered again, before anything else of it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, assert_never

from penstock.checkpoint.alignment_events import (
    Aborted,
    AbortReason,
    AlignmentEffect,
    AlignmentEvent,
    ArrivalEvent,
    BarrierArrived,
    BarrierOvertook,
    Capture,
    CheckpointCancelled,
    DataArrived,
    Deliver,
    Forward,
    Hold,
    Ignored,
    IgnoreReason,
    InputEnded,
    Release,
    Snapshot,
    TimePassed,
)
from penstock.checkpoint.barrier import Flags, ItemT
from penstock.errors import ConfigurationError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.checkpoint.barrier import Barrier

CHECKPOINTS_IN_FLIGHT_MAX: Final = 4
"""Unaligned checkpoints that wait for a slow input, each with its own in-flight part. A coordinator
has one under way, and a few that it gave up and started again."""
RECORDED_BYTES_MAX: Final = 256 * 1024 * 1024
"""The in-flight part of one snapshot. It is what an input's window and its sender's loop hold,
unless the sender never got the barrier: then the checkpoint is better given up."""


class Phase(Enum):
    """Of a checkpoint in flight."""

    ALIGNING = auto()
    """Inputs that delivered are held back."""
    RECORDING = auto()
    """Nothing is held back; what arrives before a barrier is recorded."""
    SETTLED = auto()
    """Whole, or aborted."""


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.ALIGNING: frozenset({Phase.RECORDING, Phase.SETTLED}),
    Phase.RECORDING: frozenset({Phase.SETTLED}),
    Phase.SETTLED: frozenset(),
}


@dataclass(slots=True)
class _Checkpoint(Generic[ItemT]):
    barrier: Barrier
    waiting: set[int]
    """Inputs that have not delivered the barrier."""
    recorded: list[list[ItemT]]
    deadline_seconds: float
    phase: Phase = Phase.ALIGNING
    recorded_bytes: int = 0

    def enter(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise LocalProtocolError(
                f"checkpoint {self.barrier.checkpoint} cannot go from {self.phase} to {phase}"
            )
        self.phase = phase


@dataclass(slots=True)
class _Input(Generic[ItemT]):
    is_held: bool = False
    held: deque[ArrivalEvent[ItemT]] = field(default_factory=deque)
    end_arrived: bool = False
    """The end may still be held."""
    has_ended: bool = False


class Alignment(Generic[ItemT]):
    """One operator's alignment. `handle` takes an event and returns the effects of it.

    `aligned_seconds_max` chooses the mode. Infinity: aligned. Zero: unaligned. Between: aligned,
    until so much time has passed since the checkpoint's first barrier. A barrier that is flagged
    as unaligned makes its checkpoint so in every mode.
    """

    def __init__(
        self,
        inputs: int,
        aligned_seconds_max: float = math.inf,
        *,
        settled: int = -1,
        in_flight_max: int = CHECKPOINTS_IN_FLIGHT_MAX,
        recorded_bytes_max: int = RECORDED_BYTES_MAX,
    ) -> None:
        """`settled` is the checkpoint that the operator was restored from: older barriers are
        stale."""
        if inputs < 1:
            raise ConfigurationError(f"an operator aligns one input or more, not {inputs}")
        if not aligned_seconds_max >= 0:
            raise ConfigurationError(
                f"aligned_seconds_max is zero or more, not {aligned_seconds_max}"
            )
        if in_flight_max < 1:
            raise ConfigurationError(f"in_flight_max is one or more, not {in_flight_max}")
        self._aligned_seconds_max = aligned_seconds_max
        self._in_flight_max = in_flight_max
        self._recorded_bytes_max = recorded_bytes_max
        self._inputs: list[_Input[ItemT]] = [_Input() for _ in range(inputs)]
        # In flight, by number, oldest first. Only the newest can be aligning (see validate).
        self._checkpoints: dict[int, _Checkpoint[ItemT]] = {}
        self._newest = settled
        self._newest_cancelled = -1
        self._released: deque[int] = deque()
        self._now_seconds = -math.inf
        self._effects: list[AlignmentEffect[ItemT]] = []

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Checkpoints that are open, oldest first."""
        return tuple(self._checkpoints)

    @property
    def missing(self) -> tuple[int, tuple[int, ...]] | None:
        """The epoch whose barriers inputs are held back for, and the inputs that it is missing
        from."""
        aligning = self._aligning()
        if aligning is None:
            return None
        return aligning.barrier.epoch, tuple(sorted(aligning.waiting))

    @property
    def deadline_seconds(self) -> float | None:
        """When to come back with the time, if nothing else happens before."""
        aligning = self._aligning()
        if aligning is None or aligning.deadline_seconds == math.inf:
            return None
        return aligning.deadline_seconds

    def handle(
        self, event: AlignmentEvent[ItemT], now_seconds: float
    ) -> list[AlignmentEffect[ItemT]]:
        """One step. An event that is refused with an error changes nothing."""
        self._check(event)
        self._effects = []
        self._now_seconds = max(self._now_seconds, now_seconds)
        aligning = self._aligning()
        if aligning is not None and self._now_seconds >= aligning.deadline_seconds:
            self._turn_unaligned(aligning)
            self._drain_released()
        match event:
            case BarrierArrived(input=index, barrier=barrier) if barrier.is_cancel:
                self._cancel_in_band(index, barrier)
            case DataArrived() | BarrierArrived() | InputEnded():
                self._arrive(event)
            case BarrierOvertook():
                self._overtake(event)
            case CheckpointCancelled(checkpoint=checkpoint):
                self._cancel(checkpoint)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        self._drain_released()
        return self._effects

    def validate(self) -> None:
        """Raises when the state contradicts itself. For tests, after each step."""
        for problem in self._contradictions():
            raise LocalProtocolError(f"the alignment contradicts itself: {problem}")

    # Arrivals

    def _arrive(self, event: ArrivalEvent[ItemT]) -> None:
        arrived_at = self._inputs[event.input]
        if isinstance(event, InputEnded):
            arrived_at.end_arrived = True  # to end and then to leave changes nothing more
        if arrived_at.is_held:
            arrived_at.held.append(event)
        else:
            self._process(event)

    def _process(self, event: ArrivalEvent[ItemT]) -> None:
        """An arrival whose turn it is: on an input that is not held back."""
        match event:
            case DataArrived():
                for checkpoint in list(self._checkpoints.values()):
                    if event.input in checkpoint.waiting:
                        self._record(checkpoint, event)
                self._effects.append(Deliver(event.input, event.item))
            case BarrierArrived(input=index, barrier=barrier):
                checkpoint_or_none = self._join(index, barrier)
                if checkpoint_or_none is not None:
                    if barrier.is_unaligned or self._is_due(checkpoint_or_none):
                        self._turn_unaligned(checkpoint_or_none)
                    self._mark_delivered(checkpoint_or_none, index)
            case InputEnded(input=index):
                self._inputs[index].has_ended = True
                for checkpoint in list(self._checkpoints.values()):
                    if index in checkpoint.waiting:
                        self._mark_delivered(checkpoint, index)
            case _:
                assert_never(event)

    def _overtake(self, event: BarrierOvertook[ItemT]) -> None:
        if event.barrier.is_cancel:
            self._cancel_in_band(event.input, event.barrier)
            return
        # What is held of this input is in front of the barrier too, and goes first.
        while event.barrier.checkpoint > self._newest and self._inputs[event.input].is_held:
            self._turn_unaligned(self._checkpoints[next(reversed(self._checkpoints))])
            self._drain_released()
        checkpoint = self._join(event.input, event.barrier)
        if checkpoint is None:
            return
        self._turn_unaligned(checkpoint)
        for passed in event.passed:
            self._record(checkpoint, passed)
        if checkpoint.phase is Phase.RECORDING:  # not aborted for its size
            self._mark_delivered(checkpoint, event.input)

    def _drain_released(self) -> None:
        """What was held of released inputs, until they are held again."""
        while self._released:
            released = self._inputs[self._released.popleft()]
            while released.held and not released.is_held:
                self._process(released.held.popleft())

    # Checkpoints

    def _join(self, index: int, barrier: Barrier) -> _Checkpoint[ItemT] | None:
        """The checkpoint that an input's barrier belongs to, opened if it is new. None when there
        is nothing to do about the barrier."""
        for older in list(self._checkpoints.values()):
            if older.barrier.checkpoint < barrier.checkpoint and index in older.waiting:
                self._abort(older, AbortReason.SKIPPED)
        checkpoint = self._checkpoints.get(barrier.checkpoint)
        if checkpoint is None:
            if barrier.checkpoint > self._newest:
                return self._open(barrier)
            self._effects.append(Ignored(index, barrier, IgnoreReason.STALE))
            return None
        if index not in checkpoint.waiting:
            self._effects.append(Ignored(index, barrier, IgnoreReason.DUPLICATE))
            return None
        if checkpoint.barrier.epoch != barrier.epoch:
            self._abort(checkpoint, AbortReason.DISAGREEMENT)
            return None
        return checkpoint

    def _open(self, barrier: Barrier) -> _Checkpoint[ItemT]:
        if len(self._checkpoints) >= self._in_flight_max:
            self._abort(next(iter(self._checkpoints.values())), AbortReason.CROWDED_OUT)
        checkpoint = _Checkpoint[ItemT](
            barrier,
            {index for index, entry in enumerate(self._inputs) if not entry.has_ended},
            [[] for _ in self._inputs],
            self._now_seconds + self._aligned_seconds_max,
        )
        self._checkpoints[barrier.checkpoint] = checkpoint
        self._newest = barrier.checkpoint
        return checkpoint

    def _is_due(self, checkpoint: _Checkpoint[ItemT]) -> bool:
        return self._now_seconds >= checkpoint.deadline_seconds

    def _turn_unaligned(self, checkpoint: _Checkpoint[ItemT]) -> None:
        if checkpoint.phase is not Phase.ALIGNING:
            return
        checkpoint.enter(Phase.RECORDING)
        checkpoint.barrier = checkpoint.barrier.flagged(Flags.UNALIGNED)
        self._effects += (Capture(checkpoint.barrier), Forward(checkpoint.barrier))
        self._release_inputs()

    def _record(self, checkpoint: _Checkpoint[ItemT], event: DataArrived[ItemT]) -> None:
        if checkpoint.phase is not Phase.RECORDING:
            return  # what is aligning has all of it in its state; what is aborted has nothing
        checkpoint.recorded_bytes += event.cost_bytes
        if checkpoint.recorded_bytes > self._recorded_bytes_max:
            self._abort(checkpoint, AbortReason.TOO_LARGE)
        else:
            checkpoint.recorded[event.input].append(event.item)

    def _mark_delivered(self, checkpoint: _Checkpoint[ItemT], index: int) -> None:
        checkpoint.waiting.discard(index)
        if checkpoint.waiting:
            if checkpoint.phase is Phase.ALIGNING and not self._inputs[index].has_ended:
                self._inputs[index].is_held = True
                self._effects.append(Hold(index))
            return
        if checkpoint.phase is Phase.ALIGNING:
            self._effects += (Capture(checkpoint.barrier), Forward(checkpoint.barrier))
        in_flight = tuple(tuple(items) for items in checkpoint.recorded)
        self._effects.append(Snapshot(checkpoint.barrier, in_flight))
        self._settle(checkpoint)

    def _abort(self, checkpoint: _Checkpoint[ItemT], reason: AbortReason) -> None:
        self._effects.append(Aborted(checkpoint.barrier.checkpoint, reason))
        self._effects.append(Forward(checkpoint.barrier.flagged(Flags.CANCEL)))
        self._settle(checkpoint)

    def _cancel(self, checkpoint: int) -> bool:
        """Whether it was in flight."""
        self._newest = max(self._newest, checkpoint)
        in_flight = self._checkpoints.get(checkpoint)
        if in_flight is None:
            return False
        self._abort(in_flight, AbortReason.CANCELLED)
        return True

    def _cancel_in_band(self, index: int, barrier: Barrier) -> None:
        """Passed on once, also when all is done here: others downstream may still wait."""
        if self._cancel(barrier.checkpoint):
            pass  # said with the abort
        elif barrier.checkpoint > self._newest_cancelled:
            self._effects.append(Forward(barrier))
        else:
            self._effects.append(Ignored(index, barrier, IgnoreReason.STALE))
        self._newest_cancelled = max(self._newest_cancelled, barrier.checkpoint)

    def _settle(self, checkpoint: _Checkpoint[ItemT]) -> None:
        del self._checkpoints[checkpoint.barrier.checkpoint]
        if checkpoint.phase is Phase.ALIGNING:
            self._release_inputs()
        checkpoint.enter(Phase.SETTLED)

    def _release_inputs(self) -> None:
        for index, entry in enumerate(self._inputs):
            if entry.is_held:
                entry.is_held = False
                self._effects.append(Release(index))
                self._released.append(index)

    def _aligning(self) -> _Checkpoint[ItemT] | None:
        """Only the newest can be: an input that delivers a newer barrier is not held back, so it
        never delivered the older one, which is aborted (rule 2)."""
        if not self._checkpoints:
            return None
        newest = self._checkpoints[next(reversed(self._checkpoints))]
        return newest if newest.phase is Phase.ALIGNING else None

    # Checks

    def _check(self, event: AlignmentEvent[ItemT]) -> None:
        if isinstance(event, CheckpointCancelled | TimePassed):
            return
        if not 0 <= event.input < len(self._inputs):
            raise LocalProtocolError(
                f"there is no input {event.input}: inputs are 0 to {len(self._inputs) - 1}"
            )
        if self._inputs[event.input].end_arrived and not isinstance(event, InputEnded):
            raise LocalProtocolError(f"input {event.input} ended, and then {event} came")
        if isinstance(event, BarrierOvertook):
            for passed in event.passed:
                if passed.input != event.input:
                    raise LocalProtocolError(
                        f"a barrier of input {event.input} cannot overtake what is on input "
                        f"{passed.input}"
                    )

    def _contradictions(self) -> Iterator[str]:
        if len(self._checkpoints) > self._in_flight_max:
            yield f"{len(self._checkpoints)} checkpoints are in flight"
        if list(self._checkpoints) != sorted(self._checkpoints):
            yield f"checkpoints are out of order: {list(self._checkpoints)}"
        if self._released:
            yield "released inputs were not drained"
        waiting_before: set[int] = set()
        for number, checkpoint in self._checkpoints.items():
            yield from self._contradictions_of(number, checkpoint)
            if not waiting_before <= checkpoint.waiting:
                yield f"an input delivered checkpoint {number} and not the one before it"
            waiting_before = checkpoint.waiting
        aligning = self._aligning()
        for index, entry in enumerate(self._inputs):
            should_be_held = (
                aligning is not None and index not in aligning.waiting and not entry.has_ended
            )
            if entry.is_held != should_be_held:
                yield f"input {index} is{'' if entry.is_held else ' not'} held"
            if entry.held and not entry.is_held:
                yield f"input {index} is not held, but {len(entry.held)} of its items are"
            if entry.has_ended and not entry.end_arrived:
                yield f"input {index} ended before its end arrived"

    def _contradictions_of(self, number: int, checkpoint: _Checkpoint[ItemT]) -> Iterator[str]:
        if number != checkpoint.barrier.checkpoint or number > self._newest:
            yield f"{checkpoint.barrier} is in flight as {number}, the newest is {self._newest}"
        if not checkpoint.waiting:
            yield f"checkpoint {number} waits for nobody"
        if any(self._inputs[index].has_ended for index in checkpoint.waiting):
            yield f"checkpoint {number} waits for an input that ended"
        if checkpoint.phase is Phase.SETTLED:
            yield f"checkpoint {number} is settled and in flight"
        if checkpoint.phase is Phase.ALIGNING and checkpoint is not self._aligning():
            yield f"checkpoint {number} is aligning behind a newer one"
        if checkpoint.phase is Phase.ALIGNING and any(checkpoint.recorded):
            yield f"checkpoint {number} is aligning and has recorded items"
        if checkpoint.barrier.is_unaligned != (checkpoint.phase is Phase.RECORDING):
            yield f"checkpoint {number} is {checkpoint.phase}, and its barrier says otherwise"
        if checkpoint.recorded_bytes > self._recorded_bytes_max:
            yield f"checkpoint {number} recorded {checkpoint.recorded_bytes} bytes"
