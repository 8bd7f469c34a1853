"""For all tests. Hypothesis keeps no time: the machine may be busy, and its tests are not races.

`make test` runs them in two processes by pytest-xdist: what is said here of scheduling is for that.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # it has no types

from tests.java_archive import use_brief_java

if TYPE_CHECKING:
    import pytest

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A background job of a shell ignores Ctrl-C, and so do all processes that it starts: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
use_brief_java()

WITH_SPARK = ("tests/integration/test_spark_", "tests/integration/test_chaos")


class FileByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests stay together, for what they share. So do all that need the one Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(WITH_SPARK) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    config.option.loadscopereorder = False
    return FileByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones first: the processes then come to their ends at about the same time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
