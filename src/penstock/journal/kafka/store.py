"""A Kafka cluster as a store that can be read. A collection is a subscription: the partitions of
some topics, each a journal.

    orders/topic=orders/partition=%_3/000

Offsets are Kafka's, and so is identity; a topic's id tells it from one that is made again under its
name. Which commits belong together says the transaction log.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.errors import ConfigurationError
from penstock.frontier import Frontier
from penstock.journal.collection import Collection
from penstock.journal.cut import check_there, cut_at
from penstock.journal.errors import UnknownJournalError
from penstock.journal.kafka.address import KafkaAddress, Subscription
from penstock.journal.kafka.client.fetching import Want
from penstock.journal.kafka.client.offsets import NO_EPOCH
from penstock.journal.kafka.cutting import cut_of_now
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import (
    KafkaAccessError,
    LogTruncatedError,
    NoSuchTopicError,
    TopicMadeAgainError,
    UnknownTopicError,
)
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.log_entries import KafkaTransactionLog
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.rows import journal_batch, lost_before
from penstock.journal.kafka.settings import kafka_settings
from penstock.journal.kafka.shapes import Shape, shape_of
from penstock.journal.names import (
    EVERYTHING,
    Selector,
    decode_label,
    encode_label,
    journal_name,
    parse_journal_name,
)
from penstock.journal.store import Journal, Probe, Range, ReadableStore, States

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from numpy.typing import NDArray

    from penstock.journal.cut import AsOf, JournalCut
    from penstock.journal.kafka.aborting import OpenInPartitions
    from penstock.journal.kafka.client.cluster import Topic
    from penstock.journal.kafka.edges import Edge
    from penstock.journal.kafka.records.columns import Decoded
    from penstock.journal.store import JournalBatch, Silence
    from penstock.journal.transaction_log import TransactionLog

PARTITION_BY: Final = ("topic", "partition")
PATIENCE_SECONDS: Final = 90.0
"""So long brokers may be gone before a reader gives up."""
KNOWN_SECONDS: Final = 0.5
"""So long what was heard of topics is believed. Who reads one finds out by itself that it is gone.
"""
WAIT_SECONDS: Final = 0.02
PACKED_AT_MOST: Final = 3
"""Text packs by two to four. A broker that is asked for more than a reader takes gives it again."""
FETCH_BYTES_MIN: Final = 16 << 10
"""A producer's usual batch. Brokers give a whole batch, however little they are asked for."""

log = logging.getLogger(__name__)


