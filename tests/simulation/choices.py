"""Every choice a run makes, by seed or by script.

A choice is a place in a stream and the number of an option. Option 0 is the harmless one, so a run
is written down as its other choices only, and to take one away is to make the run simpler. Streams
are named after who chooses what: a choice that is gone moves no other one to another place.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

OptionT = TypeVar("OptionT")

Place: TypeAlias = tuple[str, int]
Script: TypeAlias = dict[Place, int]


class Menu(Generic[OptionT]):
    """Options with weights. The first is the harmless one."""

    def __init__(self, *options: tuple[float, OptionT]) -> None:
        self.options = [option for _, option in options]
        total = sum(weight for weight, _ in options)
        self.bounds = [bound / total for bound in accumulate(weight for weight, _ in options)]
        self.bounds.pop()


class Choices:
    """By seed when there is no script. `made` is the script of the choices so far."""

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self._random = random.Random(seed)
        self._script = script
        self._counts: dict[str, int] = {}
        self.made: Script = {}
        self.quiet = False
        """From now on every choice is the harmless one."""

    def choose(self, stream: str, menu: Menu[OptionT]) -> OptionT:
        if self.quiet:
            return menu.options[0]
        index = self._counts.get(stream, 0)
        self._counts[stream] = index + 1
        if self._script is None:
            number = bisect_right(menu.bounds, self._random.random())
        else:
            number = self._script.get((stream, index), 0)
            if number >= len(menu.options):
                number = 0  # another question is asked here than when the script was made
        if number:
            self.made[stream, index] = number
        return menu.options[number]


def evenly(*options: OptionT) -> Menu[OptionT]:
    return Menu(*((1.0, option) for option in options))


def seldom(per_mille: float) -> Menu[bool]:
    """True in so many of a thousand cases."""
    return Menu((1000 - per_mille, False), (per_mille, True))
