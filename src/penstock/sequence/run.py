"""Sequencing a whole run of rows at once, when its clocks leave nothing to look at."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sequence.outcomes import (
    CLOSE_FIRST,
    CLOSE_LAST,
    OutsideWithPrecedingContinueError,
    ProducerState,
)
from penstock.sequence.rule import sequence


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [begin, end) of one producer and one kind, with ascending clocks. An ACK is alone."""

    producer: int
    flags: int
    first_clock: int
    last_clock: int
    begin: int
    end: int


def sequence_run(run: Run, state: ProducerState) -> ProducerState | None:
    """The producer's state after the run; None if only a part of it is new, and it must be looked
    at row by row. Raises what `sequence` would for the first row."""
    last_commit, max_continue = state.last_commit, state.max_continue
    if run.flags & 3 == 0:  # OUTSIDE
        if max_continue != 0:
            raise OutsideWithPrecedingContinueError(run.first_clock, last_commit, max_continue)
        if run.first_clock > last_commit:
            return ProducerState(run.last_clock, 0, -run.end)
        return state if run.last_clock <= last_commit else None
    if run.flags & 1:  # CONTINUE
        known = max(last_commit, max_continue)
        if run.first_clock > known:
            offset = run.begin if max_continue == 0 else state.offset
            return ProducerState(last_commit, run.last_clock, offset)
        return state if run.last_clock <= known else None
    outcome, last_commit, max_continue = sequence(
        run.flags, run.first_clock, last_commit, max_continue
    )
    if CLOSE_FIRST <= outcome <= CLOSE_LAST:
        return ProducerState(last_commit, max_continue, -run.end)
    return state