class KafkaStore(ReadableStore):
    is_timed = True
    by_offset = True
    own_key = "key"

    def __init__(self, address: KafkaAddress) -> None:
        self._given = address
        self.url = address.url
        self._settings = kafka_settings(address.options)
        self._log = KafkaLog(self._settings)
        self.fails_on_loss = address.fail_on_data_loss
        self._behind: dict[Partition, Want] = {}
        """Where the last read of each partition ended: the next one goes on there, and finds out if
        the rows before it were taken back meanwhile."""
        self._topics: dict[tuple[str, ...] | None, tuple[float, dict[str, Topic]]] = {}
        self._shapes: dict[str, Shape] = {}
        self.is_whole: bool | None = None
        """Whether transactions are seen whole across partitions; None before it was tried."""

    @property
    def address(self) -> str:
        return self._given.text

    def close(self) -> None:
        self._log.close()

    def silence(self) -> Silence | None:
        return self._log.silence()

    def check_reachable(self, seconds: float) -> None:
        """Raises if no broker answers within this time. Whoever only reads has more patience: a
        cluster may be gone for a while, but a wrong address is to be told soon."""
        self._log.topics(Deadline.after(seconds), ())

    # Collections

    def collection(self, name: str) -> Collection:
        shape = self._shape(name)
        self._check(name)
        return Collection(name, (shape.schema,), shape.key, PARTITION_BY, is_external=True)

    def collections(self) -> list[str]:
        """The subscriptions that were given, or else every topic that is not Kafka's own."""
        if self._given.subscriptions:
            return sorted(self._given.subscriptions)
        topics = self._known(None).values()
        return sorted(topic.name for topic in topics if not topic.is_internal)

    def _check(self, collection: str) -> None:
        """Of those that are no subscription, a topic of the name has to be there."""
        subscription = self._subscription(collection)
        if collection not in self._given.subscriptions and not self._listed(subscription):
            raise NoSuchTopicError(collection, tuple(self.collections()))

    def _shape(self, collection: str) -> Shape:
        found = self._shapes.get(collection)
        if found is None:
            given = self._subscription(collection)
            found = shape_of(given.values, given.view, with_headers=self._given.with_headers)
            self._shapes[collection] = found
        return found

    def _subscription(self, collection: str) -> Subscription:
        return self._given.subscriptions.get(collection) or Subscription((collection,))

    # Journals

    def journals(self, collection: str, selector: Selector = EVERYTHING) -> list[Journal]:
        self._check(collection)
        found = []
        subscription = self._subscription(collection)
        for topic in self._listed(subscription, fresh=True):
            for partition in topic.partitions():
                labels = {
                    "topic": encode_label(topic.name),
                    "partition": encode_label(partition.number),
                }
                place = (topic.name, partition.number)
                if subscription.has(*place) and selector.accepts(labels):
                    name = journal_name(collection, PARTITION_BY, place)
                    found.append(Journal(name, collection, labels, _identity(topic)))
        return sorted(found, key=lambda journal: journal.name)

    def probes(self, journals: Iterable[str]) -> dict[str, Probe]:
        there, topics = self._there(journals)
        try:
            bounds = self._log.probe(set(there.values()), self._deadline())
        except UnknownTopicError:
            self._topics.clear()
            return self.probes(there)
        return {
            name: Probe(
                max(bounds[partition].earliest, self._start(partition)),
                bounds[partition].high_watermark,
                identity=_identity(topics[partition.topic]),
                begin=self._start(partition) if self._given.starts else None,
            )
            for name, partition in there.items()
            if partition in bounds
        }

    def read(
        self,
        journal: str,
        begin: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        fetch_bytes: int | None = None,
    ) -> Iterator[JournalBatch]:
        partition = partition_of(journal)
        topic = self._known((partition.topic,)).get(partition.topic)
        if topic is None:
            raise UnknownJournalError(journal)
        want = replace(
            self._want(partition, begin, topic.id), bytes_max=self._packed_bytes(fetch_bytes)
        )
        shape = self._shape(parse_journal_name(journal)[0])
        with_headers = shape.with_headers and (columns is None or "headers" in columns)
        while end is None or want.offset < end:
            try:
                found = self._log.read(partition, want, self._deadline(), with_headers=with_headers)
            except (UnknownTopicError, TopicMadeAgainError):
                self._topics.clear()
                raise UnknownJournalError(journal) from None
            except LogTruncatedError as error:
                if want.read_epoch == NO_EPOCH and want.offset == begin:
                    return  # whoever asks for what lies beyond the end gets nothing
                if self.fails_on_loss:
                    raise
                log.warning("%s", error)
                want = self._behind[partition] = replace(want, read_epoch=NO_EPOCH)
                continue
            decoded, behind = found.decoded, found.behind
            self._behind[partition] = behind
            if behind.offset == want.offset:
                return
            documents, kept = shape.documents(partition, decoded, columns)
            lost = _lost_before(want, decoded, behind.offset)
            probe = Probe(
                max(found.log_start, self._start(partition)),
                found.high_watermark,
                identity=_identity(topic),
            )
            batch = journal_batch(
                journal,
                partition,
                decoded,
                behind.offset,
                documents,
                kept=kept,
                lost=lost,
                probe=probe,
            )
            shown = int(batch.offsets[-1]) if batch.rows else want.offset - 1
            behind = replace(behind, is_behind_lost=bool((lost > shown).any()))
            self._behind[partition] = behind
            batch = batch.within(want.offset, behind.offset if end is None else end)
            if end is not None and batch.next_offset > end:
                batch = replace(batch, next_offset=end)
            want = behind
            yield batch

    def _packed_bytes(self, documents_bytes: int | None) -> int | None:
        """What to ask a broker for, to get about so many bytes of documents. None: as the settings
        have it."""
        if documents_bytes is None:
            return None
        packed = max(documents_bytes // PACKED_AT_MOST, FETCH_BYTES_MIN)
        return min(packed, self._settings.partition_bytes_max)

    def _want(self, partition: Partition, begin: int, topic_id: UUID | None) -> Want:
        behind = self._behind.get(partition)
        if behind is not None and (behind.offset, behind.topic_id) == (begin, topic_id):
            return behind
        return Want(begin, topic_id=topic_id)

    def wait(self, journal: str, beyond: int, timeout_s: float) -> int:
        deadline = Deadline.after(timeout_s)
        while True:
            head = self.probe(journal).write_head
            if head > beyond or deadline.is_over:
                return head
            time.sleep(WAIT_SECONDS)

    def ranges(self, journal: str, begin: int, end: int) -> list[Range]:
        """One: nobody but who reads from the begin knows where producers stand in between."""
        return [Range(journal, begin, end)] if begin < end else []

    def states(self, journal: str, at: int) -> tuple[int, States]:  # noqa: ARG002
        """Nobody knows what stood before the first row that is read. What is open there lacks its
        first rows, and what is committed of it is all that there is."""
        return at, {}

    def offsets_at(self, collection: str, edge: Edge, option: str) -> dict[str, dict[str, int]]:
        """By topic and partition, where a user asks to begin or to end. The option is named in
        errors."""
        partitions = [partition_of(one.name) for one in self.journals(collection)]
        bounds = self._log.probe(partitions, self._deadline())
        found = edge.resolved(
            bounds, lambda times: self._log.offsets_for_times(times, self._deadline()), option
        )
        offsets: dict[str, dict[str, int]] = {}
        for partition, offset in found.items():
            offsets.setdefault(partition.topic, {})[str(partition.number)] = offset
        return offsets

    # Transactions

    def cut(
        self,
        journals: Sequence[str] | Callable[[], Sequence[str]],
        as_of: AsOf = None,
        binding: int = 0,
    ) -> list[JournalCut]:
        listed = journals if callable(journals) else lambda: journals
        if as_of is None:
            if not callable(journals):
                check_there(journals, self.probes(journals))
            return cut_of_now(self, listed)
        if not isinstance(as_of, Frontier):
            raise ConfigurationError(
                f"{self.url} cannot be read as of a moment with all transactions whole: give the "
                "frontier of an earlier read, or read a range with endingOffsetsByTimestamp"
            )
        return cut_at(self, journals, as_of, binding)

    def transaction_log(self, begins: Mapping[int, int] | None = None) -> TransactionLog | None:
        """None, with a warning, where it may not be read: transactions are whole by partition."""
        tail = self._log.transaction_tail(begins)
        found = KafkaTransactionLog(tail, self._journals_of, self._heads, begins)
        try:
            found.check(self._deadline())
        except KafkaAccessError as error:
            self.is_whole = False
            log.warning(
                "transactions are whole within each partition only, not across partitions: %s",
                error,
            )
            return None
        self.is_whole = True
        return found

    def _heads(self, journals: Sequence[str]) -> dict[tuple[str, str], int]:
        partitions, topics = self._there(journals)
        found = self._log.high_watermarks(set(partitions.values()), self._deadline())
        return {
            (name, _identity(topics[partition.topic])): found[partition]
            for name, partition in partitions.items()
        }

    def opened(self) -> list[OpenInPartitions]:
        """The transactions that are open in any topic of the subscriptions, or in any at all."""
        subscriptions = map(self._subscription, self.collections())
        topics = {topic.name: topic for one in subscriptions for topic in self._listed(one)}
        partitions = [one for topic in topics.values() for one in topic.partitions()]
        return self._log.open_transactions(partitions, self._deadline())

    def open_transactions(self) -> dict[str, int]:
        """Nothing where we may not ask for them."""
        try:
            opened = self.opened()
        except KafkaAccessError:
            return {}
        found: dict[str, int] = {}
        for partition in (one for each in opened for one in each.partitions):
            for journal in self._journals_of(partition.topic, partition.number):
                found[journal] = found.get(journal, 0) + 1
        return found

    def abort(self, seen: OpenInPartitions) -> None:
        """Ends a transaction that its producer leaves open; the producer is fenced."""
        self._log.abort(seen, self._deadline())

    def _journals_of(self, topic: str, partition: int) -> list[str]:
        """The journals that a partition is, in all collections that have it."""
        named = [
            name for name, one in self._given.subscriptions.items() if one.has(topic, partition)
        ]
        if topic not in self._given.subscriptions:
            named.append(topic)
        return [journal_name(name, PARTITION_BY, (topic, partition)) for name in named]

    # Topics

    def _start(self, partition: Partition) -> int:
        return self._given.starts.get(partition.topic, {}).get(str(partition.number), 0)

    def _listed(self, subscription: Subscription, *, fresh: bool = False) -> list[Topic]:
        found = self._known(subscription.names, fresh=fresh).values()
        if subscription.pattern:
            return [one for one in found if not one.is_internal and subscription.has(one.name, 0)]
        return list(found)

    def _there(self, journals: Iterable[str]) -> tuple[dict[str, Partition], Mapping[str, Topic]]:
        """The partitions of journals, by name, and their topics, without those that are missing."""
        wanted = {name: partition_of(name) for name in journals}
        topics = self._known(tuple(sorted({one.topic for one in wanted.values()})))
        there = {
            name: one
            for name, one in wanted.items()
            if one.topic in topics and one.number < len(topics[one.topic].leaders)
        }
        return there, topics

    def _known(self, names: tuple[str, ...] | None, *, fresh: bool = False) -> dict[str, Topic]:
        """What is known of topics; of all, if no names are given."""
        heard, topics = self._topics.get(names, (0.0, {}))
        if fresh or time.monotonic() - heard > KNOWN_SECONDS:
            topics = self._log.topics(self._deadline(), names)
            self._topics[names] = time.monotonic(), topics
        return topics

    def _deadline(self) -> Deadline:
        return Deadline.after(PATIENCE_SECONDS)


def _lost_before(want: Want, decoded: Decoded, next_offset: int) -> NDArray[np.int64]:
    """As of `lost_before`, with what was lost right before and right behind the fetch."""
    if not len(decoded.batches):
        return np.array([next_offset], np.int64)
    found = lost_before(decoded.batches, want.offset)
    return np.concatenate([[want.offset], found]) if want.is_behind_lost else found


def partition_of(journal: str) -> Partition:
    _, labels = parse_journal_name(journal)
    try:
        return Partition(decode_label(labels["topic"]), int(decode_label(labels["partition"])))
    except (KeyError, ValueError):
        raise UnknownJournalError(journal) from None


def _identity(topic: Topic) -> str:
    return "" if topic.id is None else topic.id.hex


def open_kafka(url: str) -> KafkaStore:
    return KafkaStore(KafkaAddress.parse(url))
