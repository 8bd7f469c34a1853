"""What must have come of it: by what a plain consumer of Kafka's own library reads in the end.

Every batch is a folder. So it can be told whether a transfer, which is one transaction over several
partitions of both topics, is in one batch whole.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow.parquet as pq
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from penstock.demo.kafka.books import page_of
from penstock.demo.kafka.transfers import PARTITIONS, Topics
from tests.chaos.harness import Wrong

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TOPICS: Final = Topics()
QUERIES: Final = ("transfers",)
BATCHES: Final = "batches"
ROW: Final = ("topic", "partition", "offset", "value")
PROMISES: Final = "promises"
"""Folder: what each producer was told of its transactions."""
SECONDS_MAX: Final = 120.0
"""Only what hangs takes so long."""

Row: TypeAlias = tuple[str, int, int, bytes]


def check_world(folder: Path, servers: str) -> dict[str, int]:
    """Raises Wrong, or says how much there was."""
    batches = delivered(folder / BATCHES)
    await_no_open_transaction(servers)
    expected = committed(servers)
    check_rows(batches, expected)
    check_promises(folder / PROMISES, expected)
    return {
        "rows": expected.total(),
        "transfers": len({transfer_of(row[3]) for row in expected}),
        "batches with rows": sum(bool(rows) for rows in batches.values()),
    }


def check_rows(batches: dict[str, list[Row]], expected: Counter[Row]) -> None:
    found = Counter(row for rows in batches.values() for row in rows)
    missing, surplus = expected - found, found - expected
    if missing or surplus:
        raise Wrong(
            f"the batches lack {missing.total()} rows of {expected.total()}, for example "
            f"{list(missing)[:3]}, and have {surplus.total()} too many, for example "
            f"{list(surplus)[:3]}"
        )
    sizes = Counter(transfer_of(row[3]) for row in expected)
    for name, rows in batches.items():
        for transfer, count in Counter(transfer_of(row[3]) for row in rows).items():
            if count != sizes[transfer]:
                raise Wrong(f"batch {name} has {count} rows of {sizes[transfer]} of {transfer}")


def check_promises(folder: Path, expected: Counter[Row]) -> None:
    """Without this, brokers that lose what they have acknowledged would pass for an oracle."""
    found = {transfer_of(row[3]) for row in expected}
    page = page_of(row[3] for row in expected)
    if page.torn:
        raise Wrong(f"Kafka has parts of {len(page.torn)} transfers, such as {min(page.torn)}")
    promised: dict[str, set[str]] = {"committed": set(), "aborted": set()}
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else its producer was killed in the middle of it
                outcome, name = line.split()
                promised[outcome].add(name)
    if lost := promised["committed"] - found:
        raise Wrong(f"Kafka has lost {len(lost)} committed transfers, such as {min(lost)}")
    if back := promised["aborted"] & found:
        raise Wrong(f"Kafka shows {len(back)} aborted transfers, such as {min(back)}")


def delivered(folder: Path) -> dict[str, list[Row]]:
    batches = {}
    for batch in sorted(folder.iterdir()):
        table = pq.read_table(batch, columns=list(ROW))
        batches[batch.name] = list(zip(*(table[name].to_pylist() for name in ROW), strict=True))
    return batches


def committed(servers: str) -> Counter[Row]:
    """What a reader of committed messages finds, from the begin to the end of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(*one, OFFSET_BEGINNING) for one in _partitions()])
    found: Counter[Row] = Counter()
    open_ = set(_partitions())
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while open_:
            if time.monotonic() > deadline:
                raise Wrong(f"a plain consumer does not come to the end of {sorted(open_)}")
            for message in consumer.consume(1_000, timeout=0.2):
                place = message.topic() or "", message.partition() or 0
                error = message.error()
                if error is None:
                    found[*place, message.offset() or 0, message.value() or b""] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(place)
                elif not error.retriable():
                    raise Wrong(f"a plain consumer fails: {error}")
    finally:
        consumer.close()
    return found


def await_no_open_transaction(servers: str) -> None:
    """Coordinators have aborted what killed producers left open. Each look is by a client of its
    own: librdkafka's goes on with leaders that it knew before they moved."""
    deadline = time.monotonic() + SECONDS_MAX
    ends: Any = None
    while ends is None or ends[0] != ends[1]:
        if time.monotonic() > deadline:
            raise Wrong(f"transactions are open, or partitions have no leaders: {ends}")
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        with contextlib.suppress(KafkaException):  # leaders move
            admin = AdminClient({"bootstrap.servers": servers})
            ends = [_ends(admin, level) for level in levels]
        time.sleep(0.1)


def _ends(admin: AdminClient, level: IsolationLevel) -> list[int]:
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(*one): latest for one in _partitions()}
    found = admin.list_offsets(wanted, isolation_level=level)
    offsets = {(one.topic, one.partition): each.result(SECONDS_MAX) for one, each in found.items()}
    return [offsets[one].offset for one in _partitions()]


def transfer_of(value: bytes) -> str:
    return str(json.loads(value)["transfer"])


def _partitions() -> Iterable[tuple[str, int]]:
    return [(topic, number) for topic in TOPICS.names for number in range(PARTITIONS)]
