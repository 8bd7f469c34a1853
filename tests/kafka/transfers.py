"""Transactional producers that move money, and readers that are judged by what they see of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from penstock.demo.kafka.books import Books, page_of
from penstock.demo.kafka.transfers import PARTITIONS, Topics, transfer
from penstock.journal.kafka.address import BOOTSTRAP, KafkaAddress, Subscription
from penstock.journal.kafka.rows import RAW_SCHEMA
from penstock.journal.kafka.store import KafkaStore
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.resume import NOTHING
from penstock.testing.kafka.java_client import JavaProducer
from penstock.testing.kafka.machine import wait_until

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock.demo.kafka.transfers import Posting
    from penstock.testing.kafka import KafkaCluster
    from penstock.testing.kafka.java_client import JavaGatewayProcess

SECONDS_MAX = 300.0
"""Only a failure takes this long, on however loaded a machine."""
ABORTED_ONE_IN = 10
DELIVERED = pa.schema(
    [RAW_SCHEMA.field(name) for name in ("topic", "partition", "offset", "value")]
)
"""What is kept of the rows that a feed delivers."""


class Writer(Protocol):
    """A transactional producer, of either version."""

    def begin(self) -> None: ...
    def post(self, posting: Posting) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class VersionOne:
    """By librdkafka: one epoch for all transactions of the producer."""

    def __init__(self, kafka: KafkaCluster, name: str, **settings: Any) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "transactional.id": name,
                "linger.ms": 0,
                **settings,
            }
        )
        self._producer.init_transactions(SECONDS_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def post(self, posting: Posting) -> None:
        self._producer.produce(
            posting.topic, posting.value, posting.key, partition=posting.partition
        )

    def flush(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self.flush()  # else the client forgets the rows, and there is nothing to abort
        self._producer.abort_transaction(SECONDS_MAX)

    def close(self) -> None:
        """It ends when nobody holds it."""


class VersionTwo:
    """By Kafka's Java client: an epoch for each transaction."""

    def __init__(self, kafka: KafkaCluster, name: str, process: JavaGatewayProcess) -> None:
        self._producer = JavaProducer(kafka.bootstrap_servers, name, process=process)
        self._producer.init()
        self.begin, self.commit = self._producer.begin, self._producer.commit
        self.abort, self.close = self._producer.abort, self._producer.close

    def post(self, posting: Posting) -> None:
        self._producer.send(
            posting.topic, posting.value, key=posting.key, partition=posting.partition
        )


class Clerk:
    """Makes transfers by one writer; one in some is rolled back."""

    def __init__(self, name: str, writer: Writer, topics: Topics, seed: int) -> None:
        self.name, self._writer, self.topics = name, writer, topics
        self._random = random.Random(seed)
        self._count = 0
        self.committed: dict[str, int] = {}
        """The number of postings of each transfer."""

    def work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.one()

    def one(self) -> str:
        name, postings = self.begin()
        if self._random.randrange(ABORTED_ONE_IN) == 0:
            self._writer.abort()
        else:
            self.commit(name, postings)
        return name

    def begin(self) -> tuple[str, list[Posting]]:
        self._count += 1
        name = f"{self.name}-{self._count}"
        postings = transfer(name, self.topics, self._random)
        self._writer.begin()
        for posting in postings:
            self._writer.post(posting)
        return name, postings

    def commit(self, name: str, postings: list[Posting]) -> None:
        self._writer.commit()
        self.committed[name] = len(postings)


