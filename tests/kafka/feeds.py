"""A feed file in an embedded shuffle, and what it delivers."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from penstock.journal import open_readable
from penstock.journal.documents import read_documents
from penstock.shuffle.beginning import NAME as BEGIN
from penstock.shuffle.beginning import settled_address
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed_file import parse_feed
from penstock.shuffle.feed_sources import resolved
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.parcels import fields_of
from penstock.shuffle.plan import make_plan
from penstock.shuffle.resume import NOTHING
from penstock.testing.kafka.machine import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.shuffle.resume import Epoch
    from penstock.testing.kafka import KafkaCluster

SECONDS_MAX = 180.0
"""Only a failure takes this long, on however loaded a machine."""
Headers = list[tuple[str, str | bytes | None]]


class FeedRun:
    """Rows come as (binding, member, document), in the order of the queues."""

    def __init__(self, text: str, folder: Path, store: str = "", members: int = 2) -> None:
        feed, address = resolved(parse_feed(text), store)
        with open_readable(address) as unsettled:
            is_new = not (folder / BEGIN).exists()
            address = settled_address(feed, unsettled, folder, is_new=is_new)
        self.store = open_readable(address)
        self.plan = make_plan(feed, self.store)
        self._feed, self._folder, self._members = feed, folder, members
        self.rows: list[tuple[int, int, dict[str, Any]]] = []
        self.last = NOTHING
        self._open()

    def _open(self) -> None:
        self._shuffle = EmbeddedShuffle(self._feed, self.store, self._folder, members=self._members)
        self._outlet = Outlet(self._shuffle, self.store, self._feed)

    def begin_anew(self, *, without_queues: bool = False) -> None:
        """As a process that ended, whose disk was perhaps lost, too."""
        self._outlet.close()
        if without_queues:
            for member in self._shuffle.members:
                shutil.rmtree(self._shuffle.queue_folder(member))
        self._open()

    def step(self) -> bool:
        """Takes the next epoch, if there is one soon."""
        epoch = self._outlet.wait_epoch(self.last.number, 0.2)
        if epoch is not None:
            self._take(epoch)
        return epoch is not None

    def _take(self, epoch: Epoch) -> None:
        self.rows += self.read(self.last, epoch)
        self._outlet.consumed(epoch.number)
        self.last = epoch

    def reach(self) -> Epoch:
        """An epoch, not read yet, that has all that is in the logs now."""
        self._outlet.set_target()
        epoch = self.last

        def has_come() -> bool:
            nonlocal epoch
            epoch = self._outlet.wait_epoch(epoch.number, 0.2) or epoch
            return self._outlet.has_reached(epoch)

        wait_until(has_come, "an epoch with all rows", SECONDS_MAX)
        return epoch

    def catch_up(self) -> list[tuple[int, int, dict[str, Any]]]:
        """All that is in the logs now, and what came before."""
        self._take(self.reach())
        return self.rows

    def read(self, start: Epoch, end: Epoch) -> list[tuple[int, int, dict[str, Any]]]:
        self._outlet.newest()  # it is open
        found = []
        for member in self._shuffle.members:
            for one in self._shuffle.read(member, start, end):
                own = one.batch.select(
                    [name for name in one.batch.schema.names if name not in fields_names(one.batch)]
                )
                reads: Any = one.batch.column("_read").to_pylist()
                found += [
                    (one.names[read][0], member, row)
                    for read, row in zip(reads, own.to_pylist(), strict=True)
                ]
        return found

    def batch(self) -> list[Counter[Any]]:
        """Of each binding, what the batch reader has up to the last epoch."""
        found = []
        for binding in self.plan.bindings:
            names = [one.name for one in self.store.journals(binding.collection, binding.selector)]
            cuts = self.store.cut(names, self.last.frontier, binding.place)
            rows = (
                row
                for cut in cuts
                for one in read_documents(self.store, cut)
                for row in one.documents.to_pylist()
            )
            found.append(counted(rows))
        return found

    def streamed(self) -> list[Counter[Any]]:
        """Of each binding, what came."""
        return [
            counted(row for place, _, row in self.rows if place == binding.place)
            for binding in self.plan.bindings
        ]

    def close(self) -> None:
        self._outlet.close()
        self.store.close()


def fields_names(batch: Any) -> set[str]:
    return {field.name for field in fields_of(batch.schema)}


def counted(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        tuple(sorted((name, repr(value)) for name, value in row.items())) for row in rows
    )


class Sender:
    """A plain producer: no idempotence, no transactions."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
        self._topic = topic

    def send(self, value: bytes | None, partition: int = 0, **more: Any) -> None:
        self._producer.produce(self._topic, value, partition=partition, **more)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0
