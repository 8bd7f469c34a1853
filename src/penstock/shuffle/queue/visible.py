"""Which rows of a block a reader sees. Pure, and over whole columns.

A row is in (start, end] if its clock is above its producer's last commit in `start`, at most that
in `end`, no rollback that is stored behind it forgets it, and its vnode was not given away since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.ids import CLOCK_MAX
from penstock.shuffle.queue.groups import GROUP, Groups, Identities, identities
from penstock.shuffle.queue.segment import Rollbacks
from penstock.shuffle.queue.vnodes import Given

if TYPE_CHECKING:
    from penstock.frontier.table import Frontier
    from penstock.shuffle.queue.block import Order, PartEntry
    from penstock.shuffle.queue.catalogue import View
    from penstock.shuffle.queue.segment import Loaded, ReadIds

Clocks = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Sources:
    """Pairs of read and producer, to look others up among them."""

    def __init__(self, reads: Ints, producers: Ints) -> None:
        self._producers, codes = np.unique(producers, return_inverse=True)
        keys = reads * len(self._producers) + codes
        self.by_source = np.argsort(keys, kind="stable")
        self._keys = keys[self.by_source]

    def find(self, reads: Ints, producers: Ints) -> tuple[Ints, Ints]:
        """For each, where its own begin and end in `by_source`."""
        if not len(self._keys):
            nothing = np.zeros(len(reads), np.int64)
            return nothing, nothing
        codes = np.minimum(np.searchsorted(self._producers, producers), len(self._producers) - 1)
        keys = np.where(
            self._producers[codes] == producers, reads * len(self._producers) + codes, -1
        )
        return np.searchsorted(self._keys, keys), np.searchsorted(self._keys, keys, side="right")


class Commits:
    """A frontier's last commits, for the reads that a queue has."""

    def __init__(self, frontier: Frontier, ids: ReadIds) -> None:
        journals = zip(frontier.bindings.tolist(), frontier.journal_names.to_pylist(), strict=True)
        known = np.array([ids.find(binding, name or "") for binding, name in journals], np.int64)
        reads = np.repeat(known, frontier.producer_counts)
        entries = reads >= 0
        self._sources = Sources(reads[entries], frontier.producers[entries])
        self._commits = frontier.last_commits[entries][self._sources.by_source]

    def of(self, reads: Ints, producers: Ints) -> Clocks:
        """Zero for those that the frontier does not have."""
        begins, ends = self._sources.find(reads, producers)
        found = np.zeros(len(reads), np.uint64)
        known = begins < ends
        found[known] = self._commits[begins[known]]
        return found


