"""A producer of topics that this process holds open: appends, and transactions of Kafka's own.

    1  take      the transactional id of the name: who had it is fenced, what was open is ended
    2  open      partitions are added to the transaction
    3  send      record batches go to the leaders of their partitions
    4  position  a record of the producer's name, in the same transaction (positions.py)
    5  end       the coordinator commits

Whoever takes the name after a crash at any of these finds by the position whether the transaction
counts. A producer without a name has a transactional id that nobody else takes: what its death
leaves open is ended by its timeout.

Appends outside of transactions are those of an idempotent producer: each row once, whatever is sent
again. A name would be no fence for these, so a named producer's append is a transaction.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import threading
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    LocalProtocolError,
    PeerUnavailableError,
    PenstockError,
)
from penstock.journal.kafka.batching import Batcher
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.producing import TransactionalProducer
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import KafkaFencedError
from penstock.journal.kafka.positions import TOPIC, ensure_topic, read_position, record_of
from penstock.journal.kafka.topic_limits import KnownTopics
from penstock.journal.positions import check_position
from penstock.journal.producing import StoreProducer, StoreTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.journal.kafka.client.producing import Sendable
    from penstock.journal.kafka.producer_settings import ProducerSettings
    from penstock.journal.kafka.written import TopicRows
    from penstock.journal.rows import Rows
    from penstock.journal.store import ReadableStore

PREFIX: Final = "penstock-producer-"
"""Of transactional ids; the producer's name follows."""
UNNAMED: Final = "penstock-unnamed-"


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    TAKEN = "1"
    OPENED = "2"
    SENT = "3"
    POSITIONED = "4"
    ENDED = "5"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


class KafkaProducer(StoreProducer):
    """Made by `KafkaStore.producer()`. It has no thread, and each request its deadline."""

    def __init__(
        self,
        store: ReadableStore,
        settings: ProducerSettings,
        name: str | None,
        shaped: Callable[[str, Rows], TopicRows],
    ) -> None:
        """`shaped` makes records of a collection's rows."""
        self.name = name
        self._store = store
        self._settings = settings
        self._shaped = shaped
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._cluster = Cluster(settings.client)
        self._topics = KnownTopics(settings.client, settings.delivery_timeout_seconds)
        self._batcher = Batcher(self._topics, settings)
        self._id = (
            f"{PREFIX}{name}" if name is not None else f"{PREFIX[:-1]}:{secrets.token_hex(8)}"
        )
        self._client = self._of_id(self._id)
        self._plain: TransactionalProducer | None = None
        self._is_taken = self._is_spent = self._is_closed = False
        self._position: str | None = None
        self._is_position_known = name is None
        self._transaction: KafkaTransaction | None = None

    @classmethod
    def open(
        cls,
        store: ReadableStore,
        settings: ProducerSettings,
        name: str | None,
        shaped: Callable[[str, Rows], TopicRows],
    ) -> KafkaProducer:
        if name is not None:
            check_position(name, "")
        made = cls(store, settings, name, shaped)
        if name is not None:  # from here on no earlier one writes
            try:
                made.take()
            except BaseException:
                made.close()
                raise
        return made

    @property
    def transactional_id(self) -> str:
        return self._id

    @property
    def position(self) -> str | None:
        with self._lock:
            if not self._is_position_known:
                self._check_usable()
                was_there = ensure_topic(self._cluster, self._deadline())
                self._topics.limits(TOPIC)  # until all brokers have heard of it
                self._position = read_position(self._store, str(self.name)) if was_there else None
                self._is_position_known = True
            return self._position

    def append(self, collection: str, rows: Rows) -> int:
        """CommitStateUnknownError if brokers did not answer: some of the rows may be in."""
        with self._lock:
            self._check_free()
            if self.name is not None:
                with self.transaction() as transaction:
                    return transaction.append(collection, rows)
            batches, count = self.batches(collection, rows, is_transactional=False)
            if not count:
                return 0
            plain = self._plain = self._plain or self._of_nobody()
            try:
                plain.send(batches)
            except BaseException as error:
                self._plain = None  # its numbers are in disorder
                if not isinstance(error, PeerUnavailableError):
                    raise
                raise CommitStateUnknownError(
                    f"rows for {collection!r} were sent, and it is not known which of them "
                    f"arrived: {error}. Where that matters, append in a transaction of a named "
                    "producer, with a position"
                ) from error
            return count

    def transaction(self) -> KafkaTransaction:
        with self._lock:
            self._check_free()
            if not self._is_taken:
                self.take()
            elif self._is_spent:
                self._client.renew()
                self._is_spent = False
            self._transaction = KafkaTransaction(self, self._client, self._lock)
            return self._transaction

    def close(self) -> None:
        """Ends what is open. Where brokers do not answer, its successor does, or its timeout."""
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                return
            if self._transaction is not None:
                with contextlib.suppress(PenstockError):
                    self._transaction.rollback()
            self._is_closed = True
            self._cluster.close()
            self._topics.close()

    # For the transaction

    def take(self) -> None:
        """Step 1."""
        self._client.take()
        self._is_taken = True
        reached(Step.TAKEN)

    def batches(
        self, collection: str, rows: Rows, *, is_transactional: bool = True
    ) -> tuple[list[Sendable], int]:
        """The rows, ready to be sent; and how many they are."""
        made = self._shaped(collection, rows)
        count = len(made.records.values)
        if not count:
            return [], 0
        found = self._batcher.batches(
            made.topic, made.records, made.partitions, is_transactional=is_transactional
        )
        return found, count

    def position_batches(self, position: str) -> list[Sendable]:
        ensure_topic(self._cluster, self._deadline())
        return self.batches(TOPIC, {**record_of(str(self.name), position), "partition": 0})[0]

    def ended(self, position: str | None, *, is_spent: bool) -> None:
        """`position` was committed. Spent: another transaction needs another epoch first."""
        self._transaction = None
        self._is_spent = self._is_spent or is_spent
        if position is not None:
            self._position, self._is_position_known = position, True

    def failed(self) -> None:
        """Nobody can go on with it, or may."""
        self._transaction = None
        self._is_closed = True
        self._cluster.close()
        self._topics.close()

    def check_here(self) -> None:
        if self._process != os.getpid():
            raise LocalProtocolError(
                "this producer was opened by another process, from which this one was forked: "
                "open another one here"
            )

    def _check_free(self) -> None:
        self._check_usable()
        if self._transaction is not None:
            raise LocalProtocolError(
                "a transaction of this producer is open: append through the transaction, or end "
                "it first, or use a second producer"
            )

    def _check_usable(self) -> None:
        self.check_here()
        if self._is_closed:
            raise LocalProtocolError(f"producer {self._id!r} is closed; open another one")

    def _of_nobody(self) -> TransactionalProducer:
        plain = self._of_id(None)
        plain.take()
        return plain

    def _of_id(self, transactional_id: str | None) -> TransactionalProducer:
        return TransactionalProducer(
            self._cluster,
            transactional_id,
            self._settings.transaction_timeout_ms,
            self._settings.delivery_timeout_seconds,
        )

    def _deadline(self) -> Deadline:
        return Deadline.after(self._settings.delivery_timeout_seconds)


