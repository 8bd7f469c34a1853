"""Makes a failing run simpler: as few choices as possible that still break the same rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.simulation.cluster import Result, run
from tests.simulation.shrinking import smallest

if TYPE_CHECKING:
    from tests.simulation.choices import Script
    from tests.simulation.member import Parts

RUNS_MAX: Final = 1500
"""In which shrinking ends: under a minute."""


def shrink(
    result: Result, parts: Parts | None = None, runs_max: int = RUNS_MAX
) -> tuple[Script, int]:
    """The script of the smallest run found that breaks the same rule, and how many runs it took."""
    kind = kind_of(result.violation)

    def failing(script: Script) -> Script | None:
        tried = run(script=script, parts=parts)
        return tried.script if kind_of(tried.violation) == kind else None

    return smallest(result.script, failing, runs_max)


def kind_of(violation: str | None) -> str | None:
    """The rule that is broken, whoever and whichever epoch it is."""
    return violation and re.sub(r"\d+|participant \w|\[.*\]", "#", violation)
