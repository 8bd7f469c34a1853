"""How benchmarks measure and what they print."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS: Final = 15
"""Enough that those disturbed on one side only are few."""
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

    @classmethod
    def of_rounds(cls, name: str, ours: list[float], peer: list[float], unit: str) -> Line:
        """Medians of rounds that were run in turns; of the ratios, too."""
        ratios = [one / other for one, other in zip(ours, peer, strict=True)]
        middle = statistics.median
        return cls(name, middle(ours), middle(peer), middle(ratios), unit)

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

    Their rounds alternate. A shared machine has slow spells of seconds, in which everything that
    moves memory takes three times as long: so each round of ours is set against the peer's round
    right after it, and the median of these ratios counts. The rates are medians too.
    """
    return Line.of_rounds(name, *in_turns(ours, peer, amount, ROUNDS), unit)


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], amount: float, rounds: int
) -> tuple[list[float], list[float]]:
    """The rates of both, a figure for each round."""
    sides = (ours, peer)
    calls = [_calls_per_round(side) for side in sides]
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for index, side in enumerate(sides):
            rates[index].append(amount * calls[index] / _seconds(side, calls[index]))
    return rates


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
