"""How benchmarks measure and what they print."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS: Final = 9
"""Enough that on a shared machine both sides meet a quiet moment."""
ROUND_SECONDS: Final = 0.05
"""Long enough to drown the timer, short enough that a disturbance spoils few rounds."""


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison. All figures are rates: more is better, and so is a larger ratio."""

    name: str
    ours: float
    peer: float
    ratio: float
    unit: str

    @classmethod
    def of(cls, name: str, ours: float, peer: float, unit: str) -> Line:
        return cls(name, ours, peer, ours / peer, unit)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    amount: float,
    unit: str,
) -> Line:
    """Compares two ways to do the same `amount` of work per call.

    Their rounds alternate, so a slow spell of the machine falls on both, and each side counts its
    best round, which is the one that was disturbed least.
    """
    sides = (ours, peer)
    calls = [_calls_per_round(side) for side in sides]
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for index, side in enumerate(sides):
            best[index] = min(best[index], _seconds(side, calls[index]) / calls[index])
    return Line.of(name, amount / best[0], amount / best[1], unit)


def _calls_per_round(side: Callable[[], object]) -> int:
    """Also warms the side up."""
    side()
    return max(1, round(ROUND_SECONDS / max(_seconds(side, 1), 1e-9)))


def _seconds(side: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        side()
    return time.perf_counter() - begin


def table(lines: Iterable[Line]) -> str:
    """The lines as aligned text."""
    rows = [("benchmark", "ours", "peer", "ratio")]
    rows += [
        (
            line.name,
            _figure(line.ours, line.unit),
            _figure(line.peer, line.unit),
            f"{line.ratio:.2f}x",
        )
        for line in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _figure(rate: float, unit: str) -> str:
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= limit:
            return f"{rate / limit:.2f} {prefix} {unit}"
    return f"{rate:.2f} {unit}"
