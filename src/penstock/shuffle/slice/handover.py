"""What a Slice of the next session inherits, when reads change hands. Pure.

A read goes on where its last Slice left it, and is one Slice's again. Hints are everyone's: whoever
tells a commit must tell with it at which other commits its acknowledgement hinted, or the Session
would take a transaction for whole that is not. Of a hint it is not known which read it came from;
so every Slice has all that are not answered yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.frontier import reduce_all
from penstock.frontier.hints import without_byte_deltas
from penstock.journal.names import name_of
from penstock.shuffle.session.ledger import entries_of
from penstock.shuffle.slice.snapshots import SliceSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.frontier import Frontier


def inherit(
    snapshots: Sequence[SliceSnapshot], complete: Frontier, is_own: Callable[[str, int], bool]
) -> SliceSnapshot:
    """From all Slices of a lane as an epoch left them, with the Session's frontier in it. `is_own`
    says which journals, as a binding reads them, are this Slice's now."""
    parts = [
        tuple(read for read in one.reads if is_own(read.journal, read.binding)) for one in snapshots
    ]
    told = reduce_all([one.frontier for one in snapshots])
    names = [str(name) for name in told.journal_names.to_pylist()]
    journals = zip(names, told.bindings.tolist(), strict=True)
    own = np.array([is_own(*journal) for journal in journals], np.bool_)
    return SliceSnapshot(
        reads=tuple(read for part in parts for read in part),
        frontier=reduce_all([told.keep_journals(own), _unanswered(told, complete)]),
        # What comes next is not below this. A Slice that reads nothing promises nothing.
        promised=min(
            (one.promised for one, part in zip(snapshots, parts, strict=True) if part), default=0
        ),
        cycle=max((one.cycle for one in snapshots), default=0),
        replays=tuple(
            replay
            for one in snapshots
            for replay in one.replays
            if is_own(replay.journal, replay.binding)
        ),
    )


def _unanswered(told: Frontier, complete: Frontier) -> Frontier:
    """Nothing but the hints at commits that are not complete."""
    hints = list(entries_of(told, told.hinted_commits > 0))
    named = {(name_of(entry.key[0]), entry.key[1]) for entry in hints}
    keys = zip(complete.journal_names.to_pylist(), complete.bindings.tolist(), strict=True)
    is_named = [(name_of(str(name)), binding) in named for name, binding in keys]
    commits: dict[tuple[str, int, int], int] = {}
    for entry in entries_of(complete.keep_journals(np.array(is_named, np.bool_))):
        # Hints name journals; whichever of that name has the commit.
        key = (name_of(entry.key[0]), entry.key[1], entry.producer)
        commits[key] = max(entry.last_commit, commits.get(key, 0))
    unanswered = np.zeros(told.entry_count, np.bool_)
    for entry in hints:
        key = (name_of(entry.key[0]), entry.key[1], entry.producer)
        unanswered[entry.row] = entry.hinted_commit > commits.get(key, 0)
    kept = without_byte_deltas(told.keep_entries(unanswered))
    return replace(
        kept,
        last_commits=np.zeros(kept.entry_count, np.uint64),
        offsets=np.zeros(kept.entry_count, np.int64),
    )
