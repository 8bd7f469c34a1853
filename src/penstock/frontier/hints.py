"""Causal hints: the commits that a frontier knows of and has not read.

An ACK in one journal hints at the ACKs of the same transaction in other journals. An entry whose
`hinted_commit` is above its `last_commit` is unresolved, and no frontier with such an entry is the
boundary of a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.frontier.align import matching_rows
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.frontier.table import Frontier

UNRESOLVED_LINES_MAX: Final = 20
"""Enough to see a pattern in a log message; a frontier may have a million unresolved hints."""


@dataclass(frozen=True, slots=True)
class ResolvedHints:
    """A frontier after another one was looked through for the commits it hints at."""

    frontier: Frontier
    advanced: int
    """Entries whose last commit rose."""
    resolved: int
    """Those among them that reached their hint."""


def resolve_hints(frontier: Frontier, other: Frontier) -> ResolvedHints:
    """Advances unresolved entries by what the other frontier has read, up to their hints."""
    rows = np.flatnonzero(frontier.unresolved)
    matches = matching_rows(frontier, other, rows)
    rows, matches = rows[matches >= 0], matches[matches >= 0]
    commits = other.last_commits[matches]
    advances = commits > frontier.last_commits[rows]
    rows, commits = rows[advances], commits[advances]
    if not len(rows):
        return ResolvedHints(frontier, advanced=0, resolved=0)
    hints = frontier.hinted_commits[rows]
    last_commits = frontier.last_commits.copy()
    last_commits[rows] = np.minimum(commits, hints)
    # The other's offset may lie behind later commits than the hinted one. Our own cut floor is
    # where reading resumes anyway, so a close there claims nothing that was not read.
    journals = np.searchsorted(frontier.producer_starts, rows, side="right") - 1
    offsets = frontier.offsets.copy()
    offsets[rows] = -frontier.cut_floors()[journals]
    return ResolvedHints(
        replace(frontier, last_commits=last_commits, offsets=offsets),
        advanced=len(rows),
        resolved=int(np.count_nonzero(commits >= hints)),
    )


def project_unresolved_hints(frontier: Frontier) -> Frontier:
    """Only the unresolved entries, without byte deltas and LSNs. The clocks of bindings stay."""
    kept = without_byte_deltas(frontier.keep_entries(frontier.unresolved))
    return replace(kept, flushed_lsn=np.empty(0, np.uint64))


def project_commits_to_hints(frontier: Frontier) -> Frontier:
    """The commits of a checkpoint as hints: what a client stores before it processes them.

    Reduced into the client's durable frontier, it makes a restart read exactly these commits
    again. So it is nothing but hints: bytes are counted, and LSNs and the clocks of bindings
    known, by the checkpoint itself, which the client reduces in after processing. An entry that
    only says "read, and nothing committed" has no commit to hint at and is left out.
    """
    kept = frontier.keep_entries(frontier.last_commits > np.uint64(CLOCK_FLOOR))
    return replace(
        without_byte_deltas(kept),
        last_commits=np.zeros(kept.entry_count, np.uint64),
        hinted_commits=kept.last_commits,
        offsets=np.zeros(kept.entry_count, np.int64),
        flushed_lsn=np.empty(0, np.uint64),
        backfill_begin={},
        backfill_complete={},
        gap_floor={},
    )


def without_byte_deltas(frontier: Frontier) -> Frontier:
    """The same progress with no bytes to count: for what will be reported a second time."""
    zeros = np.zeros(frontier.journal_count, np.int64)
    return replace(frontier, bytes_read_delta=zeros, bytes_behind_delta=zeros)


def retain_bindings(frontier: Frontier, predicate: Callable[[int], bool]) -> Frontier:
    """Only the journals and clocks of the bindings that the predicate accepts. LSNs stay."""
    bindings = np.unique(frontier.bindings)
    accepted = np.array([predicate(int(binding)) for binding in bindings], np.bool_)
    kept = frontier.keep_journals(accepted[np.searchsorted(bindings, frontier.bindings)])

    def retain(clocks: Mapping[int, int]) -> dict[int, int]:
        return {binding: clock for binding, clock in clocks.items() if predicate(binding)}

    return replace(
        kept,
        backfill_begin=retain(frontier.backfill_begin),
        backfill_complete=retain(frontier.backfill_complete),
        gap_floor=retain(frontier.gap_floor),
    )


def clear_discharged_hints(frontier: Frontier) -> Frontier:
    """Zeroes every unresolved hint.

    For a cumulative frontier after a frontier without unresolved hints was reduced into it: hints
    that are still unresolved then were pruned on the way, and nobody will answer them.
    """
    none = np.uint64(CLOCK_NONE)
    return replace(
        frontier, hinted_commits=np.where(frontier.unresolved, none, frontier.hinted_commits)
    )


def describe_unresolved(frontier: Frontier) -> str:
    """The unresolved hints, one a line; empty if there are none."""
    lines = []
    for row in np.flatnonzero(frontier.unresolved)[:UNRESOLVED_LINES_MAX].tolist():
        index = int(np.searchsorted(frontier.producer_starts, row, side="right")) - 1
        lines.append(
            f"journal {frontier.journal_names[index].as_py()!r} binding {frontier.bindings[index]} "
            f"producer {Producer.from_int64(int(frontier.producers[row]))}: "
            f"committed {int(frontier.last_commits[row]):016x}, "
            f"hinted {int(frontier.hinted_commits[row]):016x}"
        )
    if frontier.unresolved_hints > UNRESOLVED_LINES_MAX:
        lines.append(f"... and {frontier.unresolved_hints - UNRESOLVED_LINES_MAX} more")
    return "\n".join(lines)
