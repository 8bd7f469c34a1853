"""The query from Kafka to Kafka: how much each account has, and what must have come of it.

Every batch is one transaction. Its rows say which batch they are of, and how many rows that has: so
whoever reads the topic can tell whether a batch is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from penstock.demo.kafka.transfers import PARTITIONS
from tests.chaos.harness import Wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.chaos_kafka.logs import Row

TOTALS: Final = "totals"
"""The topic, and the query."""
SECONDS_MAX: Final = 120.0
"""Only what hangs takes so long."""

Total: TypeAlias = dict[str, int]
"""`account`, the number of its `postings` and their `cents`, `batch`, and that one's `rows`."""


def read_totals(servers: str) -> list[Total]:
    """All that a plain consumer of another client than the one that wrote finds, with
    `read_committed`, in the order of each partition."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return asyncio.run(asyncio.wait_for(_read(servers), SECONDS_MAX))
        except (KafkaError, OSError) as error:  # leaders move; a TimeoutError is one of these
            if time.monotonic() > deadline:
                raise Wrong(f"a plain consumer cannot read the totals: {error!r}") from error


async def _read(servers: str) -> list[Total]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    partitions = [TopicPartition(TOTALS, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.start()
    found: list[Total] = []
    try:
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [json.loads(record.value) for record in records]
    finally:
        await consumer.stop()
    return found


def check_totals(found: list[Total], postings: Iterable[Row]) -> dict[str, int]:
    """Raises Wrong, or says how much there was. `postings` are what the totals are of."""
    batches: dict[int, list[Total]] = defaultdict(list)
    changes: dict[int, list[Total]] = defaultdict(list)
    for total in found:
        batches[total["batch"]].append(total)
        changes[total["account"]].append(total)
    for number, rows in batches.items():
        accounts = Counter(row["account"] for row in rows)
        if twice := [account for account, count in accounts.items() if count > 1]:
            raise Wrong(f"batch {number} of the totals has accounts twice, such as {twice[:3]}")
        if {row["rows"] for row in rows} != {len(rows)}:
            sizes = sorted({row["rows"] for row in rows})
            raise Wrong(f"batch {number} of the totals has {len(rows)} rows of {sizes}")
    expected = _totals_of(postings)
    for account in expected.keys() | changes.keys():
        steps = [(row["batch"], row["postings"]) for row in changes[account]]
        # One change a batch, each behind the one before, and with more postings.
        for earlier, later in itertools.pairwise(steps):
            if earlier[0] >= later[0] or earlier[1] >= later[1]:
                raise Wrong(f"totals of account {account} came twice, or out of order: {steps}")
        last = changes[account][-1] if changes[account] else {}
        wanted = expected.get(account, (0, 0))
        if (last.get("postings", 0), last.get("cents", 0)) != wanted:
            raise Wrong(f"account {account} has {wanted} postings and cents; its total says {last}")
    return {"accounts": len(expected), "changes of totals": len(found), "totals": len(batches)}


def _totals_of(postings: Iterable[Row]) -> dict[int, tuple[int, int]]:
    counts: Counter[int] = Counter()
    cents: Counter[int] = Counter()
    for *_, value in postings:
        posting: dict[str, Any] = json.loads(value)
        counts[posting["account"]] += 1
        cents[posting["account"]] += posting["cents"]
    return {account: (counts[account], cents[account]) for account in counts}


def doubled_writes(events: Path) -> int:
    """Tasks of which Spark started a second attempt by speculation while they staged a batch of
    totals, by its own event logs."""
    return sum(map(_doubled_writes, events.iterdir()))


def _doubled_writes(log: Path) -> int:
    writes: set[str] = set()
    """SQL executions that write to a sink of ours."""
    stages: set[int] = set()
    """The last stage of each of them, in which rows are staged."""
    doubled = 0
    for event in _events(log):
        match event["Event"].rpartition(".")[2]:
            case "SparkListenerSQLExecutionStart":
                if "AppendData" in event["physicalPlanDescription"]:
                    writes.add(str(event["executionId"]))
            case "SparkListenerJobStart":
                if event.get("Properties", {}).get("spark.sql.execution.id") in writes:
                    stages.add(max(event["Stage IDs"]))
            case "SparkListenerTaskStart":
                doubled += event["Stage ID"] in stages and event["Task Info"]["Speculative"]
    return doubled


def _events(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # a driver that is killed leaves the last in pieces
            yield json.loads(line)
