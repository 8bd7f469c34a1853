"""Batches into a collection: each one a single transaction over all of its journals.

Parts are files beside the journals, in the store's folder `sinks`. Whoever commits a batch appends
the rows of all of its parts in one transaction of its own producer.

A process may die when the journals have the transaction, and before anybody heard of it. So the
decision names the producer, and a clock of it that comes before the transaction: whoever finds the
decision fences that producer, and then its ledger says whether it has committed anything after that
clock. If the ledger was forgotten meanwhile, which takes an hour, the journals themselves do. If it
has not, it never will, and the batch is written under the next attempt, by another producer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import CommitFailedError, CorruptStorageError, PenstockError
from penstock.ids import Producer
from penstock.journal import open_store
from penstock.journal.errors import DamagedLedgerError, ProducerFencedError
from penstock.journal.rows import conform
from penstock.sequence import sequence_batch
from penstock.sinks.fitting import check_frame, fitted
from penstock.sinks.staging import grouped, read_part, remove_staged, stage_rows
from penstock.sinks.two_phase import TwoPhaseSink
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.journal import OpenStore
    from penstock.journal.collection import Collection
    from penstock.journal.producer import OpenProducer
    from penstock.sinks.two_phase import Batch, Decision, Part

FOLDER: Final = "sinks"
"""Of the store: staged parts and decisions."""
_STORES_OPEN_MAX: Final = 16


class CollectionSink(TwoPhaseSink):
    def __init__(self, store: str, collection: str, meta: str | None = None) -> None:
        """`meta` is the collection's column that takes the frame's `_meta`, if it has one."""
        self._url = store
        self._name = collection
        self._meta = meta

    @property
    def records(self) -> Storage:
        return _storage(self._url)

    def check(self, frame: pa.Schema) -> None:
        """Refuses a frame that does not fit the collection."""
        check_frame(self._collection(), frame, self._meta)

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        collection = self._collection()
        conformed = (conform(collection, fitted(each, collection, self._meta)) for each in rows)
        return stage_rows(_storage(self._url), batch, partition, conformed)

    def prepare(self, batch: Batch, parts: Sequence[Part]) -> str:  # noqa: ARG002
        held = _held(self._url, batch.query)
        return json.dumps(
            {
                "collection": self._name,
                "producer": str(held.producer.id),
                "after": held.producer.next_clock(),
            }
        )

    def commit(self, decision: Decision) -> None:
        collection, producer, after = _parse(decision)
        key = (self._url, decision.batch.query)
        held = _HELD.get(key)
        if held is None or held.producer.id != producer:
            if not _was_committed(_store(self._url), collection, producer, after):
                raise CommitFailedError(
                    f"{decision.batch} was decided, and its producer {producer} ended before it "
                    "had committed the transaction"
                )
            return
        if held.committed == decision.order:
            return
        try:
            with held.producer.transaction() as transaction:
                for part in decision.parts:
                    for rows in grouped(read_part(_storage(self._url), part)):
                        transaction.append(collection, rows)
        except BaseException as error:
            # Whether it is committed may not be known here. With this producer's end it will be.
            _let_go(key)
            if isinstance(error, ProducerFencedError):
                # Before it could commit: by another process that has the same batch in hand.
                raise CommitFailedError(f"{decision.batch}: {error}") from error
            raise
        held.committed = decision.order

    def discard(self, parts: Sequence[Part]) -> None:
        _storage(self._url).delete_all([part.name for part in parts])

    def finish(self, decision: Decision) -> None:
        remove_staged(_storage(self._url), decision)

    def _collection(self) -> Collection:
        return _store(self._url).collection(self._name)


@dataclass(slots=True)
class _Held:
    """A query's producer in this process. Spark uses a process for many batches, and a producer
    for each batch would be one more for every reader to keep in mind."""

    producer: OpenProducer
    committed: tuple[int, int] | None = None
    """The newest decision that it has committed."""


_HELD: Final[dict[tuple[str, str], _Held]] = {}
os.register_at_fork(after_in_child=_HELD.clear)


@functools.lru_cache(maxsize=_STORES_OPEN_MAX)
def _store(url: str) -> OpenStore:
    return open_store(url, create=False)


@functools.lru_cache(maxsize=_STORES_OPEN_MAX)
def _storage(url: str) -> Storage:
    return Storage.open(_store(url).url).within(FOLDER)


def _held(url: str, query: str) -> _Held:
    held = _HELD.get((url, query))
    if held is None:
        held = _HELD[url, query] = _Held(_store(url).producer())
    return held


def _let_go(key: tuple[str, str]) -> None:
    with contextlib.suppress(OSError, PenstockError):  # what brought us here matters more
        _HELD.pop(key).producer.close()


def _parse(decision: Decision) -> tuple[str, Producer, int]:
    try:
        fields = json.loads(decision.prepared)
        producer = Producer.from_hex(fields["producer"])
        return str(fields["collection"]), producer, int(fields["after"])
    except (ValueError, KeyError, TypeError, PenstockError) as error:
        raise CorruptStorageError(
            f"the decision of {decision.batch} names no producer ({error!r})"
        ) from error


def _was_committed(store: OpenStore, collection: str, producer: Producer, after: int) -> bool:
    """Ends the producer, and tells whether it has committed anything after that clock."""
    with contextlib.suppress(ProducerFencedError):  # forgotten just now: settled long before
        store.fence(producer)
    for ledger in store.ledgers():
        if ledger.producer == producer:
            # A ledger that is damaged was settled all the same: then the journals tell, too.
            with contextlib.suppress(ProducerFencedError, DamagedLedgerError):
                record = ledger.record()
                decided = 0 if record.decision is None else record.decision.clock
                return max(record.completed, decided) > after
    journals = [journal.name for journal in store.journals(collection)]
    return any(_last_commit(store, journal, producer) > after for journal in journals)


def _last_commit(store: OpenStore, journal: str, producer: Producer) -> int:
    """As the journal itself says. Reads its last segment, without the documents."""
    head = store.probe(journal).write_head
    begin, states = store.states(journal, head)
    for rows in store.read(journal, begin, head, columns=()):
        found = sequence_batch(
            rows.offsets, rows.ends, rows.producers, rows.clocks, rows.flags, states
        )
        found.raise_fault(journal)
        states.update(found.changed)
    for _, departed in store.departures(journal, head):
        if producer.int64 in departed:
            return departed[producer.int64].last_commit
    state = states.get(producer.int64)
    return 0 if state is None else state.last_commit
