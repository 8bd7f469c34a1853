"""A member's part in epochs, as a state machine: event in, effects out.

A member takes part in one epoch at a time: it captures, prepares, and waits for the decision. It
learns that from the leader's announcement or, if it missed that, from the decision's record. When
neither comes in time it records an abort itself, unless there is a record by then: so it never
waits for a leader that is gone, and never guesses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from penstock.checkpoint.barrier import Barrier
from penstock.checkpoint.watermark import ClusterWatermark
from penstock.epoch.announcements import Acknowledgement, Announcement, Phase, Stage, short
from penstock.epoch.decisions import Decision, Verdict
from penstock.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Announced:
    """Event: the newest announcement there is."""

    announcement: Announcement


@dataclass(frozen=True, slots=True)
class Captured:
    """Event: the answer to Capture. With an error, nothing was captured."""

    epoch: int
    watermark: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Event: the answer to Prepare. Without an error, every part of this member is durable."""

    epoch: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """Event: the answer to Learn or AbortUnlessDecided."""

    epoch: int
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the answer to Finish. The participants are done with the epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Passed:
    """Event: time has passed."""


FollowerEvent: TypeAlias = Announced | Captured | Prepared | Learned | Finished | Passed


@dataclass(frozen=True, slots=True)
class Capture:
    """Effect: draw the line. Participants do one thing after the other, in the order asked."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class Prepare:
    """Effect: make the epoch durable."""

    epoch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Effect: the epoch being captured or prepared is lost anyway. Whoever works on it may stop."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Effect: write this into the member's slot."""

    acknowledgement: Acknowledgement


@dataclass(frozen=True, slots=True)
class Resume:
    """Effect: every member has captured the epoch. What waited for that goes on."""

    epoch: int
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Learn:
    """Effect: read the epoch's decision, if there is one yet, and answer."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AbortUnlessDecided:
    """Effect: record this unless the epoch has a record, and answer with what holds. To be tried
    again until it is known."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Finish:
    """Effect: commit or abort the epoch at every participant. To be tried again until it is
    done: it is decided."""

    epoch: int
    commit: bool


FollowerEffect: TypeAlias = (
    Capture | Prepare | GiveUp | Acknowledge | Resume | Learn | AbortUnlessDecided | Finish
)


class _State(Enum):
    CAPTURING = "being captured"
    PREPARING = "being prepared"
    PREPARED = "durable, and waiting for the decision"
    FINISHING = "being committed or aborted"


@dataclass(slots=True)
class _Open:
    """The epoch this member is not done with."""

    epoch: int
    term: int
    state: _State
    due: float
    """When its decision is overdue."""
    watermark: int | None = None
    aborted: bool = False
    """It is known to be lost, while participants still work on it."""
    asked: bool = False
    """For its decision."""


