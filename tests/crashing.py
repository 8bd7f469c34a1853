"""A kill at a chosen step, in whichever process comes to it: Spark's are not started by tests.

The step is in a file, the plan. Whoever comes to it removes the plan, and is killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any


def arm(plan: str | Path, *modules: Any) -> None:
    """In this process: each of the modules has a `reached`, which is called with its steps."""
    path = Path(plan)

    def reached(step: Any) -> None:
        if path.exists() and path.read_text() == repr(step):
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    for module in modules:
        module.reached = reached
