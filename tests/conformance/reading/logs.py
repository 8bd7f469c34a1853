"""Logs to be read, of each kind: a store under test, and the means of those who write there.

A new kind of store gets a class here, and all tests of this folder run on it. Its offsets may have
gaps and its rows any ends; what it cannot do at all it says by an attribute.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import json
import os
import secrets
import shutil
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from penstock.journal import Collection, open_readable, open_store
from penstock.journal.kafka.address import KafkaAddress, Subscription
from tests.kafka.broker import require_kafka, shared_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.journal.store import ReadableStore
    from penstock.journal.transaction import Transaction

COLLECTIONS: Final = ("orders", "payments")
PARTS: Final = (0, 1)
COLUMNS: Final = ("id", "part")


class Writing(abc.ABC):
    """A transaction that is open."""

    @abc.abstractmethod
    def append(self, collection: str, part: int, ids: Sequence[int]) -> None: ...

    @abc.abstractmethod
    def commit(self) -> None: ...

    @abc.abstractmethod
    def roll_back(self) -> None: ...


class Log(abc.ABC):
    """Two collections of documents with an `id` and a `part`, with a journal for each part."""

    can_remove: bool = True
    """Journals can be deleted, and made anew under their names."""
    can_drop: bool = True
    can_evolve: bool = True

    @abc.abstractmethod
    def open(self) -> ReadableStore:
        """As a reader elsewhere opens it."""

    @abc.abstractmethod
    def journal(self, collection: str, part: int) -> str:
        """Its name."""

    @abc.abstractmethod
    def append(self, collection: str, part: int, ids: Sequence[int]) -> None:
        """Outside of transactions. Readers see it afterwards."""

    @abc.abstractmethod
    def begin(self) -> Writing: ...

    @abc.abstractmethod
    def remove(self, collection: str, part: int) -> None: ...

    @abc.abstractmethod
    def drop_before(self, collection: str, part: int, offset: int) -> int:
        """Drops some of what lies before the offset, and gives what is kept from."""

    @abc.abstractmethod
    def add_column(self, collection: str, name: str) -> None:
        """Of numbers, to documents from here on. What is appended later has its `id` in it."""

    @abc.abstractmethod
    def close(self) -> None: ...


class FileLog(Log):
    SEGMENT_BYTES: Final = 2_000
    """So that a few dozen rows make several."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"
        self._store = open_store(self._folder, segment_bytes_max=self.SEGMENT_BYTES)
        for name in COLLECTIONS:
            schema = "id BIGINT NOT NULL, part INT NOT NULL"
            self._store.create(Collection.define(name, schema, "id", partition_by="part"))
        self._producer = self._store.producer()
        self._added: dict[str, str] = {}

    def open(self) -> ReadableStore:
        return open_readable(self._store.url)

    def journal(self, collection: str, part: int) -> str:
        return f"{collection}/part=%_{part}/000"

    def append(self, collection: str, part: int, ids: Sequence[int]) -> None:
        self._producer.append(collection, self.rows(collection, part, ids))

    def rows(self, collection: str, part: int, ids: Sequence[int]) -> list[dict[str, Any]]:
        more = self._added.get(collection)
        return [{"id": number, "part": part} | ({more: number} if more else {}) for number in ids]

    def begin(self) -> Writing:
        return _FileWriting(self)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._store.producer() as producer, producer.transaction() as transaction:
            yield transaction

    def remove(self, collection: str, part: int) -> None:
        shutil.rmtree(self._store.folder_of(self.journal(collection, part)))

    def drop_before(self, collection: str, part: int, offset: int) -> int:
        return self._store.drop_before(self.journal(collection, part), offset)

    def add_column(self, collection: str, name: str) -> None:
        schema = f"id BIGINT NOT NULL, part INT NOT NULL, {name} BIGINT"
        self._store.evolve(collection, schema)
        self._added[collection] = name

    def close(self) -> None:
        self._producer.close()
        self._store.close()


class _RollBackError(Exception):
    pass


