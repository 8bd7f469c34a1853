"""A cause: what may hold a feed up, as a role says it of itself at a moment. Pure.

It knows no clock: since when it holds is found out by who collects it (`standing.py`), and comes in
as seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Cause:
    """Of any kind."""

    kind: ClassVar[str]
    shown_after_seconds: ClassVar[float] = 1.0
    """What is over sooner is how things flow."""
    stall_after_seconds: ClassVar[float] = 2.0
    """From here on it is no part of a normal flow."""
    heals_itself: ClassVar[bool] = False
    """Nobody needs to do anything, unless it takes very long."""
    is_normal: ClassVar[bool] = False
    """A feed that has such a wait, as long as it is no stall, is healthy."""

    @property
    def who(self) -> str:
        """Which role waits."""
        return "session"

    @property
    def subject(self) -> tuple[object, ...]:
        """What tells two waits of the same role and kind apart."""
        return ()

    def text(self, seconds: float) -> str:
        """One plain sentence. It has lasted for so long."""
        raise NotImplementedError

    @property
    def advice(self) -> str | None:
        """What a person could do."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class OfSlice(Cause):
    member: int
    lane: int

    @property
    def who(self) -> str:
        return f"slice {self.member}.{self.lane}"


@dataclass(frozen=True, slots=True)
class OfQueue(Cause):
    member: int

    @property
    def who(self) -> str:
        return f"queue {self.member}"


def journals_named(journal: str, count: int) -> str:
    return f"journal {journal}" if count == 1 else f"journal {journal} and {count - 1} more"
