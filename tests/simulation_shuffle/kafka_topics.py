"""Partitions of Kafka's in memory: offsets with gaps, rows that are identified by them, markers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.ids import Kind
from penstock.journal.errors import OffsetDroppedError, UnknownJournalError
from penstock.journal.kafka.log_entries import KafkaTransactionLog
from penstock.journal.offset_identity import ROLLBACK_CLOCK, clock_of
from penstock.journal.store import JournalBatch, Probe
from tests.simulation_shuffle.journals import SCHEMA, Journal, Journals, Row
from tests.simulation_shuffle.kafka_log import NOW, PlayedTail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.journal.transaction_log import TransactionLog
    from penstock.sequence import ProducerState
    from tests.simulation_shuffle.kafka_log import PlayedLog

UNREAD: Final = "unread"


@dataclass(frozen=True, slots=True)
class KafkaRow(Row):
    time: int = 0
    """Its timestamp, in units of a clock."""
    epoch: int = 0
    """Of a marker's producer."""


GAP: Final = KafkaRow(0, 0, Kind.OUTSIDE)
"""An offset without a row. Its clock is below all others: a walk takes it for a repetition."""


@dataclass(slots=True, eq=False)
class Partition(Journal):
    def states(self, offset: int) -> dict[int, ProducerState]:  # noqa: ARG002
        """A broker does not tell."""
        return {}

    def batch(self, begin: int, end: int, schema: pa.Schema = SCHEMA) -> JournalBatch:
        if begin < self.first_kept:
            raise LocalProtocolError(f"{self.name} begins at {self.first_kept}, not {begin}")
        found = [at for at in range(begin, end) if self.rows[at] is not GAP]
        rows = [self.rows[at] for at in found]
        documents = [
            (None, None, None, None)
            if row.kind is Kind.ACK
            else (row.key, row.value, f"{row.value:0{row.size_bytes}}", row.twice)
            for row in rows
        ]
        arrays: list[pa.Array[Any]] = [
            pa.array([document[place] for document in documents], schema.field(place).type)
            for place in range(len(schema))
        ]
        offsets = np.array(found, np.int64)
        kafka_rows = [row for row in rows if isinstance(row, KafkaRow)]
        return JournalBatch(
            self.name,
            offsets,
            offsets + 1,
            end,
            np.array([row.producer for row in rows], np.int64),
            np.array([row.clock for row in rows], np.uint64),
            np.array([row.time for row in kafka_rows], np.uint64),
            np.array([row.kind for row in rows], np.uint16),
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            {},
            {place: row.epoch for place, row in enumerate(kafka_rows) if row.kind is Kind.ACK},
        )


@dataclass(slots=True, eq=False)
class KafkaTransaction:
    producer: int
    markers: dict[str, int] = field(default_factory=dict)
    """By what frontiers call a partition, where its marker stands."""
    homes: set[str] = field(default_factory=set)
    """Partitions that have rows of it, as frontiers call them."""


class Topics(Journals):
    by_offset = True
    is_timed = True

    def __init__(self, collections: Iterable[str], log: PlayedLog) -> None:
        super().__init__(collections)
        self.log = log
        self.committed: list[KafkaTransaction] = []
        self.interrupt: Callable[[], None] = lambda: None
        """What others do in the middle of a look."""

    def new_journal(self, name: str, collection: str, identity: str) -> Journal:
        return Partition(name, collection, identity)

    def put(self, name: str, row: KafkaRow, gap: int = 0) -> tuple[Journal, int]:
        """At the end of a partition, behind a gap. Where it is; -1 if the topic is gone."""
        journal = self.open(name)
        if journal.is_gone:
            return journal, -1
        journal.rows += [GAP] * gap
        offset = len(journal.rows)
        if row.clock != ROLLBACK_CLOCK:
            row = replace(row, clock=clock_of(offset))
        self.append(name, [row])
        journal.head = len(journal.rows)
        return journal, offset

    def transaction_log(self, begins: Mapping[int, int] | None = None) -> TransactionLog:
        tail: Any = PlayedTail(self.log, lambda: self.interrupt(), begins)  # noqa: PLW0108 - it is set later
        found = KafkaTransactionLog(tail, _journals_of, self._heads, begins)
        found.check(NOW)
        return found

    def probe(self, journal: str) -> Probe:
        found = self.by_name.get(journal)
        if found is None or found.is_gone:
            raise UnknownJournalError(journal)
        return Probe(found.first_kept, found.head, identity=found.identity)

    def read(
        self,
        journal: str,
        begin: int,
        end: int | None = None,
        columns: Sequence[str] | None = None,  # noqa: ARG002
    ) -> Iterator[JournalBatch]:
        """As a store's, of what is there in one piece."""
        found = self.by_name.get(journal)
        if found is None or found.is_gone:
            raise UnknownJournalError(journal)
        if begin < found.first_kept:
            raise OffsetDroppedError(journal, begin, found.first_kept)
        yield found.batch(begin, min(found.head, found.head if end is None else end))

    def _heads(self, journals: Sequence[str]) -> dict[tuple[str, str], int]:
        self.interrupt()
        found = {
            (name, journal.identity): journal.head
            for name in journals
            if (journal := self.by_name.get(name)) is not None and not journal.is_gone
        }
        self.interrupt()
        return found


def topic_of(name: str) -> tuple[str, int]:
    """The topic and the number of the partition that a journal is."""
    topic, part, _ = name.split("/")
    return topic, int(part.removeprefix("part="))


def _journals_of(topic: str, partition: int) -> list[str]:
    return [] if topic == UNREAD else [f"{topic}/part={partition}/000"]
