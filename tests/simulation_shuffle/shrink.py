"""Makes a failing run simpler: as few choices as possible that still break the same rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.simulation.shrinking import smallest
from tests.simulation_shuffle.run import Result, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.choices import Script
    from tests.simulation_shuffle.cluster import Parts

RUNS_MAX: Final = 600
"""In which shrinking ends: about a minute."""


def shrink(
    result: Result,
    parts: Parts | None = None,
    runs_max: int = RUNS_MAX,
    play: Callable[..., Result] = run,
) -> tuple[Script, int]:
    """The script of the smallest run found that breaks the same rule, and how many runs it took."""
    kind = kind_of(result.violation)

    def failing(script: Script) -> Script | None:
        tried = play(script=script, parts=parts)
        return tried.script if kind_of(tried.violation) == kind else None

    return smallest(result.script, failing, runs_max)


def kind_of(violation: str | None) -> str | None:
    """The rule that is broken: its first words."""
    return violation and re.split(r"[0-9:(\[]", violation, maxsplit=1)[0]
