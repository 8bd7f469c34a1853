"""Which waits stand, and since when. Pure.

Roles say what they wait for at a moment, and most of that is over before the next. A wait stands as
long as it is seen again and again with the same progress: what moved on meanwhile did not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.watch.causes import KINDS, cause_of
from penstock.watch.state import Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.watch.cause import Cause

WAITS_MAX: Final = 50
"""Shown at once. With more, nobody reads them; the first are the ones that count."""

_Key: TypeAlias = tuple[str, str, tuple[object, ...]]
_RANKS: Final = {kind: rank for rank, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Seen:
    """A wait at a moment."""

    cause: Cause
    progress: int = 0
    """What has changed if whoever waits went on meanwhile."""
    since: float | None = None
    """If the role itself knows. Else it is since it was first seen so."""

    def to_json(self) -> list[Any]:
        return [self.cause.kind, self.cause.facts, self.progress, self.since]

    @classmethod
    def from_json(cls, value: list[Any]) -> Seen:
        kind, facts, progress, since = value
        return cls(cause_of(kind, facts), progress, since)


class Standing:
    """Of one feed."""

    def __init__(self) -> None:
        self._since: dict[_Key, tuple[int, float]] = {}

    def look(self, seen: Iterable[Seen], now: float) -> tuple[Wait, ...]:
        """All that is waited for now. Gives what has lasted, the most important first."""
        known, self._since = self._since, {}
        waits = []
        for each in seen:
            cause = each.cause
            key = (cause.kind, cause.who, cause.subject)
            if key in self._since:
                continue  # two who run in one process say the same of it
            progress, since = known.get(key, (each.progress, now))
            if progress != each.progress:
                since = now
            self._since[key] = each.progress, since
            since = since if each.since is None else each.since
            seconds = max(0.0, now - since)
            if seconds >= cause.shown_after_seconds:
                waits.append(_wait(cause, since, seconds))
        return ordered(waits)


def ordered(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Stalls first, by kind, then by age."""
    by_importance = sorted(
        waits, key=lambda each: (not each.is_stall, _RANKS[each.kind], each.since, each.who)
    )
    return tuple(by_importance[:WAITS_MAX])


def _wait(cause: Cause, since: float, seconds: float) -> Wait:
    is_stall = seconds >= cause.stall_after_seconds
    return Wait(
        cause.kind, cause.who, since, is_stall, cause.text(seconds), cause.advice, cause.facts
    )
