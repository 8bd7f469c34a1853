"""The cluster's epochs in the simulated world, by seed. A seed that fails is shrunk, and told."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.cluster import run
from tests.simulation.faults import EARLY_STEPS, STEPS
from tests.simulation.seeds import Seeds
from tests.simulation.shrink import shrink

FEW: Final = 200
SEED_COUNT: Final = 2000
FRESH: Final = 200

OFTEN: Final = {
    "epochs: commit": 4.0,
    "epochs: abort": 4.0,
    "epochs: aborted by a follower": 0.1,
    "epochs: Reached": 4.0,
    "epochs: TimedOut": 1.0,
    "epochs: Failed": 0.4,
    "followers: asked the record": 1.0,
    "followers: in doubt at start": 0.2,
    "leaders: took over": 1.5,
    "leaders: deposed": 0.02,
    "participants: capture failed": 0.1,
    "participants: prepare failed": 0.2,
    "records: outcome unknown": 0.2,
    "records: pruned": 1.0,
}
SEEDS: Final = Seeds("tests.simulation", run, shrink, OFTEN)


def test_the_rules_hold_for_a_few_seeds() -> None:
    SEEDS.check_rules(range(FEW))


@pytest.mark.slow
def test_the_rules_hold_for_all_other_seeds() -> None:
    counts = SEEDS.check_rules(range(FEW, SEED_COUNT))
    spared = [
        step
        for step in (*STEPS, *EARLY_STEPS)
        if not any(counts[f"{kind}: {step}"] for kind in ("kill", "pause", "replace"))
    ]
    assert not spared, f"nothing befell a process at {spared}"


@pytest.mark.slow
def test_the_rules_hold_for_fresh_seeds() -> None:
    """Other ones each time: what fails says by which seed, and how to have it again."""
    SEEDS.check_fresh(FRESH)


def test_a_seed_is_replayed_exactly() -> None:
    SEEDS.check_replays(5)


def test_a_script_replays_what_its_seed_did() -> None:
    SEEDS.check_scripts(20)


def test_a_run_without_any_choice_is_peaceful() -> None:
    result = run(script={})
    assert result.violation is None
    assert result.counts["epochs: commit"] > 20
    assert result.counts["epochs: abort"] == 1, "the leader's first act"
    assert not any(name.startswith(("kill", "pause", "replace")) for name in result.counts)
