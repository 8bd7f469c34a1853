"""Penstock without Spark: it imports, and says what to install when Spark is asked for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["pyspark"] = None
import penstock
import penstock.spark.java
from penstock.spark import SparkMissingError
import penstock.spark as ours
for ask in (lambda: ours.documents, lambda: ours.local_session("x")):
    try:
        ask()
    except SparkMissingError as error:
        assert "pip install 'penstock[spark]'" in str(error)
    else:
        raise SystemExit("nothing was said")
"""


def test_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_penstock_does_not_import_spark() -> None:
    program = "import sys, penstock, penstock.spark; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
