"""What was found in a file of ours, as `penstock inspect` shows it. Each part reports its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.ids import Producer, clock_to_datetime
from penstock.sealed import is_sealed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NO_CHECKSUM: Final = (
    "it was written by an older release, without a checksum: only its form was checked"
)

Row = dict[str, Any]


def unsealed_note(data: bytes) -> list[str]:
    """What is to be known of a file's check, if it has no seal."""
    return [] if is_sealed(data) else [NO_CHECKSUM]


def producer_of(number: int) -> str:
    return str(Producer.from_int64(number))


def clock_of(clock: int) -> str:
    """16 hex digits, as everywhere."""
    return f"{clock:016x}"


def moment_of(clock: int) -> str:
    return clock_to_datetime(clock).isoformat()


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written, in the words of the reader that found it."""

    reason: str
    byte: int | None = None
    block: int | None = None

    def __str__(self) -> str:
        where = [
            f"{name} {place:,}"
            for name, place in (("block", self.block), ("byte", self.byte))
            if place is not None
        ]
        return f"{', '.join(where)}: {self.reason}" if where else self.reason

    def as_json(self) -> dict[str, Any]:
        return {"reason": self.reason, "byte": self.byte, "block": self.block}


@dataclass(slots=True)
class Report:
    """One file. Rows above the limit are counted and not kept."""

    path: Path
    kind: str
    limit: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    rows_total: int = 0
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is worth knowing and no damage: an unfinished end, a check that could not be made."""

    @property
    def room(self) -> int:
        """How many more rows are wanted."""
        return sys.maxsize if self.limit is None else max(self.limit - len(self.rows), 0)

    def add(self, rows: Iterable[Row], total: int | None = None) -> None:
        """`total` if there are more than were given, because there is no room for more."""
        given = list(rows)
        self.rows_total += len(given) if total is None else total
        self.rows += given[: self.room]

    def damaged(self, reason: object, *, byte: int | None = None, block: int | None = None) -> None:
        self.damages.append(Damage(str(reason), byte, block))

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "kind": self.kind,
            "sound": not self.damages,
            "damages": [damage.as_json() for damage in self.damages],
            "notes": self.notes,
            **self.facts,
            "rows_total": self.rows_total,
            "rows": self.rows,
        }
