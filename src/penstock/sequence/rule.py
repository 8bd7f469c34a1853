"""The rule of sequencing, and its walk over a batch one row at a time: the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.sequence.outcomes import (
    BEGIN,
    CLOSE_FIRST,
    CLOSE_LAST,
    ROLLBACK_FIRST,
    UNSEEN,
    AckPartialCommitError,
    Clocks,
    Discards,
    Fault,
    Flags,
    Int64s,
    Outcome,
    OutsideWithPrecedingContinueError,
    ProducerState,
    Sequenced,
    SequenceFaultError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def sequence(
    flags: int, clock: int, last_commit: int, max_continue: int
) -> tuple[Outcome, int, int]:
    """The outcome of one document, and its producer's new last commit and max continue."""
    if flags & 3 == 0:  # OUTSIDE
        if max_continue != 0:
            raise OutsideWithPrecedingContinueError(clock, last_commit, max_continue)
        if clock <= last_commit:
            return Outcome.OUTSIDE_DUPLICATE, last_commit, 0
        return Outcome.OUTSIDE_COMMIT, clock, 0

    if flags & 1:  # CONTINUE, also with the bit of ACK beside it
        if clock <= last_commit or clock <= max_continue:
            return Outcome.CONTINUE_DUPLICATE, last_commit, max_continue
        if max_continue == 0:
            return Outcome.CONTINUE_BEGIN, last_commit, clock
        return Outcome.CONTINUE_EXTEND, last_commit, clock

    if clock <= last_commit:  # ACK of the past
        if max_continue == 0:
            return Outcome.ACK_DUPLICATE, last_commit, 0
        if clock == last_commit:
            return Outcome.ACK_CLEAN_ROLLBACK, last_commit, 0
        # The last commit stays: a rollback never takes back what was committed.
        return Outcome.ACK_DEEP_ROLLBACK, last_commit, 0
    if max_continue == 0:
        return Outcome.ACK_EMPTY, clock, 0
    if max_continue <= clock:
        return Outcome.ACK_COMMIT, clock, 0
    raise AckPartialCommitError(clock, last_commit, max_continue)


def sequence_rows(  # noqa: PLR0917 - a column each
    offsets: Int64s,
    ends: Int64s,
    producers: Int64s,
    clocks: Clocks,
    flags: Flags,
    states: Mapping[int, ProducerState],
) -> Sequenced:
    """The result of `sequence_batch`, found one row after the other."""
    changed: dict[int, ProducerState] = {}
    outcomes = bytearray()
    rollbacks: list[tuple[int, int, int, int]] = []
    fault: Fault | None = None
    columns = (column.tolist() for column in (offsets, ends, producers, clocks, flags))
    for row, (offset, end, producer, clock, flag) in enumerate(zip(*columns, strict=True)):
        state = changed.get(producer) or states.get(producer, UNSEEN)
        last_commit, max_continue, at = state.last_commit, state.max_continue, state.offset
        try:
            outcome, new_commit, new_continue = sequence(flag, clock, last_commit, max_continue)
        except SequenceFaultError as error:
            fault = Fault(row, offset, producer, clock, last_commit, max_continue, type(error))
            break
        outcomes.append(outcome)
        if outcome > CLOSE_LAST:
            continue
        if outcome >= CLOSE_FIRST:
            at = -end
            if outcome >= ROLLBACK_FIRST:
                rollbacks.append((row, producer, last_commit, max_continue))
        elif outcome == BEGIN:
            at = offset
        changed[producer] = ProducerState(new_commit, new_continue, at)

    discards = Discards(
        rows=np.array([entry[0] for entry in rollbacks], np.intp),
        producers=np.array([entry[1] for entry in rollbacks], np.int64),
        after=np.array([entry[2] for entry in rollbacks], np.uint64),
        through=np.array([entry[3] for entry in rollbacks], np.uint64),
    )
    return Sequenced.of(np.frombuffer(outcomes, np.uint8), discards, changed, states, fault)
