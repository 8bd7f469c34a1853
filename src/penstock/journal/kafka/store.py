"""A Kafka cluster as a store: it is read, and producers write to it. A collection is a
subscription: the partitions of some topics, each a journal.

    orders/topic=orders/partition=%_3/000

Offsets are Kafka's, and so is identity; a topic's id tells it from one that is made again under its
name. Which commits belong together says the transaction log.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import ConfigurationError
from penstock.frontier import Frontier
from penstock.journal.collection import Collection
from penstock.journal.cut import check_there, cut_at
from penstock.journal.errors import UnknownJournalError
from penstock.journal.kafka.address import SCHEME, KafkaAddress, Subscription
from penstock.journal.kafka.changes import ChangeReader
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
from penstock.journal.kafka.headers import header_in
from penstock.journal.kafka.identities import Identity
from penstock.journal.kafka.log import KafkaLog
from penstock.journal.kafka.log_entries import KafkaTransactionLog
from penstock.journal.kafka.producer import KafkaProducer
from penstock.journal.kafka.producer_settings import is_of_producers, producer_settings
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.rows import journal_batch, lost_before, selected
from penstock.journal.kafka.settings import PREFIX, kafka_settings
from penstock.journal.kafka.shapes import Shape, are_changes, shape_of, with_schema
from penstock.journal.kafka.written import written
from penstock.journal.names import (
    EVERYTHING,
    Selector,
    decode_label,
    encode_label,
    journal_name,
    parse_journal_name,
)
from penstock.journal.producing import ProducingStore
from penstock.journal.store import Journal, NextRows, Probe, Range, States

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from penstock.journal.cut import AsOf, JournalCut
    from penstock.journal.kafka.aborting import OpenInPartitions
    from penstock.journal.kafka.client.cluster import Topic
    from penstock.journal.kafka.edges import Edge
    from penstock.journal.kafka.identities import Named
    from penstock.journal.kafka.log import Read
    from penstock.journal.kafka.records.columns import Decoded
    from penstock.journal.kafka.written import TopicRows
    from penstock.journal.rows import Rows
    from penstock.journal.store import JournalBatch, Silence
    from penstock.journal.transaction_log import TransactionLog

_Shaped: TypeAlias = "tuple[pa.RecordBatch, NDArray[np.int64] | None, Named | None]"
"""Documents, which rows they are unless there is one for each, and who wrote them."""
PARTITION_BY: Final = ("topic", "partition")
PATIENCE_SECONDS: Final = 90.0
"""So long brokers may be gone before a reader gives up."""
KNOWN_SECONDS: Final = 0.5
"""So long what was heard of topics is believed. Who reads one finds out by itself that it is gone.
"""
WAIT_SECONDS: Final = 0.02
PARTITIONS_REMEMBERED_MAX: Final = 1 << 16
PACKED_AT_MOST: Final = 3
"""Text packs by two to four. A broker that is asked for more than a reader takes gives it again."""
TOGETHER_BYTES_MAX: Final = 8 << 20
"""Of a request for many partitions, packed."""
BATCH_BYTES_GUESSED: Final = 64 << 10
"""Producers' batches are rarely larger, before one was seen."""
BATCH_MARGIN: Final = 1.25
"""The next batch may be a little larger than any that was seen."""
FETCH_BYTES_MIN: Final = 16 << 10
"""A producer's usual batch. Brokers give a whole batch, however little they are asked for."""

log = logging.getLogger(__name__)


