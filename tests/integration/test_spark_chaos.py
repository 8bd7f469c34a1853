"""Ninety seconds of chaos on a real Spark cluster. `python -m tests.chaos` has more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.schedule import Fault, make_schedule

ROOT = Path(__file__).parents[2]
SECONDS = 90
SEED = 174
"""One whose two deaths of the driver are apart: it takes a while to come back."""
WAIT_SECONDS_MAX = 1_500
"""Only a run that hangs takes this long."""


def test_a_seed_repeats_its_schedule_and_nothing_is_left_out() -> None:
    schedule = make_schedule(SEED, SECONDS, list(Fault))
    assert schedule == make_schedule(SEED, SECONDS, list(Fault))
    assert schedule != make_schedule(SEED + 1, SECONDS, list(Fault))
    assert {event.fault for event in schedule} == set(Fault)


@pytest.mark.slow
def test_ninety_seconds_of_chaos() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", str(SEED)]
    run = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=WAIT_SECONDS_MAX,
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    sys.stdout.write(run.stdout)
