"""`penstock abort`, against a producer in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal import OpenStore
    from tests.unit.cli.conftest import Run

ROOT = Path(__file__).parents[3]
PRODUCER = """
import sys
from penstock.errors import PenstockError
from penstock.journal import open_store
with open_store(sys.argv[1]) as store, store.producer("nightly") as producer:
    transaction = producer.transaction()
    transaction.append("orders", [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}])
    print(producer.id, flush=True)
    sys.stdin.readline()
    try:
        transaction.append("orders", [{"id": 3, "region": "eu"}])
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def producer(store: OpenStore) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, store.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_a_live_producer_is_fenced_and_told_by_whom(
    run: Run, store: OpenStore, producer: subprocess.Popen[str]
) -> None:
    assert producer.stdout is not None
    number = producer.stdout.readline().strip()
    refused = run("abort", number, code=1)  # nobody says yes
    assert "orders/region=eu/000, orders/region=us/000 is lost" in refused.output
    assert store.aborts() == []
    done = json.loads(run("abort", number, "--yes", "--json").stdout)
    assert (done["producer"], done["name"], done["outcome"]) == (number, "nightly", "rolled back")
    assert "(penstock abort)" in done["by"]
    said, _ = producer.communicate("\n")
    assert said.startswith("ProducerFencedError")
    assert f"was aborted by {done['by']}" in said
    assert f"producer {number} (nightly) was aborted by" in run("abort", "--list").stdout
    assert [one["producer"] for one in json.loads(run("abort", "--list", "--json").stdout)] == [
        number
    ]
    assert "has no transaction open" in run("abort", number, "--yes", code=1).output
    path = Path(store.url.removeprefix("file://")) / "aborts" / number
    inspected = json.loads(run("inspect", str(path), "--json").stdout)
    assert inspected["sound"]
    assert inspected["outcome"] == "rolled back"


def test_what_is_not_understood_is_said(run: Run) -> None:
    assert "say which PRODUCER, or --list" in run("abort", code=2).output
    assert "12 hexadecimal digits" in run("abort", "nightly", "--yes", code=1).output
    assert "no transaction of this store" in run("abort", "--list").stdout
