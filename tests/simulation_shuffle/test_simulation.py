"""The shuffle in the simulated world, by seed. A seed that fails is shrunk, and told."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.simulation_shuffle.run import Result, run
from tests.simulation_shuffle.shrink import shrink

SEEDS: Final = 1300
"""In under four minutes on two busy cores. `python -m tests.simulation_shuffle` runs any number."""
FEW_SEEDS: Final = 150

OFTEN: Final = {
    "captured in flight": 0.05,
    "crashes": 0.8,
    "disks lost": 0.2,
    "documents delivered": 20.0,
    "epochs committed": 3.0,
    "epochs given up": 0.1,
    "overdrawn": 0.5,
    "recoveries": 0.04,
    "repetitions": 0.7,
    "restarts of producers": 0.3,
    "rollbacks": 1.0,
    "room needed": 0.5,
    "segments dropped": 0.2,
    "spans left open": 0.03,
    "survivors written": 0.01,
    "transactions": 1.5,
}
"""For each seed, at least. A run in which none of this happens shows nothing."""

STEPS: Final = (
    *("Fetch", "Probe", "Report", "SendBarrier", "SendFlush", "SendMark", "SendParcel"),
    *("Answer", "Captured", "GiveBack", "Sync", "Write", "reclaimed", "synced", "written"),
    *("AskProgress", "StartRead", "announced", "barrier", "committed", "prepared"),
)
"""Before each of these everything has crashed, somewhere."""


def test_the_rules_hold_for_a_few_seeds() -> None:
    _check(_counts(FEW_SEEDS), FEW_SEEDS)


@pytest.mark.slow
def test_the_rules_hold_for_all_seeds() -> None:
    counts = _counts(SEEDS)
    _check(counts, SEEDS)
    never = [step for step in STEPS if not counts[f"crash: {step}"]]
    assert not never, f"nothing crashed at {never}"


def test_a_seed_is_replayed_exactly() -> None:
    for seed in range(5):
        first, again = run(seed, tracing=True), run(seed, tracing=True)
        assert first.trace == again.trace
        assert first == again


def test_a_script_replays_what_its_seed_did() -> None:
    for seed in range(10):
        first = run(seed, tracing=True)
        again = run(script=first.script, tracing=True)
        assert again == first
        assert again.script is not first.script


def test_a_run_without_any_choice_is_peaceful() -> None:
    result = run(script={})
    assert result.violation is None
    assert result.counts["epochs committed"] > 5
    assert not result.counts["crashes"]
    assert not result.counts["epochs given up"]
    assert result.counts["documents delivered"] == result.counts["documents"]


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


def story(seed: int, result: Result) -> str:
    """Of a seed that failed: the smallest run that fails in the same way."""
    script, _ = shrink(result)
    told = run(script=script, tracing=True)
    return "\n".join(
        (
            f"seed {seed}: {result.violation}",
            f"the smallest story found ({len(script)} of {len(result.script)} choices):",
            *told.trace,
            f"to replay the seed: python -m tests.simulation_shuffle --seed {seed} --trace",
        )
    )
