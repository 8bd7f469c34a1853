"""One cohort's checkpoints: progress goes in, and what comes out holds every transaction whole.

    progressed -> boundary -> ready -> taken

An acknowledgement hints at those of the same transaction in other journals. All that has been
reported makes a boundary; it waits until the commits that it hints at are reported too, is promoted
to ready, and the next one begins with what came meanwhile. What it waits for does not move away
from it: a boundary has a *reach* for each producer that it waits for, the latest commit hinted at,
and takes in whatever is reported of that producer up to there, and nothing beyond.

Why all of it: a journal's commits are taken in order. With the commit that was hinted at come
earlier ones of the same producer, of transactions that reach into still other journals.
docs/decisions/011-a-pipeline-per-cohort.md has an example, and what else differs from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    project_unresolved_hints,
    reduce,
    reduce_all,
    resolve_hints,
)
from penstock.frontier.align import matching_rows
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer
from penstock.shuffle.session.instances import with_hints_moved, with_hints_settled
from penstock.shuffle.session.ledger import Ledger, entries_of, is_open

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.frontier.table import BoolArray
    from penstock.shuffle.session.ledger import Entry, ReadKey, Settled


@dataclass(frozen=True, slots=True)
class Awaited:
    """A commit that was hinted at and has not been reported."""

    journal: str
    binding: int
    producer: Producer
    last_commit: int
    hinted_commit: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a cohort has nothing new: what it waits for, and since when nothing of it came."""

    cohort: int
    since: float
    awaited: tuple[Awaited, ...]


