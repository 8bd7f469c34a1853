"""Transactions over two topics and eight partitions: an epoch of ours never has a part of one, and
one that stays open hides nothing of the others. A `read_committed` reader of the same run has
parts of some, and waits for the open one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.demo.kafka.transfers import PARTITIONS, Topics
from penstock.shuffle.session.log_reading import LogReader
from penstock.testing.kafka.java_client import JavaGatewayProcess
from penstock.testing.kafka.machine import wait_until
from penstock.testing.kafka.oracle import judge
from penstock.testing.kafka.raw import dump
from tests.kafka.transfers import (
    SECONDS_MAX,
    Clerk,
    CommittedCuts,
    Ledger,
    VersionOne,
    VersionTwo,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.shuffle.session.log_matching import LogRead
    from penstock.testing.kafka import KafkaCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def topics(kafka: KafkaCluster, topic: str) -> Topics:
    made = Topics(f"debits-{topic}", f"credits-{topic}")
    for name in made.names:
        kafka.topics.create(name, PARTITIONS)
    return made


@pytest.fixture
def ledger(kafka: KafkaCluster, topics: Topics, tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(kafka, topics, tmp_path / "feed")
    yield ledger
    ledger.close()


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGatewayProcess]:
    process = JavaGatewayProcess()
    yield process
    process.close()


@pytest.mark.parametrize(
    ("versions", "at_least"),
    [((1, 1, 1), 5_000), ((1, 2, 2), 1_500)],
    ids=["version 1", "both versions"],
)
def test_no_epoch_has_a_part_of_a_transaction(
    kafka: KafkaCluster,
    topics: Topics,
    ledger: Ledger,
    *,
    spark: SparkSession,
    java: JavaGatewayProcess,
    versions: tuple[int, ...],
    at_least: int,
) -> None:
    names = [f"{topics.debits}-clerk-{number}" for number in range(len(versions))]
    clerks = [
        Clerk(
            name,
            VersionOne(kafka, name) if version == 1 else VersionTwo(kafka, name, java),
            topics,
            seed,
        )
        for seed, (name, version) in enumerate(zip(names, versions, strict=True))
    ]
    cuts = CommittedCuts(kafka, topics)
    is_over = threading.Event()

    def is_enough() -> bool:
        return is_over.is_set() or sum(len(one.committed) for one in clerks) >= at_least

    with ThreadPoolExecutor(len(clerks) + 1) as pool:
        working = [pool.submit(clerk.work, is_enough) for clerk in clerks]
        cutting = pool.submit(cuts.work, is_over)
        try:
            wait_until(
                lambda: not ledger.step() and all(one.done() for one in working),
                f"{at_least} transactions",
                SECONDS_MAX,
                lambda: f"{[len(one.committed) for one in clerks]} are committed",
            )
        finally:
            is_over.set()
        for one in (*working, cutting):
            one.result()
    committed = {name: count for one in clerks for name, count in one.committed.items()}
    if not committed.keys() <= ledger.books.transfers:
        ledger.wait_for(committed)
    assert not ledger.torn
    assert not ledger.books.repeated
    assert ledger.books.transfers == committed.keys()
    assert ledger.books.postings == sum(committed.values())
    assert ledger.books.batches > 1
    assert cuts.torn(committed) > 0
    verdict = judge(spark, dump(kafka.bootstrap_servers, topics.names), ledger.delivered)
    assert not verdict.faults
    assert (verdict.committed, verdict.transactions) == (ledger.books.postings, len(committed))
    assert verdict.unmatched == 0


def test_a_restart_needs_no_look_at_what_was_committed_meanwhile(
    kafka: KafkaCluster, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching goes on where it was. Up to a look everything would have to be in one batch."""
    looks: list[LogReader] = []
    look = LogReader._look

    def noted(reader: LogReader) -> LogRead:
        looks.append(reader)
        return look(reader)

    monkeypatch.setattr(LogReader, "_look", noted)
    ledger = Ledger(kafka, topics, tmp_path / "feed")
    name = f"{topics.debits}-clerk"
    clerk = Clerk(name, VersionOne(kafka, name), topics, 1)
    try:
        for rounds in range(1, 3):
            clerk.work(lambda: len(clerk.committed) >= 300 * rounds - 280)  # noqa: B023 - called at once
            ledger.wait_for(clerk.committed)
            ledger.stop()
            looks.clear()
            clerk.work(lambda: len(clerk.committed) >= 300 * rounds)  # noqa: B023
            ledger.go_on()
            ledger.wait_for(clerk.committed)
            assert not looks
    finally:
        ledger.close()
    assert not ledger.torn
    assert not ledger.books.repeated
    assert ledger.books.transfers == clerk.committed.keys()
    assert ledger.books.postings == sum(clerk.committed.values())


def test_an_open_transaction_hides_nothing_of_others(
    kafka: KafkaCluster, topics: Topics, ledger: Ledger
) -> None:
    sleeper_name, name = f"{topics.debits}-sleeper", f"{topics.debits}-clerk"
    # Its timeout is far beyond the test: only its own commit ends the transaction.
    writer = VersionOne(kafka, sleeper_name, **{"transaction.timeout.ms": 600_000})
    sleeper = Clerk(sleeper_name, writer, topics, 1)
    clerk = Clerk(name, VersionOne(kafka, name), topics, 2)
    cuts = CommittedCuts(kafka, topics)
    left_open = sleeper.begin()
    writer.flush()
    touched = {(posting.topic, posting.partition) for posting in left_open[1]}
    clerk.work(lambda: len(clerk.committed) >= 200)
    ledger.wait_for(clerk.committed)
    assert ledger.books.transfers == clerk.committed.keys()
    # It is still open, and everything behind its first row is hidden from `read_committed`.
    before = dict(zip(cuts._partitions, cuts.ends(), strict=True))
    sleeper.commit(*left_open)
    ledger.wait_for(sleeper.committed)
    after: dict[tuple[str, int], int] = {}

    def has_moved() -> bool:
        after.update(zip(cuts._partitions, cuts.ends(), strict=True))
        return all(after[one] > before[one] + 10 for one in touched)

    wait_until(has_moved, "read_committed to go on", SECONDS_MAX)
    assert all(before[one] == 0 for one in touched)
    assert not ledger.torn
