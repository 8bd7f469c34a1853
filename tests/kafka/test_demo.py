"""`penstock demo --kafka` as people run it: it ends by itself, or by Ctrl-C, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.kafka import kafka_jars, spark_kafka_jars
from tests.kafka.broker import require_kafka

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("penstock"))
SECONDS_MAX = 600


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a folder of its own for temporary files, to see that none is left."""
    require_kafka(kafka_jars)
    require_kafka(spark_kafka_jars)
    return {**os.environ, "TMPDIR": str(tmp_path)}


def left_behind(folder: Path) -> list[str]:
    """Of the demo: Java keeps figures of itself in a folder, and Python's processes sockets."""
    return [path.name for path in folder.iterdir() if path.name.startswith("penstock-")]


def test_penstock_shows_whole_transfers(tmp_path: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [COMMAND, "demo", "--kafka", "--seconds", "15", "--no-web", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["holds"] is True
    ours, sparks = report["readers"]["penstock"], report["readers"]["kafka"]
    assert (ours["torn_batches"], ours["unbalanced_batches"]) == (0, 0)
    assert ours["transfers"] == sparks["transfers"] > 0
    assert ours["batches"] > 0
    assert "Whole transactions: it held." in done.stderr
    assert not left_behind(tmp_path)


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [COMMAND, "demo", "--kafka", "--seconds", "500", "--no-web"],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while "Money moves" not in (line := process.stdout.readline()):
            assert line, process.stderr.read() if process.stderr else ""
        # As a terminal does it: to all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert said.strip() == "Aborted!"
    assert not left_behind(tmp_path)


def test_options_of_the_other_demo_are_refused() -> None:
    for option in (["--documents", "6000"], ["--keep"]):
        done = subprocess.run(
            [COMMAND, "demo", "--kafka", *option], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"{option[0]} " in done.stderr or "--keep" in done.stderr
