"""Finishing what producers left behind: who finds a decision follows it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.ids import Kind, clock_to_unix
from penstock.journal.cut import JournalCut
from penstock.journal.errors import (
    NothingToAbortError,
    OffsetDroppedError,
    ProducerFencedError,
    UnknownJournalError,
)
from penstock.journal.progress import states_of
from penstock.journal.store import Abort, Touch
from penstock.journal.transaction import acknowledge, roll_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.ids import Producer
    from penstock.journal.store import JournalStore, ProducerLedger, ProducerRecord

Outcome: TypeAlias = Literal["committed", "rolled back"]
"""Of what a producer had in flight."""
NOTHING_OPEN: Final = "nothing was open"
"""The outcome of an abort that came too late."""
SINCE_SECONDS_SLACK: Final = 0.001
"""Clocks are finer than floats of seconds; and nobody opens two transactions, one of which
somebody has seen, within this."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction as somebody saw it, so that no other is taken for it."""

    journals: tuple[str, ...]
    """Some that it touched: who sees it may read a part of them only."""
    since: float | None
    """Seconds of the wall clock: its first row that is durable in these, or one after it."""


def recover(store: JournalStore) -> list[Producer]:
    """Settles every producer whose process is gone; gives those that had something in flight.

    Safe at any time and by any number of processes at once: a repeated ACK is a duplicate.
    """
    store.retire_dead()
    settled = []
    for ledger in store.unsettled():
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


def find_open(store: JournalStore, producer: Producer) -> OpenTransaction:
    """NothingToAbortError if there is none."""
    touches = _find(store, producer).touches
    return OpenTransaction(
        tuple(touch.journal for touch in touches), _since(store, producer, touches)
    )


def abort(
    store: JournalStore,
    producer: Producer,
    by: str,
    at: float,
    seen: OpenTransaction | None = None,
) -> Abort:
    """Fences a producer because of its open transaction, and keeps on record who did so.

    The note comes first: there is no abort that nobody knows of. A commit that was decided before
    is carried out all the same, for it may have been seen. If somebody chose the transaction
    `seen`, no other of that producer is aborted.
    """
    found = _find(store, producer)
    if seen is not None and not _is_same(store, producer, found.touches, seen):
        raise NothingToAbortError(str(producer), has_another=True)
    journals = tuple(touch.journal for touch in found.touches)
    noted = Abort(producer, found.name, at, by, journals)
    store.note_abort(noted)
    return store.note_abort(replace(noted, outcome=_end(store, producer, found)))


def _end(store: JournalStore, producer: Producer, found: _Found) -> str:
    if found.ledger is not None:
        return fence(store, found.ledger) or NOTHING_OPEN
    roll_back(store, producer, found.touches, None)
    return "rolled back"


@dataclass(frozen=True, slots=True)
class _Found:
    """A transaction that is open."""

    ledger: ProducerLedger | None
    """None: its producer is settled, and the journals alone know of it."""
    name: str | None
    touches: tuple[Touch, ...]


def _find(store: JournalStore, producer: Producer) -> _Found:
    ledger = next((one for one in store.ledgers() if one.producer == producer), None)
    name = None
    if ledger is not None:
        with contextlib.suppress(ProducerFencedError):  # settled and forgotten meanwhile
            record = ledger.record()
            touches = record.decision.touches if record.decision is not None else record.touches
            if touches and not record.settled:
                return _Found(ledger, record.name, touches)
            if not record.settled:
                raise NothingToAbortError(str(producer))
            name = record.name
    left = tuple(_left_open(store, producer))
    if not left:
        raise NothingToAbortError(str(producer))
    return _Found(None, name, left)


def _left_open(store: JournalStore, producer: Producer) -> Iterator[Touch]:
    """Spans that nobody will close: a power cut took what was noted of them, and kept their rows.
    Nobody writes as this producer any more."""
    for collection in store.collections():
        for journal in store.journals(collection):
            probe = store.probe(journal.name)
            whole = JournalCut(journal.name, probe.first_kept, probe.write_head)
            state = states_of(store, whole).get(producer.int64)
            if state is not None and state.max_continue:
                yield Touch(journal.name, state.offset, state.last_commit)


def _is_same(
    store: JournalStore, producer: Producer, touches: tuple[Touch, ...], seen: OpenTransaction
) -> bool:
    """What was seen is durable: so it is still found where this transaction began, or this one
    began after it."""
    common = tuple(touch for touch in touches if touch.journal in seen.journals)
    if not common or seen.since is None:
        return bool(common)
    since = _since(store, producer, common)
    return since is not None and since <= seen.since + SINCE_SECONDS_SLACK


def _since(store: JournalStore, producer: Producer, touches: tuple[Touch, ...]) -> float | None:
    clocks = (_first_clock(store, producer, touch) for touch in touches)
    first = min((clock for clock in clocks if clock is not None), default=None)
    if first is None:
        return None
    seconds, nanoseconds = clock_to_unix(first)
    return seconds + nanoseconds / 1e9


def _first_clock(store: JournalStore, producer: Producer, touch: Touch) -> int | None:
    """Of the producer's rows in the journal since it was touched. They are usually the next ones
    there; None if no durable one is."""
    try:
        for batch in store.read(touch.journal, touch.offset, columns=()):
            ours = (batch.producers == producer.int64) & (batch.flags & Kind.CONTINUE != 0)
            if ours.any():
                return int(batch.clocks[ours][0])
    except UnknownJournalError:
        pass  # it was noted, and not made yet
    except OffsetDroppedError:
        return 0  # older than anything that is kept
    return None


def _settle(store: JournalStore, ledger: ProducerLedger) -> Outcome | None:
    """Carries a retired producer's decision out, or rolls its open transaction back."""
    ledger.confirm()
    record = ledger.record()
    try:
        return _carry_out(store, ledger, record)
    except ProducerFencedError:
        return None  # somebody else settled it, so long ago that it is forgotten


def _carry_out(
    store: JournalStore, ledger: ProducerLedger, record: ProducerRecord
) -> Outcome | None:
    outcome: Outcome | None = None
    if record.decision is not None:
        acknowledge(store, record.producer, record.decision, ledger)
        ledger.complete()
        outcome = "committed"
    elif record.touches:
        # If the crash came after completing, before clearing, this finds no open span, and the
        # ACKs are duplicates that change nothing.
        roll_back(store, record.producer, record.touches, ledger)
        outcome = "committed" if record.is_carried_out else "rolled back"
    ledger.clear()
    ledger.settle()
    return outcome
