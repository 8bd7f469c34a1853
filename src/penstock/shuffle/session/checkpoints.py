"""The checkpoints of all cohorts of a feed together.

Each cohort has a pipeline of its own, and what one waits for holds no other up. What is taken is
what is ready in any of them. In a recovery session that is one checkpoint, of all cohorts at once:
what was lost, no more and no less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.frontier import Frontier, reduce_all, retain_bindings
from penstock.shuffle.session.pipeline import CheckpointPipeline, Waiting

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.shuffle.session.ledger import ReadKey
    from penstock.shuffle.session.pipeline import Awaited


class Checkpoints:
    def __init__(self, cohorts: Sequence[int], resume: Frontier, now: float) -> None:
        """`cohorts` has the cohort of every binding."""
        self.recovery = resume.unresolved_hints > 0
        """Something hinted at was lost. This session reads that, and then nothing more."""
        self._cohorts = tuple(cohorts)
        self._pipelines = {
            cohort: CheckpointPipeline(
                cohort, self._part(resume, cohort), now, recovery=self.recovery
            )
            for cohort in sorted(set(cohorts))
        }
        self._flushed = Frontier.of()
        """The LSNs of all that was taken: they never go back."""

    def on_progressed(self, delta: Frontier, now: float) -> None:
        touched = {*delta.bindings.tolist(), *delta.gap_floor}
        touched |= {*delta.backfill_begin, *delta.backfill_complete}
        for cohort in sorted({self._cohorts[binding] for binding in touched}):
            self._pipelines[cohort].on_progressed(self._part(delta, cohort), now)

    def reported(self, read: ReadKey, producer: int) -> int:
        """The last commit that was told of a journal and producer."""
        return self._pipelines[self._cohorts[read[1]]].reported(read, producer)

    def move_hints(self, source: ReadKey, target: ReadKey, now: float) -> None:
        """Instead of one journal another one of the same name is read now."""
        self._pipelines[self._cohorts[source[1]]].move_hints(source, target, now)

    def extend(self, hints: Frontier, now: float) -> None:
        """Checkpoints that wait for a producer of these hints take all in up to them."""
        for cohort, pipeline in self._pipelines.items():
            pipeline.extend(self._part(hints, cohort), now)

    def give_up(self, awaited: Collection[Awaited], now: float) -> None:
        """Of these commits nothing will come."""
        for cohort, pipeline in self._pipelines.items():
            own = [one for one in awaited if self._cohorts[one.binding] == cohort]
            if own:
                pipeline.give_up(own, now)

    @property
    def has_ready(self) -> bool:
        """Whether `take` would give something."""
        pipelines = self._pipelines.values()
        if self.recovery and not all(pipeline.is_resolved for pipeline in pipelines):
            return False
        return any(pipeline.has_ready for pipeline in pipelines)

    def take(self) -> Frontier | None:
        """What is complete and was not taken before."""
        if not self.has_ready:
            return None
        ready = [pipeline.take() for pipeline in self._pipelines.values()]
        taken = reduce_all([self._flushed, *(part for part in ready if part is not None)])
        self._flushed = Frontier.of(flushed_lsn=taken.flushed_lsn)
        return taken

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Which cohorts are held up, and by what."""
        waiting = (pipeline.waiting for pipeline in self._pipelines.values())
        return tuple(each for each in waiting if each is not None)

    def hinted_by(self, cohort: int, awaited: Awaited) -> str | None:
        """The journal whose acknowledgement hints at a commit that is awaited."""
        return self._pipelines[cohort].hinted_by(awaited)

    def _part(self, frontier: Frontier, cohort: int) -> Frontier:
        if len(set(self._cohorts)) == 1:
            return frontier
        return retain_bindings(frontier, lambda binding: self._cohorts[binding] == cohort)
