"""What a Slice tells of itself: figures, journals, and what it waits for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.ids import Producer
from penstock.shuffle.status import JournalStatus, seconds_of
from penstock.watch.causes import ClockAhead, ReadDelay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.shuffle.slice.clocks import LyingClocks
    from penstock.shuffle.slice.levelling import Levels
    from penstock.shuffle.slice.reads import Int64s, Read

    Places: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


def offsets_and_heads(reads: Sequence[Read]) -> tuple[Int64s, Int64s]:
    count = len(reads)
    return (
        np.fromiter((read.offset for read in reads), np.int64, count),
        np.fromiter((read.write_head for read in reads), np.int64, count),
    )


def furthest_behind(reads: Sequence[Read], count_max: int) -> tuple[JournalStatus, ...]:
    offsets, heads = offsets_and_heads(reads)
    behind = heads - offsets
    places: Places = np.argsort(-behind, kind="stable")[:count_max]
    return tuple(_journal(reads[place]) for place in places.tolist())


def _journal(read: Read) -> JournalStatus:
    clock = read.key - read.binding.delay
    return JournalStatus(
        read.journal,
        read.binding.place,
        read.offset,
        read.write_head,
        seconds_of(clock) if read.key else None,
    )


def delays(
    reads: Sequence[Read], levels: Levels, now: int, member: int, lane: int
) -> Iterator[ReadDelay]:
    """The bindings whose rows are too young."""
    young: dict[int, list[Read]] = {}
    for place in levels.later(now):
        read = reads[place]
        if read.binding.delay:
            young.setdefault(read.binding.place, []).append(read)
    for place, found in young.items():
        binding = found[0].binding
        heads = [int(read.buffer[0].keys[read.buffer[0].begin]) for read in found]
        yield ReadDelay(
            member,
            lane,
            place,
            binding.collection,
            (binding.delay >> 4) / 1e7,
            seconds_of(min(heads)),
            sum(read.write_head - read.offset for read in found),
        )


def clocks_ahead(lying: LyingClocks, now: int, member: int, lane: int) -> Iterator[ClockAhead]:
    """The clock that is farthest ahead, if one was not believed a short while ago."""
    shown = lying.shown(now)
    if shown:
        farthest = shown[0]
        ahead = seconds_of(farthest.time) - seconds_of(farthest.seen_at)
        producer = str(Producer.from_int64(farthest.producer))
        yield ClockAhead(member, lane, farthest.journal, producer, ahead, len(shown))


def holder(reads: Sequence[Read], levels: Levels) -> Read | None:
    """The read that holds back what the Slice may promise. If nothing is there to be read, the one
    that gave the last row."""
    place = levels.holding()
    if place is not None:
        return reads[place]
    return max(reads, key=lambda read: read.key, default=None)
