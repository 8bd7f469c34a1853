"""What both simulated worlds are asked: that their rules hold seed after seed, that what the seeds
try does happen, and that a run can be had again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.choices import Script


class Outcome(Protocol):
    violation: str | None
    script: Script
    counts: Counter[str]
    trace: list[str]


FRESH_MIN: Final = 1_000_000
FRESH_MAX: Final = 1 << 31
OutcomeT = TypeVar("OutcomeT", bound=Outcome)
OutcomeT_co = TypeVar("OutcomeT_co", bound=Outcome, covariant=True)


class Run(Protocol[OutcomeT_co]):
    def __call__(
        self, seed: int = 0, script: Script | None = None, *, tracing: bool = False
    ) -> OutcomeT_co: ...


def fresh_seed() -> int:
    """Far behind the seeds that are always run, and another one each time."""
    return random.SystemRandom().randrange(FRESH_MIN, FRESH_MAX)


@dataclass(frozen=True, slots=True)
class Seeds(Generic[OutcomeT]):
    program: str
    """By which a person runs one seed."""
    run: Run[OutcomeT]
    shrink: Callable[[OutcomeT], tuple[Script, int]]
    often: Mapping[str, float]
    """For each seed, at least. A run in which none of this happens shows nothing."""

    def check_fresh(self, count: int) -> None:
        """Seeds that nobody has tried yet. One that fails is told, with how to have it again."""
        first = fresh_seed()
        self._run_all(range(first, first + count))

    def check_rules(self, seeds: range) -> Counter[str]:
        """What happened in these seeds. One that fails is shrunk, and told."""
        counts = self._run_all(seeds)
        seldom = [name for name, least in self.often.items() if counts[name] < least * len(seeds)]
        assert not seldom, {name: counts[name] for name in seldom}
        return counts

    def _run_all(self, seeds: range) -> Counter[str]:
        counts: Counter[str] = Counter()
        for seed in seeds:
            result = self.run(seed)
            if result.violation is not None:
                pytest.fail(self._story(seed, result), pytrace=False)
            counts += result.counts
        return counts

    def check_replays(self, count: int) -> None:
        for seed in range(count):
            first, again = self.run(seed, tracing=True), self.run(seed, tracing=True)
            assert first.trace == again.trace, f"seed {seed}"
            assert first == again, f"seed {seed}"

    def check_scripts(self, count: int) -> None:
        for seed in range(count):
            first = self.run(seed, tracing=True)
            again = self.run(script=first.script, tracing=True)
            assert again == first, f"seed {seed}"
            assert again.script is not first.script, f"seed {seed}"

    def _story(self, seed: int, result: OutcomeT) -> str:
        """Of a seed that failed: the smallest run that fails in the same way."""
        script, _ = self.shrink(result)
        told = self.run(script=script, tracing=True)
        return "\n".join(
            (
                f"seed {seed}: {result.violation}",
                f"the smallest story found ({len(script)} of {len(result.script)} choices):",
                *told.trace,
                f"to replay the seed: python -m {self.program} --seed {seed} --trace",
            )
        )
