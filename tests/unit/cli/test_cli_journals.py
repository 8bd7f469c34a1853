"""`penstock journals` and `penstock recover`: what is there, in words and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from penstock.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from penstock.journal import OpenStore

    Run = Callable[..., Result]


@pytest.fixture
def orders(store: OpenStore) -> OpenStore:
    with store.producer() as producer:
        producer.append("orders", [{"id": 1, "region": "eu"}, {"id": 2, "region": "us west"}])
    return store


@pytest.mark.usefixtures("orders")
def test_journals_are_listed_with_labels_and_offsets(run: Run) -> None:
    shown = run("journals").stdout
    assert "orders: version 1; key id; partitioned by region; 2 journals; 2 rows" in shown
    assert "orders/region=us%20west/000" in shown
    assert "region=us west" in shown
    assert shown == run("journals", "list").stdout


def test_the_listing_as_json_holds_everything(run: Run, orders: OpenStore) -> None:
    everything = json.loads(run("journals", "--json").stdout)
    one = json.loads(run("journals", "orders", "--json", "--partitions", "region=eu").stdout)
    assert [collection["collection"] for collection in everything] == ["orders"]
    assert len(everything[0]["journals"]) == 2
    assert one == {
        "collection": "orders",
        "version": 1,
        "schema": "id BIGINT NOT NULL, region STRING, amount DECIMAL(10,2), at TIMESTAMP",
        "key": ["id"],
        "partition_by": ["region"],
        "retention_seconds": None,
        "retention_bytes": None,
        "external": False,
        "journals": [
            {
                "name": "orders/region=eu/000",
                "labels": {"region": "eu"},
                "first_kept": 0,
                "write_head": 1,
                "rows": 1,
                "suspended": False,
                "open_transactions": 0,
            }
        ],
    }
    with orders.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": 3, "region": "eu"}])
        listed = json.loads(run("journals", "orders", "--json").stdout)
        assert [journal["open_transactions"] for journal in listed["journals"]] == [1, 0]


def test_a_frontier_names_the_same_documents_later(run: Run, orders: OpenStore) -> None:
    frontier = run("journals", "frontier", "orders").stdout.strip()
    before = run("read", "orders").stdout
    with orders.producer() as producer:
        producer.append("orders", [{"id": 3, "region": "eu"}])
    assert run("read", "orders", "--as-of", frontier).stdout == before
    assert run("read", "orders").stdout != before


def test_a_collection_is_created_evolved_and_described(run: Run, store: OpenStore) -> None:
    create = ("journals", "create", "things", "--schema", "id BIGINT NOT NULL", "--key", "id")
    assert "things: created" in run(*create).stdout
    run(*create)
    assert "exists already and is different" in run(*create, "--partition-by", "id", code=1).stderr
    evolved = run(
        "journals", "evolve", "things", "--add", "note STRING", "--add", "n INT", "--json"
    )
    assert json.loads(evolved.stdout)["schemas"][-1] == "id BIGINT NOT NULL, note STRING, n INT"
    assert (
        "has this schema already, version 2"
        in run(
            "journals", "evolve", "things", "--schema", "id BIGINT NOT NULL, note STRING, n INT"
        ).stdout
    )
    assert (
        "make it nullable"
        in run("journals", "evolve", "things", "--add", "x INT NOT NULL", code=1).stderr
    )
    shown = run("journals", "things").stdout
    assert "id BIGINT NOT NULL, note STRING, n INT" in shown
    assert "no journals yet" in shown
    assert store.collection("things").version == 2


def test_create_makes_the_store_and_reading_does_not(tmp_path: Path) -> None:
    place = str(tmp_path / "new")
    runner = CliRunner()
    refused = runner.invoke(app, ["journals", "--store", place])
    assert refused.exit_code == 1
    assert "there is no Penstock store" in refused.stderr
    assert not (tmp_path / "new").exists()
    # The option may also stand before the subcommand.
    made = runner.invoke(
        app, ["journals", "--store", place, "create", "a", "--schema", "id INT", "--key", "id"]
    )
    assert made.exit_code == 0, made.output
    assert runner.invoke(app, ["journals", "--store", place]).exit_code == 0


def test_without_a_store_the_error_says_what_to_do() -> None:
    result = CliRunner().invoke(app, ["journals"], env={"PENSTOCK_STORE": ""})
    assert result.exit_code == 2
    assert "PENSTOCK_STORE" in result.stderr


@pytest.mark.usefixtures("orders")
def test_a_journal_is_suspended_only_when_that_is_meant(run: Run, store: OpenStore) -> None:
    name = "orders/region=eu/000"
    run("journals", "suspend", name, code=1)  # nobody answers the question
    assert store.probe(name).first_kept == 0
    assert "1 row dropped" in run("journals", "suspend", name, "--yes").stdout
    assert "suspended" in run("journals").stdout
    assert store.probe(name).suspended


@pytest.mark.usefixtures("orders")
def test_dropping_says_what_was_dropped(run: Run) -> None:
    said = run("journals", "drop-before", "orders/region=eu/000", "0").stdout
    assert said == "orders/region=eu/000: dropped nothing; the first kept offset is 0\n"
    assert (
        "no journal" in run("journals", "drop-before", "orders/region=mars/000", "1", code=1).stderr
    )


_DIES = """
import os, sys
import penstock.journal.transaction as transactions
from penstock.journal import open_store
wanted = transactions.Step[sys.argv[2]]
transactions.reached = lambda step: os._exit(9) if step is wanted else None
with open_store(sys.argv[1]) as store, store.producer("importer") as producer:
    with producer.transaction() as transaction:
        transaction.append("orders", [{"id": 7, "region": "eu"}, {"id": 8, "region": "us"}])
