"""How fast counts rise."""

from __future__ import annotations

from penstock.watch.rates import WINDOW_SECONDS, Rates


def test_a_rate_is_of_the_time_just_past() -> None:
    rates = Rates()
    found = []
    for second in range(10):
        rates.begin(float(second))
        found.append(rates.of("a", 100 * min(second, 5)))
    assert found[0] is None
    assert found[1:6] == [100.0] * 5
    assert found[5 + int(WINDOW_SECONDS)] == 0.0


def test_a_count_that_fell_is_anothers() -> None:
    rates = Rates()
    for now, count, rate in ((1.0, 10, None), (2.0, 30, 20.0), (3.0, 5, None), (4.0, 6, 1.0)):
        rates.begin(now)
        assert rates.of("a", count) == rate


def test_what_is_not_asked_for_is_forgotten() -> None:
    rates = Rates()
    rates.begin(1.0)
    rates.of("a", 1)
    rates.begin(2.0)
    rates.begin(3.0)
    assert rates.of("a", 5) is None
    assert rates.of("a", 5) is None, "twice in one look is once"
