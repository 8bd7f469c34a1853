"""The commands on a Kafka cluster: those that read it do, the others say that they cannot."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.demo.kafka.books import page_of
from penstock.demo.kafka.transfers import PARTITIONS, Topics
from penstock.journal.kafka.aborting import NoOpenTransactionError, chosen
from penstock.journal.kafka.store import open_kafka
from penstock.testing.kafka import KafkaCluster, Users
from penstock.testing.kafka.machine import wait_until
from penstock.testing.kafka.security import SASL
from tests.kafka.broker import require_kafka, unique_topic
from tests.kafka.reading import SECONDS_MAX
from tests.kafka.transfers import Clerk, VersionOne

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("penstock"))
TRANSFERS = 20
SECRET = "open-sesame"


def penstock(
    *arguments: str, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [COMMAND, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def store(kafka: KafkaCluster) -> str:
    return f"kafka://{kafka.bootstrap_servers}"


@pytest.fixture
def clerk(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Clerk:
    """Its topics have some transfers, and some that were rolled back."""
    name = unique_topic(request)
    topics = Topics(f"debits-{name}", f"credits-{name}")
    for topic in topics.names:
        kafka.topics.create(topic, PARTITIONS)
    clerk = Clerk(name, VersionOne(kafka, name), topics, 1)
    clerk.work(lambda: len(clerk.committed) >= TRANSFERS)
    return clerk


def values(lines: str) -> list[bytes]:
    return [base64.b64decode(json.loads(line)["value"]) for line in lines.splitlines()]


def test_journals_and_read(store: str, clerk: Clerk) -> None:
    debits = clerk.topics.debits
    listed = json.loads(penstock("journals", debits, "--json", "--store", store).stdout)
    assert [one["labels"]["partition"] for one in listed["journals"]] == ["0", "1", "2", "3"]
    assert sum(one["rows"] for one in listed["journals"]) > TRANSFERS, "with markers"
    found = page_of(values(penstock("read", debits, "--store", store).stdout))
    assert found.transfers == clerk.committed.keys()
    part = penstock("read", debits, "--partitions", "partition=1", "--meta", "--store", store)
    rows = [json.loads(line) for line in part.stdout.splitlines()]
    assert {row["partition"] for row in rows} == {1}
    assert {row["_meta"]["offset"] for row in rows} == {row["offset"] for row in rows}
    missing = penstock("read", "no-such-topic", "--store", store, code=1)
    assert "the cluster has no topic 'no-such-topic'" in missing.stderr
    meant = penstock("journals", debits[:-1], "--store", store, code=1)
    assert f"did you mean {debits}" in meant.stderr
    topics = penstock("journals", "--store", store, COLUMNS="200").stdout
    assert any(line.split()[:2] == [debits, "4"] for line in topics.splitlines())
    partitions = penstock("journals", debits, "--store", store, COLUMNS="200").stdout
    assert f" {debits}-3 " in partitions


def test_read_follows_until_it_is_interrupted(store: str, clerk: Clerk) -> None:
    with subprocess.Popen(
        [COMMAND, "read", clerk.topics.debits, "--follow", "--store", store],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(TRANSFERS)]
        clerk.work(lambda: len(clerk.committed) >= TRANSFERS + 5)
        seen += [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS_MAX)
    assert page_of(values("".join(seen))).transfers == clerk.committed.keys()
    assert not rest
    assert process.returncode in (0, 130)


def test_a_shuffle_agrees_with_the_batch_reader(store: str, clerk: Clerk, tmp_path: Path) -> None:
    done = penstock(
        *("shuffle", "--collection", clerk.topics.credits, "--collection", clerk.topics.debits),
        *("--members", "2", "--verify", "--json"),
        *("--folder", str(tmp_path / "feed"), "--store", store),
    )
    report = json.loads(done.stdout)
    assert report["documents"] >= 2 * TRANSFERS, "of both topics"
    assert report["verified"]["equal"] is True
    (explained,) = json.loads(penstock("explain", str(tmp_path / "feed"), "--json").stdout)
    assert explained["store"] == store
    # Where a query has its feeds that was given no folder.
    state = tmp_path / "state" / "penstock" / "kafka" / store[8:].replace(":", "_") / "feeds"
    state.mkdir(parents=True)
    (tmp_path / "feed").rename(state / "one")
    found = penstock("explain", "--json", "--store", store, XDG_STATE_HOME=str(tmp_path / "state"))
    assert json.loads(found.stdout)[0]["store"] == store


def test_brokers_that_do_not_answer_are_told_soon() -> None:
    with contextlib.closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))  # and it does not listen
        store = f"kafka://127.0.0.1:{bound.getsockname()[1]}"
        with ThreadPoolExecutor(2) as pool:  # each waits for its answer in vain
            doctor = pool.submit(penstock, "doctor", "--json", "--store", store, code=1)
            done = penstock("journals", "--store", store, code=1)
            found = doctor.result()
        assert "Check that the brokers run" in done.stderr
        assert json.loads(found.stdout)[-1]["severity"] == "error"


def test_what_writes_is_refused(store: str, clerk: Clerk, tmp_path: Path) -> None:
    for arguments in (
        ("append", clerk.topics.debits, str(tmp_path / "rows.json")),
        ("recover",),
        ("journals", "create", "x", "--key", "id", "--schema", "id BIGINT NOT NULL"),
        ("doctor", "--repair"),
    ):
        (tmp_path / "rows.json").write_text("{}")
        done = penstock(*arguments, "--store", store, code=2)
        assert "Kafka" in done.stderr, arguments
    for arguments in (
        ("backup", str(tmp_path / "backup")),
        ("restore", str(tmp_path)),
        ("salvage", str(tmp_path / "salvaged")),
    ):
        done = penstock(
            *arguments, "--option", f"sasl.jaas.config={SECRET}", "--store", store, code=1
        )
        assert "a Kafka cluster is backed up by its own tools" in done.stderr, arguments
        assert SECRET not in done.stderr
    done = penstock("journals", "--store", store.removeprefix("kafka://"), code=2)
    assert f"--store {store}" in done.stderr


def test_an_open_transaction_is_found_and_aborted(
    kafka: KafkaCluster, store: str, clerk: Clerk
) -> None:
    name = f"sleeper-{clerk.name}"
    sleeper = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    sleeper.init_transactions(SECONDS_MAX)
    sleeper.begin_transaction()
    sleeper.produce(clerk.topics.debits, b"{}", partition=2)
    assert sleeper.flush(SECONDS_MAX) == 0
    listed = json.loads(
        penstock("journals", clerk.topics.debits, "--json", "--store", store).stdout
    )
    assert [one["open_transactions"] for one in listed["journals"]] == [0, 0, 1, 0]
    findings = json.loads(penstock("doctor", "--json", "--store", store).stdout)
    assert any(name in one["what"] for one in findings if one["check"] == "open")
    asked = subprocess.run(
        [COMMAND, "abort", name, "--store", store],
        input="n\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert asked.returncode != 0
    assert "is lost" in asked.stderr
    done: dict[str, Any] = json.loads(
        penstock("abort", name, "--yes", "--json", "--store", store).stdout
    )
    assert done["transactional_id"] == name
    assert done["partitions"] == [f"{clerk.topics.debits}-2"]
    with pytest.raises(KafkaException):
        sleeper.commit_transaction(SECONDS_MAX)
    wait_until(
        lambda: (
            not json.loads(
                penstock("journals", clerk.topics.debits, "--json", "--store", store).stdout
            )["journals"][2]["open_transactions"]
        ),
        "the transaction to be aborted",
        SECONDS_MAX,
    )
    again = penstock("abort", name, "--yes", "--store", store, code=1)
    assert "no open transaction" in again.stderr


def test_a_transaction_that_hangs_is_aborted_by_the_leaders(
    kafka: KafkaCluster, store: str, clerk: Clerk
) -> None:
    """As if no coordinator knew of it: only a fault of a broker makes a real one."""
    name = f"hanging-{clerk.name}"
    writer = VersionOne(kafka, name)
    hanging = Clerk(name, writer, clerk.topics, 2)
    _, postings = hanging.begin()
    writer.flush()
    with open_kafka(store) as opened:
        seen = replace(chosen(opened.opened(), name), described=None)
        assert seen.names == (str(seen.producer_id), f"{4 << 40 | seen.producer_id:012x}")
        assert {(one.topic, one.number) for one in seen.partitions} == {
            (posting.topic, posting.partition) for posting in postings
        }
        opened.abort(seen)
        with pytest.raises(NoOpenTransactionError, match="no open transaction"):
            chosen(opened.opened(), name)
    found = penstock("read", clerk.topics.debits, "--store", store)
    assert page_of(values(found.stdout)).transfers == clerk.committed.keys()


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    require_kafka()
    with KafkaCluster(users=Users({"reader": SECRET})) as cluster:
        cluster.topics.create("guarded")
        yield cluster


def login(password: str) -> tuple[str, ...]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        f'sasl.jaas.config={module} required username="reader" password="{password}";',
    )


def test_a_client_is_told_its_secrets_and_nobody_else(
    secured: KafkaCluster, tmp_path: Path
) -> None:
    where = ("--json", "--store", f"kafka://{secured.addresses(SASL)}")
    options = [text for one in login("${env:PASSWORD}") for text in ("--option", f"kafka.{one}")]
    found = penstock("journals", "guarded", *options, *where, PASSWORD=SECRET)
    assert json.loads(found.stdout)["collection"] == "guarded"
    file = tmp_path / "client.properties"
    file.write_text("# as Kafka's own tools take it\n" + "\n".join(login(SECRET)))
    found = penstock("journals", "guarded", "--client-config", str(file), *where)
    assert json.loads(found.stdout)["collection"] == "guarded"
    penstock("journals", "guarded", *where, PENSTOCK_CLIENT_CONFIG=str(file))
    wrong = f"{SECRET}-but-wrong"
    refused = penstock("doctor", *options, *where, code=1, PASSWORD=wrong)
    assert "error" in refused.stdout
    assert SECRET not in refused.stdout + refused.stderr
    missing = penstock("journals", *options, *where, code=2)
    assert "no variable PASSWORD" in missing.stderr
    nameless = penstock("journals", "--option", SECRET, *where, code=2)
    assert "NAME=VALUE" in nameless.stderr
    assert SECRET not in nameless.stderr
    misplaced = penstock("journals", *options, "--store", str(tmp_path), code=2, PASSWORD=SECRET)
    assert "is for a store in Kafka" in misplaced.stderr
    assert SECRET not in misplaced.stderr
