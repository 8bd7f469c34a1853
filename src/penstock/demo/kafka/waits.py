"""How long what was committed stayed hidden from a reader, most of all while somebody else's
transaction was open. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Opened:
    """A transfer that was left open, and when it was; by the monotonic clock."""

    name: str
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """Of one reader, from the commit of a transfer until a batch had the last of it."""

    median_seconds: float
    longest_seconds: float
    during: int
    """Transfers that others committed in the first half of the time in which one was open."""
    hidden: int
    """Of these, how many the reader did not have before the open one was ended. Of the second half
    nobody can tell: a batch takes its time in any case."""


def waits_of(
    committed: Mapping[str, float], seen: Mapping[str, float], opened: Opened | None, now: float
) -> Waits:
    """`now` counts for what was not seen so far."""
    # A batch may be quicker than the answer to whoever committed.
    waits = [max(seen.get(name, now) - moment, 0.0) for name, moment in committed.items()]
    during: set[str] = set()
    end = now
    if opened is not None:
        end = now if opened.ended is None else opened.ended
        middle = (opened.began + end) / 2
        during = {name for name, moment in committed.items() if opened.began <= moment < middle}
    hidden = sum(seen.get(name, now) >= end for name in during)
    return Waits(median(waits or [0.0]), max(waits, default=0.0), len(during), hidden)
