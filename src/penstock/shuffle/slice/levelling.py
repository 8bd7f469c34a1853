"""Levelling: which rows may go, so that those of all reads go by ascending key.

A read that is behind its journal's head may have anything after its last buffered row, but nothing
with a lesser key. So rows up to the least of these last keys, the horizon, may go, and no others;
and none at all while such a read has nothing buffered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.slice.reads import Piece

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.shuffle.slice.reads import Keys, Read, Trigger

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

ROUND_ROWS_MAX: Final = 131_072
"""A round is short beside everything else that a Slice has to see to: a tenth of a second."""
GREEDY_READS: Final = 8
"""So many reads, or fewer, may fill a round between them. Where there are more, each offers no more
than those would: a round has many pieces then, and looking at each of them costs."""
SAMPLES_PER_PIECE: Final = 4
"""At least, if a round is full: what it leaves out for not looking closer is a quarter."""

ALIKE: Final = 1.25
"""Rows that differ by no more than this are all taken for as large as the largest."""

_FIRST_PLACES: Final = 64


class Levels:
    """The keys of all reads side by side, so that no round has to walk over the reads."""

    def __init__(self) -> None:
        self._count = 0
        self._heads: Keys = np.zeros(_FIRST_PLACES, np.uint64)
        self._lasts: Keys = np.zeros(_FIRST_PLACES, np.uint64)
        self._is_buffered = np.zeros(_FIRST_PLACES, np.bool_)
        self._is_behind = np.zeros(_FIRST_PLACES, np.bool_)

    def add(self) -> int:
        """A place for one more read."""
        if self._count == len(self._heads):
            for name in ("_heads", "_lasts", "_is_buffered", "_is_behind"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._count += 1
        return self._count - 1

    def update(self, read: Read) -> None:
        place, buffer = read.place, read.buffer
        self._is_behind[place] = read.is_behind
        self._is_buffered[place] = bool(buffer)
        if buffer:
            self._heads[place] = buffer[0].keys[buffer[0].begin]
            self._lasts[place] = buffer[-1].keys[-1]

    @property
    def is_deferred(self) -> bool:
        """A read is behind and has nothing buffered: its next key may be any."""
        return bool((self._is_behind & ~self._is_buffered).any())

    def lagging(self) -> list[int]:
        """The reads that are behind and have nothing buffered."""
        places: list[int] = np.flatnonzero(self._is_behind & ~self._is_buffered).tolist()
        return places

    def later(self, now: int) -> list[int]:
        """The reads whose next row is too young."""
        places: list[int] = np.flatnonzero(
            self._is_buffered & (self._heads > np.uint64(now))
        ).tolist()
        return places

    def holding(self) -> int | None:
        """The read that holds up all others, if one does."""
        lagging = self.lagging()
        if lagging:
            return lagging[0]
        for chosen, keys in ((self._is_behind, self._lasts), (self._is_buffered, self._heads)):
            places = np.flatnonzero(chosen)
            if len(places):
                return int(places[keys[places].argmin()])
        return None

    def horizon(self) -> int:
        lasts = self._lasts[self._is_behind]
        return int(lasts.min()) if len(lasts) else CLOCK_MAX

    def contending(self) -> int:
        """How many reads hold up the horizon, or are about to: those with nothing buffered, and
        those whose next row is as near to it as what others have buffered reaches."""
        lagging = int(np.count_nonzero(self._is_behind & ~self._is_buffered))
        fed = self._is_behind & self._is_buffered
        heads, lasts = self._heads[fed], self._lasts[fed]
        if not len(heads):
            return lagging
        middle = len(heads) // 2
        # Of a read with nothing buffered, the last key is that of the last row drained.
        least = self._lasts[self._is_behind].min()
        reach = least + np.partition(lasts - heads, middle)[middle]
        return lagging + int(np.count_nonzero(heads <= reach))

    def last_behind(self) -> int | None:
        """The read that the horizon is of, if there is one."""
        places = np.flatnonzero(self._is_behind)
        return int(places[self._lasts[places].argmin()]) if len(places) else None

    def least_head(self) -> int | None:
        heads = self._heads[self._is_buffered]
        return int(heads.min()) if len(heads) else None

    def due(self, limit: int) -> list[int]:
        """The reads that have rows up to the limit."""
        places: list[int] = np.flatnonzero(
            self._is_buffered & (self._heads <= np.uint64(limit))
        ).tolist()
        return places

    def by_last(self, places: Sequence[int]) -> list[int]:
        """The reads by their last buffered key: the first holds up the horizon."""
        chosen = np.array(places, np.intp)
        ordered: list[int] = chosen[np.argsort(self._lasts[chosen], kind="stable")].tolist()
        return ordered

    def mark(self, now: int, promised: int, deferred: bool) -> Mark:
        """What follows, where `promised` is what was promised or sent already."""
        if deferred or self.is_deferred:
            return Mark(MarkKind.DUE, promised)
        head = self.least_head()
        if head is None:
            return IDLE
        # Only rows that were read again can have had a greater key than the head.
        kind = MarkKind.DUE if head <= now else MarkKind.DELAYED
        return Mark(kind, max(head, promised))


def cut(pieces: Sequence[Piece], rows_max: int, bytes_max: float) -> list[int]:
    """How many rows of each piece make a round: the first of them by key, as many as fit, but at
    least one. A read's pieces stand together and in order.

    Where not all rows fit, every so many rows a key is looked at. A key that so many of these are
    below has at most so many rows below it, and those all go; rows of that same key fill up.
    """
    rows = np.array([piece.rows for piece in pieces], np.int64)
    row_bytes = np.array([piece.batch.row_bytes for piece in pieces])
    if rows.sum() <= rows_max and float((rows * row_bytes).sum()) <= bytes_max:
        return [piece.rows for piece in pieces]
    limit = _limit(pieces, row_bytes, rows_max, bytes_max)
    counts = [int(piece.keys.searchsorted(limit)) for piece in pieces]
    rows_left = rows_max - sum(counts)
    bytes_left = bytes_max - float(np.dot(counts, row_bytes))
    for place, piece in enumerate(pieces):
        if counts[place] == piece.rows or piece.keys[counts[place]] != limit:
            continue
        equal = int(piece.keys.searchsorted(limit, side="right")) - counts[place]
        size = piece.batch.row_bytes
        filling = max(0, min(equal, rows_left, int(bytes_left // size)))
        if not filling and not any(counts):
            filling = 1  # one row goes, however large it is
        counts[place] += filling
        rows_left -= filling
        bytes_left -= filling * size
        if filling < equal:
            break
    return counts


def _limit(
    pieces: Sequence[Piece], row_bytes: Floats, rows_max: int, bytes_max: float
) -> np.uint64:
    """A key such that all rows below it fit."""
    allowed = min(rows_max, bytes_max / float(row_bytes.mean()))
    stride = max(1, int(allowed) // (SAMPLES_PER_PIECE * len(pieces)))
    samples = [piece.keys[stride - 1 :: stride] for piece in pieces]
    keys = np.concatenate(samples)
    unseen = stride - 1  # rows of a piece that may hide between two of its samples
    largest = float(row_bytes.max())
    if largest <= ALIKE * float(row_bytes.min()):
        fitting = int(min(rows_max, bytes_max // largest)) - unseen * len(pieces)
        place = min(max(fitting // stride, 0), len(keys) - 1)
        return np.uint64(np.partition(keys, place)[place])
    order = np.argsort(keys)
    weights = np.repeat(row_bytes, [len(sample) for sample in samples])[order] * stride
    fits = np.arange(len(keys)) * stride + unseen * len(pieces) <= rows_max
    fits &= np.cumsum(weights) - weights + unseen * float(row_bytes.sum()) <= bytes_max
    return np.uint64(keys[order[max(int(np.count_nonzero(fits)) - 1, 0)]])


def gather(reads: Sequence[Read], limit: int, triggers: Mapping[int, Trigger]) -> list[Piece]:
    """The rows with keys up to the limit, a read's together and in order, and none from its trigger
    on. If that is more than a round could take, not all of them, but none is left out that is below
    one of these."""
    pieces: list[Piece] = []
    held = limit
    rows_max = ROUND_ROWS_MAX // min(len(reads) or 1, GREEDY_READS)
    for read in reads:
        trigger = triggers.get(read.place)
        version, rows = read.buffer[0].version, 0
        for batch in read.buffer:
            begin, end = batch.begin, len(batch.keys)
            if batch.keys[begin] > limit:
                break
            if rows >= rows_max or batch.version != version:
                # A round has rows of one schema of each read; nobody may overtake the others.
                held = min(held, int(batch.keys[begin]))
                break
            if batch.keys[-1] > limit:
                end = int(batch.keys.searchsorted(np.uint64(limit), side="right"))
            if trigger is not None and trigger.batch is batch:
                end = min(end, trigger.row)
            if end > begin:
                pieces.append(Piece(read, batch, begin, end))
                rows += end - begin
            if end < len(batch.keys):
                break
    return pieces if held == limit else _up_to(pieces, held)


def _up_to(pieces: list[Piece], limit: int) -> list[Piece]:
    kept: list[Piece] = []
    for piece in pieces:
        rows = piece.rows
        if piece.keys[-1] > limit:
            rows = int(piece.keys.searchsorted(np.uint64(limit), side="right"))
        if rows:
            kept.append(Piece(piece.read, piece.batch, piece.begin, piece.begin + rows))
    return kept
