"""The shuffle with one rule broken, each in another way: the simulation has to notice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint import Alignment, BarrierArrived
from penstock.sequence import Outcome, sequence_batch
from penstock.shuffle.queue.events import Answer
from penstock.shuffle.queue.machine import QueueMachine
from penstock.shuffle.session.hint_index import HintIndex
from tests.simulation_shuffle.cluster import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.checkpoint import AlignmentEffect, AlignmentEvent
    from penstock.sequence import Sequenced


def _takes_repeated_documents(*columns: Any) -> Sequenced:
    """A document outside of transactions is new whenever it comes."""
    sequenced = sequence_batch(*columns)
    repeated = sequenced.outcomes == Outcome.OUTSIDE_DUPLICATE
    return replace(sequenced, keep=sequenced.keep | repeated)


def _no_rollbacks(*_: object) -> Iterator[Any]:
    """What is stored before a rollback stays."""
    return iter(())


class IgnoresAHint(HintIndex):
    """Nobody waits for the first journal of a collection."""

    def targets(self, journal: str, cohort: int) -> tuple[int, ...]:
        return () if "part=0" in journal else super().targets(journal, cohort)


class AnswersTooEarly(QueueMachine):
    """What is written is taken for durable."""

    def _release_flushes(self) -> None:
        for flush in list(self._flushes):
            first = self._merge.first_waiting(flush.stream)
            if first is None or first.number > flush.number:
                self._flushes.remove(flush)
                self._effects.append(Answer(flush.stream, flush.cycle, self.last_lsn))


class AnswersAtOnce(QueueMachine):
    """A flush is answered whatever still waits."""

    def _release_flushes(self) -> None:
        while self._flushes:
            flush = self._flushes.popleft()
            self._effects.append(Answer(flush.stream, flush.cycle, self.last_lsn))


class DropsHeldBarriers(Alignment[Any]):
    """A barrier that comes behind another, while that one is awaited elsewhere, is forgotten."""

    def handle(self, event: AlignmentEvent[Any], now_seconds: float) -> list[AlignmentEffect[Any]]:
        if isinstance(event, BarrierArrived) and self._inputs[event.input].is_held:
            return []
        return super().handle(event, now_seconds)


BROKEN: Final = {
    "takes repeated documents": Parts(
        patches={"penstock.shuffle.slice.rounds.sequence_batch": _takes_repeated_documents}
    ),
    "ignores a hint": Parts(hint_index=IgnoresAHint),
    "answers too early": Parts(queue_machine=AnswersTooEarly),
    "answers at once": Parts(queue_machine=AnswersAtOnce),
    "drops held barriers": Parts(
        patches={"penstock.shuffle.queue.machine.Alignment": DropsHeldBarriers}
    ),
    "forgets rollbacks": Parts(patches={"penstock.shuffle.slice.rounds._rollbacks": _no_rollbacks}),
    "numbers reads again": Parts(numbers_reads_again=True),
    "takes a later queue for its own": Parts(forgets_generations=True),
}
