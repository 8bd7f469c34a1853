"""Kafka's transaction log in the words of `journal/transaction_log.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.journal.kafka.deadline import Deadline
from penstock.journal.kafka.transaction_log import Entry, Status
from penstock.journal.offset_identity import transactional
from penstock.journal.transaction_log import (
    Decided,
    Idle,
    LogEntry,
    Look,
    Missed,
    NamedProducer,
    TransactionLog,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.journal.kafka.transaction_log import Tombstone
    from penstock.journal.kafka.transaction_tail import TransactionTail

PATIENCE_SECONDS: Final = 90.0
_DECISIONS: Final = {Status.PREPARE_COMMIT: True, Status.PREPARE_ABORT: False}
_COMPLETE: Final = (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
_OPEN: Final = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)


_Told: TypeAlias = "tuple[Entry | Tombstone, LogEntry]"


class KafkaTransactionLog(TransactionLog):
    def __init__(
        self,
        tail: TransactionTail,
        journals_of: Callable[[str, int], Sequence[str]],
        heads: Callable[[Sequence[str]], Mapping[tuple[str, str], int]],
        begins: Mapping[int, int] | None = None,
    ) -> None:
        """`journals_of` gives the journals that a partition of a topic is; `heads` the ends of
        journals, by name and identity. With `begins`, by partition of the log, it is told if the
        log lacks anything from there on."""
        self._tail = tail
        self._journals_of = journals_of
        self._heads = heads
        self._next = dict(begins or {})
        """By partition of the log, where it goes on."""
        self._has_begun = begins is not None
        self._first: list[_Told] | None = None
        self._named: dict[int, NamedProducer] = {}
        """By producer: the newest one of each transactional id."""
        self._producers: dict[str, int] = {}
        """By transactional id, the last that it had."""

    def check(self, deadline: Deadline) -> None:
        """Raises if the log may not be read."""
        self._first = list(self._read(deadline))

    def read(self) -> Sequence[LogEntry]:
        return [told for _, told in self._all(Deadline.after(PATIENCE_SECONDS))]

    def look(self, journals: Sequence[str]) -> Look:
        deadline = Deadline.after(PATIENCE_SECONDS)
        first = self._tail.ends(deadline)
        ends = self._heads(journals)
        last = self._tail.ends(deadline)
        parts: tuple[list[LogEntry], ...] = ([], [], [])
        for entry, told in self._all(deadline):
            begun, over = (
                entry.offset >= edge.get(entry.log_partition, 0) for edge in (first, last)
            )
            parts[begun + over].append(told)
        before, around, later = map(tuple, parts)
        return Look(before, ends, around, later)

    def _all(self, deadline: Deadline) -> list[_Told]:
        found, self._first = self._first or [], None
        return [*found, *self._read(deadline)]

    def named(self, producer: int) -> NamedProducer | None:
        return self._named.get(producer)

    def _note_name(self, entry: Entry | Tombstone) -> None:
        name = entry.transactional_id
        producer = transactional(entry.producer_id) if isinstance(entry, Entry) else None
        known = self._producers.pop(name, None)
        if known is not None and known != producer:
            self._named.pop(known, None)
        if producer is not None and isinstance(entry, Entry):
            is_open = entry.status in _OPEN and entry.started_ms is not None
            began = (entry.started_ms or 0) / 1000 if is_open else None
            self._named[producer] = NamedProducer(name, began)
            self._producers[name] = producer

    def close(self) -> None:
        """Its connections are the store's."""

    def _read(self, deadline: Deadline) -> list[_Told]:
        tail = self._tail.read(deadline)
        found: list[_Told] = []
        for entry in tail.entries:
            expected = self._next.get(entry.log_partition, 0)
            if self._has_begun and entry.offset != expected:
                # Of each id the last entry is still there: it comes with the others.
                found.append((entry, Missed()))
            self._next[entry.log_partition] = entry.offset + 1
            found += [(entry, told) for told in self._told(entry)]
            self._note_name(entry)
        self._next |= tail.ends
        self._has_begun |= bool(self._next)
        return found

    def _told(self, entry: Entry | Tombstone) -> Iterator[LogEntry]:
        known = self._producers.get(entry.transactional_id)
        producer = transactional(entry.producer_id) if isinstance(entry, Entry) else None
        if known is not None and known != producer:
            # An id expires, or gets another producer id, when its last transaction is over.
            # Compaction may have taken the entry that said so.
            yield Idle(known, entry.offset)
        if not isinstance(entry, Entry):
            return
        is_commit = _DECISIONS.get(entry.status)
        if is_commit is None:
            yield Idle(transactional(entry.producer_id), entry.offset, entry.log_partition)
            previous = entry.previous_producer_id
            if entry.status in _COMPLETE and previous not in (None, -1, entry.producer_id):
                # The epochs of the old id are used up, and the transaction was its last.
                yield Idle(transactional(previous), entry.offset, entry.log_partition)
            return
        journals = [
            journal
            for topic, partition in entry.partitions
            for journal in self._journals_of(topic, partition)
        ]
        yield Decided(
            transactional(entry.producer_id),
            entry.offset,
            entry.epoch,
            is_commit,
            tuple(journals),
            entry.log_partition,
        )
