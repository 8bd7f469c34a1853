"""Finishing what producers left behind: who finds a decision follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.journal.errors import ProducerFencedError
from penstock.journal.transaction import acknowledge, roll_back

if TYPE_CHECKING:
    from penstock.ids import Producer
    from penstock.journal.store import JournalStore, ProducerLedger


def recover(store: JournalStore) -> list[Producer]:
    """Settles every producer whose process is gone; gives those that had something in flight.

    Safe at any time and by any number of processes at once: a repeated ACK is a duplicate.
    """
    store.retire_dead()
    settled = []
    for ledger in store.ledgers():
        try:
            record = ledger.record()
        except ProducerFencedError:
            continue  # settled and forgotten meanwhile
        if record.retired and not record.settled and _settle(store, ledger):
            settled.append(record.producer)
    return settled


def fence(store: JournalStore, ledger: ProducerLedger) -> None:
    """Ends a producer for good, alive or not: first it can do no more, then it is settled."""
    ledger.retire()
    if not ledger.record().settled:
        _settle(store, ledger)


def _settle(store: JournalStore, ledger: ProducerLedger) -> bool:
    """Carries a retired producer's decision out, or rolls its open transaction back."""
    ledger.confirm()
    record = ledger.record()
    if record.decision is not None:
        acknowledge(store, record.producer, record.decision, None)
        ledger.complete()
    elif record.touches:
        # If the crash came after completing, before clearing, this finds no open span, and the
        # ACKs are duplicates that change nothing.
        roll_back(store, record.producer, record.touches, None)
    ledger.clear()
    ledger.settle()
    return record.decision is not None or bool(record.touches)
