"""What is in the journals now: what an epoch has to cover to be up to date.

A target is taken from the journals as the batch reader does it. It is reached for certain, however
much is written meanwhile: of a journal that is deleted before it was read, nothing is wanted any
more.
"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, reduce_all
from penstock.ids import CLOCK_FLOOR, clock_duration
from penstock.journal.names import known_as, name_of
from penstock.journal.offset_identity import READER, clock_of

if TYPE_CHECKING:
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.plan import BindingPlan, Plan

_CLOCK_PER_MICROSECOND: Final = clock_duration(0, 1_000)


LOOK_SECONDS: Final = 1.0
"""Between two looks for deleted journals, while a target is not reached."""


class Target:
    def __init__(self, store: ReadableStore, plan: Plan) -> None:
        """Everything that is committed now. Of a delayed binding, what is old enough."""
        self._store = store
        self._plan = plan
        self._wanted = target_of_now(store, plan)
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._missing: Frontier | None = None
        """A journal that was not covered at the last call: as long as it is not, nobody compares
        all the others again. It is no promise: a frontier may be lower than the one before."""

    def is_reached(self, frontier: Frontier) -> bool:
        if self._is_covered_by(frontier):
            return True
        if time.monotonic() < self._look_at:
            return False
        self._wanted = self._of_journals_that_are_there()
        self._missing = None
        self._look_at = time.monotonic() + LOOK_SECONDS
        return self._is_covered_by(frontier)

    def _is_covered_by(self, frontier: Frontier) -> bool:
        if self._missing is not None and not covers(frontier, self._missing):
            return False
        missing = _first_missing(frontier, self._wanted)
        self._missing = None if missing is None else Frontier.of([missing])
        return missing is None

    def _of_journals_that_are_there(self) -> Frontier:
        wanted = self._wanted
        there = {
            (name, binding.place)
            for binding in self._plan.bindings
            for one in self._store.journals(binding.collection, binding.selector)
            for name in (one.name, known_as(one.name, one.identity))
        }
        keys = zip(wanted.journal_names.to_pylist(), wanted.bindings.tolist(), strict=True)
        is_there = np.array([key in there for key in keys], np.bool_)
        return wanted.keep_entries(np.repeat(is_there, wanted.producer_counts))


def target_of_now(store: ReadableStore, plan: Plan) -> Frontier:
    return reduce_all([_of_binding(store, binding) for binding in plan.bindings])


def _of_binding(store: ReadableStore, binding: BindingPlan) -> Frontier:
    if binding.by_offset:
        return _read_through(store, binding)

    def journals() -> list[str]:
        return [one.name for one in store.journals(binding.collection, binding.selector)]

    as_of = None
    if binding.delay:
        delay = datetime.timedelta(microseconds=binding.delay // _CLOCK_PER_MICROSECOND)
        as_of = datetime.datetime.now(datetime.UTC) - delay
    cuts = store.cut(journals, as_of, binding.place)
    found = store.frontier_of(cuts, binding.place)
    # What retention has dropped is known from a segment's header, and nothing of it is delivered.
    # With an open span the place of the last commit is not known: then nothing is asked for.
    kept_from = {cut.journal: cut.begin for cut in cuts}
    begins = np.array([kept_from[str(name)] for name in found.journal_names.to_pylist()], np.int64)
    begins = np.repeat(begins, found.producer_counts)
    is_kept = (begins == 0) | (-found.offsets > begins)
    return found.keep_entries(is_kept & (found.last_commits > CLOCK_FLOOR))


def _read_through(store: ReadableStore, binding: BindingPlan) -> Frontier:
    """Where a reader tells how far it has read, that is enough: all up to the ends of now. Of a
    delayed binding nothing is wanted: which rows are old enough is not known before they are read.
    Journals have their identities: offsets of one that had the name before are no measure."""
    if binding.delay:
        return Frontier.of()
    names = [one.name for one in store.journals(binding.collection, binding.selector)]
    return Frontier.of(
        JournalFrontier(
            known_as(name, probe.identity),
            binding.place,
            (ProducerFrontier(READER, clock_of(probe.write_head)),),
        )
        for name, probe in sorted(store.probes(names).items())
    )


def covers(frontier: Frontier, target: Frontier) -> bool:
    """Whether every commit of the target is in the frontier. The target has journals by name, or as
    frontiers know them."""
    return _first_missing(frontier, target) is None


def _first_missing(frontier: Frontier, target: Frontier) -> JournalFrontier | None:
    """A journal of the target of which not every commit is in the frontier."""
    names: dict[str, list[str]] | None = None
    for wanted in target.journals():
        if name_of(wanted.journal) != wanted.journal:
            known = [wanted.journal]
        else:
            # Of several that have the name, one after another, the last has the latest commits.
            names = names or _by_name(frontier)
            known = names.get(wanted.journal, [])
        for entry in wanted.producers:
            found = (frontier.entry(one, wanted.binding, entry.producer) for one in known)
            commits = (0 if one is None else one.last_commit for one in found)
            if max(commits, default=0) < entry.last_commit:
                return wanted
    return None


def _by_name(frontier: Frontier) -> dict[str, list[str]]:
    """What frontiers call the journals of each name."""
    names: dict[str, list[str]] = {}
    for one in frontier.journal_names.to_pylist():
        names.setdefault(name_of(str(one)), []).append(str(one))
    return names
