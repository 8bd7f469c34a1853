"""How fast counts rise. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

WINDOW_SECONDS: Final = 3.0
"""Rates are of the time just past: long enough to be steady, short enough to be seen to move."""


class Rates:
    """Of one look after another. What is not asked for in a look is forgotten."""

    def __init__(self) -> None:
        self._now = 0.0
        self._past: dict[Hashable, deque[tuple[float, int]]] = {}
        self._asked: dict[Hashable, deque[tuple[float, int]]] = {}

    def begin(self, now: float) -> None:
        """A new look."""
        self._now = now
        self._past, self._asked = self._asked, {}

    def of(self, key: Hashable, count: int) -> float | None:
        """What it rises by in a second. None before that can be known; a count that fell is
        another's."""
        past = self._asked.get(key) or self._past.get(key)
        if past is None or past[-1][1] > count:
            past = deque()
        self._asked[key] = past
        if not past or past[-1][0] < self._now:
            past.append((self._now, count))
        while len(past) > 2 and past[1][0] <= self._now - WINDOW_SECONDS:
            past.popleft()
        seconds = self._now - past[0][0]
        return (count - past[0][1]) / seconds if seconds else None
