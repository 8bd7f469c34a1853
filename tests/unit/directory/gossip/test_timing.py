"""Times that cannot work together are refused."""

from __future__ import annotations

import pytest

from penstock.directory.gossip.timing import GossipTiming
from penstock.errors import ConfigurationError


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"interval_seconds": 0}, "above zero"),
        ({"phi_max": -1}, "above zero"),
        ({"deviation_seconds_min": 0}, "above zero"),
        ({"pause_seconds_max": 0}, "above zero"),
        ({"forget_seconds": 0}, "above zero"),
        ({"startup_seconds": -1}, "above zero"),
        ({"interval_seconds": float("nan")}, "above zero"),
        ({"interval_seconds": 1}, "silence_seconds_max"),
        ({"pause_seconds_max": 2.4}, "pause_seconds_max"),
    ],
)
def test_times_that_cannot_work_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        GossipTiming(**wrong)