class _FileWriting(Writing):
    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._stack = contextlib.ExitStack()
        self._transaction = self._stack.enter_context(log.transaction())

    def append(self, collection: str, part: int, ids: Sequence[int]) -> None:
        self._transaction.append(collection, self._log.rows(collection, part, ids))

    def commit(self) -> None:
        self._stack.close()

    def roll_back(self) -> None:
        with contextlib.suppress(_RollBackError), self._stack:
            raise _RollBackError


class KafkaTopics(Log):
    """A topic for each collection, with a partition for each part. Values are JSON."""

    can_evolve = False
    SECONDS_MAX: Final = 60.0

    def __init__(self, _folder: Path) -> None:
        require_kafka()
        self._kafka = shared_cluster()
        self._suffix = f"{os.getpid()}-{secrets.token_hex(4)}"
        for name in COLLECTIONS:
            self._kafka.topics.create(self.topic(name), len(PARTS))
        self._producer = Producer({"bootstrap.servers": self._kafka.bootstrap_servers})
        self._idle: list[Producer] = []
        self._numbers = itertools.count()

    def topic(self, collection: str) -> str:
        return f"{collection}-{self._suffix}"

    def open(self) -> ReadableStore:
        values = {"format": "json", "schema": "id BIGINT, part INT"}
        address = KafkaAddress(
            {"bootstrap.servers": self._kafka.bootstrap_servers},
            {name: Subscription((self.topic(name),), values=values) for name in COLLECTIONS},
        )
        return open_readable(address.text)

    def journal(self, collection: str, part: int) -> str:
        return f"{collection}/topic={self.topic(collection)}/partition=%_{part}/000"

    def append(self, collection: str, part: int, ids: Sequence[int]) -> None:
        if not self._kafka.topics.leaders(self.topic(collection)):
            self._kafka.topics.create(self.topic(collection), len(PARTS))
        self.produce(self._producer, collection, part, ids)
        assert self._producer.flush(self.SECONDS_MAX) == 0

    def produce(self, producer: Producer, collection: str, part: int, ids: Sequence[int]) -> None:
        for number in ids:
            value = json.dumps({"id": number, "part": part}).encode()
            producer.produce(self.topic(collection), value, partition=part)

    def begin(self) -> Writing:
        if self._idle:
            return _KafkaWriting(self, self._idle.pop())
        producer = Producer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "transactional.id": f"conformance-{self._suffix}-{next(self._numbers)}",
            }
        )
        producer.init_transactions(self.SECONDS_MAX)
        return _KafkaWriting(self, producer)

    def over(self, producer: Producer) -> None:
        self._idle.append(producer)

    def remove(self, collection: str, part: int) -> None:  # noqa: ARG002 - the whole topic
        self._kafka.topics.delete(self.topic(collection))

    def drop_before(self, collection: str, part: int, offset: int) -> int:
        # By kafka-python: librdkafka's deletion of records gets no answer from this broker.
        admin = KafkaAdminClient(bootstrap_servers=self._kafka.bootstrap_servers)
        place = TopicPartition(self.topic(collection), part)
        try:
            return int(admin.delete_records({place: offset})[place]["low_watermark"])
        finally:
            admin.close()

    def add_column(self, collection: str, name: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for name in COLLECTIONS:
            self._kafka.topics.delete(self.topic(name))


class _KafkaWriting(Writing):
    def __init__(self, log: KafkaTopics, producer: Producer) -> None:
        self._log, self._producer = log, producer
        producer.begin_transaction()

    def append(self, collection: str, part: int, ids: Sequence[int]) -> None:
        self._log.produce(self._producer, collection, part, ids)
        assert self._producer.flush(self._log.SECONDS_MAX) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(self._log.SECONDS_MAX)
        self._log.over(self._producer)

    def roll_back(self) -> None:
        self._producer.abort_transaction(self._log.SECONDS_MAX)
        self._log.over(self._producer)


KINDS: dict[str, Callable[[Path], Log]] = {"file": FileLog, "kafka": KafkaTopics}
