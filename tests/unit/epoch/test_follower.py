"""The follower, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.checkpoint.barrier import Barrier
from penstock.epoch.announcements import (
    REASON_CHARACTERS_MAX,
    Acknowledgement,
    Announcement,
    Phase,
    Stage,
)
from penstock.epoch.decisions import Decision, Verdict
from penstock.epoch.follower import (
    AbortUnlessDecided,
    Acknowledge,
    Announced,
    Capture,
    Captured,
    Finish,
    Finished,
    Follower,
    FollowerEffect,
    FollowerEvent,
    GiveUp,
    Learn,
    Learned,
    Passed,
    Prepare,
    Prepared,
    Resume,
)
from penstock.errors import LocalProtocolError, RemoteProtocolError

MEMBER, TERM = 1, 3
SECONDS_MAX, PATIENCE = 30.0, 10.0


def said(phase: Phase, epoch: int = 5, term: int = TERM, watermark: int | None = None) -> Announced:
    return Announced(Announcement(term, epoch, phase, (1, 2), 4, SECONDS_MAX, watermark))


PREPARE, ALIGNED, COMMIT, ABORT = (said(phase) for phase in Phase)


def acknowledged(
    stage: Stage, epoch: int = 5, watermark: int | None = None, error: str = "", finished: int = 0
) -> Acknowledge:
    return Acknowledge(Acknowledgement(TERM, epoch, stage, watermark, error, finished))


def decision(verdict: Verdict, epoch: int = 5) -> Decision:
    return Decision(epoch, verdict, TERM, 10, (1, 2))


def asks(epoch: int = 5, term: int = TERM) -> AbortUnlessDecided:
    reason = "member 1 had prepared it, and heard of no decision"
    return AbortUnlessDecided(Decision(epoch, Verdict.ABORT, term, MEMBER, reason=reason))


def started(in_doubt: tuple[int, ...] = (), decided: int = 0) -> Follower:
    follower = Follower(MEMBER, PATIENCE, in_doubt, decided)
    follower.start(None, 0.0)
    return follower


def told(follower: Follower, *events: FollowerEvent, now: float = 0.0) -> list[FollowerEffect]:
    """What follows from the last of these."""
    effects: list[FollowerEffect] = []
    for event in events:
        effects = follower.handle(event, now)
    return effects


def prepared(epoch: int = 5) -> Follower:
    follower = started()
    told(follower, said(Phase.PREPARE, epoch), Captured(epoch, 70), Prepared(epoch))
    return follower


# A life in peace


def test_an_epoch_from_prepare_to_commit() -> None:
    follower = started()
    assert told(follower, PREPARE) == [Capture(Barrier(5, 5, 4))]
    assert told(follower, Captured(5, 70)) == [acknowledged(Stage.CAPTURED, 5, 70), Prepare(5)]
    assert told(follower, Prepared(5)) == [acknowledged(Stage.PREPARED, 5, 70)]
    assert told(follower, said(Phase.ALIGNED, watermark=60)) == [Resume(5, 60)]
    assert told(follower, COMMIT) == [Finish(5, commit=True)]
    assert follower.finished == 0
    assert told(follower, Finished(5)) == []
    assert (follower.finished, follower.watermark, follower.deadline) == (5, 60, None)
    told(follower, said(Phase.PREPARE, 6))
    captured, _ = told(follower, Captured(6))
    assert captured == acknowledged(Stage.CAPTURED, 6, finished=5)


def test_an_abort_that_was_announced_is_done() -> None:
    assert told(prepared(), ABORT) == [Finish(5, commit=False)]


def test_all_members_have_captured_before_this_one_has_prepared() -> None:
    follower = started()
    told(follower, PREPARE, Captured(5))
    assert told(follower, said(Phase.ALIGNED, watermark=60)) == [Resume(5, 60)]
    assert told(follower, Prepared(5)) == [acknowledged(Stage.PREPARED)]


@pytest.mark.parametrize("twice", [PREPARE, ALIGNED, COMMIT], ids=["prepare", "aligned", "commit"])
def test_what_is_announced_twice_is_done_once(twice: Announced) -> None:
    follower = started() if twice is PREPARE else prepared()
    assert told(follower, twice) != []
    assert told(follower, twice) == []


def test_older_announcements_are_passed_over() -> None:
    follower = prepared()
    told(follower, COMMIT)
    for old in (PREPARE, ALIGNED, said(Phase.ABORT, 4), said(Phase.PREPARE, 9, TERM - 1)):
        assert told(follower, old) == []
    assert told(follower, Finished(5)) == [], "and nothing was kept for later"


def test_an_epoch_of_others_is_no_concern() -> None:
    follower = started()
    others = replace(PREPARE.announcement, members=(2, 3))
    assert told(follower, Announced(others)) == []
    assert told(follower, COMMIT) == []


def test_the_watermark_is_the_greatest_that_was_announced_with_a_line() -> None:
    follower = started()
    for announced, known in (
        (said(Phase.PREPARE, 2, watermark=99), None),
        (said(Phase.ALIGNED, 2, watermark=20), 20),
        (said(Phase.ABORT, 2), 20),
        (said(Phase.COMMIT, 3, watermark=50), 50),
        (said(Phase.COMMIT, 4, watermark=40), 50),
    ):
        told(follower, announced)
        assert follower.watermark == known


# Failures of this member


def test_a_capture_that_failed_is_told_and_aborted() -> None:
    follower = started()
    told(follower, PREPARE)
    assert told(follower, Captured(5, error="no line")) == [
        acknowledged(Stage.FAILED, error="no line"),
        Finish(5, commit=False),
    ]
    assert told(follower, ABORT) == [], "it is being done"
    told(follower, Finished(5))
    assert follower.finished == 5


def test_a_prepare_that_failed_is_told_and_aborted() -> None:
    follower = started()
    told(follower, PREPARE, Captured(5))
    endless = "x" * (2 * REASON_CHARACTERS_MAX)
    failed, finish = told(follower, Prepared(5, endless))
    assert isinstance(failed, Acknowledge)
    assert failed.acknowledgement.stage is Stage.FAILED
    assert len(failed.acknowledgement.error) == REASON_CHARACTERS_MAX
    assert finish == Finish(5, commit=False)


@pytest.mark.parametrize("error", [None, "given up"])
def test_an_abort_while_it_captures_or_prepares_makes_it_give_up(error: str | None) -> None:
    follower = started()
    told(follower, PREPARE)
    assert told(follower, ABORT) == [GiveUp(5)]
    assert told(follower, Captured(5, error=error)) == [Finish(5, commit=False)], "nobody waits"
    follower = started()
    told(follower, PREPARE, Captured(5))
    assert told(follower, ABORT) == [GiveUp(5)]
    assert told(follower, Prepared(5, error)) == [Finish(5, commit=False)]


def test_it_gives_up_once() -> None:
    follower = started()
    told(follower, PREPARE)
    assert told(follower, ABORT) == [GiveUp(5)]
    assert told(follower, said(Phase.ABORT, 6)) == []


# Decisions that were missed


def test_it_waits_for_the_leader_and_then_some() -> None:
    follower = started()
    told(follower, PREPARE, now=100.0)
    assert follower.deadline is None, "its own work is waited for, however long it takes"
    assert told(follower, Passed(), now=1e9) == []
    told(follower, Captured(5), Prepared(5), now=120.0)
    assert follower.deadline == 100.0 + SECONDS_MAX + PATIENCE
    assert told(follower, Passed(), now=139.9) == []
    assert told(follower, Passed(), now=140.0) == [asks()]
    assert follower.deadline is None
    assert told(follower, Passed(), now=1e9) == [], "it asks once"


@pytest.mark.parametrize("verdict", Verdict)
def test_the_record_decides_and_nothing_else(verdict: Verdict) -> None:
    follower = prepared()
    told(follower, Passed(), now=100.0)
    effects = told(follower, Learned(5, decision(verdict)))
    assert effects == [Finish(5, commit=verdict is Verdict.COMMIT)]


def test_without_a_record_it_asks_again() -> None:
    follower = prepared()
    assert told(follower, Passed(), now=100.0) == [asks()]
    assert told(follower, Learned(5, None), now=101.0) == []
    assert told(follower, Passed(), now=102.0) == [asks()]


@pytest.mark.parametrize("later", Phase)
def test_a_later_epoch_makes_one_that_is_prepared_ask(later: Phase) -> None:
    follower = prepared()
    assert told(follower, said(later, 7)) == [asks()]
    assert told(follower, said(Phase.PREPARE, 8)) == [], "it has asked"
    assert told(follower, Learned(5, decision(Verdict.COMMIT))) == [Finish(5, commit=True)]


@pytest.mark.parametrize("later", Phase)
def test_a_later_epoch_makes_one_that_is_not_prepared_give_up(later: Phase) -> None:
    """Nobody commits without this member."""
    for events in ((PREPARE,), (PREPARE, Captured(5))):
        follower = started()
        told(follower, *events)
        assert told(follower, said(later, 7)) == [GiveUp(5)]


def test_a_decision_that_is_announced_while_it_asks_is_done_once() -> None:
    follower = prepared()
    told(follower, Passed(), now=100.0)
    assert told(follower, COMMIT) == [Finish(5, commit=True)]
    assert told(follower, Learned(5, decision(Verdict.COMMIT))) == []
    told(follower, Finished(5))
    assert told(follower, Learned(5, decision(Verdict.COMMIT))) == [], "an answer of the past"


def test_a_commit_without_this_member_is_somebodys_fault() -> None:
    for state, events in (("captured", (PREPARE,)), ("prepared", (PREPARE, Captured(5)))):
        follower = started()
        told(follower, *events)
        with pytest.raises(RemoteProtocolError, match=f"being {state} by member 1: somebody"):
            told(follower, COMMIT)


# One epoch at a time


def test_the_next_epoch_waits_until_this_one_is_finished() -> None:
    follower = prepared()
    told(follower, said(Phase.PREPARE, 6), Learned(5, decision(Verdict.COMMIT)))
    assert told(follower, Finished(5), now=50.0) == [Capture(Barrier(6, 6, 4))]
    told(follower, Captured(6), Prepared(6))
    assert follower.deadline == 50.0 + SECONDS_MAX + PATIENCE


def test_of_several_that_wait_the_newest_is_captured() -> None:
    follower = prepared()
    told(follower, said(Phase.PREPARE, 6), said(Phase.PREPARE, 7), said(Phase.ALIGNED, 7))
    told(follower, Learned(5, decision(Verdict.ABORT)))
    assert told(follower, Finished(5)) == [Capture(Barrier(7, 7, 4))]


@pytest.mark.parametrize("decided", [Phase.COMMIT, Phase.ABORT])
def test_one_that_was_decided_while_it_waited_is_passed_over(decided: Phase) -> None:
    follower = prepared()
    told(follower, said(Phase.PREPARE, 6), said(decided, 6), Learned(5, decision(Verdict.ABORT)))
    assert told(follower, Finished(5)) == []


def test_a_new_leaders_epoch_is_another() -> None:
    """The same number under a greater term: whoever began it first was deposed."""
    follower = started()
    told(follower, PREPARE, Captured(5), Prepared(5))
    assert told(follower, said(Phase.ABORT, 5, TERM + 1)) == [Finish(5, commit=False)]
    told(follower, Finished(5))
    effects = told(follower, said(Phase.PREPARE, 6, TERM + 1), Captured(6))
    assert effects[0] == Acknowledge(Acknowledgement(TERM + 1, 6, Stage.CAPTURED, finished=5)), (
        "answers go to who asked"
    )


@pytest.mark.parametrize(
    "event", [Captured(5), Prepared(5), Finished(5)], ids=lambda each: type(each).__name__
)
def test_an_answer_that_nobody_waits_for_is_a_fault_of_this_process(
    event: Captured | Prepared | Finished,
) -> None:
    with pytest.raises(LocalProtocolError, match="at hand is nothing"):
        told(started(), event)
    follower = prepared()
    with pytest.raises(LocalProtocolError, match="at hand is 5, durable"):
        told(follower, event)
    told(follower, COMMIT)
    with pytest.raises(LocalProtocolError, match="at hand is 5, being committed or aborted"):
        told(follower, replace(event, epoch=4))


# A new life


def test_epochs_in_doubt_are_looked_up_one_after_the_other() -> None:
    follower = Follower(MEMBER, PATIENCE, [4, 2, 4], decided=3)
    assert follower.start(None, 0.0) == [Learn(2)]
    assert follower.finished == 1
    assert told(follower, Learned(2, decision(Verdict.COMMIT, 2))) == [Finish(2, commit=True)]
    assert told(follower, Finished(2)) == [Learn(4)]
    assert follower.finished == 2
    assert told(follower, Learned(4, decision(Verdict.ABORT, 4))) == [Finish(4, commit=False)]
    assert told(follower, Finished(4)) == []
    assert follower.finished == 4


def test_one_in_doubt_without_a_record_is_waited_for_and_then_asked_about() -> None:
    follower = Follower(MEMBER, PATIENCE, [4])
    assert follower.start(None, 100.0) == [Learn(4)]
    assert follower.deadline is None
    assert told(follower, Learned(4, None), now=101.0) == []
    assert follower.deadline == 100.0 + PATIENCE
    assert told(follower, Passed(), now=109.9) == []
    assert told(follower, Passed(), now=110.0) == [asks(4, term=0)]


def test_one_in_doubt_hears_the_decision_from_the_leader() -> None:
    follower = started(in_doubt=(4,))
    told(follower, Learned(4, None))
    assert told(follower, said(Phase.COMMIT, 4)) == [Finish(4, commit=True)]


def test_a_new_epoch_waits_for_those_in_doubt() -> None:
    follower = started(in_doubt=(4,), decided=4)
    told(follower, said(Phase.PREPARE, 6))
    told(follower, Learned(4, decision(Verdict.COMMIT, 4)))
    assert told(follower, Finished(4)) == [Capture(Barrier(6, 6, 4))]


def test_what_is_on_record_and_not_in_doubt_is_finished() -> None:
    assert started(decided=8).finished == 8
    assert started(in_doubt=(6,), decided=8).finished == 5
    assert started().finished == 0


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.ALIGNED])
def test_an_epoch_that_was_under_way_is_refused(phase: Phase) -> None:
    error = "it was started while the epoch was under way"
    refused = acknowledged(Stage.FAILED, 5, error=error, finished=2)
    follower = Follower(MEMBER, PATIENCE, decided=2)
    assert follower.start(said(phase).announcement, 0.0) == [refused]
    assert told(follower, said(phase)) == [], "once"
    assert told(follower, ABORT) == []
    assert told(follower, said(Phase.PREPARE, 6)) == [Capture(Barrier(6, 6, 4))]


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.ALIGNED])
def test_one_whose_announcement_is_still_on_its_way_is_refused_too(phase: Phase) -> None:
    follower = started(decided=4)
    error = "it was started while the epoch was under way"
    assert told(follower, said(phase)) == [
        acknowledged(Stage.FAILED, 5, error=error, finished=4)
    ], "5 may have been announced before, since 4 was decided"
    assert told(follower, said(Phase.PREPARE, 6)) == [Capture(Barrier(6, 6, 4))]


def test_an_epoch_of_an_earlier_life_is_not_begun_again() -> None:
    for follower in (started(decided=6), started(in_doubt=(5,), decided=3)):
        assert told(follower, PREPARE) == []


def test_one_in_doubt_is_not_refused() -> None:
    """Its part is durable, and the leader may have counted on it."""
    follower = Follower(MEMBER, PATIENCE, [5], decided=4)
    assert follower.start(ALIGNED.announcement, 0.0) == [Learn(5)]


def test_what_is_over_when_it_starts_is_known_and_not_answered() -> None:
    follower = Follower(MEMBER, PATIENCE, decided=5)
    assert follower.start(said(Phase.COMMIT, 5, watermark=44).announcement, 0.0) == []
    assert follower.watermark == 44
    assert told(follower, COMMIT) == []


def test_a_follower_starts_once() -> None:
    with pytest.raises(LocalProtocolError, match="starts once"):
        started().start(None, 0.0)
