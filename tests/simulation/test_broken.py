"""Each rule is broken on purpose: the simulation finds it, and tells it in few words."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.broken import BROKEN
from tests.simulation.cluster import Result, run
from tests.simulation.shrink import kind_of, shrink

SEEDS_MAX: Final = {
    "announces before it records": 10,
    "commits without one member": 10,
    "aborts on its own": 20,
    "skips its first record": 500,
    "acknowledges too early": 10,
    "overwrites records": 20,
    "joins what is under way": 600,
    "forgets what is finished": 600,
    "takes effect late": 500,
}
"""In which it is found, with room for other choices than today's."""


@pytest.mark.parametrize("name", SEEDS_MAX)
def test_a_broken_rule_is_found(name: str) -> None:
    seed, result = _first(name)
    assert result.violation is not None
    assert run(seed, parts=BROKEN[name]) == result, "and found again"


@pytest.mark.parametrize("name", ["commits without one member", "aborts on its own"])
def test_a_failing_seed_is_shrunk(name: str) -> None:
    _, result = _first(name)
    script, _ = shrink(result, BROKEN[name], runs_max=400)
    assert script.items() <= result.script.items(), "nothing was added"
    assert len(script) <= 12 < len(result.script)
    again = run(script=script, parts=BROKEN[name], tracing=True)
    assert kind_of(again.violation) == kind_of(result.violation)
    assert again.script == script
    assert "VIOLATION" in again.trace[-1]


def _first(name: str) -> tuple[int, Result]:
    for seed in range(SEEDS_MAX[name]):
        result = run(seed, parts=BROKEN[name])
        if result.violation is not None:
            return seed, result
    pytest.fail(f"nothing was found in {SEEDS_MAX[name]} seeds")