class CheckpointPipeline:
    """The checkpoints of one cohort. All frontiers given to it have only the cohort's bindings."""

    def __init__(self, cohort: int, resume: Frontier, now: float, *, recovery: bool) -> None:
        self.cohort = cohort
        self._recovery = recovery
        """Of the whole session, and for good: only what the resume frontier hints at counts."""
        self._ledger = Ledger()
        self._ledger.settle(resume)
        self._ledger.raise_gap_floors(resume.gap_floor)
        self._progressed = Frontier.of()
        hinted = project_unresolved_hints(resume)
        self._boundary = hinted if hinted.unresolved_hints else None
        self._frozen = False
        """Something was held back from this boundary. Now no other progress may join it whole:
        the offsets in it could lie behind what was held back."""
        self._ready: Frontier | None = None
        self._since = now

    @property
    def is_resolved(self) -> bool:
        """Nothing is waited for."""
        return self._boundary is None

    @property
    def waiting(self) -> Waiting | None:
        if self._boundary is None:
            return None
        unresolved = entries_of(self._boundary, self._boundary.unresolved)
        awaited = tuple(
            Awaited(*entry.key, entry.identity, entry.last_commit, entry.hinted_commit)
            for entry in unresolved
        )
        return Waiting(self.cohort, self._since, awaited)

    def hinted_by(self, awaited: Awaited) -> str | None:
        """A journal that has the same commit, or a later one, of the producer: its
        acknowledgement hints at the one that is awaited."""
        boundary = self._boundary
        if boundary is None:
            return None
        rows = np.flatnonzero(
            (boundary.producers == awaited.producer.int64)
            & (boundary.last_commits >= np.uint64(awaited.hinted_commit))
        )
        if not len(rows):
            return None
        exact = rows[boundary.last_commits[rows] == np.uint64(awaited.hinted_commit)]
        row = int(exact[0] if len(exact) else rows[0])
        return str(boundary.journal_names[int(boundary.journal_indices()[row])])

    @property
    def has_ready(self) -> bool:
        return self._ready is not None

    def take(self) -> Frontier | None:
        """What is ready, once."""
        taken, self._ready = self._ready, None
        return taken

    def on_progressed(self, delta: Frontier, now: float) -> None:
        if self._recovery and self.is_resolved:
            return  # the one checkpoint is made

        # 1. Rows were lost: what could only be in them is not waited for any more.
        if delta.gap_floor and not self._recovery:
            self._ledger.raise_gap_floors(delta.gap_floor)
            if self._boundary is not None:
                self._advance(self._ledger.prune(self._boundary), now)

        boundary = self._boundary
        if boundary is None:
            self._progressed = reduce(self._progressed, delta)
        else:
            reach = {} if self._recovery else reach_of(boundary)
            if not self._frozen and self._is_within(delta, boundary, reach):
                # 2. All of the delta belongs to the boundary: it joins, with offsets and bytes.
                self._advance(reduce(boundary, self._ledger.prune(delta)), now)
            else:
                # 3. Or a part: its commits count now, and the whole is held back.
                self._frozen = True
                if not self._recovery:
                    self._progressed = reduce(self._progressed, delta)
                flushed = Frontier.of(flushed_lsn=delta.flushed_lsn)
                part = self._part_of(delta, boundary, reach)
                self._advance(reduce_all((part, flushed)), now)

        self._go_on(now)

    def reported(self, key: ReadKey, producer: int) -> int:
        """The last commit that was told of a journal and producer."""
        identity = Producer.from_int64(producer)
        found = [
            entry.last_commit
            for part in (self._boundary, self._progressed)
            if part is not None and (entry := part.entry(*key, identity)) is not None
        ]
        return max([self._ledger.of(key, producer).commit, *found])

    def move_hints(self, source: ReadKey, target: ReadKey, now: float) -> None:
        """Another journal of the same name is read now: what was not told of the one before may be
        in this one."""
        if self._recovery:
            return
        self._progressed = self._with_hints_at(self._progressed, source, target)
        if self._boundary is not None:
            boundary = self._with_hints_at(self._boundary, source, target)
            self._advance(self._ledger.prune(boundary), now)
            self._go_on(now)

    def _with_hints_at(self, frontier: Frontier, source: ReadKey, target: ReadKey) -> Frontier:
        moved = np.zeros(frontier.entry_count, np.bool_)
        hints: dict[int, int] = {}
        for entry in entries_of(frontier, frontier.unresolved):
            if entry.key != source or self.reported(source, entry.producer) >= entry.hinted_commit:
                continue
            moved[entry.row] = True
            hints[entry.producer] = entry.hinted_commit
        return with_hints_moved(frontier, moved, {target: hints})

    def extend(self, hints: Frontier, now: float) -> None:
        """Of the producers that the boundary waits for it takes all in, up to these hints."""
        if self._boundary is None or self._recovery:
            return
        awaited = np.fromiter(reach_of(self._boundary), np.int64)
        own = hints.keep_entries(np.isin(hints.producers, awaited))
        if not own.entry_count:
            return
        boundary = reduce(self._boundary, self._ledger.prune(own))
        self._frozen = True
        self._advance(self._part_of(self._progressed, boundary, reach_of(boundary)), now)
        self._go_on(now)

    def give_up(self, awaited: Collection[Awaited], now: float) -> None:
        """Of these commits nothing will come: the journal is gone, or is another one."""
        if self._boundary is None or self._recovery:
            return
        lost = {(one.journal, one.binding, one.producer.int64) for one in awaited}
        given_up = np.zeros(self._boundary.entry_count, np.bool_)
        for entry in entries_of(self._boundary, self._boundary.unresolved):
            given_up[entry.row] = (*entry.key, entry.producer) in lost
        self._advance(with_hints_settled(self._boundary, given_up), now)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        # 4. Once a boundary is resolved, what was held back is the next.
        if self._boundary is None and self._progressed.journal_count:
            progressed, self._progressed = self._progressed, Frontier.of()
            self._frozen = False
            self._advance(self._ledger.prune(progressed), now)

    def _advance(self, boundary: Frontier, now: float) -> None:
        """The boundary is this now; if it is resolved, it is promoted."""
        before, self._boundary = self._boundary, boundary
        if before is None or _awaits_other(before, boundary):
            self._since = now
        if not boundary.unresolved_hints:
            self._ledger.settle(boundary)
            self._ready = boundary if self._ready is None else reduce(self._ready, boundary)
            self._boundary = None

    def _is_within(self, delta: Frontier, boundary: Frontier, reach: dict[int, int]) -> bool:
        for entry, known in _side_by_side(delta, boundary):
            settled = self._ledger.of(entry.key, entry.producer)
            limit = max(
                *(CLOCK_FLOOR, settled.commit, reach.get(entry.producer, CLOCK_NONE)),
                *(known.last_commit, known.hinted_commit),
            )
            if entry.last_commit > limit:
                return False
            if entry.hinted_commit > limit and not self._ledger.is_moot(
                entry.key, entry.producer, entry.hinted_commit
            ):
                return False
        return True

    def _part_of(self, delta: Frontier, boundary: Frontier, reach: dict[int, int]) -> Frontier:
        """The boundary with what belongs to it of a delta, and of what was held back before."""
        if self._recovery:
            return resolve_hints(boundary, delta).frontier
        parts, extended = self._parts_within(delta, boundary, reach)
        while extended:
            # What was beyond the reach when it was reported may not be any more.
            parts, extended = self._parts_within(self._progressed, boundary, reach)
        journals = (
            JournalFrontier(*key, tuple(sorted(entries, key=lambda entry: entry.producer)))
            for key, entries in sorted(parts.items())
        )
        return reduce(boundary, Frontier.of(journals))

    def _parts_within(
        self, source: Frontier, boundary: Frontier, reach: dict[int, int]
    ) -> tuple[dict[ReadKey, list[ProducerFrontier]], bool]:
        """What is within reach of a frontier, and whether that made a reach longer."""
        parts: dict[ReadKey, list[ProducerFrontier]] = {}
        extended = False
        chosen = np.isin(source.producers, np.fromiter(reach, np.int64, len(reach)))
        for entry, known in _side_by_side(source, boundary, chosen):
            key, producer = entry.key, entry.producer
            settled = self._ledger.of(key, producer)
            seen = max(known.last_commit, settled.commit)
            awaited = max(seen, known.hinted_commit)
            commit, hinted = entry.last_commit, entry.hinted_commit
            # A clock that is cut off at the reach is no commit of this journal: no span is closed
            # by it. If one is open where reading would resume, it would look closed, and be lost.
            # So there the reach goes on to a commit that is one.
            beyond = commit if commit > reach[producer] else hinted
            if beyond > reach[producer] > awaited and _has_open_span(known, settled):
                reach[producer] = beyond
                extended = True
            commit = min(commit, reach[producer])
            hinted = min(hinted, reach[producer])
            if commit <= max(seen, CLOCK_FLOOR):
                commit = CLOCK_NONE
            if hinted <= max(awaited, commit) or self._ledger.is_moot(key, producer, hinted):
                hinted = CLOCK_NONE
            if commit or hinted:
                part = ProducerFrontier(entry.identity, commit, hinted)
                parts.setdefault(key, []).append(part)
        return parts, extended


