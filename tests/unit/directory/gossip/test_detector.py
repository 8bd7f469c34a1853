"""Who is taken for dead, and when. Time is an argument: nothing here waits."""

from __future__ import annotations

from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.directory.gossip.detector import INTERVALS_MAX, AwakeClock, Detector, phi
from penstock.directory.gossip.timing import GossipTiming

DEFAULT = GossipTiming()
TICK = DEFAULT.interval_seconds
SLOW_SECONDS = 1.75
"""A member that is held up for so long is slow. The default settings never take it for dead."""


def detector_after(intervals: list[float]) -> tuple[Detector, float]:
    now = 100.0
    detector = Detector(DEFAULT, now)
    for interval in intervals:
        now += interval
        assert detector.check(now), f"died within an interval of {interval} s"
        detector.beat(now)
    return detector, now


def died_after_seconds(detector: Detector, last: float) -> float:
    """Looked at every hundredth of a second."""
    for step in range(1, 1000):
        if not detector.check(last + step / 100):
            return step / 100
    raise AssertionError("it never died")


@given(st.floats(0, 3), st.floats(0.01, 2), st.floats(0.1, 1))
def test_phi_is_the_tail_of_the_normal_distribution(
    silence: float, mean: float, deviation: float
) -> None:
    # The tail to the right of x is the tail to the left of -x, which is exact where it is small.
    tail = NormalDist().cdf(-(silence - mean) / deviation)
    if tail > 1e-12:
        assert 10 ** -phi(silence, mean, deviation) == pytest.approx(tail, rel=1e-3)
    else:
        assert phi(silence, mean, deviation) > 11.9


def test_phi_of_an_endless_silence_is_a_number_that_compares() -> None:
    assert phi(1e9, 0.2, 0.3) > 1e300


def test_a_regular_member_is_dead_after_two_seconds() -> None:
    detector, last = detector_after([TICK] * 200)
    assert 1.9 <= died_after_seconds(detector, last) <= 2.1


def test_a_member_heard_of_once_is_given_as_long() -> None:
    detector, last = detector_after([])
    assert 1.9 <= died_after_seconds(detector, last) <= 2.1


@given(st.lists(st.floats(0, SLOW_SECONDS), max_size=250), st.floats(0, SLOW_SECONDS))
def test_a_slow_member_is_never_dead(intervals: list[float], silence: float) -> None:
    detector, last = detector_after(intervals)
    assert detector.check(last + silence)


@given(st.lists(st.floats(0, SLOW_SECONDS), max_size=250))
def test_a_silent_member_is_dead_whatever_it_was_like_before(intervals: list[float]) -> None:
    """With a tick to send and a tick to look, that is well within three seconds."""
    detector, last = detector_after(intervals)
    assert SLOW_SECONDS < died_after_seconds(detector, last) <= DEFAULT.silence_seconds_max + 0.01


def test_an_irregular_member_is_given_longer_than_a_regular_one() -> None:
    irregular, irregular_last = detector_after([0.1, 0.9] * 50)
    regular, regular_last = detector_after([TICK] * 100)
    later = died_after_seconds(irregular, irregular_last)
    assert later > died_after_seconds(regular, regular_last) + 0.2


def test_a_bad_minute_is_forgotten() -> None:
    detector, last = detector_after([0.1, 1.2] * 50 + [TICK] * INTERVALS_MAX)
    assert 1.9 <= died_after_seconds(detector, last) <= 2.1


def dead_detector() -> tuple[Detector, float]:
    detector, last = detector_after([TICK] * 20)
    assert not detector.check(last + 10)
    return detector, last + 10


def test_one_straggler_does_not_bring_the_dead_back() -> None:
    detector, now = dead_detector()
    detector.beat(now)
    assert not detector.alive
    assert not detector.check(now + 0.1)


def test_two_heartbeats_in_a_row_do() -> None:
    detector, now = dead_detector()
    detector.beat(now)
    detector.beat(now + TICK)
    assert detector.alive
    assert detector.check(now + TICK + SLOW_SECONDS)


def test_two_heartbeats_far_apart_are_two_stragglers() -> None:
    detector, now = dead_detector()
    detector.beat(now)
    detector.beat(now + 3)
    assert not detector.alive
    detector.beat(now + 3 + TICK)
    assert detector.alive


def test_the_second_death_is_noticed_as_soon_as_the_first() -> None:
    """The long silence before the return is not taken for the member's habit."""
    detector, now = dead_detector()
    for beat in range(1, 4):
        detector.beat(now + beat * TICK)
    assert 1.9 <= died_after_seconds(detector, now + 3 * TICK) <= 2.1


def test_awake_time_is_the_clocks_while_ticks_are_regular() -> None:
    clock = AwakeClock(1.0, 50.0)
    for tick in range(1, 11):
        assert clock.tick(50 + tick * TICK) == pytest.approx(tick * TICK)
    assert clock.at(52.5) == pytest.approx(2.5)


def test_a_pause_of_this_process_counts_up_to_its_limit() -> None:
    clock = AwakeClock(1.0, 50.0)
    assert clock.tick(110) == pytest.approx(1.0)
    assert clock.at(110.5) == pytest.approx(1.5)
    assert clock.at(200) == pytest.approx(2.0)
    assert clock.tick(110.2) == pytest.approx(1.2)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 5)), max_size=50))
def test_awake_time_goes_forward_and_not_faster_than_the_clock(
    steps: list[tuple[bool, float]],
) -> None:
    clock, now, awake = AwakeClock(1.0, 0.0), 0.0, 0.0
    for ticks, seconds in steps:
        now += seconds
        later = clock.tick(now) if ticks else clock.at(now)
        assert awake <= later <= now + 1e-9
        awake = later


def test_who_was_paused_itself_takes_nobody_for_dead() -> None:
    clock = AwakeClock(DEFAULT.pause_seconds_max, 0.0)
    detector = Detector(DEFAULT, clock.at(0.0))
    for tick in range(1, 20):
        awake = clock.tick(tick * TICK)
        detector.beat(awake)
    assert detector.check(clock.tick(3600.0)), "an hour of this process' own sleep"
