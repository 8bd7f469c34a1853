"""The array work of sequencing: rows grouped by producer, and running maxima over them.

Two facts carry it. A producer's last commit before a row is the largest clock of its earlier
OUTSIDE and ACK rows, whatever became of them: a duplicate is not larger, and a fault ends the
batch. Its open span before a row reaches to the largest CONTINUE clock since its last ACK, provided
that lies after its last commit: otherwise those rows were all duplicates, and no span is open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.ids import Kind
from penstock.sequence.outcomes import (
    CLOSE_LAST,
    ROLLBACK_FIRST,
    UNSEEN,
    Clocks,
    Flags,
    Int64s,
    Outcome,
    Outcomes,
    ProducerState,
    Rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FAULT: Final = 255
"""Beside the outcomes: a row that may not follow those before it."""
_HASH_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
"""2**64 over the golden ratio: multiplied by it, even neighbours differ in their high bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The rows of a batch brought together by producer, each producer's in offset order.

    A column in this order, `column[groups.order]`, is called grouped; a place in it, a position.
    """

    order: Rows | slice
    starts: Rows
    sizes: Rows
    producers: list[int]
    entering: list[ProducerState]
    last_commits: Clocks
    max_continues: Clocks

    @property
    def ends(self) -> Rows:
        """The position of each group's last row."""
        return self.starts + self.sizes - 1

    def rows(self, positions: Rows) -> Rows:
        return positions if isinstance(self.order, slice) else self.order[positions]


def group(producers: Int64s, states: Mapping[int, ProducerState]) -> Groups:
    order: Rows | slice
    if (producers == producers[0]).all():
        order, starts, names = slice(None), np.zeros(1, np.intp), [int(producers[0])]
    else:
        # Two bytes sort three times as fast as eight, so the rows are sorted by a hash of their
        # producer. Where two producers share a hash their rows stay mixed, and some producer
        # begins more than one group: then they are sorted by all eight bytes after all.
        hashes = (producers.view(np.uint64) * _HASH_FACTOR >> 48).astype(np.uint16)
        order = np.argsort(hashes, kind="stable")
        starts, names = _runs(producers[order])
        if len(set(names)) < len(names):
            order = np.argsort(producers, kind="stable")
            starts, names = _runs(producers[order])
    entering = [states.get(producer, UNSEEN) for producer in names]
    return Groups(
        order=order,
        starts=starts,
        sizes=np.append(starts[1:], len(producers)) - starts,
        producers=names,
        entering=entering,
        last_commits=np.array([state.last_commit for state in entering], np.uint64),
        max_continues=np.array([state.max_continue for state in entering], np.uint64),
    )


