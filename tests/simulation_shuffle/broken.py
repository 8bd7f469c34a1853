"""The shuffle with one rule broken, each in another way: the simulation has to notice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint import Alignment, BarrierArrived
from penstock.ids import CLOCK_MAX
from penstock.journal.names import known_as
from penstock.sequence import Outcome, sequence_batch
from penstock.shuffle.queue.events import Answer
from penstock.shuffle.queue.machine import QueueMachine
from penstock.shuffle.session.hint_index import HintIndex
from penstock.shuffle.session.state import SessionState
from penstock.shuffle.slice.events import Probed, TellEnded
from penstock.shuffle.slice.state import SliceState
from tests.simulation_shuffle.cluster import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.checkpoint import AlignmentEffect, AlignmentEvent
    from penstock.sequence import Sequenced
    from penstock.shuffle.session.instances import Instances
    from penstock.shuffle.session.state import SessionEffect
    from penstock.shuffle.slice.events import SliceEffect, SliceEvent
    from penstock.shuffle.slice.reads import Forgotten, Read


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


def _forgets_nothing(_: Read) -> list[Forgotten]:
    """A span that was open before rows that are missing goes on behind them."""
    return []


class TakesNothingOver(SliceState):
    """Where producers stand behind missing rows is not asked for."""

    def handle(self, event: SliceEvent, now: int = CLOCK_MAX) -> list[SliceEffect]:
        if isinstance(event, Probed):
            event = replace(event, states={})
        return super().handle(event, now)


class LeavesSpansOpen(SessionState):
    """A journal that no listing has is not read, whatever is open in it."""

    def _close_spans(self, *_: object) -> list[SessionEffect]:
        return []


class WaitsForWhatIsGone(SessionState):
    def _is_lost(self, *_: object) -> bool:
        return False


class BeginsAnewWhatIsBack(SliceState):
    """Where a read stood when its journal vanished is forgotten."""

    def _end_reads(self) -> list[SliceEffect]:
        effects = super()._end_reads()
        for effect in effects:
            if isinstance(effect, TellEnded):
                read = self._read(effect.read)
                del self._saved[read.known_as, read.binding.place]
        return effects


def _takes_another_for_the_first(instances: Instances, name: str, identity: str) -> str:
    """A journal that was made anew is known as the one before it."""
    return known_as(name, instances._adopted.setdefault(name, identity))


def _keeps_hints(*_: object) -> None:
    """Hints at a journal that was replaced stay where they are."""


class RecoversWhatIsGone(SliceState):
    """A gap is like any other, also in what was promised."""

    def handle(self, event: SliceEvent, now: int = CLOCK_MAX) -> list[SliceEffect]:
        if isinstance(event, Probed):
            awaited, self._read(event.read).awaited = self._read(event.read).awaited, {}
            effects = super().handle(event, now)
            self._read(event.read).awaited = awaited
            return effects
        return super().handle(event, now)


BROKEN: Final = {
    "forgets no spans": Parts(
        patches={"penstock.shuffle.slice.reads.Read.forgotten": _forgets_nothing}
    ),
    "takes nothing over": Parts(slice_state=TakesNothingOver),
    "leaves spans open": Parts(session_state=LeavesSpansOpen),
    "waits for what is gone": Parts(session_state=WaitsForWhatIsGone),
    "begins anew what is back": Parts(slice_state=BeginsAnewWhatIsBack),
    "takes another for the first": Parts(
        patches={
            "penstock.shuffle.session.instances.Instances.known_as": _takes_another_for_the_first
        }
    ),
    "leaves hints behind": Parts(
        patches={"penstock.shuffle.session.checkpoints.Checkpoints.move_hints": _keeps_hints}
    ),
    "recovers what is gone": Parts(slice_state=RecoversWhatIsGone),
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
