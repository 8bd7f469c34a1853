"""Sequencing a whole batch, all producers at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import LocalProtocolError
from penstock.ids import Kind, kind_of
from penstock.sequence.grouped import (
    FAULT,
    Found,
    Groups,
    group,
    sequence_ascending,
    sequence_grouped,
)
from penstock.sequence.outcomes import (
    BEGIN,
    CLOSE_LAST,
    UNSEEN,
    AckPartialCommitError,
    Clocks,
    Discards,
    Fault,
    Flags,
    Int64s,
    OutsideWithPrecedingContinueError,
    ProducerState,
    Sequenced,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DTYPES: Final = tuple(map(np.dtype, (np.int64, np.int64, np.int64, np.uint64, np.uint16)))


def sequence_batch(  # noqa: PLR0917 - a column each
    offsets: Int64s,
    ends: Int64s,
    producers: Int64s,
    clocks: Clocks,
    flags: Flags,
    states: Mapping[int, ProducerState],
) -> Sequenced:
    """Sequences rows of one journal, in offset order, whose producers were left in `states`. Only
    the states of producers with rows here are asked for. A span begins at its first row's offset,
    and a close counts up to its row's end."""
    dtypes = (offsets.dtype, ends.dtype, producers.dtype, clocks.dtype, flags.dtype)
    if dtypes != _DTYPES:
        raise LocalProtocolError(f"the columns must be {_DTYPES}, not {dtypes}")
    if len(offsets) == 0:
        return Sequenced.of(np.empty(0, np.uint8), Discards.none(), {}, states, None)

    groups = group(producers, states)
    kinds = flags & np.uint16(3)
    grouped_clocks = clocks[groups.order]
    found: Found | None = None
    if not kinds.any() and not groups.max_continues.any():
        found = sequence_ascending(groups, grouped_clocks)
    if found is None:
        found = sequence_grouped(groups, grouped_clocks, kinds[groups.order])
    outcomes = np.empty_like(found.outcomes)
    outcomes[groups.order] = found.outcomes

    row = int((outcomes == FAULT).argmax())
    if outcomes[row] == FAULT:
        # After its first fault a producer's outcomes mean nothing, so the first of all counts. The
        # rows before it are sequenced once more without what follows them.
        before = sequence_batch(
            offsets[:row], ends[:row], producers[:row], clocks[:row], flags[:row], states
        )
        producer = int(producers[row])
        state = before.changed.get(producer) or states.get(producer, UNSEEN)
        is_outside = kind_of(int(flags[row])) is Kind.OUTSIDE
        fault = Fault(
            row=row,
            offset=int(offsets[row]),
            producer=producer,
            clock=int(clocks[row]),
            last_commit=state.last_commit,
            max_continue=state.max_continue,
            error=OutsideWithPrecedingContinueError if is_outside else AckPartialCommitError,
        )
        return replace(before, fault=fault)
    changed = _states_after(groups, found, offsets, ends)
    return Sequenced.of(outcomes, _discards(groups, found), changed, states, None)


def _discards(groups: Groups, found: Found) -> Discards:
    rows = groups.rows(found.rollbacks)
    numbers = np.searchsorted(groups.starts, found.rollbacks, side="right") - 1
    in_row_order = np.argsort(rows)
    return Discards(
        rows=rows[in_row_order],
        producers=np.array(groups.producers, np.int64)[numbers[in_row_order]],
        after=found.after[in_row_order],
        through=found.through[in_row_order],
    )


def _states_after(
    groups: Groups, found: Found, offsets: Int64s, ends: Int64s
) -> dict[int, ProducerState]:
    """The states of the producers which the batch changed."""
    # The last row that began or closed a span tells the offset. -1 goes before all groups.
    is_turn = found.outcomes - BEGIN <= CLOSE_LAST - BEGIN
    turns = np.append(-1, np.flatnonzero(is_turn))
    turns = turns[np.searchsorted(turns, groups.ends, side="right") - 1]
    changed: dict[int, ProducerState] = {}
    turn_rows = groups.rows(turns)
    for producer, entering, has_turn, outcome, offset, end, last_commit, max_continue in zip(
        groups.producers,
        groups.entering,
        (turns >= groups.starts).tolist(),
        found.outcomes[turns].tolist(),
        offsets[turn_rows].tolist(),
        ends[turn_rows].tolist(),
        found.last_commits.tolist(),
        found.max_continues.tolist(),
        strict=True,
    ):
        if has_turn and outcome == BEGIN:
            changed[producer] = ProducerState(last_commit, max_continue, offset)
        elif has_turn:
            changed[producer] = ProducerState(last_commit, 0, -end)
        elif entering.max_continue != 0:
            changed[producer] = ProducerState(last_commit, max_continue, entering.offset)
    return changed