class KafkaStore(ProducingStore):
    is_timed = True
    by_offset = True
    own_key = "key"
    reads_together = True

    def __init__(
        self, address: KafkaAddress, producer_options: Mapping[str, str] | None = None
    ) -> None:
        """`producer_options` are those settings of the client that only producers have."""
        self._given = address
        self._producer_options = dict(producer_options or {})
        self.url = address.url
        self._settings = kafka_settings(address.options)
        self._log = KafkaLog(self._settings)
        self.fails_on_loss = address.fail_on_data_loss
        self._behind: dict[Partition, Want] = {}
        """Where the last read of each partition ended: the next one goes on there, and finds out if
        the rows before it were taken back meanwhile."""
        self._batch_bytes: dict[str, int] = {}
        """By topic, the largest record batch that was seen, as it is stored."""
        self._topics: dict[tuple[str, ...] | None, tuple[float, dict[str, Topic]]] = {}
        self._shapes: dict[str, Shape] = {}
        self._known_to_write: set[str] = set()
        self._changes: dict[str, ChangeReader] = {}
        self.is_whole: bool | None = None
        """Whether transactions are seen whole across partitions; None before it was tried."""

    @property
    def address(self) -> str:
        return self._given.text

    def close(self) -> None:
        self._log.close()

    def is_own_key(self, key: Sequence[str]) -> bool:
        """Kafka's, or a header."""
        return super().is_own_key(key) or (len(key) == 1 and header_in(key[0]) is not None)

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
        identity = self._identity(name)
        if identity is not None:
            if self._change_reader(name) is not None:
                raise ConfigurationError(
                    "identity: the changes of a database have their places in its log; leave the "
                    "setting out with format debezium"
                )
            identity.check(shape.schema)
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
        is_topic = subscription.is_topic or collection not in self._given.subscriptions
        if is_topic and not self._listed(subscription):
            topics = (one.name for one in self._known(None).values() if not one.is_internal)
            raise NoSuchTopicError(subscription.topics[0], tuple(sorted(topics)))

    def _shape(self, collection: str) -> Shape:
        found = self._shapes.get(collection)
        if found is None:
            given = self._subscription(collection)
            found = shape_of(given, with_headers=self._given.with_headers)
            self._shapes[collection] = found
        return found

    def _identity(self, collection: str) -> Identity | None:
        """How users name the producers of its rows. Values that do not parse are shown as they are,
        each of them."""
        given = self._subscription(collection)
        return Identity.parse(given.identity) if given.identity and not given.view else None

    def _change_reader(self, collection: str) -> ChangeReader | None:
        """Of collections that are a database's changes."""
        given = self._subscription(collection)
        if given.view or not are_changes(given.values):
            return None
        found = self._changes.get(collection)
        if found is None:
            found = ChangeReader(self._log, self._shape(collection))
            self._changes[collection] = found
        return found

    def _subscription(self, collection: str) -> Subscription:
        return self._given.subscriptions.get(collection) or Subscription((collection,))

    # Producers

    def producer(self, name: str | None = None) -> KafkaProducer:
        options = {**self._given.options, **self._producer_options}
        return KafkaProducer.open(self, producer_settings(options), name, self._written)

    def _written(self, collection: str, rows: Rows) -> TopicRows:
        if collection not in self._known_to_write:
            self._check(collection)
            self._known_to_write.add(collection)
        return written(collection, self._subscription(collection), rows)

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
                    found.append(Journal(name, collection, labels, _topic_identity(topic)))
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
                max(bounds[partition].earliest, self._start(name, partition)),
                bounds[partition].high_watermark,
                identity=_topic_identity(topics[partition.topic]),
                begin=self._start(name, partition) if self._starts(name) else None,
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
        collection = parse_journal_name(journal)[0]
        shape, identity = self._shape(collection), self._identity(collection)
        with_headers = shape.needs_headers(columns) or (identity is not None and identity.is_header)
        while end is None or want.offset < end:
            try:
                found = self._log.read(partition, want, self._deadline(), with_headers=with_headers)
                self._note(partition, found)
                if found.behind.offset == want.offset:
                    return
                shaped = self._documents(collection, partition, want, found, columns)
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
            documents, kept, named = shaped
            lost = lost_before(want, decoded, behind.offset)
            batch = journal_batch(
                *(journal, partition, decoded, behind.offset, documents),
                kept=kept,
                named=named,
                lost=lost,
                probe=self._probe_with(journal, partition, topic, found),
            )
            behind = self._note_lost(partition, want, lost, batch)
            batch = batch.within(want.offset, behind.offset if end is None else end)
            if end is not None and batch.next_offset > end:
                batch = replace(batch, next_offset=end)
            want = behind
            yield batch

    def _documents(
        self,
        collection: str,
        partition: Partition,
        want: Want,
        found: Read,
        columns: Sequence[str] | None,
    ) -> _Shaped:
        """Of what was read from `want` on, in these columns."""
        changes = self._change_reader(collection)
        if changes is not None:
            new = changes.documents(partition, want, found, columns, self._deadline())
            return (*new, None)
        shape, identity = self._shape(collection), self._identity(collection)
        return _shaped(shape, identity, partition, found.decoded, columns)

    def read_together(self, wanted: Mapping[str, tuple[int, int]]) -> dict[str, NextRows]:
        found: dict[str, NextRows] = {}
        for collection in {parse_journal_name(journal)[0] for journal in wanted}:
            if self._identity(collection) or self._change_reader(collection):
                continue  # rows that may be repetitions are read by `read`
            known = dict(self._batch_bytes)
            found |= self._read_of(collection, wanted)
            if known != self._batch_bytes:  # batches are larger: now they fit
                rest = {name: wanted[name] for name in wanted.keys() - found.keys()}
                found |= self._read_of(collection, rest)
        return found

    def _read_of(
        self, collection: str, wanted: Mapping[str, tuple[int, int]]
    ) -> dict[str, NextRows]:
        partitions = {
            partition_of(journal): journal
            for journal in wanted
            if parse_journal_name(journal)[0] == collection
        }
        topics = self._known(tuple(sorted({partition.topic for partition in partitions})))
        wants = {
            partition: replace(
                self._want(partition, wanted[journal][0], topics[partition.topic].id),
                bytes_max=self._together_bytes(partition, wanted[journal][1]),
            )
            for partition, journal in partitions.items()
            if partition.topic in topics
        }
        return {
            partitions[partition]: rows
            for some in _within(wants, self._settings.fetch_bytes_max)
            for partition, rows in self._next_rows(
                collection, some, {one: wanted[partitions[one]][1] for one in some}, topics
            )
        }

    def _next_rows(
        self,
        collection: str,
        wants: Mapping[Partition, Want],
        bytes_max: Mapping[Partition, int],
        topics: Mapping[str, Topic],
    ) -> Iterator[tuple[Partition, NextRows]]:
        shape = self._shape(collection)
        reads = self._log.read_all(
            wants, bytes_max, self._deadline(), with_headers=shape.needs_headers(None)
        )
        moved = {
            partition: read.decoded
            for partition, read in reads.items()
            if read.behind.offset > wants[partition].offset
        }
        documents = dict(zip(moved, shape.documents_of_all(moved), strict=True))
        for partition, read in reads.items():
            self._note(partition, read)
            journal = journal_name(collection, PARTITION_BY, (partition.topic, partition.number))
            probe = self._probe_with(journal, partition, topics[partition.topic], read)
            if partition not in moved:
                yield partition, NextRows(None, probe)
                continue
            rows, kept = documents[partition]
            want = wants[partition]
            lost = lost_before(want, read.decoded, read.behind.offset)
            batch = journal_batch(
                *(journal, partition, read.decoded, read.behind.offset, rows),
                kept=kept,
                lost=lost,
                probe=probe,
            )
            self._note_lost(partition, want, lost, batch)
            yield partition, NextRows(batch.within(want.offset, read.behind.offset), probe)

    def _note(self, partition: Partition, read: Read) -> None:
        self._behind[partition] = read.behind
        if read.decoded.batch_bytes_max > self._batch_bytes.get(partition.topic, 0):
            self._batch_bytes[partition.topic] = read.decoded.batch_bytes_max

    def _note_lost(
        self, partition: Partition, want: Want, lost: NDArray[np.int64], batch: JournalBatch
    ) -> Want:
        """Rows that are lost are told with a row behind them. If there is none, the next read has
        it."""
        shown = int(batch.offsets[-1]) if batch.rows else want.offset - 1
        is_behind_lost = bool((lost > shown).any())
        self._behind[partition] = replace(self._behind[partition], is_behind_lost=is_behind_lost)
        return self._behind[partition]

    def _probe_with(self, journal: str, partition: Partition, topic: Topic, read: Read) -> Probe:
        """What the partition held when this was read."""
        return Probe(
            max(read.log_start, self._start(journal, partition)),
            read.high_watermark,
            identity=_topic_identity(topic),
        )

    def _together_bytes(self, partition: Partition, documents_bytes: int) -> int:
        """Of the partitions of a request, only the first gets a batch that is larger than what was
        asked for."""
        packed = self._packed_bytes(documents_bytes) or 0
        seen = self._batch_bytes.get(partition.topic)
        batch = BATCH_BYTES_GUESSED if seen is None else int(BATCH_MARGIN * seen)
        return min(max(packed, batch), self._settings.partition_bytes_max)

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

    def offsets_at(self, journals: Iterable[str], edge: Edge) -> dict[str, dict[str, int]]:
        """By topic and partition, where a user asks to begin or to end these."""
        bounds = self._log.probe(set(map(partition_of, journals)), self._deadline())
        found = edge.resolved(
            bounds, lambda times: self._log.offsets_for_times(times, self._deadline())
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
            (name, _topic_identity(topics[partition.topic])): found[partition]
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

    def _starts(self, journal: str) -> Mapping[str, Mapping[str, int]]:
        subscription = self._given.subscriptions.get(journal.partition("/")[0])
        return {} if subscription is None else subscription.starts

    def _start(self, journal: str, partition: Partition) -> int:
        return self._starts(journal).get(partition.topic, {}).get(str(partition.number), 0)

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


def _within(wants: dict[Partition, Want], bytes_max: int) -> Iterator[dict[Partition, Want]]:
    """Requests that no answer is too large for."""
    some: dict[Partition, Want] = {}
    left = room = min(bytes_max, TOGETHER_BYTES_MAX)
    for partition, want in wants.items():
        size = want.bytes_max or 0
        if some and size > left:
            yield some
            some, left = {}, room
        some[partition] = want
        left -= size
    if some:
        yield some


@functools.lru_cache(PARTITIONS_REMEMBERED_MAX)
def partition_of(journal: str) -> Partition:
    _, labels = parse_journal_name(journal)
    try:
        return Partition(decode_label(labels["topic"]), int(decode_label(labels["partition"])))
    except (KeyError, ValueError):
        raise UnknownJournalError(journal) from None


def _shaped(
    shape: Shape,
    identity: Identity | None,
    partition: Partition,
    decoded: Decoded,
    columns: Sequence[str] | None,
) -> _Shaped:
    """The documents of rows, of these columns."""
    if identity is None:
        return *shape.documents(partition, decoded, columns), None
    wanted = None if columns is None else {*columns, *identity.columns}
    documents, kept = shape.documents(partition, decoded, wanted)
    named = identity.of(partition, decoded, documents, kept)
    if wanted is not None and columns is not None and wanted != set(columns):
        documents = selected(documents, columns)
    return documents, kept, named


def _topic_identity(topic: Topic) -> str:
    return "" if topic.id is None else topic.id.hex


def open_kafka(url: str) -> KafkaStore:
    return KafkaStore(KafkaAddress.parse(url))


def open_to_write(
    servers: str, options: Mapping[str, str], formats: Mapping[str, Mapping[str, str]]
) -> KafkaStore:
    """What `penstock.open_kafka` says."""
    address = KafkaAddress.parse(f"{SCHEME}://{servers.removeprefix(f'{SCHEME}://')}")
    given = {name.lower().removeprefix(PREFIX): value for name, value in options.items()}
    of_producers = {name: given.pop(name) for name in list(given) if is_of_producers(name)}
    producer_settings({**given, **of_producers, **address.options})  # refuses what is wrong
    subscriptions = {
        topic: Subscription((topic,), values=with_schema(values, topic), is_topic=True)
        for topic, values in formats.items()
    }
    found = replace(
        address,
        options={**given, **address.options},
        subscriptions={**address.subscriptions, **subscriptions},
    )
    return KafkaStore(found, of_producers)
