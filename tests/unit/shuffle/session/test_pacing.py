"""When epochs begin: at once for who waits, ahead of who will be back, and else now and then."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shuffle.session.pacing import HURRY_SECONDS, LEAD, Pacing, Reminders

INTERVAL = 1.0


def begin(pacing: Pacing, at: float, seconds: float = 0.03) -> float:
    """An epoch; gives when it ends."""
    pacing.begun(at)
    pacing.ended(at + seconds)
    return at + seconds


def ask(pacing: Pacing, at: float, *, ready: bool) -> None:
    pacing.asked(at)
    if ready:
        pacing.given(at)
    else:
        pacing.waits()


def test_the_first_epoch_may_begin_at_once() -> None:
    assert Pacing(INTERVAL).due_at == -math.inf


def test_without_a_consumer_there_is_one_in_a_while() -> None:
    pacing = Pacing(INTERVAL)
    begin(pacing, 10.0)
    assert pacing.due_at == 10.0 + INTERVAL


def test_a_consumer_that_waits_is_served_at_once_but_not_again_and_again() -> None:
    pacing = Pacing(INTERVAL)
    begin(pacing, 10.0)
    ask(pacing, 10.5, ready=False)
    assert pacing.due_at == 10.0 + HURRY_SECONDS
    begin(pacing, 10.5)
    assert pacing.due_at == 10.5 + INTERVAL, "it asked once, and one was begun"
    ask(pacing, 10.6, ready=False)
    assert pacing.due_at == 10.5 + HURRY_SECONDS


def busy(pacing: Pacing, given_at: float, seconds: float) -> None:
    """A consumer that gets an epoch and comes back after so long, twice: the second time to get
    another."""
    pacing.given(given_at)
    ask(pacing, given_at + seconds, ready=True)


def test_the_next_epoch_is_there_when_a_busy_consumer_comes_back() -> None:
    pacing = Pacing(INTERVAL)
    ended = begin(pacing, 10.0, 0.03)
    busy(pacing, ended, 0.2)
    due = pacing.due_at
    assert due == pytest.approx(ended + 0.2 + 0.2 - LEAD * 0.03)
    # Whenever there is something for it after that, it begins; and there is one such epoch.
    ended = begin(pacing, due + 0.01)
    assert pacing.due_at == due + 0.01 + INTERVAL


def test_a_consumer_that_takes_long_gets_what_is_newest_all_the_same() -> None:
    pacing = Pacing(INTERVAL)
    ended = begin(pacing, 10.0)
    busy(pacing, ended, 30.0)
    begun = ended + 30.0 - 0.5
    begin(pacing, begun)
    pacing.given(begun + 0.1)
    assert pacing.due_at == begun + INTERVAL, "not only when it comes back"


def test_a_consumer_that_comes_back_early_waits_for_one_that_begins_at_once() -> None:
    pacing = Pacing(INTERVAL)
    ended = begin(pacing, 10.0)
    busy(pacing, ended, 0.5)
    ask(pacing, ended + 0.6, ready=False)
    assert pacing.due_at == 10.0 + HURRY_SECONDS


@given(
    st.lists(
        st.tuples(st.sampled_from(("begin", "end", "ask", "wait", "give")), st.floats(0.0, 3.0)),
        max_size=30,
    )
)
def test_never_too_soon_and_never_later_than_the_interval(steps: list[tuple[str, float]]) -> None:
    pacing = Pacing(INTERVAL)
    now = begun = 100.0
    pacing.begun(now)
    for step, seconds in steps:
        now += seconds
        match step:
            case "begin":
                pacing.begun(now)
                begun = now
            case "end":
                pacing.ended(now)
            case "ask":
                pacing.asked(now)
            case "wait":
                pacing.waits()
            case _:
                pacing.given(now)
        assert begun + HURRY_SECONDS <= pacing.due_at <= begun + INTERVAL


def test_a_long_wait_is_said_again_and_again() -> None:
    reminders = Reminders(100.0)
    assert reminders.due({0: 10.0}, 109.0) == []
    assert reminders.due({0: 10.0, 1: 50.0}, 110.0) == [0]
    assert reminders.due({0: 10.0, 1: 50.0}, 149.0) == []
    assert reminders.due({0: 10.0, 1: 50.0}, 211.0) == [0, 1]
    assert reminders.due({0: 250.0}, 311.0) == [], "another one has begun"
    assert reminders.due({}, 320.0) == []
    assert reminders.due({0: 250.0}, 350.0) == [0]
