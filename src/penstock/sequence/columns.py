"""Producers' states as columns: for what has to hold or write all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from penstock.sequence.outcomes import Clocks, Int64s, ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Bools: TypeAlias = NDArray[np.bool_]

_UNSIGNED: Final = 2**64 - 1


class StateColumns(Mapping[int, ProducerState]):
    """States by producer, never changed, in the order of producers' bytes."""

    __slots__ = ("last_commits", "max_continues", "offsets", "producers")

    def __init__(
        self, producers: Int64s, last_commits: Clocks, max_continues: Clocks, offsets: Int64s
    ) -> None:
        ordered = producers.view(np.uint64)
        if not (ordered[1:] > ordered[:-1]).all():
            order = np.argsort(ordered, kind="stable")
            producers, offsets = producers[order], offsets[order]
            last_commits, max_continues = last_commits[order], max_continues[order]
        self.producers = producers
        self.last_commits = last_commits
        self.max_continues = max_continues
        self.offsets = offsets

    @classmethod
    def of(cls, states: Iterable[tuple[int, ProducerState]]) -> StateColumns:
        rows = list(states)
        return cls(
            np.array([producer for producer, _ in rows], np.int64),
            np.array([state.last_commit for _, state in rows], np.uint64),
            np.array([state.max_continue for _, state in rows], np.uint64),
            np.array([state.offset for _, state in rows], np.int64),
        )

    def updated(self, changed: StateColumns) -> StateColumns:
        """These states, with others in place of some and some besides."""
        if not len(changed):
            return self
        places = np.searchsorted(self.producers.view(np.uint64), changed.producers.view(np.uint64))
        is_known = np.zeros(len(places), np.bool_)
        inside = places < len(self)
        is_known[inside] = self.producers[places[inside]] == changed.producers[inside]
        columns = []
        for name in ("producers", "last_commits", "max_continues", "offsets"):
            column, new = getattr(self, name).copy(), getattr(changed, name)
            column[places[is_known]] = new[is_known]
            columns.append(np.insert(column, places[~is_known], new[~is_known]))
        return StateColumns(*columns)

    def select(self, chosen: Bools) -> StateColumns:
        return StateColumns(
            self.producers[chosen],
            self.last_commits[chosen],
            self.max_continues[chosen],
            self.offsets[chosen],
        )

    def to_dict(self) -> dict[int, ProducerState]:
        columns = (self.producers, self.last_commits, self.max_continues, self.offsets)
        return {
            producer: ProducerState(*state)
            for producer, *state in zip(*(column.tolist() for column in columns), strict=True)
        }

    def __getitem__(self, producer: int) -> ProducerState:
        sought = np.uint64(producer & _UNSIGNED)
        row = int(np.searchsorted(self.producers.view(np.uint64), sought))
        if row == len(self) or self.producers[row] != producer:
            raise KeyError(producer)
        return ProducerState(
            int(self.last_commits[row]), int(self.max_continues[row]), int(self.offsets[row])
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.producers.tolist())

    def __len__(self) -> int:
        return len(self.producers)

    def __repr__(self) -> str:
        return f"StateColumns({self.to_dict()})"
