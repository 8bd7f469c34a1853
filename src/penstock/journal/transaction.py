"""A transaction over any number of journals: visible in all of them, or in none.

The steps have the numbers they have in ARCHITECTURE.md. Up to step 3 everything can be rolled
back; step 4 is the commit; after it nothing rolls back, and whoever finds the decision finishes.

    1  touch       the journal is noted in the producer's ledger
    2  append      documents go there as CONTINUE, over and over
    3  sync        all documents are durable
    4  decide      the decision (clock, journals) is durable: the transaction is committed
    5  acknowledge an ACK with hints goes to every journal, durably
    6  complete    the decision is marked as carried out
    7  clear       the touches are forgotten
"""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    LocalProtocolError,
    PenstockError,
)
from penstock.journal.errors import (
    DamagedLedgerError,
    ProducerFencedError,
    UnknownJournalError,
)
from penstock.journal.frames import Ack, encode_ack
from penstock.journal.positions import POSITIONS, check_position
from penstock.journal.producing import StoreTransaction
from penstock.journal.writable import Decision, ProducerLedger, Touch, WritableStore

if TYPE_CHECKING:
    import threading

    from penstock.ids import Producer
    from penstock.journal.producer import OpenProducer, Part
    from penstock.journal.rows import Rows

TRANSACTION_JOURNALS_MAX: Final = 1_024
"""Every ACK names all the other journals, so that hints grow with the square of this."""


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    TOUCHED = "1"
    APPENDED = "2"
    SYNCED = "3"
    DECIDED = "4"
    ACKNOWLEDGED_ONE = "5, in one journal"
    ACKNOWLEDGED = "5"
    COMPLETED = "6"
    CLEARED = "7"
    ROLLED_BACK_ONE = "rolled back, in one journal"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


