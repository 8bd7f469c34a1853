"""The cluster's epochs in the simulated world, by seed. A seed that fails is shrunk, and told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.simulation.cluster import Result, run
from tests.simulation.faults import EARLY_STEPS, STEPS
from tests.simulation.shrink import shrink

if TYPE_CHECKING:
    from tests.simulation.member import Parts

SEEDS: Final = 2000
FEW_SEEDS: Final = 200

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
"""For each seed, at least. A run in which none of this happens shows nothing."""


def test_the_rules_hold_for_a_few_seeds() -> None:
    _check(_counts(FEW_SEEDS), FEW_SEEDS)


@pytest.mark.slow
def test_the_rules_hold_for_all_seeds() -> None:
    counts = _counts(SEEDS)
    _check(counts, SEEDS)
    struck = Counter(
        {
            step: sum(counts[f"{kind}: {step}"] for kind in ("kill", "pause", "replace"))
            for step in (*STEPS, *EARLY_STEPS)
        }
    )
    assert all(struck.values()), f"nothing befell a process at {_none(struck)}"


def test_a_seed_is_replayed_exactly() -> None:
    for seed in range(5):
        first, again = run(seed, tracing=True), run(seed, tracing=True)
        assert first.trace == again.trace
        assert first == again


def test_a_script_replays_what_its_seed_did() -> None:
    for seed in range(20):
        first = run(seed, tracing=True)
        again = run(script=first.script, tracing=True)
        assert again == first
        assert again.script is not first.script


def test_a_run_without_any_choice_is_peaceful() -> None:
    result = run(script={})
    assert result.violation is None
    assert result.counts["epochs: commit"] > 20
    assert result.counts["epochs: abort"] == 1, "the leader's first act"
    assert not any(name.startswith(("kill", "pause", "replace")) for name in result.counts)


def _counts(seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        result = run(seed)
        if result.violation is not None:
            pytest.fail(story(seed, result), pytrace=False)
        counts += result.counts
    return counts


def _check(counts: Counter[str], seeds: int) -> None:
    seldom = [name for name, least in OFTEN.items() if counts[name] < least * seeds]
    assert not seldom, {name: counts[name] for name in seldom}


def _none(struck: Counter[str]) -> list[str]:
    return [step for step, count in struck.items() if not count]


def story(seed: int, result: Result, parts: Parts | None = None) -> str:
    """Of a seed that failed: the smallest run that fails in the same way."""
    script, _ = shrink(result, parts)
    told = run(script=script, parts=parts, tracing=True)
    return "\n".join(
        (
            f"seed {seed}: {result.violation}",
            f"the smallest story found ({len(script)} of {len(result.script)} choices):",
            *told.trace,
            f"to replay the seed: python -m tests.simulation --seed {seed} --trace",
        )
    )
