"""Finishing what producers left behind: who finds a decision follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.journal.errors import NothingToAbortError, ProducerFencedError
from penstock.journal.store import Abort
from penstock.journal.transaction import acknowledge, roll_back

if TYPE_CHECKING:
    from penstock.ids import Producer
    from penstock.journal.store import JournalStore, ProducerLedger

Outcome: TypeAlias = Literal["committed", "rolled back"]
"""Of what a producer had in flight."""


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


def fence(store: JournalStore, ledger: ProducerLedger) -> Outcome | None:
    """Ends a producer for good, alive or not: first it can do no more, then it is settled. Gives
    what became of a transaction that it had in flight."""
    ledger.retire()
    return None if ledger.record().settled else _settle(store, ledger)


def abort(store: JournalStore, producer: Producer, by: str, at: float) -> Abort:
    """Fences a producer because of its open transaction, and keeps on record who did so.

    The note comes first: there is no abort that nobody knows of. A commit that was decided before
    is carried out all the same, for it may have been seen.
    """
    ledger = next((one for one in store.ledgers() if one.producer == producer), None)
    if ledger is None:
        raise NothingToAbortError(str(producer))
    try:
        record = ledger.record()
    except ProducerFencedError:
        raise NothingToAbortError(str(producer)) from None  # settled and forgotten meanwhile
    touches = record.decision.touches if record.decision is not None else record.touches
    if record.settled or not touches:
        raise NothingToAbortError(str(producer))
    journals = tuple(touch.journal for touch in touches)
    noted = Abort(producer, record.name, at, by, journals)
    store.note_abort(noted)
    done = replace(noted, outcome=fence(store, ledger))
    store.note_abort(done)
    return done


def _settle(store: JournalStore, ledger: ProducerLedger) -> Outcome | None:
    """Carries a retired producer's decision out, or rolls its open transaction back."""
    ledger.confirm()
    record = ledger.record()
    outcome: Outcome | None = None
    if record.decision is not None:
        acknowledge(store, record.producer, record.decision, None)
        ledger.complete()
        outcome = "committed"
    elif record.touches:
        # If the crash came after completing, before clearing, this finds no open span, and the
        # ACKs are duplicates that change nothing.
        roll_back(store, record.producer, record.touches, None)
        outcome = "rolled back"
    ledger.clear()
    ledger.settle()
    return outcome
