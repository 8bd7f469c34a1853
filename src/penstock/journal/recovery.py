"""Finishing what producers left behind: who finds a decision follows it.

Of a ledger that is damaged two things are left: whether a decision is there, whatever it says, and
the journals. All spans that a producer has open belong to its one transaction. If a decision is
there, or one of the journals has the commit already, the transaction was committed, and the others
are acknowledged; if not, nobody has ever seen it, and it is rolled back. Journals are also asked
where no decision is beside touches that are whole: it may be the one file that was lost.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.errors import CorruptStorageError, PenstockError
from penstock.ids import CLOCK_NONE, CLOCK_TICK, Kind, clock_to_unix
from penstock.journal.cut import JournalCut
from penstock.journal.errors import (
    DamagedLedgerError,
    NothingToAbortError,
    OffsetDroppedError,
    ProducerFencedError,
    UnknownJournalError,
)
from penstock.journal.progress import first_clock_open, states_of
from penstock.journal.transaction import acknowledge, roll_back
from penstock.journal.writable import Abort, Decision, Touch
from penstock.locks import LockHeldError, locking_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.ids import Producer
    from penstock.journal.writable import ProducerLedger, ProducerRecord, WritableStore
    from penstock.sequence import ProducerState

Outcome: TypeAlias = Literal["committed", "rolled back"]
"""Of what a producer had in flight."""
NOTHING_OPEN: Final = "nothing was open"
"""The outcome of an abort that came too late."""
ALL_WRITTEN: Final = 2**63 - 1
"""An offset above all: what was appended so far is made durable."""
PASSING_SECONDS_MAX: Final = 0.2
"""For locks, of who settles dead producers on its way to something else."""
SINCE_SECONDS_SLACK: Final = 0.001
"""Clocks are finer than floats of seconds; and nobody opens two transactions, one of which
somebody has seen, within this."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction as somebody saw it, so that no other is taken for it."""

    journals: tuple[str, ...]
    """Some that it touched: who sees it may read a part of them only."""
    since: float | None
    """Seconds of the wall clock: its first row that is durable in these, or one after it."""


@dataclass(slots=True)
class Recovery:
    """What became of producers whose process is gone."""

    outcomes: dict[Producer, Outcome] = field(default_factory=dict)
    """Of those that had something in flight."""
    left: dict[Producer, PenstockError] = field(default_factory=dict)
    """Those that cannot be settled now, and why. What they have in flight stays hidden."""

    @property
    def settled(self) -> list[Producer]:
        return list(self.outcomes)


def recover(store: WritableStore) -> Recovery:
    """Settles every producer whose process is gone. One that cannot be settled, because something
    of it is damaged or held by a process that was paused, holds up none of the others.

    Safe at any time and by any number of processes at once: a repeated ACK is a duplicate.
    """
    store.retire_dead()
    found = Recovery()
    for ledger in store.unsettled():
        try:
            outcome = _settle(store, ledger) if _is_left(ledger) else None
            if outcome is not None:
                found.outcomes[ledger.producer] = outcome
        except ProducerFencedError:
            continue  # settled and forgotten meanwhile
        except (CorruptStorageError, LockHeldError) as error:
            log.warning("producer %s cannot be settled: %s", ledger.producer, error)
            found.left[ledger.producer] = error
    return found


def recover_at_once(store: WritableStore) -> Recovery:
    """The same by whoever comes by: what has to wait for somebody is left to others."""
    with locking_within(PASSING_SECONDS_MAX):
        return recover(store)


def _is_left(ledger: ProducerLedger) -> bool:
    """Whether a producer is retired and not settled."""
    try:
        record = ledger.record()
    except DamagedLedgerError as damage:
        return damage.known.is_retired and not damage.known.is_settled
    return record.retired and not record.settled


def fence(store: WritableStore, ledger: ProducerLedger) -> Outcome | None:
    """Ends a producer for good, alive or not: first it can do no more, then it is settled. Gives
    what became of a transaction that it had in flight."""
    ledger.retire()
    return settle(store, ledger)


def settle(store: WritableStore, ledger: ProducerLedger) -> Outcome | None:
    """Of a retired producer."""
    try:
        settled = ledger.record().settled
    except DamagedLedgerError as damage:
        settled = damage.known.is_settled
    return None if settled else _settle(store, ledger)


def find_open(store: WritableStore, producer: Producer) -> OpenTransaction:
    """NothingToAbortError if there is none."""
    touches = _find(store, producer).touches
    return OpenTransaction(
        tuple(touch.journal for touch in touches), _since(store, producer, touches)
    )


