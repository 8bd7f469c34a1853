"""Runs of an alignment against scripts, held to a consistent cut.

A script is what one input sends: numbers, which stand for items and are never repeated, and
barriers. The oracle is the scripts themselves: whatever the interleaving was, a snapshot of a
checkpoint holds what stands before its barrier in each script, and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias, assert_never

from penstock.checkpoint.alignment import Alignment
from penstock.checkpoint.alignment_events import (
    Aborted,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    BarrierOvertook,
    Capture,
    CheckpointCancelled,
    DataArrived,
    Deliver,
    Forward,
    Hold,
    Ignored,
    InputEnded,
    Release,
    Snapshot,
    TimePassed,
)
from penstock.checkpoint.barrier import Barrier

Script: TypeAlias = Sequence[int | Barrier]


@dataclass(frozen=True)
class Advance:
    """An input hands in what it sends next; after the last of it, its end."""

    input: int
    count: int = 1


@dataclass(frozen=True)
class Overtake:
    """The next barrier of an input overtakes what is not handed in yet."""

    input: int


@dataclass(frozen=True)
class Tick:
    seconds: int


@dataclass(frozen=True)
class Cancel:
    checkpoint: int | None
    """None: the oldest in flight, if any."""


Step: TypeAlias = Advance | Overtake | Tick | Cancel


def items_before(script: Script, checkpoint: int) -> list[int]:
    """The oracle: items in front of a checkpoint's first barrier, or all if it has none."""
    before: list[int] = []
    for entry in script:
        if isinstance(entry, Barrier):
            if entry.checkpoint == checkpoint:
                return before
            assert entry.checkpoint < checkpoint, "the input went on without the checkpoint"
        else:
            before.append(entry)
    return before


def checkpoints_to_complete(scripts: Sequence[Script]) -> set[int]:
    """If nothing is cancelled and nothing too large: those that no input went past."""
    rising = []
    for script in scripts:
        numbers: list[int] = [-1]
        for entry in script:
            if isinstance(entry, Barrier) and entry.checkpoint > numbers[-1]:
                numbers.append(entry.checkpoint)
        rising.append(numbers)
    candidates = {number for numbers in rising for number in numbers[1:]}
    return {
        candidate
        for candidate in candidates
        if all(candidate in numbers or numbers[-1] < candidate for numbers in rising)
    }


