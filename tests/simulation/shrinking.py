"""Takes choices out of a failing run, more and more finely, as long as it fails in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.choices import Place, Script


def smallest(
    script: Script, failing: Callable[[Script], Script | None], runs_max: int
) -> tuple[Script, int]:
    """The smallest script found, and how many runs that took. `failing` runs a script, and gives
    the one that the run has left if it fails in the same way."""
    runs, pieces = 0, 2
    while pieces <= 2 * len(script) and runs < runs_max:
        for piece in _pieces(sorted(script), pieces):
            if runs >= runs_max:
                break
            runs += 1
            left = failing({place: way for place, way in script.items() if place not in piece})
            if left is not None:
                script = left  # what was not asked for is left out as well
        pieces *= 2
    return script, runs


def _pieces(places: list[Place], count: int) -> list[frozenset[Place]]:
    size = max(1, -(-len(places) // count))
    return [frozenset(places[start : start + size]) for start in range(0, len(places), size)]
