"""Makes a failing run simpler: as few choices as possible that still break the same rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.simulation_shuffle.run import Result, run

if TYPE_CHECKING:
    from tests.simulation.choices import Place, Script
    from tests.simulation_shuffle.cluster import Parts

RUNS_MAX: Final = 600
"""In which shrinking ends: about a minute."""


def shrink(
    result: Result, parts: Parts | None = None, runs_max: int = RUNS_MAX
) -> tuple[Script, int]:
    """The script of the smallest run found that breaks the same rule, and how many runs it took."""
    kind = kind_of(result.violation)
    script, runs = result.script, 0
    pieces = 2
    while pieces <= 2 * len(script) and runs < runs_max:
        for piece in _pieces(sorted(script), pieces):
            if runs >= runs_max:
                break
            runs += 1
            shorter = {place: choice for place, choice in script.items() if place not in piece}
            tried = run(script=shorter, parts=parts)
            if kind_of(tried.violation) == kind:
                script = tried.script  # what was not asked for is left out as well
        pieces *= 2
    return script, runs


def kind_of(violation: str | None) -> str | None:
    """The rule that is broken: its first words."""
    return violation and re.split(r"[0-9:(\[]", violation, maxsplit=1)[0]


def _pieces(places: list[Place], count: int) -> list[frozenset[Place]]:
    size = max(1, -(-len(places) // count))
    return [frozenset(places[start : start + size]) for start in range(0, len(places), size)]
