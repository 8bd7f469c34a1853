"""The examples run, and say what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_orders_and_payments() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "orders_and_payments.py"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "row 0, column 'id'" in lines[0]
    assert lines[1:] == [
        "11 orders, 10 payments",
        "card-0: 38.00",
        "card-1: 28.50",
        "card-2: 28.50",
    ]


@pytest.mark.slow
def test_lagging_journal() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "lagging_journal.py"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plain, ours = (
        re.fullmatch(r"(.*): 84000 written, (\d+) counted in (\d+) batches, (\d+) late", line)
        for line in done.stdout.splitlines()
    )
    assert plain is not None
    assert ours is not None
    # A batch has a file of each log: the quick one's only file carries the watermark to the end.
    assert plain.groups() == ("plain Spark", "16000", "20", "68000")
    assert ours.group(1, 2, 4) == ("Penstock", "84000", "0")
    assert int(ours[3]) > 1