class Follower:
    """Of one member. Begin with `start`."""

    def __init__(
        self, member: int, patience_seconds: float, in_doubt: Iterable[int] = (), decided: int = 0
    ) -> None:
        """`in_doubt` are the epochs that were found prepared, `decided` is the newest on record:
        what is on record and not in doubt is finished here, since no epoch is committed without
        this member. A decision is overdue `patience_seconds` after the leader's own time."""
        self._member = member
        self._patience_seconds = patience_seconds
        self._doubtful = deque(sorted(set(in_doubt)))
        self._finished = self._doubtful[0] - 1 if self._doubtful else decided
        self._begun = max([decided, *self._doubtful])
        """The newest epoch that this member took a part in, or refused to."""
        self._under_way = decided + 1
        """The newest epoch that may have been announced before this life began. The announcement
        may still be on its way; but no epoch is announced before the one before it is decided."""
        self._newest = (0, 0, 0)
        """The order of the newest announcement."""
        self._cluster = ClusterWatermark()
        self._current: _Open | None = None
        self._waiting: Announcement | None = None
        """A Prepare that waits until the epoch before it is finished."""
        self._started = False

    @property
    def finished(self) -> int:
        """All epochs up to this one are committed or aborted here."""
        return self._finished

    @property
    def watermark(self) -> int | None:
        """The cluster's, as far as announced."""
        return self._cluster.clock

    @property
    def deadline(self) -> float | None:
        """When Passed is due, at the latest."""
        current = self._current
        if current is None or current.asked or current.state is not _State.PREPARED:
            return None
        return current.due

    def start(self, newest: Announcement | None, now: float) -> list[FollowerEffect]:
        """`newest` is the newest announcement there is. An epoch that is under way already is
        refused: this member's streams do not have its barriers."""
        if self._started:
            raise LocalProtocolError("a follower starts once")
        self._started = True
        effects: list[FollowerEffect] = []
        if newest is not None:
            self._under_way = max(self._under_way, newest.epoch)
            effects += self._announced(newest, now)
        return effects + self._next(now)

    def handle(self, event: FollowerEvent, now: float) -> list[FollowerEffect]:
        match event:
            case Announced():
                return self._announced(event.announcement, now)
            case Captured():
                return self._captured(event)
            case Prepared():
                return self._prepared(event)
            case Learned():
                return self._learned(event)
            case Finished():
                return self._done(event.epoch, now)
            case Passed():
                return self._passed(now)
            case _:
                assert_never(event)

    def _announced(self, announcement: Announcement, now: float) -> list[FollowerEffect]:
        if announcement.order <= self._newest:
            return []
        self._newest = announcement.order
        if announcement.phase is not Phase.PREPARE:
            self._cluster.advance(announcement.watermark)
        effects: list[FollowerEffect] = []
        current = self._current
        if current is not None and announcement.epoch > current.epoch:
            effects += self._missed(current)
        concerned = announcement.epoch > self._begun and self._member in announcement.members
        match announcement.phase:
            case Phase.PREPARE | Phase.ALIGNED if (
                concerned and announcement.epoch <= self._under_way
            ):
                self._begun = announcement.epoch
                error = "it was started while the epoch was under way"
                effects.append(self._acknowledge(announcement.term, self._begun, error=error))
            case Phase.PREPARE:
                if concerned:
                    self._begun = announcement.epoch
                    self._waiting = announcement
                    effects += self._next(now)
            case Phase.ALIGNED:
                if current is not None and current.epoch == announcement.epoch:
                    effects.append(Resume(announcement.epoch, self._cluster.clock))
            case Phase.COMMIT | Phase.ABORT:
                if self._waiting is not None and self._waiting.epoch <= announcement.epoch:
                    self._waiting = None
                if current is not None and current.epoch == announcement.epoch:
                    effects += self._decided(current, announcement.phase is Phase.COMMIT)
            case _:
                assert_never(announcement.phase)
        return effects

    def _missed(self, current: _Open) -> list[FollowerEffect]:
        """The leader is at a later epoch: the one at hand was decided, which this member missed."""
        match current.state:
            case _State.CAPTURING | _State.PREPARING:
                return self._decided(current, commit=False)  # nobody commits without this member
            case _State.PREPARED:
                return self._ask(current)
            case _State.FINISHING:
                return []
            case _:
                assert_never(current.state)

    def _captured(self, event: Captured) -> list[FollowerEffect]:
        current = self._working(event.epoch, _State.CAPTURING)
        if event.error is not None or current.aborted:
            return self._lost(current, event.error)
        current.state = _State.PREPARING
        current.watermark = event.watermark
        return [
            self._acknowledge(current.term, current.epoch, Stage.CAPTURED, event.watermark),
            Prepare(event.epoch),
        ]

    def _prepared(self, event: Prepared) -> list[FollowerEffect]:
        current = self._working(event.epoch, _State.PREPARING)
        if event.error is not None or current.aborted:
            return self._lost(current, event.error)
        current.state = _State.PREPARED
        return [self._acknowledge(current.term, current.epoch, Stage.PREPARED, current.watermark)]

    def _lost(self, current: _Open, error: str | None) -> list[FollowerEffect]:
        """Without this member nobody commits the epoch: it is over here, whoever knows yet."""
        current.state = _State.FINISHING
        effects: list[FollowerEffect] = [Finish(current.epoch, commit=False)]
        if not current.aborted:
            effects.insert(0, self._acknowledge(current.term, current.epoch, error=error or ""))
        return effects

    def _learned(self, event: Learned) -> list[FollowerEffect]:
        current = self._current
        if current is None or current.epoch != event.epoch:
            return []
        current.asked = False
        return [] if event.decision is None else self._decided(current, event.decision.is_commit)

    def _decided(self, current: _Open, commit: bool) -> list[FollowerEffect]:
        match current.state:
            case _State.PREPARED:
                current.state = _State.FINISHING
                return [Finish(current.epoch, commit)]
            case _State.CAPTURING | _State.PREPARING:
                if commit:
                    raise RemoteProtocolError(
                        f"epoch {current.epoch} was committed while it was {current.state.value} "
                        f"by member {self._member}: somebody decided without all acknowledgements"
                    )
                if current.aborted:
                    return []
                current.aborted = True
                return [GiveUp(current.epoch)]
            case _State.FINISHING:
                return []
            case _:
                assert_never(current.state)

    def _passed(self, now: float) -> list[FollowerEffect]:
        current = self._current
        if current is None or self.deadline is None or now < current.due:
            return []
        return self._ask(current)

    def _ask(self, current: _Open) -> list[FollowerEffect]:
        if current.asked:
            return []
        current.asked = True
        decision = Decision(
            current.epoch,
            Verdict.ABORT,
            current.term,
            self._member,
            reason=f"member {self._member} had prepared it, and heard of no decision",
        )
        return [AbortUnlessDecided(decision)]

    def _done(self, epoch: int, now: float) -> list[FollowerEffect]:
        self._working(epoch, _State.FINISHING)
        self._current = None
        self._finished = max(self._finished, epoch)
        return self._next(now)

    def _next(self, now: float) -> list[FollowerEffect]:
        """Turns to the next epoch, when nothing is at hand: first to those of an earlier life."""
        if self._current is not None:
            return []
        if self._doubtful:
            epoch = self._doubtful.popleft()
            due = now + self._patience_seconds
            self._current = _Open(epoch, 0, _State.PREPARED, due, asked=True)
            return [Learn(epoch)]
        if self._waiting is not None:
            prepare, self._waiting = self._waiting, None
            due = now + prepare.seconds_max + self._patience_seconds
            self._current = _Open(prepare.epoch, prepare.term, _State.CAPTURING, due)
            return [Capture(Barrier(prepare.epoch, prepare.epoch, prepare.flags))]
        return []

    def _working(self, epoch: int, state: _State) -> _Open:
        current = self._current
        if current is None or current.epoch != epoch or current.state is not state:
            at_hand = "nothing" if current is None else f"{current.epoch}, {current.state.value}"
            raise LocalProtocolError(
                f"epoch {epoch} is not {state.value} by member {self._member}: at hand is {at_hand}"
            )
        return current

    def _acknowledge(
        self,
        term: int,
        epoch: int,
        stage: Stage = Stage.FAILED,
        watermark: int | None = None,
        error: str = "",
    ) -> Acknowledge:
        return Acknowledge(
            Acknowledgement(term, epoch, stage, watermark, short(error), self._finished)
        )
