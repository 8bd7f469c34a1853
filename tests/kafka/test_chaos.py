"""Three brokers and a query on a Spark cluster while their processes are killed and paused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from penstock.demo.kafka.transfers import transfer
from tests.chaos.harness import Wrong
from tests.chaos.schedule import KAFKA_DECK, make_schedule
from tests.chaos_kafka.world import TOPICS, Row, check_promises, check_rows
from tests.kafka.broker import require_kafka

ROOT = Path(__file__).parents[2]
SECONDS = 90
SEED = 3
WAIT_SECONDS_MAX = 1_500
"""Only a run that hangs takes this long."""


def written(name: str) -> Counter[Row]:
    postings = transfer(name, TOPICS, Random(1))
    return Counter(
        (one.topic, one.partition, offset, one.value) for offset, one in enumerate(postings)
    )


def test_a_seed_leaves_no_fault_out() -> None:
    schedule = make_schedule(SEED, SECONDS, KAFKA_DECK, KAFKA_DECK)
    assert {event.fault for event in schedule} == set(KAFKA_DECK)


def test_what_is_lost_or_torn_or_comes_twice_is_noticed() -> None:
    expected = written("t-1")
    rows = list(expected)
    check_rows({"0": rows, "1": []}, expected)
    with pytest.raises(Wrong, match=rf"lack 1 rows of {len(rows)}.* have 0 too many"):
        check_rows({"0": rows[1:]}, expected)
    with pytest.raises(Wrong, match=r"lack 0 rows .* have 1 too many"):
        check_rows({"0": rows, "1": rows[:1]}, expected)
    with pytest.raises(Wrong, match=f"batch 0 has 1 rows of {len(rows)} of t-1"):
        check_rows({"0": rows[:1], "1": rows[1:]}, expected)


def test_what_kafka_itself_loses_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "clerk").write_text("committed a\naborted b\ncommit")
    a, b, c = (written(name) for name in "abc")
    check_promises(tmp_path, a + c)
    with pytest.raises(Wrong, match="lost 1 committed transfers, such as a"):
        check_promises(tmp_path, c)
    with pytest.raises(Wrong, match="shows 1 aborted transfers, such as b"):
        check_promises(tmp_path, a + b)
    with pytest.raises(Wrong, match="parts of 1 transfers, such as a"):
        check_promises(tmp_path, a - Counter(list(a)[:1]))


@pytest.mark.slow
def test_ninety_seconds_of_chaos() -> None:
    require_kafka()
    command = [sys.executable, "-m", "tests.chaos_kafka"]
    run = subprocess.run(
        [*command, "--seconds", str(SECONDS), "--seed", str(SEED)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=WAIT_SECONDS_MAX,
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    sys.stdout.write(run.stdout)
