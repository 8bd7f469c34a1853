"""The ledger of what was completed, and the hints that it makes moot.

A hint waits for a commit in a journal that this reader may never see: the journal was read past
it before, or is long abandoned, or lost its beginning. The ledger tells which.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import LocalProtocolError
from penstock.frontier.align import matching_rows
from penstock.frontier.validation import BINDING_MAX
from penstock.ids import CLOCK_NONE, Producer, clock_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.frontier.table import BoolArray, Frontier, UInt16Array, UInt64Array

HORIZON: Final = clock_duration(86_400)
"""A commit a day behind the newest of its binding is one that a producer will not finish."""


class UnknownBindingError(LocalProtocolError):
    """A frontier has a binding that the ledger was not told of. Fix the code that opened it."""

    def __init__(self, binding: int, binding_count: int) -> None:
        super().__init__(binding, binding_count)
        self.binding = binding
        self.binding_count = binding_count

    def __str__(self) -> str:
        return f"binding {self.binding} is unknown: there are {self.binding_count}, from 0"


class Completed:
    """What was promoted so far: per cohort and producer, and per binding, the latest commit."""

    __slots__ = ("_binding_latest", "_clocks", "_cohorts", "_gap_floors", "_keys")

    def __init__(self, cohorts: Sequence[int]) -> None:
        """`cohorts` has the cohort of every binding. Cohorts are numbered like bindings, from 0."""
        if any(not 0 <= cohort <= BINDING_MAX for cohort in cohorts):
            raise LocalProtocolError(f"cohorts are numbers from 0 to {BINDING_MAX}: {cohorts}")
        self._cohorts: UInt64Array = np.array(cohorts, np.uint64)
        self._binding_latest = np.zeros(len(cohorts), np.uint64)
        self._gap_floors = np.zeros(len(cohorts), np.uint64)
        # (producer, cohort) pairs, ascending: the cohort takes the producer's two empty bytes.
        self._keys: UInt64Array = np.empty(0, np.uint64)
        self._clocks: UInt64Array = np.empty(0, np.uint64)

    def update(self, frontier: Frontier) -> None:
        """Takes the commits of a promoted frontier in; at the start, of the whole checkpoint.

        Its hints and gap floors are not taken: a hint is no commit, and floors are raised on
        their own.
        """
        bindings = self._checked(frontier.entry_bindings())
        np.maximum.at(self._binding_latest, bindings, frontier.last_commits)
        keys = np.concatenate([self._keys, self._entry_keys(frontier)])
        clocks = np.concatenate([self._clocks, frontier.last_commits])
        self._keys, groups = np.unique(keys, return_inverse=True)
        self._clocks = np.zeros(len(self._keys), np.uint64)
        np.maximum.at(self._clocks, groups, clocks)

    def raise_gap_floors(self, floors: Mapping[int, int]) -> None:
        """Floors only rise."""
        for binding, clock in floors.items():
            self._check_binding(binding)
            self._gap_floors[binding] = max(int(self._gap_floors[binding]), clock)

    def clock(self, binding: int, producer: Producer) -> int:
        """The latest completed commit of a producer in the cohort of a binding; zero if none."""
        self._check_binding(binding)
        key = int.from_bytes(producer.raw, "big") << 16 | int(self._cohorts[binding])
        return int(self._lookup(np.array([key], np.uint64))[0])

    def horizon_stale(self, binding: int, clock: int) -> bool:
        """Whether a clock lies a day or more behind the latest commit of its binding."""
        self._check_binding(binding)
        return int(self._binding_latest[binding]) - clock >= HORIZON

    def gap_stale(self, binding: int, clock: int) -> bool:
        """Whether a clock lies below what a binding can still find: its journals have a gap."""
        self._check_binding(binding)
        return clock < int(self._gap_floors[binding])

    def entry_clocks(self, frontier: Frontier) -> UInt64Array:
        """`clock` of every entry."""
        return self._lookup(self._entry_keys(frontier))

    def horizon_stale_rows(self, bindings: UInt16Array, clocks: UInt64Array) -> BoolArray:
        """`horizon_stale` of whole columns."""
        latest = self._binding_latest[self._checked(bindings)]
        # Unsigned: a clock ahead of the latest would wrap around, so it is capped first.
        return latest - np.minimum(clocks, latest) >= np.uint64(HORIZON)

    def gap_stale_rows(self, bindings: UInt16Array, clocks: UInt64Array) -> BoolArray:
        """`gap_stale` of whole columns."""
        return clocks < self._gap_floors[self._checked(bindings)]

    def _entry_keys(self, frontier: Frontier) -> UInt64Array:
        bindings = self._checked(frontier.entry_bindings())
        return frontier.producer_bytes | self._cohorts[bindings]

    def _lookup(self, keys: UInt64Array) -> UInt64Array:
        if not len(self._keys):
            return np.zeros(len(keys), np.uint64)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[rows] == keys, self._clocks[rows], np.uint64(CLOCK_NONE))

    def _checked(self, bindings: UInt16Array) -> UInt16Array:
        if len(bindings):
            self._check_binding(int(bindings.max()))
        return bindings

    def _check_binding(self, binding: int) -> None:
        if not 0 <= binding < len(self._cohorts):
            raise UnknownBindingError(binding, len(self._cohorts))


@dataclass(frozen=True, slots=True)
class PrunedHints:
    """A frontier without its moot hints, and how many there were for which reason."""

    frontier: Frontier
    by_clock: int
    """The producer's commit was completed through another journal of the cohort."""
    by_horizon: int
    """The hint is a day or more behind its binding."""
    by_gap: int
    """The journal may have lost what the hint waits for."""

    @property
    def count(self) -> int:
        return self.by_clock + self.by_horizon + self.by_gap


