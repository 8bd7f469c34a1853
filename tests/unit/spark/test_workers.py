"""What the first task of ours does to a Python worker of Spark's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from penstock.spark.workers import settle_worker
settle_worker()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
settle_worker()
print(first, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_modules_are_set_apart_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    first, second, looked_at = map(int, done.stdout.split())
    assert first == second, "what tasks make is collected as ever"
    assert first > 1_000
    assert 1_000 <= looked_at < first
