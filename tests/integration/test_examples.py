"""The examples run, and say what they should."""

from __future__ import annotations

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
