"""The merge: in which order the rows of all streams are written. Pure.

The highest lane that has rows, or may still get some, has the turn. Of its rows those may go whose
key is not above what any stream of the lane has promised: nothing that comes later belongs before
them. Rows are not moved here; the order of a block is worked out beside them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from penstock.errors import RemoteProtocolError
from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import BEGINNING, IDLE, Mark, MarkKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Keys = np.ndarray[Any, np.dtype[np.uint64]]
PartT = TypeVar("PartT")

NOTHING_HELD: Final = CLOCK_MAX
SAMPLES: Final = 32
"""Of the rows of a block: so many keys are looked at to find where it ends. It has fewer rows than
it might, by one in so many."""
FEW_PARTS: Final = 8
"""With more of them, looking each key up in each part costs more than looking at all rows."""


@dataclass(slots=True)
class Waiting(Generic[PartT]):
    """A part that waits to be written: rows from `begin` on, by ascending key."""

    part: PartT
    keys: Keys
    row_bytes: float
    begin: int = 0

    @property
    def rows(self) -> int:
        return len(self.keys) - self.begin


@dataclass(frozen=True, slots=True)
class Taken(Generic[PartT]):
    """Rows [begin, end) of a part."""

    stream: int
    part: PartT
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Merged(Generic[PartT]):
    """What is to be written together, and the order of the rows over all parts as they are listed
    here; None if that is the order."""

    parts: list[Taken[PartT]]
    order: np.ndarray[Any, np.dtype[np.uint32]] | None

    @property
    def rows(self) -> int:
        return sum(taken.end - taken.begin for taken in self.parts)


@dataclass(slots=True)
class _Stream(Generic[PartT]):
    lane: int
    waiting: deque[Waiting[PartT]] = field(default_factory=deque)
    mark: Mark = BEGINNING
    greatest: int = 0
    """Of all keys it ever sent."""
    reached: dict[int, int] = field(default_factory=dict)
    """The last key of each binding: its rows never go back behind that."""
    cap: int = CLOCK_MAX
    """What rows count as at most, until the next mark."""


class Merge(Generic[PartT]):
    """Streams are known by their place in `lanes`."""

    def __init__(self, lanes: Sequence[int]) -> None:
        self._streams: list[_Stream[PartT]] = [_Stream(lane) for lane in lanes]
        self._lanes = sorted(set(lanes))
        self.waiting_rows = 0

    def append(self, stream: int, binding: int, part: PartT, keys: Keys, size_bytes: int) -> None:
        """Rows came. `keys` are their clocks and delays; they count as what they reach."""
        if not len(keys):
            return
        state = self._streams[stream]
        floor = np.uint64(state.reached.get(binding, 0))
        if state.cap != CLOCK_MAX:
            keys = np.minimum(keys, np.uint64(state.cap))
        reached: Keys = np.maximum(np.maximum.accumulate(keys), floor)
        state.reached[binding] = int(reached[-1])
        state.greatest = max(state.greatest, int(reached[-1]))
        state.waiting.append(Waiting(part, reached, size_bytes / len(keys)))
        self.waiting_rows += len(keys)

    def append_marking(self, stream: int, binding: int, part: PartT, rows: int) -> None:
        """Rows came that have no clock of their own: they stay behind what came before them, and
        before what comes after."""
        keys = np.full(rows, self._streams[stream].reached.get(binding, 0), np.uint64)
        self.append(stream, binding, part, keys, 0)

    def mark(self, stream: int, mark: Mark) -> None:
        state = self._streams[stream]
        if mark.kind is MarkKind.CAPPED:
            state.cap = mark.key
            return
        promises = mark.kind is not MarkKind.IDLE and mark != BEGINNING
        if promises and mark.key < state.greatest:
            raise RemoteProtocolError(
                f"a stream promised rows from key {mark.key} on, and has sent {state.greatest}"
            )
        state.mark, state.cap = mark, CLOCK_MAX

    def end(self, stream: int) -> None:
        """Nothing more comes."""
        self._streams[stream].mark = IDLE

    def reached(self, stream: int) -> tuple[int, dict[int, int]]:
        """The greatest key of a stream, and the last one of each binding."""
        state = self._streams[stream]
        return state.greatest, dict(state.reached)

    def cap(self, stream: int) -> int:
        """What rows of a stream count as at most, until its next mark."""
        return self._streams[stream].cap

    def restore_part(self, stream: int, part: PartT, keys: Keys, size_bytes: int) -> None:
        """A part that waited when the state was captured, with the keys it had reached."""
        self._streams[stream].waiting.append(Waiting(part, keys, size_bytes / len(keys)))
        self.waiting_rows += len(keys)

    def restore_stream(
        self, stream: int, mark: Mark, greatest: int, reached: Mapping[int, int], cap: int
    ) -> None:
        state = self._streams[stream]
        state.mark, state.greatest, state.reached = mark, greatest, dict(reached)
        state.cap = cap

    def marks(self) -> list[Mark]:
        return [state.mark for state in self._streams]

    def waiting(self, stream: int) -> Iterable[Waiting[PartT]]:
        """What came and was not taken, in its order."""
        return iter(self._streams[stream].waiting)

    def first_waiting(self, stream: int) -> PartT | None:
        """The part with the oldest row that was not taken."""
        waiting = self._streams[stream].waiting
        return waiting[0].part if waiting else None

    def waiting_by_lane(self) -> dict[int, int]:
        """The rows that wait, of the lanes that have some."""
        found: dict[int, int] = {}
        for state in self._streams:
            rows = sum(waiting.rows for waiting in state.waiting)
            if rows:
                found[state.lane] = found.get(state.lane, 0) + rows
        return found

    @property
    def turn(self) -> int | None:
        """The lane whose rows go next, as soon as they can."""
        return self._turn()

    def held_by(self) -> list[int]:
        """The streams whose promises the merge waits for: why nothing can be taken."""
        turn = self._turn()
        if turn is None:
            return []
        lane = self._of_lane(turn)
        limit = self._limit(turn)
        return [
            place
            for place in lane
            if self._streams[place].mark.kind is not MarkKind.IDLE
            and self._streams[place].mark.key == limit
        ]

    def take(self, rows_max: int, bytes_max: int) -> Merged[PartT] | None:
        """The next rows to write, or None: wait for a mark."""
        turn = self._turn()
        if turn is None:
            return None
        limit = np.uint64(self._limit(turn))
        found = [
            (place, waiting, waiting.begin + _count(waiting, limit))
            for place in self._of_lane(turn)
            for waiting in self._streams[place].waiting
            if waiting.rows and waiting.keys[waiting.begin] <= limit
        ]
        if not found:
            return None
        cut = _cut(found, rows_max, bytes_max)
        if cut is not None:
            found = [
                (place, waiting, waiting.begin + _count(waiting, cut))
                for place, waiting, _ in found
                if waiting.keys[waiting.begin] <= cut
            ]
        keys = [waiting.keys[waiting.begin : end] for _, waiting, end in found]
        taken = [Taken(place, waiting.part, waiting.begin, end) for place, waiting, end in found]
        self._advance(found)
        return Merged(taken, _order(keys))

    def _turn(self) -> int | None:
        """The lane that is next."""
        for lane in self._lanes:
            for place in self._of_lane(lane):
                state = self._streams[place]
                if state.waiting or state.mark.kind is MarkKind.DUE:
                    return lane
        return None

    def _of_lane(self, lane: int) -> list[int]:
        return [place for place, state in enumerate(self._streams) if state.lane == lane]

    def _limit(self, lane: int) -> int:
        return min(
            (
                state.mark.key
                for state in self._streams
                if state.lane == lane and state.mark.kind is not MarkKind.IDLE
            ),
            default=NOTHING_HELD,
        )

    def _advance(self, found: list[tuple[int, Waiting[PartT], int]]) -> None:
        for place, waiting, end in found:
            self.waiting_rows -= end - waiting.begin
            waiting.begin = end
            parts = self._streams[place].waiting
            while parts and not parts[0].rows:
                parts.popleft()


def _count(waiting: Waiting[PartT], limit: np.uint64) -> int:
    """How many of the rows have keys up to the limit."""
    return int(np.searchsorted(waiting.keys[waiting.begin :], limit, side="right"))


def _cut(
    found: list[tuple[int, Waiting[PartT], int]], rows_max: int, bytes_max: int
) -> np.uint64 | None:
    """The key up to which the rows fit a block, if not all of them do. Rows of one key are not
    told apart: such a block is larger."""
    rows = sum(end - waiting.begin for _, waiting, end in found)
    size = sum((end - waiting.begin) * waiting.row_bytes for _, waiting, end in found)
    if rows <= rows_max and size <= bytes_max:
        return None
    allowed = max(1, min(rows_max, int(bytes_max / size * rows) if size else rows_max))
    keys = [waiting.keys[waiting.begin : end] for _, waiting, end in found]
    if len(keys) <= FEW_PARTS:
        # Each part is in order, so one key in so many tells enough.
        step = max(1, allowed // (SAMPLES * len(keys)))
        sampled = np.sort(np.concatenate([own[:allowed:step] for own in keys]))
        counts = np.sum([np.searchsorted(own, sampled, side="right") for own in keys], axis=0)
        fitting = sampled[counts <= allowed]
        if len(fitting):
            return np.uint64(fitting[-1])
    together = np.concatenate(keys)
    return np.uint64(np.partition(together, allowed - 1)[allowed - 1])


def _order(keys: list[Keys]) -> np.ndarray[Any, np.dtype[np.uint32]] | None:
    together = np.concatenate(keys)
    if (together[1:] >= together[:-1]).all():
        return None
    return np.argsort(together, kind="stable").astype(np.uint32)
