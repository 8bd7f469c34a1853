"""Three brokers and a query on a Spark cluster while their processes are killed and paused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from penstock.demo.kafka.transfers import transfer
from penstock.testing.kafka.raw import ENTRIES, RECORDS, RawLogs
from tests.chaos.harness import Wrong
from tests.chaos.schedule import KAFKA_DECK, make_schedule
from tests.chaos_kafka.logs import Row, transfer_of
from tests.chaos_kafka.producer import Confirmations
from tests.chaos_kafka.promises import Promise, PromiseWriter, read_promises
from tests.chaos_kafka.totals import Total, check_totals, doubled_writes
from tests.chaos_kafka.world import TOPICS, check_logs, check_rows
from tests.kafka.broker import require_kafka
from tests.kafka.committed import SECONDS_MAX

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from penstock.testing.kafka import KafkaCluster

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


def test_a_consumer_that_does_not_show_what_is_committed_is_no_oracle() -> None:
    log = Log()
    log.transaction("t-1", "COMMIT")
    log.transaction("t-2", "ABORT")
    committed = log.rows_of("t-1")
    assert check_logs({}, committed, log.raw) == []
    with pytest.raises(Wrong, match=r"lacks 1 committed rows .* has 0 too many"):
        check_logs({}, committed - Counter(list(committed)[:1]), log.raw)
    with pytest.raises(Wrong, match=r"lacks 0 committed rows .* has 1 too many"):
        check_logs({}, committed + Counter(list(log.rows_of("t-2"))[:1]), log.raw)


def test_what_kafka_or_its_client_has_lost_tells_its_story() -> None:
    log = Log()
    log.transaction("t-1", "COMMIT", without=1)
    lost = {"t-1": Promise((*log.places_of("t-1"), ("debits", 0, 99)), "committed")}
    (told,) = check_logs(lost, log.rows_of("t-1"), log.raw)
    assert told.startswith("t-1: committed\n")
    assert "debits-0@99, where the logs have no row" in told
    assert "producer 7 epoch 0 sequence 0" in told
    assert "COMMIT at" in told
    assert "PrepareCommit at" in told

    torn = Log()
    torn.transaction("t-1", "COMMIT", aborted=1)
    expected = Counter(row for row in torn.rows_of("t-1") if row[:2] != torn.aborted_partition)
    (told,) = check_logs({}, expected, torn.raw)
    assert "COMMIT at" in told
    assert "ABORT at" in told


def test_a_transfer_that_is_in_the_logs_twice_tells_its_story() -> None:
    log = Log()
    for _ in range(2):
        log.transaction("t-1", "COMMIT")
    (told,) = check_logs({}, log.rows_of("t-1"), log.raw)
    assert told.count("in the logs: ") == log.rows_of("t-1").total()


def test_promises_are_held_against_the_logs() -> None:
    log = Log()
    for name in "abcd":
        log.transaction(name, "COMMIT")
    rows = log.rows_of("a") + log.rows_of("b") + log.rows_of("c") + log.rows_of("d")
    kept = {"a": Promise((), "committed")}
    assert check_logs(kept, rows, log.raw) == []
    stories = check_logs(
        {"b": Promise((), "aborted"), "x": Promise((), "committed")}, rows, log.raw
    )
    assert [told.splitlines()[0] for told in stories] == ["b: aborted", "x: committed"]
    with pytest.raises(Wrong, match=r"3 of 4 transfers .* is no oracle:\na: aborted"):
        check_logs({name: Promise((), "aborted") for name in "abc"}, rows, log.raw)


def test_promises_survive_a_clerk_that_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "clerk").open("w") as file:
        promises = PromiseWriter(file)
        promises.stored("a", [("debits", 1, 20), ("credits", 3, 4)])
        promises.decided("a", "committed")
        promises.stored("b", [])
        file.write("committed b")
    found = read_promises(tmp_path)
    assert found["a"] == Promise((("debits", 1, 20), ("credits", 3, 4)), "committed")
    assert found["b"] == Promise()


@pytest.mark.slow
def test_a_clerk_commits_nothing_that_is_not_confirmed_row_by_row(
    kafka: KafkaCluster, topic: str
) -> None:
    kafka.topics.create(topic, settings={"max.message.bytes": "1000"})
    reports: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"first", b"second", bytes(2000)):
        producer.produce(topic, value, on_delivery=lambda *report: reports.append(report))
        assert producer.flush(SECONDS_MAX) == 0
    first, second, refused = reports
    last: dict[tuple[str, int], int] = {}

    def refusal(*given: tuple[KafkaError | None, Message]) -> str:
        last.clear()
        confirmations = Confirmations(last)
        for report in given:
            confirmations.add(*report)
        return confirmations.refusal

    assert refusal(first, second) == ""
    assert last == {(topic, 0): 1}
    assert refusal(first, first) == f"{topic}-0: a row at 0, after one at 0", "a false repetition"
    assert "too large" in refusal(first, refused)


def total(batch: int, rows: int, account: int, postings: int, cents: int) -> Total:
    return {
        "batch": batch,
        "rows": rows,
        "account": account,
        "postings": postings,
        "cents": cents,
    }


def test_totals_that_are_torn_or_doubled_or_wrong_are_noticed() -> None:
    postings = [
        ("debits", 0, offset, json.dumps({"account": account, "cents": cents}).encode())
        for offset, (account, cents) in enumerate([(1, -5), (2, 5), (1, 7)])
    ]
    right = [total(0, 2, 1, 1, -5), total(0, 2, 2, 1, 5), total(3, 1, 1, 2, 2)]
    assert check_totals(right, postings)["changes of totals"] == 3
    with pytest.raises(Wrong, match=r"batch 0 of the totals has 1 rows of \[2\]"):
        check_totals(right[1:], postings)
    with pytest.raises(Wrong, match="batch 0 of the totals has accounts twice"):
        check_totals([*right, right[0]], postings)
    with pytest.raises(Wrong, match=r"account 1 has \(2, 2\) postings .* says .*'cents': -5"):
        check_totals(right[:2], postings)
    with pytest.raises(Wrong, match="account 1 came twice, or out of order"):
        check_totals([right[2], *right[:2]], postings)
    late = [total(3, 2, 1, 1, -5), total(3, 2, 2, 1, 5), total(0, 1, 1, 2, 2)]
    with pytest.raises(Wrong, match="account 1 came twice, or out of order"):
        check_totals(late, postings)
    with pytest.raises(Wrong, match="account 1 came twice, or out of order"):
        check_totals([*right, total(4, 1, 1, 2, 2)], postings)
    with pytest.raises(Wrong, match=r"account 3 has .* its total says"):
        check_totals([*right, total(4, 1, 3, 1, 1)], postings)


def test_only_second_attempts_at_writing_count_as_doubled(tmp_path: Path) -> None:
    def started(stage: int, *, is_second: bool) -> dict[str, Any]:
        return {
            "Event": "SparkListenerTaskStart",
            "Stage ID": stage,
            "Task Info": {"Speculative": is_second},
        }

    def executed(number: int, plan: str, *stages: int) -> list[dict[str, Any]]:
        kind = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
        properties = {"spark.sql.execution.id": str(number)}
        return [
            {"Event": kind, "executionId": number, "physicalPlanDescription": plan},
            {"Event": "SparkListenerJobStart", "Stage IDs": stages, "Properties": properties},
        ]

    events = [
        *executed(1, "AppendData penstock (5)", 7, 8),
        *executed(2, "HashAggregate (6)", 9),
        *(started(stage, is_second=True) for stage in (7, 9)),
        started(8, is_second=False),
    ]
    log = tmp_path / "app"
    log.write_text("\n".join(map(json.dumps, events)))
    assert doubled_writes(tmp_path) == 0
    log.write_text("\n".join(map(json.dumps, [*events, started(8, is_second=True)])) + '\n{"Ev')
    assert doubled_writes(tmp_path) == 1


class Log:
    """Raw logs of one producer, made by hand."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._entries: list[dict[str, Any]] = []
        self._ends: Counter[tuple[str, int]] = Counter()
        self.aborted_partition = ("", 0)

    def transaction(self, name: str, ending: str, *, without: int = 0, aborted: int = 0) -> None:
        """`without` so many of its rows; in the last `aborted` partitions it is aborted."""
        postings = transfer(name, TOPICS, Random(1))[without:]
        reached = sorted({(one.topic, one.partition) for one in postings})
        for posting in postings:
            self._record(posting.topic, posting.partition, value=posting.value)
        self._entries.append(
            {
                "log_partition": 0,
                "log_offset": len(self._entries),
                "transactional_id": "clerk",
                "producer_id": 7,
                "producer_epoch": 0,
                "status": f"Prepare{ending.title()}",
                "partitions": [{"topic": each[0], "partition": each[1]} for each in reached],
                "updated_ms": len(self._entries),
            }
        )
        for place, each in enumerate(reached, 1):
            is_odd = place > len(reached) - aborted
            self._record(*each, control_type="ABORT" if is_odd else ending)
            if is_odd:
                self.aborted_partition = each

    def _record(self, topic: str, partition: int, **more: Any) -> None:
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += 1
        self._records.append(
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "producer_id": 7,
                "producer_epoch": 0,
                "sequence": None if "control_type" in more else offset,
                "is_transactional": True,
                "is_control": "control_type" in more,
                "timestamp": len(self._records),
                **more,
            }
        )

    @property
    def raw(self) -> RawLogs:
        return RawLogs(
            pa.Table.from_pylist(self._records, RECORDS),
            pa.Table.from_pylist(self._entries, ENTRIES),
        )

    def rows_of(self, name: str) -> Counter[Row]:
        return Counter(
            (one["topic"], one["partition"], one["offset"], one["value"])
            for one in self._records
            if "value" in one and transfer_of(one["value"]) == name
        )

    def places_of(self, name: str) -> list[tuple[str, int, int]]:
        return [row[:3] for row in self.rows_of(name)]


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
