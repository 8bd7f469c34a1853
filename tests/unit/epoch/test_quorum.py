"""Have all members answered? Each outcome, and against a plain count of the answers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.epoch.announcements import Acknowledgement, Stage
from penstock.epoch.quorum import Failed, Outcome, Reached, TimedOut, weigh

TERM, EPOCH = 3, 8


def answer(stage: Stage, watermark: int | None = None, error: str = "") -> Acknowledgement:
    return Acknowledgement(TERM, EPOCH, stage, watermark, error)


CAPTURED, PREPARED = answer(Stage.CAPTURED), answer(Stage.PREPARED)
BROKEN = answer(Stage.FAILED, error="the disk is full")


def weighed(
    answers: dict[int, Acknowledgement],
    stage: Stage = Stage.PREPARED,
    expected: tuple[int, ...] = (1, 2, 3),
    *,
    overdue: bool = False,
) -> Outcome | None:
    return weigh(expected, stage, EPOCH, TERM, answers, overdue=overdue)


def test_it_is_reached_when_all_are_as_far() -> None:
    answers = {1: PREPARED, 2: PREPARED}
    assert weighed(answers) is None
    assert weighed(answers | {3: CAPTURED}) is None
    assert weighed(answers | {3: PREPARED}) == Reached(None)
    assert weighed(answers | {3: PREPARED}, overdue=True) == Reached(None), "late, but in time"


def test_who_has_prepared_has_captured() -> None:
    answers = {1: PREPARED, 2: CAPTURED, 3: CAPTURED}
    assert weighed(answers, Stage.CAPTURED) == Reached(None)
    assert weighed(answers, Stage.PREPARED) is None


def test_the_least_watermark_counts_and_who_has_none_is_passed_over() -> None:
    answers = {
        1: answer(Stage.PREPARED, 30), 2: answer(Stage.PREPARED), 3: answer(Stage.PREPARED, -20)
    }  # fmt: skip
    assert weighed(answers) == Reached(-20)
    assert weighed(answers, expected=(1, 2)) == Reached(30)
    assert weighed(answers, expected=(2,)) == Reached(None)


def test_who_is_late_and_who_answered_are_named() -> None:
    late = weighed({2: PREPARED, 3: CAPTURED}, overdue=True)
    assert late == TimedOut(answered=(2,), missing=(1, 3))
    assert str(late) == "no answer from members 1, 3 in time; member 2 answered"
    nobody = weighed({}, expected=(5,), overdue=True)
    assert nobody == TimedOut(answered=(), missing=(5,))
    assert str(nobody) == "no answer from member 5 in time; nobody answered"


def test_one_that_failed_is_enough_at_once_and_all_who_did_are_named() -> None:
    failed = weighed({2: BROKEN})
    assert failed == Failed(((2, "the disk is full"),))
    assert str(failed) == "member 2: the disk is full"
    two = weighed({3: answer(Stage.FAILED, error="no line"), 1: PREPARED, 2: BROKEN}, overdue=True)
    assert two == Failed(((2, "the disk is full"), (3, "no line")))
    assert str(two) == "member 2: the disk is full; member 3: no line"


def test_strangers_other_epochs_and_other_leaders_do_not_count() -> None:
    others = [
        replace(BROKEN, epoch=EPOCH - 1),
        replace(BROKEN, epoch=EPOCH + 1),
        replace(BROKEN, term=TERM - 1),
        replace(BROKEN, term=TERM + 1),
    ]
    for other in others:
        assert weighed({1: other, 2: PREPARED, 3: PREPARED}) is None
        stale = replace(other, stage=Stage.PREPARED)
        late = weighed({1: stale, 2: PREPARED, 3: PREPARED}, overdue=True)
        assert late == TimedOut(answered=(2, 3), missing=(1,))
    everybody = {member: answer(Stage.PREPARED, 50) for member in (1, 2, 3)}
    assert weighed(everybody | {9: BROKEN}) == Reached(50)
    assert weighed(everybody | {9: answer(Stage.PREPARED, 1)}) == Reached(50)


def test_a_member_that_is_named_twice_answers_once() -> None:
    assert weighed({1: PREPARED}, expected=(1, 1)) == Reached(None)


answers_of_any_kind = st.dictionaries(
    st.integers(0, 4),
    st.builds(
        Acknowledgement,
        term=st.sampled_from((TERM, TERM, TERM, TERM - 1)),
        epoch=st.sampled_from((EPOCH, EPOCH, EPOCH, EPOCH - 1)),
        stage=st.sampled_from((*Stage, Stage.PREPARED, Stage.PREPARED)),
        watermark=st.none() | st.integers(-5, 5),
        error=st.sampled_from(("", "why")),
    ),
)


@given(
    st.sets(st.integers(0, 4), min_size=1),
    st.sampled_from((Stage.CAPTURED, Stage.PREPARED)),
    answers_of_any_kind,
    st.booleans(),
)
def test_it_is_as_one_who_asks_each_member_finds_it(
    expected: set[int], stage: Stage, answers: dict[int, Acknowledgement], overdue: bool
) -> None:
    far_enough = {"captured": ["captured", "prepared"], "prepared": ["prepared"]}[stage]
    failed, done, waiting, clocks = [], [], [], []
    for member in sorted(expected):
        said = answers.get(member)
        if said is None or said.term != TERM or said.epoch != EPOCH:
            waiting.append(member)
        elif said.stage == "failed":
            failed.append((member, said.error))
        elif said.stage in far_enough:
            done.append(member)
            clocks += [] if said.watermark is None else [said.watermark]
        else:
            waiting.append(member)
    found = weigh(expected, stage, EPOCH, TERM, answers, overdue=overdue)
    if failed:
        assert found == Failed(tuple(failed))
    elif not waiting:
        assert found == Reached(min(clocks) if clocks else None)
    elif overdue:
        assert found == TimedOut(tuple(done), tuple(waiting))
    else:
        assert found is None
