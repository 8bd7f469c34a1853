"""For all tests. Hypothesis keeps no time: the machine may be busy, and its tests are not races.

`make test` runs them in two processes by pytest-xdist: what is said here of scheduling is for that.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped] # it has no types

from tests.java_archive import use_brief_java

if TYPE_CHECKING:
    import pytest

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 4 << 30
LONGEST: Final = (
    "tests/integration/test_spark_chaos.py",
    "tests/integration/test_spark_stream.py",
    "tests/integration/test_chaos.py",
    "tests/integration/test_spark_source_steps.py",
    "tests/integration/test_spark_pipelines.py",
    "tests/integration/test_cli_run.py",
    "tests/kafka/",
    "tests/integration/test_spark_",
    "tests/integration/test_demo.py",
    "tests/integration/test_examples.py",
    "tests/simulation",
    "tests/scenario",
    "tests/integration/",
)
"""Beginnings of files' names. Whoever is free takes the next file: if a long one were the last, the
other process would have nothing to do."""


def temporary_root() -> str:
    """Where `tmp_path` is: in memory, where a sync costs nothing and power cuts are played by the
    tests anyway. What makes folders by itself (the demo, the chaos run) has them on the disk."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        return str(MEMORY)
    return tempfile.gettempdir()


# A background job of a shell ignores Ctrl-C, and so do all processes that it starts: tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", temporary_root())
use_brief_java()


class FileByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests stay together, for what they share."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    config.option.loadscopereorder = False
    return FileByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then slow tests: the processes come to their ends together."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Modules, thousands of tests and what Hypothesis knows of them are never garbage: no later
    collection looks at them again."""
    gc.collect()
    gc.freeze()


def _rank(item: pytest.Item) -> tuple[bool, int]:
    known = (rank for rank, begin in enumerate(LONGEST) if item.nodeid.startswith(begin))
    return item.get_closest_marker("slow") is None, next(known, len(LONGEST))
