"""Looks at journals for the Session: which are there, and where producers stand at their ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.journal.errors import OffsetDroppedError, UnknownJournalError
from penstock.sequence import sequence_batch
from penstock.shuffle.session.state import Looked

if TYPE_CHECKING:
    from penstock.journal.store import ReadableStore, States
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.session.state import Sought

WALKED_MAX: Final = 8
"""Journals that one look walks over to their ends. The others have their turn later."""


@dataclass(slots=True)
class _Walk:
    """How far a journal was walked over: the next look goes on from there."""

    identity: str
    offset: int
    states: States


class Looker:
    def __init__(self, store: ReadableStore, plan: Plan) -> None:
        self._store = store
        self._plan = plan
        self._walks: dict[str, _Walk] = {}

    def look(self, sought: Sought) -> dict[str, Looked]:
        """By name, of all journals that are sought."""
        # Listed, and not probed: if the whole store is out of reach, that is an error.
        bindings = self._plan.bindings
        collections = {bindings[binding].collection for _, binding in sought.journals}
        there = {
            one.name: one.identity for name in collections for one in self._store.journals(name)
        }
        stuck = sorted(sought.stuck & there.keys())
        # Those that were walked over are at their ends soon; then others are.
        self._walks = {name: walk for name, walk in self._walks.items() if name in stuck}
        stuck.sort(key=lambda name: name not in self._walks)
        states = {name: self._states(name) for name in stuck[:WALKED_MAX]}
        return {
            name: Looked(there.get(name), states.get(name))
            for name in {name for name, _ in sought.journals}
        }

    def _states(self, name: str) -> States | None:
        """Where producers stand at the end of a journal; None if it changes under our eyes."""
        try:
            probe = self._store.probe(name)
            walk = self._walks.get(name)
            if walk is None or walk.identity != probe.identity or walk.offset < probe.first_kept:
                walk = _Walk(probe.identity, *self._store.states(name, probe.write_head))
                self._walks[name] = walk
            for batch in self._store.read(name, walk.offset, probe.write_head, columns=()):
                found = sequence_batch(
                    batch.offsets,
                    batch.ends,
                    batch.producers,
                    batch.clocks,
                    batch.flags,
                    walk.states,
                )
                if found.fault is not None:
                    return None  # who reads it says so
                walk.offset, walk.states = batch.next_offset, found.states
            if self._store.probe(name).identity == walk.identity:
                return walk.states
        except (UnknownJournalError, OffsetDroppedError):
            pass
        self._walks.pop(name, None)
        return None
