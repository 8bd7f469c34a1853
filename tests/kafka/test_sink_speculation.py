"""A task that Spark's speculation runs twice: both attempts stage, one of them is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.kafka.committed import committed
from tests.standalone import ROOT, Standalone

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow

SECONDS_MAX = 400.0


def test_a_task_that_speculation_doubles_is_written_once(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    kafka.topics.create(topic, partitions=2)
    # Spark runs no second attempt on the host of the first.
    cluster = Standalone(tmp_path, slots=1, hosts=("127.0.0.1", "127.0.0.2"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.kafka.speculation_program", cluster.url,
             kafka.bootstrap_servers, topic, str(tmp_path)],
            cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=SECONDS_MAX,
            check=False,
        )  # fmt: skip
    finally:
        cluster.close()
    assert done.returncode == 0, done.stderr[-5_000:]
    attempts = {path.name for path in (tmp_path / "attempts").iterdir()}
    assert attempts == {"0-began", "1-began", "0-staged", "1-staged"}
    found = Counter(int(each.value() or b"") for each in committed(kafka, topic))
    assert found == Counter(range(200))
