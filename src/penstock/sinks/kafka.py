"""Batches into topics of Kafka: each one a transaction that every `read_committed` consumer sees.

Tasks stage record batches, ready but for the producer's name. Whoever commits a batch sends them in
a transaction of the query's transactional id, in steps of its own within step 5 of batches.py:

    5.1  take    the transactional id gets a new epoch: who had it is fenced, what was open is ended
    5.2  open    partitions are added to the transaction
    5.3  send    record batches go to the leaders of their partitions
    5.4  prove   the number of the batch becomes an offset of a group of the query's own, in the
                 same transaction
    5.5  end     the coordinator commits

A process may die at any point. Whoever finds the decision takes the id (unless the proof is there
already), and then the group's offset says whether the batch is in. A process keeps the id for the
batches that follow, and begins with 5.2.

A group's offsets expire when nothing is written for some days. So the first batch of a query begins
with a proof of nothing, and a decision whose proof is gone altogether is in doubt: then nothing is
written, and a person is asked.

A batch with more bytes than `transaction_bytes` goes in several transactions. Each part of it is in
one of them, and the proof says how many parts are in.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import (
    CommitStateUnknownError,
    CorruptStorageError,
    PeerUnavailableError,
    PenstockError,
)
from penstock.journal.kafka.client.cluster import Cluster
from penstock.journal.kafka.client.producing import (
    CommittedOffset,
    Sendable,
    TransactionalProducer,
    committed_offsets,
)
from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.errors import KafkaFencedError
from penstock.journal.kafka.producer_settings import producer_settings
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.topic_limits import KnownTopics
from penstock.sinks.kafka_rows import Encoder, check_columns, check_values
from penstock.sinks.kafka_values import ValueColumns
from penstock.sinks.staging import grouped, read_part, remove_staged, stage_rows
from penstock.sinks.two_phase import TwoPhaseSink
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.sinks.kafka_values import Values
    from penstock.sinks.two_phase import Batch, Decision, Part

PREFIX: Final = "penstock-"
"""Of transactional ids and groups; the query's id follows."""
TRANSACTION_BYTES: Final = 256 << 20
"""What one transaction holds. It takes some seconds, of the minute that a transaction has."""
_SEND_BYTES_MIN: Final = 8 << 20
"""Less than that waits for what the next part has: each sending takes two requests, in turns."""
_PLACES_OPEN_MAX: Final = 16
_HELD_MAX: Final = 16
"""Transactional ids that a process keeps. Every DataFrame that is written has one of its own."""


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    TAKEN = "5.1"
    OPENED = "5.2"
    SENT = "5.3"
    PROVEN = "5.4"
    ENDED = "5.5"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


