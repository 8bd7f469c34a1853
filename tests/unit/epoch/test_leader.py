"""The leader, event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.epoch.announcements import (
    REASON_CHARACTERS_MAX,
    Acknowledgement,
    Announcement,
    Phase,
    Stage,
)
from penstock.epoch.decisions import Decision, Verdict
from penstock.epoch.leader import (
    Acknowledged,
    Announce,
    Begin,
    Concluded,
    Decide,
    Deposed,
    Leader,
    Passed,
    Recorded,
)
from penstock.epoch.quorum import Failed, Reached, TimedOut
from penstock.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.epoch.leader import LeaderEffect

MEMBER, TERM = 10, 3
MEMBERS = (1, 2)
SECONDS_MAX = 30.0
TAKES_OVER = "member 10 took over as leader"


def new(recorded: Iterable[Decision] = ()) -> Leader:
    return Leader(MEMBER, TERM, [2, 1, 2], SECONDS_MAX, recorded)


def abort(epoch: int, reason: str = TAKES_OVER, term: int = TERM) -> Decision:
    return Decision(epoch, Verdict.ABORT, term, MEMBER, MEMBERS, reason=reason)


def commit(epoch: int, watermark: int | None = None, term: int = TERM) -> Decision:
    return Decision(epoch, Verdict.COMMIT, term, MEMBER, MEMBERS, watermark)


def ready(recorded: Iterable[Decision] = ()) -> Leader:
    leader = new(recorded)
    (decide,) = leader.start()
    assert isinstance(decide, Decide)
    leader.handle(Recorded(decide.decision), 0.0)
    assert leader.ready
    return leader


def preparing(recorded: Iterable[Decision] = ()) -> Leader:
    leader = ready(recorded)
    leader.handle(Begin(), 0.0)
    return leader


def answers(epoch: int, *stages: Stage | None, watermark: int | None = None) -> Acknowledged:
    """Of members 1 and 2, in this order."""
    return Acknowledged(
        {
            member: Acknowledgement(TERM, epoch, stage, watermark, "why" * (stage == "failed"))
            for member, stage in zip(MEMBERS, stages, strict=True)
            if stage is not None
        }
    )


def announced(effects: list[LeaderEffect]) -> list[Announcement]:
    return [effect.announcement for effect in effects if isinstance(effect, Announce)]


def test_its_first_act_is_to_abort_the_next_epoch() -> None:
    assert new().start() == [Decide(abort(1))]
    log = [commit(3, term=1), abort(5, term=2), commit(4, term=1)]
    assert new(log).start() == [Decide(abort(6))], "in whatever order they come"


def test_nothing_begins_before_that_is_recorded() -> None:
    leader = new()
    leader.start()
    assert not leader.ready
    with pytest.raises(LocalProtocolError, match="no epoch can begin now: it has yet to decide"):
        leader.handle(Begin(), 0.0)
    effects = leader.handle(Recorded(abort(1)), 0.0)
    assert effects == [Announce(Announcement(TERM, 1, Phase.ABORT, MEMBERS, reason=TAKES_OVER))]
    assert (leader.ready, leader.epoch) == (True, 2)


def test_the_last_words_of_the_leader_before_are_announced_and_outdone() -> None:
    leader = new([commit(4, term=2)])
    leader.start()
    before = replace(commit(5, 70, term=2), decider=9)
    effects = leader.handle(Recorded(before), 0.0)
    assert effects == [
        Announce(Announcement(TERM, 5, Phase.COMMIT, MEMBERS, watermark=70)),
        Decide(abort(6)),
    ]
    assert not leader.ready
    leader.handle(Recorded(abort(6)), 0.0)
    assert leader.ready


def test_a_leader_that_comes_too_late_is_deposed() -> None:
    newer = abort(4, term=TERM + 1)
    leader = new([abort(3, term=1), newer])
    assert leader.start() == [Deposed(newer)]
    assert leader.deposed
    late = new()
    late.start()
    assert late.handle(Recorded(replace(newer, epoch=1)), 0.0) == [Deposed(replace(newer, epoch=1))]
    for event in (Begin(), Acknowledged({}), Passed(), Recorded(abort(1))):
        if isinstance(event, Begin):
            with pytest.raises(LocalProtocolError, match="there is a newer leader"):
                late.handle(event, 0.0)
        else:
            assert late.handle(event, 1e9) == [], "it does nothing any more"


def test_a_leader_starts_once() -> None:
    leader = ready()
    with pytest.raises(LocalProtocolError, match="starts once"):
        leader.start()


def test_an_epoch_from_begin_to_commit() -> None:
    leader = ready([commit(6, 10, term=1)])
    prepare = Announcement(TERM, 8, Phase.PREPARE, MEMBERS, flags=2, seconds_max=SECONDS_MAX)
    assert leader.handle(Begin(flags=2), 100.0) == [Announce(prepare)]
    assert leader.deadline == 100.0 + SECONDS_MAX
    assert leader.handle(answers(8, Stage.CAPTURED, None), 101.0) == []
    captured = answers(8, Stage.CAPTURED, Stage.PREPARED, watermark=40)
    aligned = replace(prepare, phase=Phase.ALIGNED, watermark=40)
    assert leader.handle(captured, 102.0) == [Announce(aligned)]
    assert leader.handle(captured, 103.0) == [], "once"
    prepared = answers(8, Stage.PREPARED, Stage.PREPARED, watermark=40)
    assert leader.handle(prepared, 104.0) == [Decide(commit(8, 40))]
    assert leader.deadline is None
    assert leader.handle(prepared, 105.0) == [], "once"
    assert leader.handle(Recorded(commit(8, 40)), 106.0) == [
        Announce(Announcement(TERM, 8, Phase.COMMIT, MEMBERS, watermark=40)),
        Concluded(commit(8, 40), Reached(40)),
    ]
    assert leader.handle(Recorded(commit(8, 40)), 107.0) == [], "once"
    assert (leader.ready, leader.epoch) == (True, 9)


def test_members_that_are_prepared_at_once_are_aligned_and_decided_at_once() -> None:
    leader = preparing()
    effects = leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    assert [each.phase for each in announced(effects)] == [Phase.ALIGNED]
    assert effects[1:] == [Decide(commit(2))]


@pytest.mark.parametrize("aligned", [False, True])
def test_one_that_failed_aborts_the_epoch_at_once(aligned: bool) -> None:
    leader = preparing()
    if aligned:
        leader.handle(answers(2, Stage.CAPTURED, Stage.CAPTURED), 1.0)
    silent = Stage.CAPTURED if aligned else None
    effects = leader.handle(answers(2, silent, Stage.FAILED), 2.0)
    assert effects == [Decide(abort(2, "member 2: why"))]
    assert leader.handle(Recorded(abort(2, "member 2: why")), 3.0) == [
        Announce(Announcement(TERM, 2, Phase.ABORT, MEMBERS, reason="member 2: why")),
        Concluded(abort(2, "member 2: why"), Failed(((2, "why"),))),
    ]


@pytest.mark.parametrize("aligned", [False, True])
def test_when_time_is_up_the_epoch_is_aborted_and_the_silent_named(aligned: bool) -> None:
    leader = preparing()
    if aligned:
        leader.handle(answers(2, Stage.CAPTURED, Stage.CAPTURED), 1.0)
    stages = (Stage.PREPARED, Stage.CAPTURED) if aligned else (Stage.CAPTURED, None)
    leader.handle(answers(2, *stages), 2.0)
    assert leader.handle(Passed(), SECONDS_MAX - 0.001) == []
    reason = "no answer from member 2 in time; member 1 answered"
    assert leader.handle(Passed(), SECONDS_MAX) == [Decide(abort(2, reason))]
    _, concluded = leader.handle(Recorded(abort(2, reason)), SECONDS_MAX)
    assert concluded == Concluded(abort(2, reason), TimedOut((1,), (2,)))


def test_the_last_answer_counts_also_when_time_is_up() -> None:
    leader = preparing()
    effects = leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), SECONDS_MAX + 1)
    assert effects[-1] == Decide(commit(2))


def test_a_reason_fits_a_slot() -> None:
    leader = preparing()
    endless = Acknowledgement(TERM, 2, Stage.FAILED, error="x" * 10_000)
    (decide,) = leader.handle(Acknowledged({1: endless}), 1.0)
    assert isinstance(decide, Decide)
    assert len(decide.decision.reason) == REASON_CHARACTERS_MAX


def test_answers_to_the_epoch_before_and_to_the_leader_before_do_not_count() -> None:
    leader = preparing()
    for stale in (answers(1, Stage.PREPARED, Stage.PREPARED), answers(1, None, Stage.FAILED)):
        assert leader.handle(stale, 1.0) == []
    older = Acknowledgement(TERM - 1, 2, Stage.FAILED, error="of another leader")
    assert leader.handle(Acknowledged({1: older, 2: older}), 1.0) == []
    stranger = Acknowledgement(TERM, 2, Stage.FAILED, error="who is that")
    assert leader.handle(Acknowledged({7: stranger}), 1.0) == []


def test_answers_to_an_epoch_are_not_taken_for_the_next() -> None:
    leader = preparing()
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    leader.handle(Recorded(commit(2)), 1.0)
    leader.handle(Begin(), 2.0)
    assert leader.handle(Passed(), 2.0) == []
    assert leader.deadline == 2.0 + SECONDS_MAX


def test_one_epoch_at_a_time() -> None:
    leader = preparing()
    with pytest.raises(LocalProtocolError, match="it waits for members to capture"):
        leader.handle(Begin(), 0.0)
    leader.handle(answers(2, Stage.CAPTURED, Stage.CAPTURED), 1.0)
    with pytest.raises(LocalProtocolError, match="it waits for members to prepare"):
        leader.handle(Begin(), 0.0)
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    with pytest.raises(LocalProtocolError, match="a decision is being recorded"):
        leader.handle(Begin(), 0.0)


def test_the_record_of_a_member_that_waited_too_long_holds() -> None:
    leader = preparing()
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    theirs = Decision(2, Verdict.ABORT, TERM, decider=1, reason="heard of no decision")
    assert leader.handle(Recorded(theirs), 2.0) == [
        Announce(Announcement(TERM, 2, Phase.ABORT, (), reason="heard of no decision")),
        Concluded(theirs, Reached(None)),
    ]
    assert leader.ready


def test_a_leader_that_was_paused_before_it_recorded_a_commit_commits_nothing() -> None:
    """It has all acknowledgements, sleeps, and finds the epoch taken by the next leader."""
    leader = preparing()
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    newer = abort(2, "member 11 took over as leader", term=TERM + 1)
    assert leader.handle(Recorded(newer), 99.0) == [Deposed(newer)]
    assert leader.deposed
    assert not leader.ready


def test_an_answer_about_another_epoch_changes_nothing() -> None:
    leader = preparing()
    assert leader.handle(Recorded(commit(2)), 1.0) == [], "nobody asked yet"
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 1.0)
    assert leader.handle(Recorded(abort(1)), 1.0) == []
    assert leader.handle(Recorded(commit(3)), 1.0) == []
    assert not leader.ready


def test_the_watermark_never_falls() -> None:
    leader = preparing([commit(1, 50, term=1)])
    low = answers(3, Stage.PREPARED, Stage.PREPARED, watermark=20)
    announce, decide = leader.handle(low, 1.0)
    assert isinstance(announce, Announce)
    assert announce.announcement.watermark == 50
    assert decide == Decide(commit(3, 50))
    leader.handle(Recorded(commit(3, 50)), 1.0)
    leader.handle(Begin(), 1.0)
    unknown = answers(4, Stage.PREPARED, Stage.PREPARED)
    assert leader.handle(unknown, 1.0)[-1] == Decide(commit(4, 50)), "it is still known"
    leader.handle(Recorded(commit(4, 50)), 1.0)
    leader.handle(Begin(), 1.0)
    high = answers(5, Stage.PREPARED, Stage.PREPARED, watermark=60)
    assert leader.handle(high, 1.0)[-1] == Decide(commit(5, 60))


def test_what_is_on_record_of_the_watermark_is_known_to_the_next_leader() -> None:
    leader = new([commit(4, 9, term=1)])
    leader.start()
    leader.handle(Recorded(commit(5, 70, term=2)), 0.0)
    leader.handle(Recorded(abort(6)), 0.0)
    leader.handle(Begin(), 0.0)
    effects = leader.handle(answers(7, Stage.PREPARED, Stage.PREPARED, watermark=8), 1.0)
    assert effects[-1] == Decide(commit(7, 70))


class Told:
    """What a random run of events has told a leader, and what may follow from that."""

    def __init__(self) -> None:
        self.leader = ready()
        self.now = 0.0
        self.slots: dict[int, Acknowledgement] = {}
        self.recorded = {1: abort(1)}
        self.asked: Decision | None = None
        self.order = (0, 0, 0)

    def handle(self, event: Begin | Acknowledged | Passed | Recorded) -> None:
        before = self.leader.epoch
        for effect in self.leader.handle(event, self.now):
            match effect:
                case Announce(announcement):
                    assert announcement.order > self.order, "each outdoes the one before"
                    self.order = announcement.order
                    if announcement.phase in (Phase.COMMIT, Phase.ABORT):
                        held = self.recorded[announcement.epoch]
                        assert held.is_commit is (announcement.phase is Phase.COMMIT)
                case Decide(decision):
                    assert decision.epoch == before
                    assert decision.epoch not in self.recorded
                    self.asked = decision
                    if decision.is_commit:
                        stages = [self.stage(member) for member in MEMBERS]
                        assert stages == [Stage.PREPARED] * 2
                case Concluded(decision):
                    assert decision == self.recorded[decision.epoch]
                case Deposed(decision):
                    assert decision.term > TERM

    def stage(self, member: int) -> Stage | None:
        answer = self.slots.get(member)
        if answer is None or (answer.term, answer.epoch) != (TERM, self.leader.epoch):
            return None
        return answer.stage


STEPS = st.one_of(
    st.just("begin"),
    st.just("record"),
    st.just("other record"),
    st.floats(0.0, SECONDS_MAX),
    st.tuples(
        st.sampled_from((1, 2, 3)),
        st.sampled_from((TERM, TERM, TERM, TERM, TERM - 1)),
        st.sampled_from((0, 0, 0, 0, -1, 1)),
        st.sampled_from((Stage.CAPTURED, Stage.PREPARED, Stage.PREPARED, Stage.FAILED)),
    ),
)


@given(st.lists(STEPS, max_size=60))
def test_a_commit_has_every_acknowledgement_and_is_announced_after_its_record(
    steps: list[str | float | tuple[int, int, int, Stage]],
) -> None:
    told = Told()
    for step in steps:
        match step:
            case "begin":
                if told.leader.ready:
                    told.handle(Begin())
            case "record" | "other record":
                if told.asked is not None:
                    held, told.asked = told.asked, None
                    if step == "other record":
                        held = Decision(held.epoch, Verdict.ABORT, 0, decider=1)
                    told.recorded[held.epoch] = held
                    told.handle(Recorded(held))
            case float(seconds):
                told.now += seconds
                told.handle(Passed())
            case (member, term, distance, stage):
                epoch = told.leader.epoch + distance
                told.slots[member] = Acknowledgement(term, epoch, stage)
                told.handle(Acknowledged(dict(told.slots)))
    assert list(told.recorded) == list(range(1, len(told.recorded) + 1)), "without gaps"


def awaited(leader: Leader) -> tuple[Stage, tuple[int, ...]] | None:
    return leader.awaits


def test_it_says_who_has_not_acknowledged() -> None:
    leader = preparing()
    assert awaited(leader) == (Stage.CAPTURED, (1, 2))
    leader.handle(answers(2, Stage.CAPTURED, None), 0.0)
    assert awaited(leader) == (Stage.CAPTURED, (2,))
    leader.handle(answers(2, Stage.PREPARED, Stage.CAPTURED), 0.0)
    assert awaited(leader) == (Stage.PREPARED, (2,)), "who has prepared has captured"
    leader.handle(answers(2, Stage.PREPARED, Stage.PREPARED), 0.0)
    assert awaited(leader) is None


def test_an_answer_to_another_epoch_is_none() -> None:
    leader = preparing()
    leader.handle(answers(1, Stage.CAPTURED, Stage.CAPTURED), 0.0)
    assert awaited(leader) == (Stage.CAPTURED, (1, 2))