class Window:
    """The rows of (start, end] of a view; without an end, all behind `start`.

    What is asked of groups is asked of those of all blocks at once: most blocks are seen as a whole
    or not at all, and a view has many.
    """

    def __init__(self, view: View, start: Frontier, end: Frontier | None) -> None:
        self._view = view
        blocks = view.blocks
        counts = np.array([len(loaded.reads) for loaded in blocks], np.int64)
        self._starts = np.zeros(len(blocks) + 1, np.int64)
        """Where the groups of each block begin among those of all."""
        np.cumsum(counts, out=self._starts[1:])
        reads = _joined([loaded.reads for loaded in blocks], np.int64)
        # As bytes: NumPy compares all fields of every two tables that it joins.
        groups = np.frombuffer(
            b"".join([loaded.block.groups.tobytes() for loaded in blocks]), GROUP
        )
        producers = groups["producer"].copy()
        above = Commits(start, view.ids).of(reads, producers)
        upto = (
            Commits(end, view.ids).of(reads, producers)
            if end is not None
            else np.full(len(groups), CLOCK_MAX, np.uint64)
        )
        self._bounds = _Bounds.of(above, upto, groups["first"], groups["last"])
        self._has_some = _count_within(self._bounds.some, self._starts) > 0
        self._is_whole = _count_within(self._bounds.whole, self._starts) == counts
        self._rollbacks = _all_rollbacks(view)
        self._sources = Sources(self._rollbacks.reads, self._rollbacks.producers)
        self._given = Given(view.blocks)
        self._own_rollbacks = self._sources.find(reads, producers)

    def select(self, index: int) -> list[bool | Mask]:
        """Of the view's block with that index: for each part all rows, none, or which."""
        loaded = self._view.blocks[index]
        if not self._has_some[index]:
            return [False] * len(loaded.block.parts)
        own = slice(int(self._starts[index]), int(self._starts[index + 1]))
        bounds = self._bounds.part(own)
        touched = self._touched(loaded, index, own, bounds.some)
        if self._is_whole[index] and not touched:
            whole: list[bool | Mask] = [not part.stage.is_rollbacks for part in loaded.block.parts]
            return self._given.left(loaded, whole)
        selected = [
            not part.stage.is_rollbacks and self._select_part(loaded, index, part, bounds, touched)
            for part in loaded.block.parts
        ]
        return self._given.left(loaded, selected)

    def _touched(self, loaded: Loaded, index: int, own: slice, some: Mask) -> dict[int, Ints]:
        """The groups that rollbacks behind them may reach into, and those rollbacks."""
        if not len(self._rollbacks.after):
            return {}
        groups = loaded.block.groups
        begins, ends = (found[own] for found in self._own_rollbacks)
        touched = {}
        for group in np.flatnonzero((begins < ends) & some).tolist():
            rollbacks = self._sources.by_source[begins[group] : ends[group]]
            reaches = (
                (self._rollbacks.blocks[rollbacks] >= index)
                & (self._rollbacks.after[rollbacks] < groups["last"][group])
                & (self._rollbacks.through[rollbacks] >= groups["first"][group])
            )
            if reaches.any():
                touched[group] = rollbacks[reaches]
        return touched

    def _select_part(
        self,
        loaded: Loaded,
        index: int,
        part: PartEntry,
        bounds: _Bounds,
        touched: dict[int, Ints],
    ) -> bool | Mask:
        if not bounds.some[part.groups].any():
            return False
        begin, end = part.groups.start, part.groups.stop
        forgotten = [group for group in touched if begin <= group < end]
        if bounds.whole[part.groups].all() and not forgotten:
            return True
        rows = identities(part.stage, loaded.decode(part))
        group_of_row = _group_of_rows(rows, loaded.block.groups[part.groups]) + begin
        seen: Mask = (rows.first > bounds.above[group_of_row]) & (
            rows.first <= bounds.upto[group_of_row]
        )
        if forgotten:
            places = loaded.places()[loaded.block.parts.index(part)]
            for group in forgotten:
                own = np.flatnonzero(seen & (group_of_row == group))
                gone = self._forgotten(rows.first[own], places[own], touched[group], index)
                seen[own[gone]] = False
        if seen.all():
            return True
        return seen if seen.any() else False

    def _forgotten(self, clocks: Clocks, places: Order, rollbacks: Ints, index: int) -> Mask:
        blocks = self._rollbacks.blocks[rollbacks]
        after, through = self._rollbacks.after[rollbacks], self._rollbacks.through[rollbacks]
        later = blocks > index
        gone = _within(clocks, after[later], through[later])
        for own in np.flatnonzero(~later).tolist():
            gone |= (
                (places < self._rollbacks.places[rollbacks[own]])
                & (clocks > after[own])
                & (clocks <= through[own])
            )
        return gone


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Of each group: above which and up to which clock its rows are seen, whether some of them may
    be, and whether all of them are."""

    above: Clocks
    upto: Clocks
    some: Mask
    whole: Mask

    @classmethod
    def of(cls, above: Clocks, upto: Clocks, first: Clocks, last: Clocks) -> _Bounds:
        some = (above < upto) & (last > above) & (first <= upto)
        return cls(above, upto, some, (first > above) & (last <= upto))

    def part(self, groups: slice) -> _Bounds:
        return _Bounds(self.above[groups], self.upto[groups], self.some[groups], self.whole[groups])


def _count_within(mask: Mask, starts: Ints) -> Ints:
    """How many there are from each start to the next."""
    before = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=before[1:])
    return np.diff(before[starts])


def _within(clocks: Clocks, after: Clocks, through: Clocks) -> Mask:
    """Whether any of the rollbacks covers the clock."""
    if not len(after):
        return np.zeros(len(clocks), np.bool_)
    by_after = np.argsort(after)
    reached = np.maximum.accumulate(through[by_after])
    before = np.searchsorted(after[by_after], clocks)
    return (before > 0) & (reached[before - 1] >= clocks)


def _group_of_rows(rows: Identities, groups: Groups) -> Ints:
    """For each row, the index of its group. The groups ascend by read and producer."""
    if len(groups) == 1:
        return np.zeros(len(rows.reads), np.int64)
    reads, producers = np.unique(groups["read"]), np.unique(groups["producer"])
    table = np.searchsorted(reads, groups["read"]) * len(producers) + np.searchsorted(
        producers, groups["producer"]
    )
    keys = np.searchsorted(reads, rows.reads) * len(producers) + np.searchsorted(
        producers, rows.producers
    )
    return np.searchsorted(table, keys)


def _all_rollbacks(view: View) -> Rollbacks:
    found = [
        (index, _rollbacks_of(loaded))
        for index, loaded in enumerate(view.blocks)
        if any(part.stage.is_rollbacks for part in loaded.block.parts)
    ]
    blocks = [np.full(len(own.after), index, np.int64) for index, own in found]
    parts = [own for _, own in found]
    return Rollbacks(
        _joined(blocks, np.int64),
        _joined([own.places for own in parts], np.uint32),
        _joined([own.reads for own in parts], np.int64),
        _joined([own.producers for own in parts], np.int64),
        _joined([own.after for own in parts], np.uint64),
        _joined([own.through for own in parts], np.uint64),
    )


def _rollbacks_of(loaded: Loaded) -> Rollbacks:
    """Those of one block. They are few, and everybody asks for them again and again."""
    if loaded.rollbacks is None:
        places, reads, producers, after, through = [], [], [], [], []
        for part, own in zip(loaded.block.parts, loaded.places(), strict=True):
            if part.stage.is_rollbacks:
                rows = identities(part.stage, loaded.decode(part))
                groups = loaded.block.groups[part.groups]
                places.append(own)
                reads.append(loaded.reads[part.groups][_group_of_rows(rows, groups)])
                producers.append(rows.producers)
                after.append(rows.first)
                through.append(rows.last)
        everywhere = np.concatenate(places)
        loaded.rollbacks = Rollbacks(
            np.zeros(len(everywhere), np.int64),
            everywhere,
            np.concatenate(reads),
            np.concatenate(producers),
            np.concatenate(after),
            np.concatenate(through),
        )
    return loaded.rollbacks


def _joined(columns: list[npt.NDArray[Any]], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(columns) if columns else np.empty(0, kind)