def reach_of(boundary: Frontier) -> dict[int, int]:
    """For each producer that is waited for, the latest commit hinted at."""
    reach: dict[int, int] = {}
    for entry in entries_of(boundary, boundary.unresolved):
        reach[entry.producer] = max(entry.hinted_commit, reach.get(entry.producer, CLOCK_NONE))
    return reach


def _side_by_side(
    source: Frontier, boundary: Frontier, chosen: BoolArray | None = None
) -> Iterator[tuple[Entry, ProducerFrontier]]:
    """The entries of a frontier, each with what the boundary has of the same; if nothing, then
    with one that says nothing."""
    found = list(entries_of(source, chosen))
    rows = np.array([entry.row for entry in found], np.int64)
    matches = matching_rows(source, boundary, rows)
    for entry, match in zip(found, matches.tolist(), strict=True):
        if match < 0:
            yield entry, ProducerFrontier(entry.identity, CLOCK_NONE)
        else:
            yield entry, boundary.entry_at(match)


def _has_open_span(known: ProducerFrontier, settled: Settled) -> bool:
    return is_open(known.last_commit, known.offset) if known.last_commit else settled.is_open


def _awaits_other(before: Frontier, after: Frontier) -> bool:
    """Whether something that was waited for came, or something else is waited for too."""
    old, new = before.unresolved, after.unresolved
    return not (
        np.array_equal(before.producers[old], after.producers[new])
        and np.array_equal(before.last_commits[old], after.last_commits[new])
        and np.array_equal(before.hinted_commits[old], after.hinted_commits[new])
    )
