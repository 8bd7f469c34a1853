"""The leader of epochs, as a state machine: event in, effects out. No clock, no thread, no store.

An epoch is announced (Prepare), weighed, announced as Aligned when every member has captured it,
and decided when every member has prepared it, or one failed, or time is over. A decision is
recorded first and announced then. The record may turn out to be another's: then that one holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from penstock.epoch.announcements import Acknowledgement, Announcement, Phase, Stage, short
from penstock.epoch.decisions import Decision, Verdict
from penstock.epoch.quorum import Failed, Reached, TimedOut, missing_from, weigh
from penstock.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.epoch.quorum import Outcome


@dataclass(frozen=True, slots=True)
class Begin:
    """Event: an epoch is wanted."""

    flags: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Event: this is in the members' slots now."""

    acknowledgements: Mapping[int, Acknowledgement]


@dataclass(frozen=True, slots=True)
class Passed:
    """Event: time has passed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Event: an answer to Decide. This decision holds, ours or not."""

    decision: Decision


LeaderEvent: TypeAlias = Begin | Acknowledged | Passed | Recorded


@dataclass(frozen=True, slots=True)
class Announce:
    """Effect: write this into the leader's slot."""

    announcement: Announcement


@dataclass(frozen=True, slots=True)
class Decide:
    """Effect: record this, unless the epoch has a record, and answer with what holds. To be tried
    again until it is known."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Concluded:
    """Effect: tell whoever asked for the epoch. `outcome` is what the members said of it, or None
    if they had no say."""

    decision: Decision
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Deposed:
    """Effect: there is a newer leader. This one does nothing any more."""

    decision: Decision


LeaderEffect: TypeAlias = Announce | Decide | Concluded | Deposed


class _State(Enum):
    NEW = "it has yet to decide an epoch of its own"
    IDLE = "no epoch is open"
    PREPARING = "it waits for members to capture"
    ALIGNED = "it waits for members to prepare"
    DECIDING = "a decision is being recorded"
    DEPOSED = "there is a newer leader"


class Leader:
    """Of one term. Begin with `start`; while the machine is not `ready`, nothing can begin."""

    def __init__(
        self,
        member: int,
        term: int,
        members: Collection[int],
        seconds_max: float,
        recorded: Iterable[Decision],
    ) -> None:
        """`recorded` are the decisions on record."""
        self._member = member
        self._term = term
        self._members = tuple(sorted(set(members)))
        self._seconds_max = seconds_max
        self._epoch = 1
        self._watermark: int | None = None
        self._newer: Decision | None = None
        """One that was recorded under a greater term."""
        for decision in recorded:
            self._epoch = max(self._epoch, decision.epoch + 1)
            self._watermark = self._risen(decision.watermark)
            if decision.term > term:
                self._newer = decision
        self._state = _State.NEW
        self._flags = 0
        self._deadline = 0.0
        self._acknowledgements: Mapping[int, Acknowledgement] = {}
        self._outcome: Outcome | None = None

    @property
    def ready(self) -> bool:
        return self._state is _State.IDLE

    @property
    def deposed(self) -> bool:
        return self._state is _State.DEPOSED

    @property
    def deadline(self) -> float | None:
        """When Passed is due, at the latest."""
        waiting = self._state in (_State.PREPARING, _State.ALIGNED)
        return self._deadline if waiting else None

    @property
    def awaits(self) -> tuple[Stage, tuple[int, ...]] | None:
        """While an epoch is open: what members have to acknowledge, and who has not."""
        stages = {_State.PREPARING: Stage.CAPTURED, _State.ALIGNED: Stage.PREPARED}
        stage = stages.get(self._state)
        if stage is None:
            return None
        members = missing_from(
            self._members, stage, self._epoch, self._term, self._acknowledgements
        )
        return stage, members

    @property
    def epoch(self) -> int:
        """The one that is open, or the next one."""
        return self._epoch

    def start(self) -> list[LeaderEffect]:
        """The first act of a leader: it decides an epoch, and so ends the reign before."""
        if self._state is not _State.NEW:
            raise LocalProtocolError("a leader starts once")
        if self._newer is not None:
            self._state = _State.DEPOSED
            return [Deposed(self._newer)]
        return [Decide(self._abort(f"member {self._member} took over as leader"))]

    def handle(self, event: LeaderEvent, now: float) -> list[LeaderEffect]:
        match event:
            case Begin():
                return self._begin(event.flags, now)
            case Acknowledged():
                self._acknowledgements = event.acknowledgements
                return self._weigh(now)
            case Passed():
                return self._weigh(now)
            case Recorded():
                return self._recorded(event.decision)
            case _:
                assert_never(event)

    def _begin(self, flags: int, now: float) -> list[LeaderEffect]:
        if self._state is not _State.IDLE:
            raise LocalProtocolError(f"no epoch can begin now: {self._state.value}")
        self._state = _State.PREPARING
        self._flags = flags
        self._deadline = now + self._seconds_max
        self._outcome = None
        return [Announce(self._announcement(Phase.PREPARE))]

    def _weigh(self, now: float) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        if self._state is _State.PREPARING:
            captured = self._outcome_of(Stage.CAPTURED, now)
            if isinstance(captured, Reached):
                self._state = _State.ALIGNED
                aligned = self._announcement(Phase.ALIGNED, self._risen(captured.watermark))
                effects.append(Announce(aligned))
            elif captured is not None:
                effects.append(self._decide(captured))
        if self._state is _State.ALIGNED:
            prepared = self._outcome_of(Stage.PREPARED, now)
            if prepared is not None:
                effects.append(self._decide(prepared))
        return effects

    def _outcome_of(self, stage: Stage, now: float) -> Outcome | None:
        return weigh(
            self._members,
            stage,
            self._epoch,
            self._term,
            self._acknowledgements,
            overdue=now >= self._deadline,
        )

    def _decide(self, outcome: Outcome) -> Decide:
        self._state = _State.DECIDING
        self._outcome = outcome
        match outcome:
            case Reached():
                return Decide(
                    Decision(
                        self._epoch,
                        Verdict.COMMIT,
                        self._term,
                        self._member,
                        self._members,
                        self._risen(outcome.watermark),
                    )
                )
            case TimedOut() | Failed():
                return Decide(self._abort(str(outcome)))
            case _:
                assert_never(outcome)

    def _recorded(self, decision: Decision) -> list[LeaderEffect]:
        if decision.epoch != self._epoch or self._state not in (_State.NEW, _State.DECIDING):
            return []  # an answer that came twice
        if decision.term > self._term:
            self._state = _State.DEPOSED
            return [Deposed(decision)]
        self._epoch += 1
        phase = Phase.COMMIT if decision.is_commit else Phase.ABORT
        announce = Announce(
            Announcement(
                self._term,
                decision.epoch,
                phase,
                decision.members,
                watermark=decision.watermark,
                reason=decision.reason,
            )
        )
        self._watermark = self._risen(decision.watermark)
        if self._state is _State.NEW and decision.term != self._term:
            # The last words of the leader before, or of one of its members: ours come next.
            return [announce, Decide(self._abort(f"member {self._member} took over as leader"))]
        concluded = Concluded(decision, self._outcome)
        asked = self._state is _State.DECIDING
        self._state = _State.IDLE
        return [announce, concluded] if asked else [announce]

    def _risen(self, watermark: int | None) -> int | None:
        """The cluster's watermark never falls, whatever members report after a restart."""
        if watermark is None or self._watermark is None:
            return self._watermark if watermark is None else watermark
        return max(watermark, self._watermark)

    def _abort(self, reason: str) -> Decision:
        return Decision(
            self._epoch,
            Verdict.ABORT,
            self._term,
            self._member,
            self._members,
            reason=short(reason),
        )

    def _announcement(self, phase: Phase, watermark: int | None = None) -> Announcement:
        return Announcement(
            self._term,
            self._epoch,
            phase,
            self._members,
            self._flags,
            self._seconds_max,
            watermark,
        )
