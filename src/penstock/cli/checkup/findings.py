"""What was found, how bad it is, and what to do."""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass
from typing import Any


class Severity(enum.StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing. Nothing has to be done."""
    WARNING = "warning"
    """Works, and will not for ever."""
    ERROR = "error"
    """Does not work, or is lost."""

    @property
    def needs_attention(self) -> bool:
        return self in (Severity.WARNING, Severity.ERROR)


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    check: str
    what: str
    todo: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(check: str, what: str) -> Finding:
    return Finding(Severity.OK, check, what)


def note(check: str, what: str, todo: str = "") -> Finding:
    return Finding(Severity.NOTE, check, what, todo)


def warning(check: str, what: str, todo: str) -> Finding:
    return Finding(Severity.WARNING, check, what, todo)


def error(check: str, what: str, todo: str) -> Finding:
    return Finding(Severity.ERROR, check, what, todo)


def age(modified_seconds: float) -> str:
    """How long ago that was, in the largest unit that fits."""
    seconds = max(time.time() - modified_seconds, 0)
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "less than a minute"
