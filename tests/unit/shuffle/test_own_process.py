"""Processes of the shuffle start without pandas, which takes longer to import than all the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED = "import sys; print('pandas' in sys.modules)"


def answer(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.mark.parametrize("module", ["penstock.shuffle.process_member", "penstock.spark.source"])
def test_importing_does_not_import_pandas(module: str) -> None:
    assert answer(f"import {module}; {ASKED}") == "False"


def test_columns_are_made_without_pandas() -> None:
    left_out = "from penstock.shuffle.own_process import leave_out_pandas; leave_out_pandas()"
    made = "import pyarrow as pa; pa.array([1]).to_numpy()"
    assert answer(f"{left_out}; {made}; {ASKED}") == "False"
    assert answer(f"{made}; {ASKED}") == "True", "else this proves nothing"
    assert answer(f"{left_out}; import pandas; {ASKED}") == "True", "it can still be had"