class KafkaSink(TwoPhaseSink):
    def __init__(
        self,
        options: Mapping[str, str],
        folder: str,
        topic: str | None = None,
        *,
        meta: str | None = None,
        prefix: str = PREFIX,
        transaction_bytes: int = TRANSACTION_BYTES,
        values: Values | None = None,
    ) -> None:
        """`options` are client settings by Kafka's own names. Parts and decisions are in `folder`.
        All rows go to `topic`, or each to that of its own column. `meta` is what the names of
        headers with the frame's `_meta` begin with. `values` says what ordinary columns become;
        without it the columns are those of a record. With it all rows go to one topic."""
        self._options = dict(options)
        self._settings = producer_settings(options)
        self._folder = folder
        self._topic = topic
        self._meta = meta
        self._prefix = prefix
        self._transaction_bytes = transaction_bytes
        self._values = values

    @property
    def records(self) -> Storage:
        return _storage(self._folder)

    def check(self, frame: pa.Schema) -> None:
        """Refuses a frame that cannot be written, and a topic that is not there."""
        if self._values is None:
            check_columns(frame, self._topic, self._meta)
        else:
            check_values(frame, self._meta, self._values)
        if self._topic is not None:
            self._known_topics().limits(self._topic)

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        encoder = Encoder(self._known_topics(), self._settings, self._topic, self._meta)
        columns: ValueColumns | None = None
        count = 0

        def staged() -> Iterator[pa.RecordBatch]:
            nonlocal columns, count
            for group in grouped(rows):
                count += group.num_rows
                if self._values is not None:
                    columns = columns or ValueColumns(group.schema, self._values)
                    group = columns.rows(group)  # noqa: PLW2901
                yield encoder.staged(group)

        part = stage_rows(_storage(self._folder), batch, partition, staged())
        return None if part is None else replace(part, rows=count)

    def prepare(self, batch: Batch, parts: Sequence[Part]) -> str:
        """Takes nothing from anybody, unless it is the query's first batch here: a process that
        slept, and prepares a batch of long ago, disturbs nobody."""
        key = self._key(batch.query)
        held = _HELD.get(key)
        proofs = self._proofs(batch.query) if held is None else held.proofs
        place = self._proof_place(parts)
        if place not in proofs:
            held = self._taken(batch.query)
            if place not in held.proofs:  # another process may have proven a batch meanwhile
                with _letting_go(key):
                    self._prove(held, place, _Proof(-1))
                    held.producer.end(is_commit=True)
        return json.dumps({"group": key[-1], "topic": place.topic, "partition": place.number})

    def commit(self, decision: Decision) -> None:
        place = _parse(decision)
        key = self._key(decision.batch.query)
        held = _HELD.get(key)
        if held is not None:
            if _is_in(decision, held.proofs):
                return
            # Another process may have had batches of this query since, and this one too: then we
            # are fenced, and parts may be gone.
            with contextlib.suppress(KafkaFencedError, CorruptStorageError):
                self._write(held, decision, place)
                return
        if _is_in(decision, self._proofs(decision.batch.query)):
            return
        held = self._taken(decision.batch.query)
        if _is_in(decision, held.proofs):
            return
        if place not in held.proofs:
            raise CommitStateUnknownError(
                f"{decision.batch} was decided, and nobody knows any more whether it was written: "
                f"group {key[-1]!r} has no offset in {place}. Offsets expire when a query is down "
                "for longer than the brokers' offsets.retention.minutes, and go with their topic. "
                "Look whether the rows are there. If they are not, remove the decision from "
                f"{self.records.place} and start the query again: it then writes the batch"
            )
        try:
            self._write(held, decision, place)
        except CorruptStorageError:
            # Whoever has committed the batch meanwhile has removed its parts, too.
            if not _is_in(decision, self._proofs(decision.batch.query)):
                raise

    def discard(self, parts: Sequence[Part]) -> None:
        _storage(self._folder).delete_all([part.name for part in parts])

    def finish(self, decision: Decision) -> None:
        remove_staged(_storage(self._folder), decision)

    def _write(self, held: _Held, decision: Decision, place: Partition) -> None:
        """Steps 5.2 to 5.5, for each transaction."""
        before = max(held.proofs.values(), key=_Proof.order, default=_Proof(-1))
        done = before.parts if before.number == decision.batch.number else 0
        with _letting_go(self._key(decision.batch.query)):
            for parts in _chunks(decision.parts[done:], self._transaction_bytes):
                for batches in self._batches(parts):
                    held.producer.open(batch.partition for batch in batches)
                    reached(Step.OPENED)
                    held.producer.send(batches)
                    reached(Step.SENT)
                done += len(parts)
                proof = _Proof(decision.batch.number, done, len(decision.parts))
                self._prove(held, place, proof)
                reached(Step.PROVEN)
                held.producer.end(is_commit=True)
                reached(Step.ENDED)

    def _batches(self, parts: Sequence[Part]) -> Iterator[list[Sendable]]:
        """All that these parts hold, some megabytes at a time: small parts go together."""
        held: list[Sendable] = []
        size_bytes = 0
        for part in parts:
            for staged in read_part(_storage(self._folder), part):
                held += _sendable(staged)
                size_bytes += staged.nbytes
                if size_bytes >= _SEND_BYTES_MIN:
                    yield held
                    held, size_bytes = [], 0
        if held:
            yield held

    def _prove(self, held: _Held, place: Partition, proof: _Proof) -> None:
        held.producer.note(held.group, CommittedOffset(place, proof.number + 1, proof.text))
        held.proofs[place] = proof  # for nobody, if the transaction fails: then it is let go

    def _taken(self, query: str) -> _Held:
        """Step 5.1."""
        key = self._key(query)
        cluster = Cluster(self._settings.client)
        producer = TransactionalProducer(
            cluster,
            key[-1],
            self._settings.transaction_timeout_ms,
            self._settings.delivery_timeout_seconds,
        )
        held = _HELD[key] = _Held(cluster, producer, key[-1])
        while len(_HELD) > _HELD_MAX:
            _HELD.pop(next(iter(_HELD))).cluster.close()
        with _letting_go(key):
            producer.take()
            reached(Step.TAKEN)
            held.proofs = self._read_proofs(cluster, key[-1], are_stable=True)
        return held

    def _proofs(self, query: str) -> dict[Partition, _Proof]:
        """As far as they are known without disturbing whoever has the transactional id."""
        cluster = Cluster(self._settings.client)
        try:
            return self._read_proofs(cluster, self._key(query)[-1], are_stable=False)
        finally:
            cluster.close()

    def _read_proofs(
        self, cluster: Cluster, group: str, *, are_stable: bool
    ) -> dict[Partition, _Proof]:
        deadline = Deadline.after(self._settings.delivery_timeout_seconds)
        found = committed_offsets(cluster, group, deadline, are_stable=are_stable)
        return {each.partition: _Proof.read(group, each) for each in found}

    def _proof_place(self, parts: Sequence[Part]) -> Partition:
        """Offsets are of a topic that is there: one that the batch goes to."""
        if self._topic is not None:
            return Partition(self._topic, 0)
        first = next(self._batches(parts))[0]
        return Partition(first.partition.topic, 0)

    def _known_topics(self) -> KnownTopics:
        key = tuple(sorted(self._options.items()))
        known = _TOPICS.get(key)
        if known is None:
            seconds_max = self._settings.delivery_timeout_seconds
            known = _TOPICS[key] = KnownTopics(self._settings.client, seconds_max)
        return known

    def _key(self, query: str) -> tuple[str, str]:
        """Of what a process holds; the last of it is the transactional id, and the group."""
        return self._settings.client.servers, f"{self._prefix}{query}"


