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

from penstock.frontier import reduce_all
from penstock.ids import CLOCK_FLOOR, clock_duration
from penstock.journal.cut import take_cut
from penstock.journal.names import name_of
from penstock.journal.progress import frontier_of

if TYPE_CHECKING:
    from penstock.frontier import Frontier
    from penstock.journal.store import JournalStore
    from penstock.shuffle.plan import BindingPlan, Plan

_CLOCK_PER_MICROSECOND: Final = clock_duration(0, 1_000)


LOOK_SECONDS: Final = 1.0
"""Between two looks for deleted journals, while a target is not reached."""


class Target:
    def __init__(self, store: JournalStore, plan: Plan) -> None:
        """Everything that is committed now. Of a delayed binding, what is old enough."""
        self._store = store
        self._plan = plan
        self._wanted = target_of_now(store, plan)
        self._look_at = time.monotonic() + LOOK_SECONDS

    def is_reached(self, frontier: Frontier) -> bool:
        if covers(frontier, self._wanted):
            return True
        if time.monotonic() < self._look_at:
            return False
        self._wanted = self._of_journals_that_are_there()
        self._look_at = time.monotonic() + LOOK_SECONDS
        return covers(frontier, self._wanted)

    def _of_journals_that_are_there(self) -> Frontier:
        wanted = self._wanted
        there = {
            (one.name, binding.place)
            for binding in self._plan.bindings
            for one in self._store.journals(binding.collection, binding.selector)
        }
        keys = zip(wanted.journal_names.to_pylist(), wanted.bindings.tolist(), strict=True)
        is_there = np.array([key in there for key in keys], np.bool_)
        return wanted.keep_entries(np.repeat(is_there, wanted.producer_counts))


def target_of_now(store: JournalStore, plan: Plan) -> Frontier:
    return reduce_all([_of_binding(store, binding) for binding in plan.bindings])


def _of_binding(store: JournalStore, binding: BindingPlan) -> Frontier:
    def journals() -> list[str]:
        return [one.name for one in store.journals(binding.collection, binding.selector)]

    as_of = None
    if binding.delay:
        delay = datetime.timedelta(microseconds=binding.delay // _CLOCK_PER_MICROSECOND)
        as_of = datetime.datetime.now(datetime.UTC) - delay
    cuts = take_cut(store, journals, as_of, binding.place)
    found = frontier_of(store, cuts, binding.place)
    # What retention has dropped is known from a segment's header, and nothing of it is delivered.
    # With an open span the place of the last commit is not known: then nothing is asked for.
    kept_from = {cut.journal: cut.begin for cut in cuts}
    begins = np.array([kept_from[str(name)] for name in found.journal_names.to_pylist()], np.int64)
    begins = np.repeat(begins, found.producer_counts)
    is_kept = (begins == 0) | (-found.offsets > begins)
    return found.keep_entries(is_kept & (found.last_commits > CLOCK_FLOOR))


def covers(frontier: Frontier, target: Frontier) -> bool:
    """Whether every commit of the target is in the frontier. The target has journals by name."""
    names: dict[str, set[str]] = {}
    for one in frontier.journal_names.to_pylist():
        names.setdefault(name_of(str(one)), set()).add(str(one))
    for wanted in target.journals():
        known = names.get(wanted.journal, ())
        for entry in wanted.producers:
            # Of several that have the name, one after another, the last has the latest commits.
            found = (frontier.entry(one, wanted.binding, entry.producer) for one in known)
            commits = (0 if one is None else one.last_commit for one in found)
            if max(commits, default=0) < entry.last_commit:
                return False
    return True
