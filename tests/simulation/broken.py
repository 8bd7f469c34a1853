"""The protocol with one rule broken, each in another way: the simulation has to notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.epoch.announcements import Acknowledgement, Announcement, Phase, Stage
from penstock.epoch.follower import Acknowledge, Captured, Follower
from penstock.epoch.leader import Announce, Decide, Leader, _State
from penstock.epoch.quorum import Reached, TimedOut
from tests.simulation.choices import Menu
from tests.simulation.leader_actor import LeaderActor
from tests.simulation.member import Parts
from tests.simulation.records import Call, Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.epoch.decisions import Decision
    from penstock.epoch.follower import FollowerEffect, _Open
    from penstock.epoch.leader import LeaderEffect, LeaderEvent
    from penstock.epoch.quorum import Outcome


class AnnouncesFirst(Leader):
    """Announces what it is going to record."""

    def handle(self, event: LeaderEvent, now: float) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for effect in super().handle(event, now):
            if isinstance(effect, Decide):
                decision = effect.decision
                phase = Phase.COMMIT if decision.is_commit else Phase.ABORT
                effects.append(
                    Announce(Announcement(decision.term, decision.epoch, phase, decision.members))
                )
            effects.append(effect)
        return effects


class CommitsWithoutOne(Leader):
    """When time is over, all members but one are enough."""

    def _outcome_of(self, stage: Stage, now: float) -> Outcome | None:
        outcome = super()._outcome_of(stage, now)
        if isinstance(outcome, TimedOut) and len(outcome.missing) == 1:
            return Reached(None)
        return outcome


class AbortsOnItsOwn(Follower):
    """Takes it for an abort when it hears nothing."""

    def _ask(self, current: _Open) -> list[FollowerEffect]:
        return self._decided(current, commit=False)


class SkipsItsFirstRecord(Leader):
    """Leads at once, and so does not end the reign before."""

    def start(self) -> list[LeaderEffect]:
        self._state = _State.IDLE
        return []


class AcknowledgesTooEarly(Follower):
    """Says that it is prepared, and then prepares."""

    def _captured(self, event: Captured) -> list[FollowerEffect]:
        effects = super()._captured(event)
        return [
            Acknowledge(
                Acknowledgement(
                    effect.acknowledgement.term,
                    effect.acknowledgement.epoch,
                    Stage.PREPARED,
                    effect.acknowledgement.watermark,
                    finished=effect.acknowledgement.finished,
                )
            )
            if isinstance(effect, Acknowledge) and effect.acknowledgement.stage is Stage.CAPTURED
            else effect
            for effect in effects
        ]


class Overwrites(Store):
    """Of two who create a record the later one wins."""

    def _create(self, call: Call) -> bool:
        self.values[call.name] = call.value
        return True


class JoinsWhatIsUnderWay(Follower):
    """Relies on its view to know which epoch is under way when it starts."""

    def start(self, newest: Announcement | None, now: float) -> list[FollowerEffect]:
        self._under_way = 0
        return super().start(newest, now)


class ForgetsWhatIsFinished(Follower):
    """Knows of no epoch that an earlier life finished."""

    def __init__(
        self, member: int, patience_seconds: float, in_doubt: Iterable[int], _decided: int
    ) -> None:
        super().__init__(member, patience_seconds, in_doubt)


class PassesOverWhatIsGone(LeaderActor):
    """Takes over with the decisions it can read, when some were pruned while it read."""

    def _decisions(self) -> list[Decision]:
        log = self.member.log
        found = [log.read(epoch) for epoch in log.epochs()]
        return [decision for decision in found if decision is not None]


class TakesEffectLate(Store):
    """A call may take effect long after its caller gave it up: when the record it would have found
    is pruned."""

    failures = Menu((970, ""), (14, "before"), (12, "after"), (4, "late"))


BROKEN: Final = {
    "announces before it records": Parts(leader=AnnouncesFirst),
    "commits without one member": Parts(leader=CommitsWithoutOne),
    "aborts on its own": Parts(follower=AbortsOnItsOwn),
    "skips its first record": Parts(leader=SkipsItsFirstRecord),
    "acknowledges too early": Parts(follower=AcknowledgesTooEarly),
    "overwrites records": Parts(store=Overwrites),
    "joins what is under way": Parts(follower=JoinsWhatIsUnderWay),
    "forgets what is finished": Parts(follower=ForgetsWhatIsFinished),
    "passes over what is gone": Parts(leader_actor=PassesOverWhatIsGone),
    "takes effect late": Parts(store=TakesEffectLate),
}
