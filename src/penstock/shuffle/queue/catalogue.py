"""What a Queue's folder holds up to an LSN, for those who read, reclaim or open it.

Blocks are looked at once and remembered. A block of survivors has the place of the segments that it
stands for: its rows are older than all that is in the segments behind those, and so they come
before it, wherever the block was written.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import LocalProtocolError
from penstock.shuffle.queue.errors import CorruptQueueError
from penstock.shuffle.queue.segment import (
    OpenSegment,
    ReadIds,
    SegmentReplacedError,
    read_floor,
    segment_of,
    segment_path,
)

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.shuffle.queue.segment import Floor, Loaded


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All blocks up to an LSN that count, in the order of their rows."""

    blocks: tuple[Loaded, ...]
    passed_over: frozenset[int]
    """Segments that a block of survivors stands for."""
    ids: ReadIds


class Catalogue:
    """Not for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation: int | None = None
        self._segments: dict[int, OpenSegment] = {}
        self.ids = ReadIds()

    def view(self, lsn: int) -> View:
        blocks = self._load(lsn)
        passed_over = frozenset(segment for loaded in blocks for segment in loaded.block.stands_for)
        counting = [loaded for loaded in blocks if loaded.segment.segment not in passed_over]
        # Within a segment a block of survivors is of older rows than its neighbours are, too.
        counting.sort(key=lambda loaded: (_place(loaded), loaded.block.lsn))
        return View(tuple(counting), passed_over, self.ids)

    def segment(self, number: int) -> OpenSegment:
        """One that a view has looked at."""
        return self._segments[number]

    def forget(self, below: int | None = None) -> None:
        """Lets go of the files, or of those of segments below one."""
        for number in list(self._segments):
            if below is None or number < below:
                self._segments.pop(number).release()

    def _load(self, lsn: int) -> list[Loaded]:
        floor = self._floor(lsn)
        if floor is None:
            return []
        last, blocks = segment_of(lsn), (lsn & 0xFFFF) + 1
        found: list[OpenSegment] = []
        for number in range(last, floor.first_segment - 1, -1):
            segment = self._open(number, floor.generation, blocks)
            if segment is None:
                break
            found.append(segment)
            blocks = segment.header.blocks_before
        self.forget(below=found[-1].segment)
        of_last = (lsn & 0xFFFF) + 1
        return [
            loaded
            for segment in reversed(found)
            for loaded in segment.loaded[: of_last if segment.segment == last else None]
        ]

    def _floor(self, lsn: int) -> Floor | None:
        if lsn == 0:
            return None
        floor = read_floor(self._folder)
        if floor is None or (self._generation or floor.generation) != floor.generation:
            raise LocalProtocolError(
                f"there is no queue in {self._folder} any more, or another one: it was begun anew. "
                "Open a new reader"
            )
        if lsn < floor.lsn:
            raise LocalProtocolError(
                f"LSN {lsn:#x} was asked for, but the consumer was done up to {floor.lsn:#x}, and "
                "what it was done with is dropped. Read a later epoch"
            )
        self._generation = floor.generation
        return floor

    def _open(self, number: int, generation: int, blocks: int) -> OpenSegment | None:
        """With so many blocks looked at; None if it was dropped just now."""
        try:
            known = self._segments.get(number)
            if known is not None and known.is_current():
                with contextlib.suppress(SegmentReplacedError):
                    known.load(blocks)
                    return known
            if known is not None:
                known.release()
            known = OpenSegment(self._folder, number, generation, self.ids)
            known.load(blocks)
            self._segments[number] = known
        except FileNotFoundError:
            floor = read_floor(self._folder)
            if floor is not None and number < floor.first_segment:
                return None
            raise CorruptQueueError(
                str(segment_path(self._folder, number)), number, 0, "the file is missing"
            ) from None
        return known


def _place(loaded: Loaded) -> int:
    return min(loaded.block.stands_for, default=loaded.segment.segment)
