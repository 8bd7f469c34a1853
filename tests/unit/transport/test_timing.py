"""Times that cannot work are refused when they are set."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigurationError
from penstock.transport.timing import Timing


def test_the_defaults_are_allowed() -> None:
    timing = Timing()
    assert timing.silence_seconds_max >= 2 * timing.heartbeat_seconds


@pytest.mark.parametrize(("connect", "heartbeat"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -1)])
def test_a_time_of_nothing_is_refused(connect: float, heartbeat: float) -> None:
    with pytest.raises(ConfigurationError, match="above zero"):
        Timing(connect, heartbeat, 10.0)


def test_silence_outlasts_two_heartbeats() -> None:
    assert Timing(1.0, 2.0, 4.0).silence_seconds_max == 4.0
    with pytest.raises(ConfigurationError, match=r"silence_seconds_max \(3.9\).*\(2\)"):
        Timing(1.0, 2.0, 3.9)


def test_not_a_number_is_not_a_time() -> None:
    for times in ((float("nan"), 1, 10), (1, float("nan"), 10), (1, 1, float("nan"))):
        with pytest.raises(ConfigurationError):
            Timing(*times)