@dataclass
class Run:
    scripts: Sequence[Script]
    alignment: Alignment[int]
    cursors: list[int]
    delivered: list[list[int]]
    """The operator's state: what it processed of each input."""
    now: float = 0.0
    overtaken: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    captured: dict[int, list[list[int]]] = field(default_factory=dict)
    snapshots: dict[int, Snapshot[int]] = field(default_factory=dict)
    aborted: dict[int, Aborted] = field(default_factory=dict)
    forwarded: Counter[Barrier] = field(default_factory=Counter)

    @classmethod
    def start(cls, scripts: Sequence[Script], alignment: Alignment[int]) -> Run:
        return cls(scripts, alignment, [0] * len(scripts), [[] for _ in scripts])

    def restore(self, checkpoint: int, aligned_seconds_max: float) -> Run:
        """A new run from one of this run's snapshots: its state, then what was in flight, then the
        inputs from their barriers on."""
        state = [list(items) for items in self.captured[checkpoint]]
        for items, in_flight in zip(state, self.snapshots[checkpoint].in_flight, strict=True):
            items.extend(in_flight)
        cursors = []
        for script in self.scripts:
            places = [
                place
                for place, entry in enumerate(script)
                if isinstance(entry, Barrier) and entry.checkpoint == checkpoint
            ]
            cursors.append(places[0] + 1 if places else len(script))
        alignment = Alignment[int](len(self.scripts), aligned_seconds_max, settled=checkpoint)
        return Run(self.scripts, alignment, cursors, state)

    def finish(self, steps: Sequence[Step]) -> None:
        """The steps, then all that is left of every input."""
        self.overtaken = [-1] * len(self.scripts)
        for step in steps:
            self.take(step)
        for index in range(len(self.scripts)):
            while index not in self.ended:
                self.take(Advance(index))
        assert self.alignment.in_flight == ()
        assert self.alignment.deadline_seconds is None
        assert not self.held
        for script, items in zip(self.scripts, self.delivered, strict=True):
            assert items == [entry for entry in script if not isinstance(entry, Barrier)]
        assert not set(self.snapshots) & set(self.aborted)
        assert set(self.captured) <= set(self.snapshots) | set(self.aborted)

    def take(self, step: Step) -> None:
        match step:
            case Advance(input=index, count=count):
                for _ in range(count):
                    self.advance(index)
            case Overtake(input=index):
                self.overtake(index)
            case Tick(seconds=seconds):
                self.now += seconds
                self.handle(TimePassed())
                deadline = self.alignment.deadline_seconds
                assert deadline is None or deadline > self.now
            case Cancel(checkpoint=chosen):
                in_flight = self.alignment.in_flight
                for checkpoint in in_flight[:1] if chosen is None else (chosen,):
                    self.handle(CheckpointCancelled(checkpoint))
                    assert (checkpoint in self.aborted) or checkpoint not in in_flight
            case _:
                assert_never(step)

    def advance(self, index: int) -> None:
        if index in self.ended:
            return
        cursor = self.cursors[index]
        if cursor == len(self.scripts[index]):
            self.ended.add(index)
            self.handle(InputEnded(index))
            return
        self.cursors[index] += 1
        entry = self.scripts[index][cursor]
        if isinstance(entry, Barrier):
            self.handle(BarrierArrived(index, entry))
        else:
            self.handle(DataArrived(index, entry))

    def overtake(self, index: int) -> None:
        if index in self.ended:
            return
        begin = self.cursors[index]
        for place in range(max(begin, self.overtaken[index] + 1), len(self.scripts[index])):
            barrier = self.scripts[index][place]
            if isinstance(barrier, Barrier):
                self.overtaken[index] = place
                passed = tuple(
                    DataArrived(index, entry)
                    for entry in self.scripts[index][begin:place]
                    if not isinstance(entry, Barrier)
                )
                self.handle(BarrierOvertook(index, barrier, passed))
                return

    def handle(self, event: AlignmentEvent[int]) -> list[AlignmentEffect[int]]:
        effects = self.alignment.handle(event, self.now)
        self.alignment.validate()
        for effect in effects:
            self.perform(effect)
        captures = [effect.barrier for effect in effects if isinstance(effect, Capture)]
        forwards = [
            effect.barrier
            for effect in effects
            if isinstance(effect, Forward) and not effect.barrier.is_cancel
        ]
        assert captures == forwards
        for earlier, later in pairwise(effects):
            if isinstance(earlier, Capture):
                assert later == Forward(earlier.barrier), "nothing comes in between"
        return effects

    def perform(self, effect: AlignmentEffect[int]) -> None:
        match effect:
            case Deliver(input=index, item=item):
                assert index not in self.held
                self.delivered[index].append(item)
            case Hold(input=index):
                assert index not in self.held
                self.held.add(index)
            case Release(input=index):
                self.held.remove(index)
            case Capture(barrier=barrier):
                assert barrier.checkpoint not in self.captured
                self.captured[barrier.checkpoint] = [list(items) for items in self.delivered]
            case Forward(barrier=barrier):
                self.forwarded[barrier] += 1
                assert self.forwarded[barrier] == 1
                assert not barrier.is_cancel or barrier.checkpoint in self.aborted
            case Snapshot():
                self.check_cut(effect)
                self.snapshots[effect.barrier.checkpoint] = effect
            case Aborted(checkpoint=checkpoint):
                assert checkpoint not in self.aborted
                assert checkpoint not in self.snapshots
                self.aborted[checkpoint] = effect
            case Ignored():
                pass  # were it wrong, the checkpoint would not complete
            case _:
                assert_never(effect)

    def check_cut(self, snapshot: Snapshot[int]) -> None:
        checkpoint = snapshot.barrier.checkpoint
        assert checkpoint not in self.snapshots
        assert checkpoint not in self.aborted
        for script, state, in_flight in zip(
            self.scripts, self.captured[checkpoint], snapshot.in_flight, strict=True
        ):
            assert [*state, *in_flight] == items_before(script, checkpoint)
        if not snapshot.barrier.is_unaligned:
            assert not any(snapshot.in_flight)


ALIGNED = math.inf
UNALIGNED = 0.0
