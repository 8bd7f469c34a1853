"""Retention: which of a journal's segments are too old, or too many.

Each header says how many bytes came before it. So whether there are too many is a matter of two
headers; and names are listed once, and then used up from the front.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.journal.file.segment import SegmentReader, list_segments, segment_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.collection import Collection
    from penstock.journal.file.head import Position


class Retention:
    """Of one journal, under its append lock."""

    def __init__(self, journal: str, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        self._front: deque[int] = deque()
        """The first segments that were there when they were listed. Others come behind them."""

    def bytes_before(self, segment: int) -> int:
        """What the segments take that are kept before this one. Looks at each of them."""
        return sum(self._size(first) for first in list_segments(self._folder) if first < segment)

    def too_many(
        self, collection: Collection, first_kept: int, written: Position, now_s: float
    ) -> tuple[list[int], int]:
        """The segments to drop, and the first that stays. The one that is written to stays."""
        expired = limit = None
        if collection.retention_seconds is not None:
            expired = now_s - collection.retention_seconds
        if collection.retention_bytes is not None:
            limit = collection.retention_bytes
        if expired is None and limit is None:
            return [], first_kept
        first = first_kept
        if not segment_path(self._folder, first).exists():
            first = self._after(first, written.segment)
        total = 0 if limit is None else self._total(first, written)
        dropped: list[int] = []
        while first < written.segment:
            is_old = expired is not None and self._status(first).st_mtime < expired
            if not is_old and (limit is None or total <= limit):
                break
            total -= self._size(first) if limit is not None else 0
            # Also those before it, which somebody was about to drop, and died.
            dropped += [*self._before(first), first]
            first = self._after(first, written.segment)
        return dropped, first

    def _total(self, first_kept: int, written: Position) -> int:
        before = [self._stated_before(first) for first in (first_kept, written.segment)]
        if before[0] is None or before[1] is None:
            return self.bytes_before(written.segment) + written.bytes
        return before[1] - before[0] + written.bytes

    def _stated_before(self, segment: int) -> int | None:
        with SegmentReader(self._journal, self._folder, segment) as reader:
            return reader.header()[0].bytes_before

    def _before(self, segment: int) -> Iterator[int]:
        if not self._front:
            self._front = deque(list_segments(self._folder))
        while self._front and self._front[0] < segment:
            yield self._front.popleft()

    def _after(self, segment: int, last: int) -> int:
        """The segment behind one that is not the last."""
        for _ in range(2):
            while self._front and self._front[0] <= segment:
                self._front.popleft()
            if self._front:
                return self._front[0]
            self._front = deque(list_segments(self._folder))
        return last

    def _size(self, segment: int) -> int:
        return self._status(segment).st_size

    def _status(self, segment: int) -> os.stat_result:
        return segment_path(self._folder, segment).stat()