class Ledger:
    """What a feed of ours delivers, epoch by epoch."""

    def __init__(self, kafka: KafkaCluster, topics: Topics, folder: Path, members: int = 2) -> None:
        address = KafkaAddress(
            {BOOTSTRAP: kafka.bootstrap_servers}, {"transfers": Subscription(topics.names)}
        )
        self._store = KafkaStore(address)
        self._feed = Feed("transfers", (Binding("transfers"),))
        self._folder, self._members = folder, members
        self._open()
        self._last = NOTHING
        self.books = Books()
        self.torn: list[tuple[int, frozenset[str]]] = []
        """By epoch, transfers that it has in part."""
        self._delivered: list[pa.Table] = []

    def _open(self) -> None:
        self._shuffle = EmbeddedShuffle(
            self._feed, self._store, self._folder, members=self._members
        )
        self._outlet = Outlet(self._shuffle, self._store, self._feed)

    def begin_anew(self) -> None:
        """As a source process that ended: the next one goes on in the feed's folder."""
        self.stop()
        self._open()

    def stop(self) -> None:
        self._outlet.close()

    def go_on(self) -> None:
        """After `stop`."""
        self._open()

    def step(self) -> bool:
        """Whether an epoch came that has something."""
        epoch = self._outlet.wait_epoch(self._last.number, 0.2)
        if epoch is None:
            return False
        batches = [
            found.batch.select(DELIVERED.names)
            for member in self._shuffle.members
            for found in self._shuffle.read(member, self._last, epoch)
        ]
        rows = pa.Table.from_batches(batches, DELIVERED)
        numbers = pa.array([epoch.number] * rows.num_rows, pa.int64())
        self._delivered.append(rows.append_column("batch", numbers))
        page = page_of(value for value in rows.column("value").to_pylist() if value is not None)
        if not page.is_whole:
            self.torn.append((epoch.number, page.torn | page.repeated))
        self.books.add(page)
        self._outlet.consumed(epoch.number)
        self._last = epoch
        return page.postings > 0

    @property
    def delivered(self) -> pa.Table:
        """Every row, with the epoch that brought it, as the oracle takes it."""
        return pa.concat_tables(self._delivered)

    def wait_for(self, transfers: Iterable[str]) -> None:
        wanted = set(transfers)
        wait_until(
            lambda: self.step() and wanted <= self.books.transfers,
            f"{len(wanted)} transfers",
            SECONDS_MAX,
            lambda: f"{len(wanted - self.books.transfers)} are missing",
        )

    def close(self) -> None:
        self._outlet.close()
        self._store.close()


class CommittedCuts:
    """Where `read_committed` would let a micro-batch end, asked for again and again: the last
    stable offsets of all partitions, as Spark's own source asks for them."""

    def __init__(self, kafka: KafkaCluster, topics: Topics) -> None:
        self._kafka, self._admin = kafka, kafka.topics.admin
        self._partitions = [(name, one) for name in topics.names for one in range(PARTITIONS)]
        self.cuts: list[list[int]] = []

    def work(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            self.cuts.append(self.ends())

    def ends(self) -> list[int]:
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(*one): latest for one in self._partitions}
        found = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        offsets = {
            (asked.topic, asked.partition): future.result(SECONDS_MAX).offset
            for asked, future in found.items()
        }
        return [offsets[one] for one in self._partitions]

    def torn(self, committed: dict[str, int]) -> int:
        """How many of the cuts have a part of a transfer."""
        places, offsets, transfers = self._postings(committed)
        expected = np.array(list(committed.values()))
        count = 0
        for cut in self.cuts:
            below = np.bincount(
                transfers, weights=offsets < np.array(cut)[places], minlength=len(expected)
            )
            count += bool(((below > 0) & (below < expected)).any())
        return count

    def _postings(self, committed: dict[str, int]) -> tuple[Any, Any, Any]:
        """Of every posting its partition, its offset and its transfer, by their places."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(*one, OFFSET_BEGINNING) for one in self._partitions])
        numbers = {name: place for place, name in enumerate(committed)}
        found: list[tuple[int, int, int]] = []

        def has_all() -> bool:
            for message in consumer.consume(1_000, timeout=0.1):
                assert message.error() is None, message.error()
                (name,) = page_of([message.value() or b""]).transfers
                where = self._partitions.index((message.topic() or "", message.partition() or 0))
                found.append((where, message.offset() or 0, numbers[name]))
            return len(found) >= sum(committed.values())

        try:
            wait_until(has_all, "all postings", SECONDS_MAX)
        finally:
            consumer.close()
        places, offsets, transfers = (np.array(column) for column in zip(*found, strict=True))
        return places, offsets, transfers
