"""Which rows of a block a reader sees. Pure, and over whole columns.

A row is in (start, end] if its clock is above its producer's last commit in `start`, at most that
in `end`, no rollback that is stored behind it forgets it, and its vnode was not given away since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.ids import CLOCK_MAX
from penstock.shuffle.queue.groups import Groups, Identities, identities
from penstock.shuffle.queue.segment import Rollbacks
from penstock.shuffle.queue.vnodes import Given

if TYPE_CHECKING:
    from penstock.frontier.table import Frontier
    from penstock.shuffle.queue.block import PartEntry
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
    """The rows of (start, end] of a view; without an end, all behind `start`."""

    def __init__(self, view: View, start: Frontier, end: Frontier | None) -> None:
        self._view = view
        self._start = Commits(start, view.ids)
        self._end = Commits(end, view.ids) if end is not None else None
        self._rollbacks = _all_rollbacks(view)
        self._sources = Sources(self._rollbacks.reads, self._rollbacks.producers)
        self._given = Given(view.blocks)

    def select(self, index: int) -> list[bool | Mask]:
        """Of the view's block with that index: for each part all rows, none, or which."""
        loaded = self._view.blocks[index]
        bounds = self._bounds(loaded)
        touched = self._touched(loaded, index, bounds.some)
        selected = [
            not part.stage.is_rollbacks and self._select_part(loaded, index, part, bounds, touched)
            for part in loaded.block.parts
        ]
        return self._given.left(loaded, selected)

    def _bounds(self, loaded: Loaded) -> _Bounds:
        groups = loaded.block.groups
        above = self._start.of(loaded.reads, groups["producer"])
        upto = (
            self._end.of(loaded.reads, groups["producer"])
            if self._end is not None
            else np.full(len(groups), CLOCK_MAX, np.uint64)
        )
        return _Bounds(above, upto, groups["first"], groups["last"])

    def _touched(self, loaded: Loaded, index: int, some: Mask) -> dict[int, Ints]:
        """The groups that rollbacks behind them may reach into, and those rollbacks."""
        if not len(self._rollbacks.after):
            return {}
        groups = loaded.block.groups
        begins, ends = self._sources.find(loaded.reads, groups["producer"])
        touched = {}
        for group in np.flatnonzero((begins < ends) & some).tolist():
            own = self._sources.by_source[begins[group] : ends[group]]
            reaches = (
                (self._rollbacks.blocks[own] >= index)
                & (self._rollbacks.after[own] < groups["last"][group])
                & (self._rollbacks.through[own] >= groups["first"][group])
            )
            if reaches.any():
                touched[group] = own[reaches]
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
            places = _places(loaded, part)
            for group in forgotten:
                own = np.flatnonzero(seen & (group_of_row == group))
                gone = self._forgotten(rows.first[own], places[own], touched[group], index)
                seen[own[gone]] = False
        if seen.all():
            return True
        return seen if seen.any() else False

    def _forgotten(self, clocks: Clocks, places: Ints, rollbacks: Ints, index: int) -> Mask:
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


class _Bounds:
    """Of each group: above which and up to which clock its rows are seen."""

    def __init__(self, above: Clocks, upto: Clocks, first: Clocks, last: Clocks) -> None:
        self.above, self.upto = above, upto
        self.some: Mask = (above < upto) & (last > above) & (first <= upto)
        self.whole: Mask = (first > above) & (last <= upto)


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


def _places(loaded: Loaded, part: PartEntry) -> Ints:
    """The places of the part's rows in the order of their block."""
    begin = 0
    for other in loaded.block.parts:
        if other is part:
            break
        begin += other.rows
    order = loaded.order()
    if order is None:
        return np.arange(begin, begin + part.rows)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places[begin : begin + part.rows]


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
        _joined([own.places for own in parts], np.int64),
        _joined([own.reads for own in parts], np.int64),
        _joined([own.producers for own in parts], np.int64),
        _joined([own.after for own in parts], np.uint64),
        _joined([own.through for own in parts], np.uint64),
    )


def _rollbacks_of(loaded: Loaded) -> Rollbacks:
    """Those of one block. They are few, and everybody asks for them again and again."""
    if loaded.rollbacks is None:
        places, reads, producers, after, through = [], [], [], [], []
        for part in loaded.block.parts:
            if part.stage.is_rollbacks:
                rows = identities(part.stage, loaded.decode(part))
                groups = loaded.block.groups[part.groups]
                places.append(_places(loaded, part))
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


def _joined(columns: list[npt.NDArray[Any]], kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate(columns) if columns else np.empty(0, kind)