"""


@pytest.mark.parametrize(
    ("step", "outcome", "said", "documents"),
    [
        (
            "SYNCED",
            "rolled back",
            "(importer) died before its commit: rolled back in 2 journals",
            0,
        ),
        ("DECIDED", "committed", "(importer) died after its commit was decided: acknowledged", 2),
    ],
)
def test_recover_says_what_became_of_a_dead_producers_transaction(
    *, run: Run, store: OpenStore, step: str, outcome: str, said: str, documents: int
) -> None:
    for as_json in (False, True):
        command = [sys.executable, "-c", _DIES, store.url, step]
        died = subprocess.run(command, check=False, timeout=60, env=dict(os.environ))
        assert died.returncode == 9
        if as_json:
            settled = json.loads(run("recover", "--json").stdout)
            assert [(one["name"], one["outcome"]) for one in settled] == [("importer", outcome)]
            assert settled[0]["journals"] == ["orders/region=eu/000", "orders/region=us/000"]
        else:
            assert said in run("recover").stdout
    assert "nothing to settle" in run("recover").stdout
    assert json.loads(run("recover", "--json").stdout) == []
    assert len(run("read", "orders").stdout.splitlines()) == 2 * documents


def test_reading_shows_what_a_dead_producer_had_decided(run: Run, store: OpenStore) -> None:
    command = [sys.executable, "-c", _DIES, store.url, "DECIDED"]
    subprocess.run(command, check=False, timeout=60, env=dict(os.environ))
    assert len(run("read", "orders").stdout.splitlines()) == 2


def test_debug_shows_the_traceback_and_plain_errors_do_not(run: Run, store: OpenStore) -> None:
    plain = run("read", "nothing", code=1)
    assert plain.stderr == (
        "error: there is no collection 'nothing' in this store; it has: orders\n"
    )
    for arguments in (["--debug", "read", "nothing"], ["read", "nothing", "--debug"]):
        result = CliRunner().invoke(app, arguments, env={"PENSTOCK_STORE": store.url})
        assert type(result.exception).__name__ == "UnknownCollectionError"


@pytest.mark.parametrize(
    "command",
    [
        ("append",),
        ("read",),
        ("recover",),
        ("demo",),
        ("journals",),
        ("journals", "list"),
        ("journals", "create"),
        ("journals", "evolve"),
        ("journals", "drop-before"),
        ("journals", "suspend"),
    ],
)
def test_every_command_has_help_with_examples(run: Run, command: tuple[str, ...]) -> None:
    shown = run(*command, "--help").stdout
    assert "Examples:" in shown
    assert f"penstock {' '.join(command[:1])}" in shown
