"""How epochs went: the moments of each, and who was last."""

from __future__ import annotations

from penstock.epoch.announcements import Stage
from penstock.epoch.decisions import Decision, Verdict
from penstock.epoch.times import KEPT, EpochTimes


def decision(epoch: int) -> Decision:
    return Decision(epoch, Verdict.COMMIT, 1, 0, (1, 2))


def test_an_epoch_is_followed_from_its_begin_to_its_end() -> None:
    times = EpochTimes()
    times.captured(0.5)  # of none: nothing is known of it
    assert times.all() == ()
    times.began(7, 1.0)
    times.waits(Stage.CAPTURED, (1, 2))
    (open_,) = times.all()
    assert (open_.number, open_.stage, open_.waits_for) == (7, Stage.CAPTURED, (1, 2))
    times.captured(2.0)
    times.waits(Stage.PREPARED, (1,))
    times.waits(Stage.PREPARED, ())
    times.prepared(3.0)
    times.concluded(decision(7), 4.0)
    (over,) = times.all()
    assert (over.began, over.captured, over.prepared, over.concluded) == (1.0, 2.0, 3.0, 4.0)
    assert (over.stage, over.waits_for, over.last_member) == (None, (), 1)
    assert over.decision == decision(7)


def test_the_last_hundred_are_kept() -> None:
    times = EpochTimes()
    for number in range(KEPT + 20):
        times.began(number, 1.0)
        times.concluded(decision(number), 2.0)
    times.began(500, 3.0)
    assert [each.number for each in times.all()] == [*range(20, KEPT + 20), 500]


def test_a_decision_of_another_epoch_is_none_of_it() -> None:
    times = EpochTimes()
    times.began(8, 1.0)
    times.concluded(decision(7), 2.0)
    assert times.all() == ()
