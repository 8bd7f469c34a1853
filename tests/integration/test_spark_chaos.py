"""Ninety seconds of chaos on a real Spark cluster. `python -m tests.chaos` has more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.harness import Wrong
from tests.chaos.schedule import DECK, make_schedule
from tests.chaos.world import (
    ORDERS,
    PAYMENTS,
    TABLE,
    TOTALS,
    check_world,
    documents_of,
    make_world,
)
from tests.postgres_server import Database, database

__all__ = ["database"]

ROOT = Path(__file__).parents[2]
SECONDS = 90
SEED = 174
"""One whose two deaths of the driver are apart: it takes a while to come back."""
WAIT_SECONDS_MAX = 1_500
"""Only a run that hangs takes this long."""


def test_a_seed_repeats_its_schedule_and_nothing_is_left_out() -> None:
    schedule = make_schedule(SEED, SECONDS, DECK)
    assert schedule == make_schedule(SEED, SECONDS, DECK)
    assert schedule != make_schedule(SEED + 1, SECONDS, DECK)
    assert {event.fault for event in schedule} == set(DECK)


@pytest.mark.slow
def test_what_is_lost_or_comes_twice_is_noticed(tmp_path: Path, database: Database) -> None:
    store = make_world(tmp_path, database)
    first = {"bucket": "b", "documents": 1, "amount": 1, "batch": 0}
    last = {"bucket": "b", "documents": 3, "amount": 6, "batch": 4}
    with store.producer() as producer, database.connect() as connection:
        rows = [{"id": f"o{amount}", "bucket": "b", "amount": amount} for amount in (1, 2, 3)]
        producer.append(ORDERS, rows)
        producer.append(PAYMENTS, [{"id": "p", "amount": 7}])
        insert = f"INSERT INTO {TABLE} VALUES (%s, %s, %s, %s)"
        for collection in (ORDERS, PAYMENTS):
            for journal, offset, row in documents_of(store, collection, ["id", "amount"]):
                arrived = journal, offset, row["id"], row["amount"]
                connection.execute(insert, arrived)
        producer.append(TOTALS, [first])
        with pytest.raises(Wrong, match=r"b has \(3, 6\) .* its total says \(1, 1\)"):
            check_world(store, database)
        producer.append(TOTALS, [last])
        assert check_world(store, database)["documents"] == 4
        connection.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 'p'")
        with pytest.raises(Wrong, match=r"lacks 0 documents of 4, .* has 1 too many"):
            check_world(store, database)
        connection.execute(f"DELETE FROM {TABLE} WHERE id = 'p'")
        with pytest.raises(Wrong, match=r"lacks 1 documents of 4, .* has 0 too many"):
            check_world(store, database)
        connection.execute(insert, arrived)  # the payment was the last of them
        producer.append(TOTALS, [last])
        with pytest.raises(Wrong, match="changes of b came twice"):
            check_world(store, database)


@pytest.mark.slow
def test_ninety_seconds_of_chaos() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", str(SEED)]
    run = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=WAIT_SECONDS_MAX,
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    sys.stdout.write(run.stdout)