@dataclass(frozen=True, slots=True)
class _Proof:
    """What is in: all batches below this number, and so many parts of it."""

    number: int
    parts: int = 0
    parts_all: int = 0

    @property
    def text(self) -> str:
        return json.dumps({"batch": self.number, "parts": self.parts, "of": self.parts_all})

    def order(self) -> tuple[int, int]:
        return self.number, self.parts

    @classmethod
    def read(cls, group: str, offset: CommittedOffset) -> _Proof:
        try:
            fields = json.loads(offset.metadata)
            return cls(int(fields["batch"]), int(fields["parts"]), int(fields["of"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStorageError(
                f"group {group!r} has an offset in {offset.partition} that Penstock has not "
                f"committed ({error!r}). Whoever did has to choose another group; then delete the "
                "offsets of this one"
            ) from error


@dataclass(slots=True)
class _Held:
    """A query's transactional id in this process. Spark uses a process for many batches."""

    cluster: Cluster
    producer: TransactionalProducer
    group: str
    proofs: dict[Partition, _Proof] = field(default_factory=dict)


_HELD: Final[dict[tuple[str, str], _Held]] = {}
_TOPICS: Final[dict[tuple[tuple[str, str], ...], KnownTopics]] = {}
os.register_at_fork(after_in_child=_HELD.clear)
os.register_at_fork(after_in_child=_TOPICS.clear)


@contextlib.contextmanager
def _letting_go(key: tuple[str, str]) -> Iterator[None]:
    """After an exception the producer is of no use: whether it has committed is then asked of the
    proof. What it left open is ended here, if that takes no waiting."""
    try:
        yield
    except BaseException as error:
        held = _HELD.pop(key)
        if not isinstance(error, PeerUnavailableError | KafkaFencedError):
            with contextlib.suppress(PenstockError):
                held.producer.end(is_commit=False)
        held.cluster.close()
        raise


@functools.lru_cache(maxsize=_PLACES_OPEN_MAX)
def _storage(folder: str) -> Storage:
    return Storage.open(folder)


def _is_in(decision: Decision, proofs: Mapping[Partition, _Proof]) -> bool:
    number = decision.batch.number
    return any(
        proof.number > number or (proof.number == number and proof.parts == proof.parts_all)
        for proof in proofs.values()
    )


def _parse(decision: Decision) -> Partition:
    try:
        fields: dict[str, Any] = json.loads(decision.prepared)
        return Partition(str(fields["topic"]), int(fields["partition"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStorageError(
            f"the decision of {decision.batch} does not say where its proof is ({error!r})"
        ) from error


def _chunks(parts: Sequence[Part], size_bytes_max: int) -> Iterator[list[Part]]:
    """Parts that go in one transaction: as many as have room, and one at least."""
    chunk: list[Part] = []
    size_bytes = 0
    for part in parts:
        if chunk and size_bytes + part.size_bytes > size_bytes_max:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(part)
        size_bytes += part.size_bytes
    if chunk:
        yield chunk


def _sendable(staged: pa.RecordBatch) -> list[Sendable]:
    columns = (staged.column(name).to_pylist() for name in staged.schema.names)
    return [
        Sendable(Partition(topic, partition), records, data)
        for topic, partition, records, data in zip(*columns, strict=True)
    ]
