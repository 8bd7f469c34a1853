"""The demo as people run it: a process of its own, with producers of its own and a real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.watch import load, load_spark

COMMAND = str(Path(sys.executable).with_name("penstock"))
WAIT_S = 600


@pytest.mark.slow
def test_the_demo_holds_exactly_once_and_leaves_a_folder_to_look_at(tmp_path: Path) -> None:
    folder = tmp_path / "auctions"
    done = subprocess.run(
        [COMMAND, "demo", "--documents", "6000", "--seed", "3", "--folder", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["holds"] is True
    assert [check["holds"] for check in report["checks"]] == [True] * 12
    told, _, verdict = done.stderr.partition("5  Verdict")
    assert told.lstrip().startswith("the page is at http://127.0.0.1:"), "and nothing before it"
    assert verdict.count("yes  ") == 12
    assert "NO" not in verdict
    assert "Exactly once: it held." in verdict
    for noise in ("Traceback", "WARN", "ERROR"):
        assert noise not in told
    feeds = list((folder / "store" / "feeds").iterdir())
    assert len(feeds) == 2
    for feed in feeds:
        assert load(feed).phase == "stopped"
        assert sum(batch.rows for batch in load_spark(feed)) > 0
    listed = subprocess.run(
        [COMMAND, "journals", "bids", "--json", "--store", str(folder / "store")],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert len(json.loads(listed.stdout)["journals"]) == 5


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    done = subprocess.run(
        [COMMAND, "demo", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