class KafkaTransaction(StoreTransaction):
    """Made by `KafkaProducer.transaction()`. It has to be over within
    `kafka.transaction.timeout.ms`: then the coordinator ends it."""

    def __init__(
        self, producer: KafkaProducer, client: TransactionalProducer, lock: threading.RLock
    ) -> None:
        self._producer = producer
        self._client = client
        self._lock = lock
        self._position: str | None = None
        self._positioned: list[Sendable] = []
        self._is_over = self._is_spoiled = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    def append(self, collection: str, rows: Rows) -> int:
        """On KafkaFencedError another producer has the name: this one is closed."""
        with self._lock:
            self._check_open()
            batches, count = self._producer.batches(collection, rows)
            with self._spoiling():
                self._send(batches)
            return count

    def position(self, position: str) -> None:
        """RecordsTooLargeError above a megabyte, or what `max.message.bytes` of the topic
        `penstock.positions` says."""
        with self._lock:
            self._check_open()
            check_position(self._producer.name, position)
            self._positioned = self._producer.position_batches(position)
            self._position = position

    def commit(self) -> None:
        with self._lock:
            if self._is_spoiled and not self._is_over:
                self.rollback()
                raise CommitFailedError(
                    "an append of this transaction failed halfway; it is rolled back. Run it again"
                )
            self._check_open()
            if self._positioned:
                try:
                    with self._spoiling():
                        self._send(self._positioned)
                except KafkaFencedError:
                    raise
                except PenstockError as error:
                    self.rollback()
                    raise CommitFailedError(
                        f"the position could not be written: {error}. The transaction is rolled "
                        "back; run it again"
                    ) from error
                reached(Step.POSITIONED)
            self._end()

    def rollback(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._producer.check_here()
            self._is_over = True
            try:
                self._client.end(is_commit=False)
            except BaseException as error:
                self._producer.failed()
                if isinstance(error, KafkaFencedError | PeerUnavailableError):
                    return  # who fenced this producer has ended it; or its timeout does
                raise
            self._producer.ended(None, is_spent=self._is_spoiled)

    def _end(self) -> None:
        """Step 5."""
        self._is_over = True
        try:
            self._client.end(is_commit=True)
        except BaseException as error:
            in_doubt = self._client.is_commit_in_doubt or not isinstance(error, PenstockError)
            self._producer.failed()
            if not in_doubt or not isinstance(error, PenstockError):
                raise
            name = self._producer.name
            way = f"open another producer {name!r}: its position tells"
            if self._position is None:
                way = "only a named producer's position could tell: look for its rows"
            raise CommitStateUnknownError(
                f"the coordinator was asked to commit, and it is not known whether it did: {error}."
                f" To find out, {way}"
            ) from error
        reached(Step.ENDED)
        self._producer.ended(self._position, is_spent=False)

    def _send(self, batches: list[Sendable]) -> None:
        """Steps 2 and 3."""
        if not batches:
            return
        self._client.open(batch.partition for batch in batches)
        reached(Step.OPENED)
        self._client.send(batches)
        reached(Step.SENT)

    @contextlib.contextmanager
    def _spoiling(self) -> Iterator[None]:
        """After any failure some of the rows may be in: all of the transaction has to go."""
        try:
            yield
        except KafkaFencedError:
            self._is_over = True
            self._producer.failed()
            raise
        except BaseException:
            self._is_spoiled = True
            raise

    def _check_open(self) -> None:
        self._producer.check_here()
        if self._is_over:
            raise LocalProtocolError("this transaction is over; open another with transaction()")
        if self._is_spoiled:
            raise LocalProtocolError(
                "an append of this transaction failed halfway: roll it back and run it again"
            )