def abort(
    store: WritableStore,
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


def _end(store: WritableStore, producer: Producer, found: _Found) -> str:
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


def _find(store: WritableStore, producer: Producer) -> _Found:
    ledger = next((one for one in store.ledgers() if one.producer == producer), None)
    name = None
    if ledger is not None:
        with contextlib.suppress(ProducerFencedError):  # settled and forgotten meanwhile
            try:
                record = ledger.record()
            except DamagedLedgerError:
                spans = _open_spans(store, producer)
                if not spans:
                    raise NothingToAbortError(str(producer)) from None
                return _Found(ledger, None, spans)
            touches = record.decision.touches if record.decision is not None else record.touches
            if touches and not record.settled:
                return _Found(ledger, record.name, touches)
            if not record.settled:
                raise NothingToAbortError(str(producer))
            name = record.name
    # Spans that nobody will close: a power cut took what was noted of them, and kept their rows.
    left = _open_spans(store, producer)
    if not left:
        raise NothingToAbortError(str(producer))
    return _Found(None, name, left)


def _open_spans(store: WritableStore, producer: Producer) -> tuple[Touch, ...]:
    """As the journals themselves tell. Nobody writes as this producer any more."""
    return tuple(
        Touch(journal, state.offset, state.last_commit)
        for journal, state in _states_of(store, producer, _all_journals(store))
        if state.max_continue
    )


def _states_of(
    store: WritableStore, producer: Producer, journals: Iterable[str]
) -> Iterator[tuple[str, ProducerState]]:
    """Where the producer stands, in each of the journals that is there and has rows of it."""
    for journal in journals:
        try:
            probe = store.probe(journal)
        except UnknownJournalError:
            continue  # the crash came before the journal was made, or it was deleted
        whole = JournalCut(journal, probe.first_kept, probe.write_head)
        state = states_of(store, whole).get(producer.int64)
        if state is not None:
            yield journal, state


def _all_journals(store: WritableStore) -> Iterator[str]:
    for collection in store.collections():
        for journal in store.journals(collection):
            yield journal.name


def _is_same(
    store: WritableStore, producer: Producer, touches: tuple[Touch, ...], seen: OpenTransaction
) -> bool:
    """What was seen is durable: so it is still found where this transaction began, or this one
    began after it."""
    common = tuple(touch for touch in touches if touch.journal in seen.journals)
    if not common or seen.since is None:
        return bool(common)
    since = _since(store, producer, common)
    return since is not None and since <= seen.since + SINCE_SECONDS_SLACK


def _since(store: WritableStore, producer: Producer, touches: tuple[Touch, ...]) -> float | None:
    clocks = (_first_clock(store, producer, touch) for touch in touches)
    first = min((clock for clock in clocks if clock is not None), default=None)
    if first is None:
        return None
    seconds, nanoseconds = clock_to_unix(first)
    return seconds + nanoseconds / 1e9


def _first_clock(store: WritableStore, producer: Producer, touch: Touch) -> int | None:
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


def _settle(store: WritableStore, ledger: ProducerLedger) -> Outcome | None:
    """Carries a retired producer's decision out, or rolls its open transaction back."""
    ledger.confirm()
    try:
        record = ledger.record()
    except DamagedLedgerError as damage:
        outcome = _settle_by_journals(
            store, ledger, list(_all_journals(store)), is_decided=damage.known.is_decided
        )
        log.warning(
            "%s was damaged (%s); producer %s was settled from what the journals hold: %s",
            damage.file,
            damage.reason,
            ledger.producer,
            outcome or NOTHING_OPEN,
        )
    else:
        outcome = _settle_by_record(store, ledger, record)
    ledger.complete()
    ledger.clear()
    ledger.settle()
    return outcome


def _settle_by_record(
    store: WritableStore, ledger: ProducerLedger, record: ProducerRecord
) -> Outcome | None:
    if record.decision is not None:
        acknowledge(store, record.producer, record.decision, ledger)
        # A power cut may bring a decision back that was carried out, beside later touches.
        decided = record.decision.touches
        later = tuple(touch for touch in record.touches if touch not in decided)
        roll_back(store, record.producer, later, ledger)
        return "committed"
    if not record.touches:
        return None
    journals = [touch.journal for touch in record.touches]
    if (
        _has_commit_since(store, record)
        and _settle_by_journals(store, ledger, journals, is_decided=False) == "committed"
    ):
        log.warning(
            "the decision of producer %s is lost; its transaction was committed, for a journal has "
            "the acknowledgement",
            record.producer,
        )
        return "committed"
    # If the crash came after completing, before clearing, this finds no open span, and the
    # ACKs are duplicates that change nothing.
    roll_back(store, record.producer, record.touches, ledger)
    return "committed" if record.is_carried_out else "rolled back"


def _has_commit_since(store: WritableStore, record: ProducerRecord) -> bool:
    """Whether a journal has a commit that its producer made after touching it."""
    states = dict(_states_of(store, record.producer, (touch.journal for touch in record.touches)))
    return any(
        touch.journal in states and states[touch.journal].last_commit > touch.last_commit
        for touch in record.touches
    )


def _settle_by_journals(
    store: WritableStore, ledger: ProducerLedger, journals: Iterable[str], *, is_decided: bool
) -> Outcome | None:
    """See above. `journals` has all of the transaction, and perhaps others. A producer does nothing
    else while a transaction is open: what it committed after the first document of one is that
    transaction."""
    producer = ledger.producer
    for journal in journals:
        with contextlib.suppress(UnknownJournalError):
            store.sync(journal, ALL_WRITTEN)  # a span that nobody came to sync is closed, too
    states = dict(_states_of(store, producer, journals))
    opened = {journal: state for journal, state in states.items() if state.max_continue}
    if not opened:
        return "committed" if is_decided else None
    touches = tuple(
        Touch(journal, state.offset, state.last_commit) for journal, state in opened.items()
    )
    begun = min(
        clock
        for journal, state in opened.items()
        if (clock := first_clock_open(store, journal, producer.int64, state)) is not None
    )
    committed = max(state.last_commit for state in states.values())
    if committed < begun:
        committed = CLOCK_NONE
    if not is_decided and not committed:
        roll_back(store, producer, touches, ledger)
        return "rolled back"
    clock = committed or max(state.max_continue for state in opened.values()) + CLOCK_TICK
    heard = tuple(
        Touch(journal, 0, clock) for journal, state in states.items() if state.last_commit == clock
    )
    acknowledge(store, producer, Decision(clock, touches + heard), ledger)
    return "committed"
