"""What a reader of a Kafka cluster depends on: brokers that answer, leaders, rights, transactions
that end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock.cli.checkup.findings import error, note, ok, warning
from penstock.cli.kafka_abort import described
from penstock.cli.terminal import counted
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.checkup.findings import Finding
    from penstock.journal.kafka.aborting import OpenInPartitions
    from penstock.journal.kafka.store import KafkaStore

OPEN_SECONDS_MAX: Final = 60.0
"""The client's own default: no writer expects its transaction to be open for longer."""


def check_brokers(store: KafkaStore) -> Iterator[Finding]:
    try:
        topics = store.collections()
        journals = [one.name for name in topics for one in store.journals(name)]
        store.probes(journals)
    except PenstockError as failed:
        yield error("brokers", str(failed), "correct --store, --option or the cluster")
        return
    yield ok(
        "brokers",
        f"{store.url} answers; we may read {counted(len(topics), 'topic')} with "
        f"{counted(len(journals), 'partition')}",
    )
    try:
        yield _transaction_log(store)
        yield from _open(store.opened())
    except PenstockError as failed:
        yield note("transactions", str(failed))


def _transaction_log(store: KafkaStore) -> Finding:
    found = store.transaction_log()
    if found is None:
        return warning(
            "transactions",
            "we may not read the transaction log: they are whole within each partition only",
            "give the reader the rights Describe and Read of the topic __transaction_state",
        )
    found.close()
    return ok("transactions", "the transaction log can be read: they are whole across partitions")


def _open(opened: list[OpenInPartitions]) -> Iterator[Finding]:
    now_ms = time.time() * 1000
    for one in opened:
        began_ms = None if one.described is None else one.described.started_ms
        if began_ms is None:
            yield warning("open", described(one), f"end it: penstock abort {one.producer_id}")
        elif now_ms - began_ms > OPEN_SECONDS_MAX * 1000:
            yield warning(
                "open",
                described(one),
                f"find out what its producer does, or: penstock abort {one.names[0]}",
            )
        else:
            yield note("open", described(one))
