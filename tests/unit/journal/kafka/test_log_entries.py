"""Who writes in transactions, as far as the transaction log was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.journal.kafka.log_entries import KafkaTransactionLog
from penstock.journal.kafka.transaction_log import Entry, Status, Tombstone
from penstock.journal.kafka.transaction_tail import Tail
from penstock.journal.offset_identity import transactional
from penstock.journal.transaction_log import NamedProducer

if TYPE_CHECKING:
    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.transaction_tail import TransactionTail


class Written:
    """A transaction log of one partition."""

    def __init__(self) -> None:
        self._entries: list[Entry | Tombstone] = []
        self._end = 0

    def add(self, status: Status, producer: int, started_ms: int | None = None) -> None:
        self._entries.append(
            Entry(0, self._end, "clerk", producer, 0, status, (), 60_000, 0, started_ms)
        )
        self._end += 1

    def forget(self) -> None:
        self._entries.append(Tombstone(0, self._end, "clerk"))
        self._end += 1

    def read(self, deadline: Deadline) -> Tail:
        del deadline
        found, self._entries = tuple(self._entries), []
        return Tail(found, {0: self._end})


def test_a_producer_is_known_by_its_transactional_id_until_the_id_moves_on() -> None:
    written = Written()
    log = KafkaTransactionLog(cast("TransactionTail", written), lambda *_: (), lambda _: {})
    written.add(Status.ONGOING, 7, started_ms=2_500)
    log.read()
    assert log.named(transactional(7)) == NamedProducer("clerk", 2.5)
    assert log.named(transactional(8)) is None
    written.add(Status.COMPLETE_COMMIT, 7, started_ms=2_500)
    log.read()
    assert log.named(transactional(7)) == NamedProducer("clerk", None), "nothing is open"
    written.add(Status.EMPTY, 8)
    log.read()
    assert log.named(transactional(7)) is None, "another producer has the id"
    assert log.named(transactional(8)) == NamedProducer("clerk", None)
    written.forget()
    log.read()
    assert log.named(transactional(8)) is None, "the coordinator forgot it"
