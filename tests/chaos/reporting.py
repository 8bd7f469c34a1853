"""A whole run, told on standard output: for programs and for who reads the log of a failed test."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tests.chaos.harness import GONE_SECONDS_MAX, LOOK_SECONDS, Wrong
from tests.chaos.processes import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.harness import Chaos
    from tests.chaos.schedule import Event

LOG_LINES = 60


def run(chaos: Chaos, schedule: list[Event], seconds: float, folder: Path) -> None:
    """Raises what went wrong. The folder with the logs stays then."""
    try:
        chaos.rage(schedule, seconds)
        chaos.drain()
        found = chaos.check()
    except BaseException as error:
        report(f"{type(error).__name__}: {error}", chaos.state(), *_tail(folder / "driver.log"))
        report(f"it failed; the logs are in {folder}")
        raise
    finally:
        chaos.close()
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while left := running(chaos.mark):  # a process that was killed is there for a moment still
        if time.monotonic() > deadline:
            raise Wrong(f"processes are left behind: {', '.join(map(str, left))}")
        time.sleep(LOOK_SECONDS)
    report("", *(f"{count:8}  {what}" for what, count in {**chaos.counts(), **found}.items()))


def report(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
