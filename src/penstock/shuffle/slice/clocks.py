"""The keys that rows are ordered by, whatever times they bear. Pure.

A row's key is its time and its binding's delay, never less than the key of the row before it in
the same journal. A row's time is its producer's clock, or what else its log says. One that is far
ahead of now is not believed: its row counts as the rows that were read with it do, and as of now if
none of them is believed. So a time that lies delays neither its own journal nor any other. Identity
stays what the clock says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.ids import CLOCK_MAX, clock_delay, clock_duration

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

AHEAD_MAX: Final = clock_duration(5)
"""How far ahead of this machine's clock one may be and still order its rows, which then wait until
it is that time. Clocks of machines differ, and a producer that writes more than a million documents
a second runs ahead of its own."""
AHEAD_SHOWN: Final = clock_duration(60)
"""A clock that lied is named for so long after its last row was read."""


def believed_until(now: int) -> int:
    """The last time that is believed."""
    return clock_delay(now, AHEAD_MAX)


def keys_of(times: Keys, delay: int, floor: int, now: int = CLOCK_MAX) -> Keys:
    """Of rows that were read together, one after the other. No key is below the floor."""
    if int(times.max(initial=0)) > believed_until(now):
        is_believed = times <= np.uint64(believed_until(now))
        times = np.where(is_believed, times, np.uint64(0 if is_believed.any() else now))
    keys: Keys = np.maximum.accumulate(times)
    if delay:
        np.minimum(keys, np.uint64(CLOCK_MAX - delay), out=keys)
        keys += np.uint64(delay)
    return np.maximum(keys, np.uint64(floor), out=keys)


@dataclass(frozen=True, slots=True)
class Ahead:
    """A row whose time was not believed, when it was read."""

    journal: str
    producer: int
    time: int
    seen_at: int


class LyingClocks:
    """The last such row of each journal, as long as it is worth being named."""

    def __init__(self) -> None:
        self._rows: dict[str, Ahead] = {}

    def look(self, journal: str, times: Keys, producers: Int64s, now: int) -> None:
        """Rows of a journal were read."""
        row = int(times.argmax()) if len(times) else -1
        if row >= 0 and int(times[row]) > believed_until(now):
            self._rows[journal] = Ahead(journal, int(producers[row]), int(times[row]), now)

    def shown(self, now: int) -> list[Ahead]:
        """Those that were read a short while ago, the farthest ahead first."""
        self._rows = {
            journal: row
            for journal, row in self._rows.items()
            if now <= clock_delay(row.seen_at, AHEAD_SHOWN)
        }
        return sorted(self._rows.values(), key=lambda row: -row.time)