class Transaction(StoreTransaction):
    """Made by `OpenProducer.transaction()`."""

    def __init__(
        self,
        store: WritableStore,
        ledger: ProducerLedger,
        producer: OpenProducer,
        lock: threading.RLock,
    ) -> None:
        # Clocks are appended in the order they are given out, or the later ones would pass for
        # duplicates: threads that share a transaction take turns.
        self._lock = lock
        self._store = store
        self._ledger = ledger
        self._producer = producer
        self._touched: dict[str, Touch] = {}
        self._ends: dict[str, int] = {}
        self._identities: dict[str, str] = {}
        """Of the journals that have its rows."""
        self._position: str | None = None
        self._over = False
        self._spoiled = False

    def position(self, position: str) -> None:
        """Commits with the transaction how far the program has come with its own work. A later
        producer of the same name finds it as `position`. Of several, the last one counts."""
        with self._lock:
            name = self._producer.name
            check_position(name, position)
            self._store.create(POSITIONS)
            self._append(POSITIONS.name, {"name": name, "position": position})
            self._position = position

    def append(self, collection: str, rows: Rows) -> int:
        """Adds rows to the transaction; gives how many. Refused rows leave it as it was."""
        with self._lock:
            return self._append(collection, rows)

    def _append(self, collection: str, rows: Rows) -> int:
        self._check_open()
        stamped = self._producer.stamp_continue(collection, rows)
        new = {part.journal for part in stamped.parts} - self._touched.keys()
        if len(self._touched) + len(new) > TRANSACTION_JOURNALS_MAX:
            raise LocalProtocolError(
                f"a transaction reaches at most {TRANSACTION_JOURNALS_MAX} journals; split it"
            )
        for place, part in enumerate(stamped.parts):
            try:
                self._append_part(part)
            except BaseException as error:
                # Some of the rows are in, or may be, and some are not. Our own errors come before
                # anything is written to that journal, so with the first one nothing is.
                self._spoiled = place > 0 or not isinstance(error, PenstockError)
                raise
        return stamped.rows

    def _append_part(self, part: Part) -> None:
        journal = part.journal
        if journal not in self._touched:
            touch = self._touch(journal)
            self._ledger.touch(touch)
            self._touched[journal] = touch
            reached(Step.TOUCHED)
        appended = self._store.append(journal, part.payloads, self._ledger)
        self._ends[journal] = appended.end
        self._identities[journal] = appended.identity
        reached(Step.APPENDED)

    def commit(self) -> None:
        """Makes the transaction visible everywhere. On CommitFailedError it is rolled back."""
        with self._lock:
            self._commit()

    def _commit(self) -> None:
        if self._spoiled and not self._over:
            self.rollback()
            raise CommitFailedError(
                "an append of this transaction failed halfway; it is rolled back. Run it again"
            )
        self._check_open()
        journals = sorted(self._ends)
        if not journals:
            self.rollback()
            return
        try:
            for journal in journals:
                self._store.sync(journal, self._ends[journal])
            reached(Step.SYNCED)
            clock = self._producer.next_clock()
            decision = Decision(clock, tuple(self._touched[journal] for journal in journals))
            self._ledger.decide(decision)
        except CommitStateUnknownError:
            self._leave_to_recovery()
            raise
        except LocalProtocolError:
            raise  # in a forked child: the transaction is its parent's
        except (PenstockError, OSError) as error:
            # Where even that fails, the producer ends with it, and recovery rolls back.
            with contextlib.suppress(PenstockError, OSError):
                self.rollback()
            if isinstance(error, CommitFailedError):
                raise
            raise CommitFailedError(
                f"the transaction's documents could not be made durable: {error}. It is rolled "
                "back, if not now then by recover(); mend what is named and run it again"
            ) from error
        self._over = True
        try:
            self._carry_out(decision)
        except ProducerFencedError:
            pass  # Who fenced this producer found the decision and acknowledges it.
        except BaseException as error:
            self._leave_to_recovery()
            if not isinstance(error, PenstockError | OSError):
                raise  # interrupted: recover() goes on from here
            raise CommitStateUnknownError(
                f"the transaction is committed, but not yet visible everywhere: {error}. "
                "Mend the disk and call recover()"
            ) from error
        self._end(clock)
        if self._position is not None:
            self._producer.position_committed(self._position)

    def _carry_out(self, decision: Decision) -> None:
        reached(Step.DECIDED)
        acknowledge(self._store, self._producer.id, decision, self._ledger)
        reached(Step.ACKNOWLEDGED)
        self._ledger.complete()
        reached(Step.COMPLETED)
        self._ledger.clear()
        reached(Step.CLEARED)

    def rollback(self) -> None:
        """Discards the transaction everywhere. The producer may go on with another."""
        with self._lock:
            self._rollback()

    def _rollback(self) -> None:
        if self._over:
            return
        self._over = True
        try:
            if self._is_decided():
                # Interrupted just when the commit became true: it is not to be taken back.
                self._ledger.retire()
                return
            roll_back(self._store, self._producer.id, tuple(self._touched.values()), self._ledger)
            self._ledger.clear()
        except ProducerFencedError:
            pass  # Who fenced this producer rolls it back.
        except BaseException:
            # The span is still open: were this producer to go on, its next commit would take the
            # discarded documents along. So it must not; recover() rolls back in its place.
            self._ledger.retire()
            raise
        finally:
            self._end(None)

    def _is_decided(self) -> bool:
        try:
            return self._ledger.record().decision is not None
        except DamagedLedgerError as damage:
            return damage.known.is_decided  # all else is known here

    @property
    def is_over(self) -> bool:
        return self._over

    def _touch(self, journal: str) -> Touch:
        """From where on this transaction's rows in the journal are to be looked for, and what it
        has of the producer."""
        try:
            probe = self._store.probe(journal)
        except UnknownJournalError:
            return Touch(journal, 0, self._producer.last_commit(journal, None))
        last_commit = self._producer.last_commit(journal, probe.identity)
        return Touch(journal, probe.write_head, last_commit)

    def _leave_to_recovery(self) -> None:
        """The decision stands, or may stand: nothing rolls back any more. Who settles this
        producer after it carries the decision out, if there is one."""
        self._end(None)
        with contextlib.suppress(OSError):  # the disk may be what brought us here
            self._ledger.retire()

    def _end(self, committed_at: int | None) -> None:
        self._over = True
        identities = {journal: self._identities.get(journal, "") for journal in self._touched}
        self._producer.ended(identities, committed_at)

    def _check_open(self) -> None:
        if self._over:
            raise LocalProtocolError("this transaction is over; open another with transaction()")
        if self._spoiled:
            raise LocalProtocolError(
                "an append of this transaction failed halfway: roll it back and run it again"
            )


def acknowledge(
    store: WritableStore, producer: Producer, decision: Decision, ledger: ProducerLedger | None
) -> None:
    """Step 5, by the owner or by who settles after it: an ACK in every journal, durably."""
    ends = {}
    for journal in decision.journals:
        others = tuple(other for other in decision.journals if other != journal)
        payload = encode_ack(1, Ack(producer, decision.clock, others))
        ends[journal] = store.append(journal, [payload], ledger).end
        reached(Step.ACKNOWLEDGED_ONE)
    for journal, end in ends.items():
        store.sync(journal, end)


def roll_back(
    store: WritableStore,
    producer: Producer,
    touches: tuple[Touch, ...],
    ledger: ProducerLedger | None,
) -> None:
    """An ACK of each journal's own last commit closes the span there and discards it."""
    for touch in touches:
        try:
            store.probe(touch.journal)
        except UnknownJournalError:
            continue  # the crash came before the journal was made
        payload = encode_ack(1, Ack(producer, touch.last_commit))
        end = store.append(touch.journal, [payload], ledger).end
        store.sync(touch.journal, end)
        reached(Step.ROLLED_BACK_ONE)