def prune_hints(frontier: Frontier, completed: Completed) -> PrunedHints:
    """Clears the unresolved hints that the ledger makes moot. Each counts for its first reason."""
    bindings, hints = frontier.entry_bindings(), frontier.hinted_commits
    waiting = frontier.unresolved
    by_clock = waiting & (hints <= completed.entry_clocks(frontier))
    waiting = waiting & ~by_clock
    by_horizon = waiting & completed.horizon_stale_rows(bindings, hints)
    waiting &= ~by_horizon
    by_gap = waiting & completed.gap_stale_rows(bindings, hints)
    cleared = by_clock | by_horizon | by_gap
    if cleared.any():
        none = np.uint64(CLOCK_NONE)
        frontier = replace(frontier, hinted_commits=np.where(cleared, none, hints))
        # What was only a hint says nothing any more.
        frontier = frontier.keep_entries(~(cleared & (frontier.last_commits == none)))
    return PrunedHints(
        frontier,
        by_clock=int(np.count_nonzero(by_clock)),
        by_horizon=int(np.count_nonzero(by_horizon)),
        by_gap=int(np.count_nonzero(by_gap)),
    )


class UnaccountedKind(enum.Enum):
    COMMIT = "commit"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Unaccounted:
    """An entry of a delta that reaches beyond what a boundary is waiting for."""

    kind: UnaccountedKind
    journal: str
    binding: int
    producer: Producer
    clock: int
    ceiling: int


def first_unaccounted(base: Frontier, delta: Frontier, completed: Completed) -> Unaccounted | None:
    """The first entry of the delta that neither the base nor the ledger accounts for, if any.

    Without one, the delta only brings what the base waits for, and may join it.
    """
    ceilings = completed.entry_clocks(delta)
    rows = matching_rows(delta, base, np.arange(delta.entry_count))
    found = rows >= 0
    known = np.maximum(base.last_commits[rows[found]], base.hinted_commits[rows[found]])
    ceilings[found] = np.maximum(ceilings[found], known)

    bindings, commits, hints = delta.entry_bindings(), delta.last_commits, delta.hinted_commits
    new_commit = (commits > ceilings) & ~completed.horizon_stale_rows(bindings, commits)
    new_hint = (
        (hints > ceilings)
        & ~completed.horizon_stale_rows(bindings, hints)
        & ~completed.gap_stale_rows(bindings, hints)
    )
    either = np.flatnonzero(new_commit | new_hint)
    if not len(either):
        return None
    row = int(either[0])
    index = int(np.searchsorted(delta.producer_starts, row, side="right")) - 1
    is_commit = bool(new_commit[row])
    return Unaccounted(
        kind=UnaccountedKind.COMMIT if is_commit else UnaccountedKind.HINT,
        journal=delta.journal_names[index].as_py(),
        binding=int(delta.bindings[index]),
        producer=Producer.from_int64(int(delta.producers[row])),
        clock=int(commits[row] if is_commit else hints[row]),
        ceiling=int(ceilings[row]),
    )