def _runs(grouped: Int64s) -> tuple[Rows, list[int]]:
    """Where each run of equal producers starts, and whose it is."""
    is_start = np.ones(len(grouped), np.bool_)
    np.not_equal(grouped[1:], grouped[:-1], out=is_start[1:])
    starts = np.flatnonzero(is_start)
    return starts, grouped[starts].tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What sequencing the grouped rows gave. If one is faulty, only the outcomes mean something."""

    outcomes: Outcomes
    last_commits: Clocks
    """Of each group after its last row."""
    max_continues: Clocks
    """Likewise, for the groups that end with an open span."""
    rollbacks: Rows
    """Their positions, and the clocks between which they discard."""
    after: Clocks
    through: Clocks


def sequence_ascending(groups: Groups, clocks: Clocks) -> Found | None:
    """The common case: no transactions, and each clock is above its producer's last, so all rows
    are new. None if one is not.
    """
    before = _shifted(clocks)[:-1]
    before[groups.starts] = groups.last_commits
    if not (clocks > before).all():
        return None
    return Found(
        outcomes=np.full(len(clocks), Outcome.OUTSIDE_COMMIT, np.uint8),
        last_commits=clocks[groups.ends],
        max_continues=groups.max_continues,
        rollbacks=np.empty(0, np.intp),
        after=np.empty(0, np.uint64),
        through=np.empty(0, np.uint64),
    )


def _sequence_ranks(groups: Groups, clocks: Clocks, kinds: Flags) -> Found:
    """For clocks so far apart that they do not fit beside a segment number: their ranks do."""
    every = (np.zeros(1, np.uint64), clocks, groups.last_commits, groups.max_continues)
    distinct, ranks = np.unique(np.concatenate(every), return_inverse=True)
    _, clocks, last_commits, max_continues = np.split(
        ranks.astype(np.uint64), np.cumsum([len(part) for part in every[:-1]])
    )
    ranked = replace(groups, last_commits=last_commits, max_continues=max_continues)
    found = sequence_grouped(ranked, clocks, kinds)
    return replace(
        found,
        last_commits=distinct[found.last_commits],
        max_continues=distinct[found.max_continues],
        after=distinct[found.after],
        through=distinct[found.through],
    )


def sequence_grouped(groups: Groups, clocks: Clocks, kinds: Flags) -> Found:
    starts, count = groups.starts, len(clocks)
    # Clocks are counted from just below the lowest, so that they take few bits and 0 stands for
    # "none". An entering clock below that becomes 0 too: it compares with all clocks here alike,
    # and is put back into the results.
    below = np.uint64(max(int(clocks.min()), 1) - 1)
    levels = clocks - below
    entering_commits = np.maximum(groups.last_commits, below) - below
    entering_spans = np.maximum(groups.max_continues, below) - below
    bits = int(max(levels.max(), entering_commits.max(), entering_spans.max())).bit_length()
    if bits + count.bit_length() > 64:
        return _sequence_ranks(groups, clocks, kinds)
    is_continue = (kinds & 1).astype(np.bool_)
    acks = np.flatnonzero(kinds == Kind.ACK.value)

    # The last commit before each row.
    numbers = np.repeat(np.arange(len(starts), dtype=np.uint64), groups.sizes)
    commits = levels * ~is_continue
    commits[starts] = np.maximum(commits[starts], entering_commits)
    commits = _running_max(commits, numbers, bits)
    commit = _shifted(commits)[:-1]
    commit[starts] = entering_commits

    # The reach of the span before each row. A segment begins with its group or after an ACK.
    is_segment = np.zeros(count + 1, np.uint64)
    is_segment[acks + 1] = is_segment[starts] = 1
    segments = np.cumsum(is_segment[:-1])
    spans = levels * is_continue
    spans[starts] = np.maximum(spans[starts], entering_spans)
    spans = _running_max(spans, segments, bits)
    shifted = _shifted(spans)
    shifted[acks + 1] = 0
    shifted[starts] = entering_spans
    span = shifted[:-1]

    is_open = span > commit
    if groups.max_continues.any():
        # An entering span is open until the first ACK, even if its level is 0 or its commit's.
        entered = np.where(groups.max_continues != 0, segments[starts], 0)
        is_open |= segments == np.repeat(entered, groups.sizes)
    outcomes = _outcomes(levels, kinds, commit, span, is_open)
    rollbacks = acks[outcomes[acks] - ROLLBACK_FIRST <= CLOSE_LAST - ROLLBACK_FIRST]
    last_commits, max_continues = commits[groups.ends], spans[groups.ends]
    return Found(
        outcomes=outcomes,
        last_commits=np.where(last_commits == 0, groups.last_commits, last_commits + below),
        max_continues=np.where(max_continues == 0, groups.max_continues, max_continues + below),
        rollbacks=rollbacks,
        after=commit[rollbacks] + below,
        through=span[rollbacks] + below,
    )


def _outcomes(
    levels: Clocks,
    kinds: Flags,
    commit: Clocks,
    span: Clocks,
    is_open: NDArray[np.bool_],
) -> Outcomes:
    """`sequence()` for all rows, given the last commit and the span before each."""
    is_new = levels > commit
    outcomes = _either(
        is_new & (levels > span),
        _either(is_open, Outcome.CONTINUE_EXTEND, Outcome.CONTINUE_BEGIN),
        Outcome.CONTINUE_DUPLICATE,
    )
    outsides = np.flatnonzero(kinds == Kind.OUTSIDE.value)
    outcomes[outsides] = _either(
        is_open[outsides],
        FAULT,
        _either(is_new[outsides], Outcome.OUTSIDE_COMMIT, Outcome.OUTSIDE_DUPLICATE),
    )
    acks = np.flatnonzero(kinds == Kind.ACK.value)
    ack_levels, ack_is_open = levels[acks], is_open[acks]
    outcomes[acks] = _either(
        is_new[acks],
        _either(
            ack_is_open,
            _either(span[acks] <= ack_levels, Outcome.ACK_COMMIT, FAULT),
            Outcome.ACK_EMPTY,
        ),
        _either(
            ack_is_open,
            _either(
                commit[acks] == ack_levels, Outcome.ACK_CLEAN_ROLLBACK, Outcome.ACK_DEEP_ROLLBACK
            ),
            Outcome.ACK_DUPLICATE,
        ),
    )
    return outcomes


def _either(condition: NDArray[np.bool_], yes: Outcomes | int, no: Outcomes | int) -> Outcomes:
    """`np.where` for outcomes, in a fraction of its time."""
    chosen = condition.view(np.uint8)
    return chosen * np.uint8(yes) + (chosen ^ 1) * np.uint8(no)


def _running_max(levels: Clocks, segments: NDArray[np.uint64], bits: int) -> Clocks:
    """The largest level so far in each segment.

    Segments are numbered upwards. With its number above the bits of its level, a row is larger
    than all rows of earlier segments, and one maximum runs over all of them.
    """
    packed = segments << np.uint64(bits)
    packed |= levels
    np.maximum.accumulate(packed, out=packed)
    packed &= np.uint64((1 << bits) - 1)
    return packed


def _shifted(values: Clocks) -> Clocks:
    """Each value one place later. The first place is for the caller to fill."""
    shifted = np.empty(len(values) + 1, values.dtype)
    shifted[1:] = values
    return shifted
