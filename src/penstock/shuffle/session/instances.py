"""Which journals are known under a name, one after another, and which of them a hint is at.

An acknowledgement hints at a journal by name. Frontiers know every journal that had the name by
itself: what was committed in one that is deleted stays true, and another one that is made in its
place is read from its begin. So a hint is placed when it comes: at the journal that has the commit
already, else at the one that is read now. If that changes, hints that are not answered move along.

A hint that nothing will answer is put at a journal that never was, as a commit of it: so everybody
who comes across it again, also after a restart, knows that it is settled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    project_commits_to_hints,
    reduce,
)
from penstock.ids import CLOCK_NONE, Producer
from penstock.journal.names import identity_in, known_as, name_of
from penstock.journal.offset_identity import READER
from penstock.shuffle.session.ledger import GONE, entries_of, gone_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.frontier.table import BoolArray
    from penstock.shuffle.session.ledger import Entry, ReadKey


class Instances:
    """Keys are of names here, not of what frontiers call journals."""

    def __init__(self, resume: Frontier, adopted: Mapping[str, str] | None) -> None:
        """`adopted` as in `SessionRecord`. If it is None, journals that are listed until `settle`
        are taken for those that were read before, which had no identities."""
        self._adopted = dict(adopted or {})
        self._is_adopting = adopted is None
        self._all: dict[ReadKey, list[str]] = {}
        """All that were ever read, and what stands for those that are gone."""
        self._current: dict[ReadKey, str] = {}
        names = (str(name) for name in resume.journal_names.to_pylist())
        for name, binding in zip(names, resume.bindings.tolist(), strict=True):
            self._all.setdefault((name_of(name), binding), []).append(name)

    @property
    def adopted(self) -> dict[str, str]:
        return dict(self._adopted)

    def settle(self) -> None:
        """All journals that there were at the start are listed."""
        self._is_adopting = False

    def known_as(self, name: str, identity: str) -> str:
        """What frontiers and queues call a journal."""
        if self._is_adopting:
            self._adopted.setdefault(name, identity)
        return known_as(name, "" if self._adopted.get(name) == identity else identity)

    def identity_of(self, known: str) -> str:
        """Of a journal that frontiers call this."""
        return identity_in(known) or self._adopted.get(known, "")

    def begin(self, key: ReadKey, known: str) -> str:
        """This one is read from now on. Gives the one before it, at which hints may be."""
        before = self._current.get(key, key[0])
        self._current[key] = known
        found = self._all.setdefault(key, [])
        if known not in found:
            found.append(known)
        return before

    def place(self, delta: Frontier, reported: Callable[[ReadKey, int], int]) -> Frontier:
        """The delta with its hints where they belong. `reported` gives the last commit of a
        journal's producer that was told."""
        moved = np.zeros(delta.entry_count, np.bool_)
        hints: dict[ReadKey, dict[int, int]] = {}
        for entry in entries_of(delta, delta.hinted_commits > np.uint64(CLOCK_NONE)):
            target = self._target(entry, reported)
            if target != entry.key[0]:
                moved[entry.row] = True
                hints.setdefault((target, entry.key[1]), {})[entry.producer] = entry.hinted_commit
        return with_hints_moved(delta, moved, hints)

    def _target(self, entry: Entry, reported: Callable[[ReadKey, int], int]) -> str:
        name, binding = entry.key
        known = self._all.get(entry.key)
        if known is None:
            return name
        for one in known if len(known) > 1 or entry.key not in self._current else ():
            if reported((one, binding), entry.producer) >= entry.hinted_commit:
                return one
        return self._current.get(entry.key, name)


def with_hints_moved(
    frontier: Frontier, moved: BoolArray, hints: Mapping[ReadKey, Mapping[int, int]]
) -> Frontier:
    """Without the hints of some entries, and with others: journal to producer to commit."""
    entries = {
        key: [
            ProducerFrontier(Producer.from_int64(producer), CLOCK_NONE, clock)
            for producer, clock in found.items()
        ]
        for key, found in hints.items()
    }
    return _with_entries(frontier, moved, entries)


def with_hints_settled(frontier: Frontier, settled: BoolArray) -> Frontier:
    """With the hints of some entries as commits of what stands for the journals that are gone."""
    commits: dict[ReadKey, dict[int, int]] = {}
    for entry in entries_of(frontier, settled):
        found = commits.setdefault(gone_key(entry.key), {})
        clock = max(entry.hinted_commit, found.get(entry.producer, CLOCK_NONE))
        found[entry.producer] = clock
    entries = {
        key: [
            ProducerFrontier(Producer.from_int64(producer), clock)
            for producer, clock in found.items()
        ]
        for key, found in commits.items()
    }
    return _with_entries(frontier, settled, entries)


def _with_entries(
    frontier: Frontier, changed: BoolArray, added: Mapping[ReadKey, Sequence[ProducerFrontier]]
) -> Frontier:
    if not changed.any():
        return frontier
    none = np.uint64(CLOCK_NONE)
    hints = np.where(changed, none, frontier.hinted_commits)
    kept = ~(changed & (frontier.last_commits == none))
    rest = replace(frontier, hinted_commits=hints).keep_entries(kept)
    journals = (
        JournalFrontier(*key, tuple(sorted(entries, key=lambda entry: entry.producer)))
        for key, entries in sorted(added.items())
    )
    return reduce(rest, Frontier.of(journals))


def promised(newest: Frontier) -> Frontier:
    """What has to be read again if the queues of an epoch are lost: its commits, as hints. Of what
    stands for journals that are gone nothing can be read; that it is settled stays known. Up to
    where a journal was read is no commit."""
    names = (str(name) for name in newest.journal_names.to_pylist())
    is_gone = np.array([name == known_as(name_of(name), GONE) for name in names], np.bool_)
    gone = Frontier.of(newest.keep_journals(is_gone).journals())
    there = newest.keep_journals(~is_gone)
    commits = there.keep_entries(there.producers != READER.int64)
    return reduce(gone, project_commits_to_hints(commits))
