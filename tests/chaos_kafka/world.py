"""What must have come of it: by what a plain consumer of Kafka's own library reads in the end.

Every batch of transfers is a folder. So it can be told whether a transfer, which is one transaction
over several partitions of both topics, is in one batch whole. What must have come of the totals is
in totals.py.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
from penstock.testing.kafka.raw import dump
from tests.chaos.harness import Wrong
from tests.chaos_kafka.logs import committed_rows, logged, story, transfer_of
from tests.chaos_kafka.promises import PROMISES, Promise, read_promises
from tests.chaos_kafka.totals import TOTALS, check_totals, read_totals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.testing.kafka.raw import RawLogs
    from tests.chaos_kafka.logs import Row

TOPICS: Final = Topics()
QUERIES: Final = ("transfers", TOTALS)
BATCHES: Final = "batches"
EVENTS: Final = "events"
"""Folder: Spark's event logs, one for each time that the driver has started."""
ROW: Final = ("topic", "partition", "offset", "value")
SECONDS_MAX: Final = 120.0
"""Only what hangs takes so long."""
CALM_SECONDS: Final = 1.0
"""Between two looks: twice as long as a copy waits for news of its leader."""
ODD_MAX: Final = 2
"""Transfers that Kafka does not hold as their clerks were told. It loses what it has confirmed once
in many runs, if at all; by a cluster that loses more nobody can be judged."""


@dataclass(frozen=True, slots=True)
class Found:
    counts: dict[str, int]
    stories: list[str]
    """Of transfers that Kafka or its client has torn or lost."""


def check_world(folder: Path, servers: str) -> Found:
    """Raises Wrong, or says how much there was."""
    batches = delivered(folder / BATCHES)
    await_no_open_transaction(servers)
    await_calm(servers)
    expected = committed(servers)
    check_rows(batches, expected)
    totals = check_totals(read_totals(servers), expected)
    promises = read_promises(folder / PROMISES)
    stories = check_logs(promises, expected, dump(servers, TOPICS.names))
    counts = {
        "rows": expected.total(),
        "transfers": len({transfer_of(row[3]) for row in expected}),
        "batches with rows": sum(bool(rows) for rows in batches.values()),
        **totals,
    }
    return Found(counts, stories)


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


def check_logs(promises: dict[str, Promise], expected: Counter[Row], raw: RawLogs) -> list[str]:
    """The stories of transfers that Kafka itself does not hold as their clerks were told. They are
    no fault of a reader that shows what is committed, and of those there must be few.

    Raises Wrong if the plain consumer, by which readers are judged, does not show what is committed
    in the logs. Without this, one that loses rows would pass for an oracle, and without the
    promises a cluster that does would."""
    records = logged(raw, TOPICS.names)
    held = committed_rows(records)
    if held != expected:
        raise Wrong(
            f"a plain consumer lacks {(held - expected).total()} committed rows of the raw logs, "
            f"for example {list(held - expected)[:3]}, and has {(expected - held).total()} too "
            f"many, for example {list(expected - held)[:3]}"
        )
    found = {transfer_of(row[3]) for row in expected}
    page = page_of(row[3] for row in expected)
    outcomes = {
        outcome: {name for name, each in promises.items() if each.outcome == outcome}
        for outcome in ("committed", "aborted")
    }
    odd = sorted(
        page.torn | page.repeated | (outcomes["committed"] - found) | (outcomes["aborted"] & found)
    )
    stories = [story(name, promises.get(name, Promise()), records, raw) for name in odd]
    if len(odd) > ODD_MAX:
        raise Wrong(
            f"Kafka does not hold {len(odd)} of {len(found)} transfers as their clerks were told, "
            "and is no oracle:\n" + "\n".join(stories[:ODD_MAX])
        )
    return stories


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


def await_calm(servers: str) -> None:
    """All copies are in sync, and two looks find the same leaders and ends. After a change of
    leader a partition may end earlier for a moment than it did: who reads to its end then misses
    rows, and is not to blame."""
    deadline = time.monotonic() + SECONDS_MAX
    last: Any = None
    while True:
        now = None
        with contextlib.suppress(KafkaException):  # leaders move
            admin = AdminClient({"bootstrap.servers": servers})
            topics = admin.list_topics(timeout=SECONDS_MAX).topics
            copies = [
                (name, number, each.leader, len(each.isrs) == len(each.replicas))
                for name, topic in sorted(topics.items())
                for number, each in sorted(topic.partitions.items())
            ]
            if all(is_whole for *_, is_whole in copies):
                now = copies, _ends(admin, IsolationLevel.READ_UNCOMMITTED)
        if now is not None and now == last:
            return
        if time.monotonic() > deadline:
            raise Wrong(f"the brokers do not come to rest: {now}")
        last = now
        time.sleep(CALM_SECONDS)


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
    places = _partitions((*TOPICS.names, TOTALS))
    wanted = {TopicPartition(*one): latest for one in places}
    found = admin.list_offsets(wanted, isolation_level=level)
    offsets = {(one.topic, one.partition): each.result(SECONDS_MAX) for one, each in found.items()}
    return [offsets[one].offset for one in places]


def _partitions(topics: Sequence[str] = TOPICS.names) -> list[tuple[str, int]]:
    return [(topic, number) for topic in topics for number in range(PARTITIONS)]
