"""Marks: what a Slice promises a Queue about the rows that follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class MarkKind(IntEnum):
    DUE = 0
    """Rows may follow, none with a lesser key."""
    DELAYED = 1
    """The next row has this key and waits until it is old enough: lower lanes need not wait."""
    IDLE = 2
    """Nothing is there to be read."""


@dataclass(frozen=True, slots=True)
class Mark:
    kind: MarkKind
    key: int = 0


BEGINNING: Final = Mark(MarkKind.DUE, 0)
"""What a stream promises before it has said anything: nothing."""
IDLE: Final = Mark(MarkKind.IDLE)
