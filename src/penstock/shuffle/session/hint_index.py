"""Which bindings a hint concerns.

An acknowledgement names the other journals of its transaction. Whoever reads one of them in the
same cohort has to wait for it; a journal that no binding of the cohort reads concerns nobody. And a
journal that several bindings of a cohort read has to be whole for all of them: each commit that one
reports is a hint for the others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, RemoteProtocolError
from penstock.journal.names import parse_journal_name

if TYPE_CHECKING:
    from penstock.journal.names import Labels
    from penstock.shuffle.plan import BindingPlan, Plan

JOURNALS_REMEMBERED_MAX: Final = 65_536
"""Names whose bindings are kept at hand, some 300 bytes each: as many as transactions name over
and over. Any other is looked up again."""


class HintIndex:
    """The bindings of a plan by the journals they read. Lookups are remembered."""

    def __init__(self, plan: Plan) -> None:
        self._cohorts = plan.cohorts
        self._by_collection: dict[str, list[BindingPlan]] = {}
        for binding in plan.bindings:
            self._by_collection.setdefault(binding.collection, []).append(binding)
        self._readers = lru_cache(JOURNALS_REMEMBERED_MAX)(self._look_up)

    def targets(self, journal: str, cohort: int) -> tuple[int, ...]:
        """The bindings of a cohort that read a journal, ascending."""
        return self._readers(journal).get(cohort, ())

    def siblings(self, journal: str, binding: int) -> tuple[int, ...]:
        """The other bindings of a binding's cohort that read the same journal."""
        targets = self.targets(journal, self._cohorts[binding])
        return tuple(target for target in targets if target != binding)

    def reads(self, journal: str, binding: int) -> bool:
        """Whether the journal is one that this binding reads."""
        return binding in self.targets(journal, self._cohorts[binding])

    def _look_up(self, journal: str) -> dict[int, tuple[int, ...]]:
        """By cohort, the bindings that read a journal."""
        try:
            collection, labels = parse_journal_name(journal)
        except ConfigurationError as error:
            raise RemoteProtocolError(f"a hint or listing names no journal: {error}") from error
        found: dict[int, tuple[int, ...]] = {}
        for binding in self._by_collection.get(collection, ()):
            if _accepts(binding, journal, labels):
                found[binding.cohort] = (*found.get(binding.cohort, ()), binding.place)
        return found


def _accepts(binding: BindingPlan, journal: str, labels: Labels) -> bool:
    if tuple(labels) != binding.partition_by:
        by = ", ".join(binding.partition_by) or "no column"
        raise RemoteProtocolError(
            f"journal {journal!r} is not one of collection {binding.collection!r}, which binding "
            f"{binding.place} reads: that is partitioned by {by}"
        )
    return binding.selector.accepts(labels)
