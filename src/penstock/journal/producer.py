"""A producer that this process holds open: it stamps documents and appends them.

Outside of transactions each document is committed by itself as soon as `append` returns. What
belongs together goes into a `transaction()`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.errors import LocalProtocolError
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, CLOCK_TICK, Kind, clock_from_unix
from penstock.journal.errors import DamagedLedgerError, ProducerFencedError
from penstock.journal.frames import Payload, encode_documents
from penstock.journal.positions import DROP_EVERY, drop_older_positions, read_position
from penstock.journal.producing import StoreProducer
from penstock.journal.recovery import recover_at_once, settle
from penstock.journal.rows import conform, split_by_journal
from penstock.journal.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.ids import Producer
    from penstock.journal.rows import Rows
    from penstock.journal.writable import ProducerLedger, WritableStore

CLOCK_WRITE_MAX: Final = 2**63 - 1
"""Spark has no unsigned numbers. The year 3409 is far enough."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one journal, from their first clock to their last."""

    journal: str
    first_clock: int
    last_clock: int
    payloads: tuple[Payload, ...]


@dataclass(slots=True)
class Stamped:
    """Documents with their identities, ready to be sent, and sent again if need be: a document
    that arrives twice with one identity is read once."""

    collection: str
    parts: tuple[Part, ...]
    rows: int
    sent: set[str] = field(default_factory=set)


class OpenProducer(StoreProducer):
    """Made by `OpenStore.producer()`. Threads may share one; their appends take turns."""

    def __init__(
        self, store: WritableStore, ledger: ProducerLedger, name: str | None = None
    ) -> None:
        self._store = store
        self._ledger = ledger
        self.name = name
        self._lock = threading.RLock()
        self._clock = 0
        self._last_commit: dict[str, tuple[str, int]] = {}
        """By journal, its identity and the clock."""
        self._last_sent: dict[str, int] = {}
        self._transaction: Transaction | None = None
        self._position: str | None = None
        self._is_position_known = False
        self._positions_written = 0
        self._closed = False

    @classmethod
    def open(cls, store: WritableStore, name: str | None) -> OpenProducer:
        recover_at_once(store)
        if name is None:
            return cls(store, store.open_ledger(None))
        # Under the lock of the name nothing is waited for: who held it before is only fenced. It is
        # settled afterwards, which needs the journals that it had touched.
        with store.naming(name):
            ledger = store.open_ledger(name)
            opened = cls(store, ledger, name)
            try:
                earlier = _retire_others(store, ledger, name)
            except BaseException:
                opened.close()
                raise
        try:
            for other in earlier:
                with contextlib.suppress(ProducerFencedError):  # settled and forgotten just now
                    settle(store, other)
        except BaseException:
            opened.close()
            raise
        return opened

    @property
    def id(self) -> Producer:
        return self._ledger.producer

    @property
    def position(self) -> str | None:
        """What the last committed transaction that had a position said, of this producer or of an
        earlier one of its name. None: there was none, or this producer has no name."""
        with self._lock:
            if not self._is_position_known and self.name is not None:
                self._position = read_position(self._store, self.name, self.id)
                self._is_position_known = True
            return self._position

    def append(self, collection: str, rows: Rows) -> int:
        """Appends rows outside of transactions; gives how many. Durable and visible on return."""
        with self._lock:
            stamped = self.stamp(collection, rows)
            self.send(stamped)
            return stamped.rows

    def stamp(self, collection: str, rows: Rows) -> Stamped:
        """Gives rows their identities without sending them."""
        return self._stamp(collection, rows, Kind.OUTSIDE)

    def send(self, stamped: Stamped) -> None:
        """Sends stamped rows. After an error, or a doubt, send the same again before any newer."""
        with self._lock:
            self._check_usable()
            if self._transaction is not None:
                raise LocalProtocolError(
                    "a transaction of this producer is open: append through the transaction, "
                    "or end it first, or use a second producer"
                )
            for part in stamped.parts:
                journal = part.journal
                last_sent = self._last_sent.get(journal, CLOCK_NONE)
                if part.first_clock <= last_sent and journal not in stamped.sent:
                    raise LocalProtocolError(
                        f"{journal}: newer rows of this producer were sent before these, which "
                        "would now pass for duplicates and be lost; stamp the rows again"
                    )
                appended = self._store.append(journal, part.payloads, self._ledger)
                self._store.sync(journal, appended.end)
                stamped.sent.add(journal)
                self._last_sent[journal] = max(part.last_clock, last_sent)
                self._last_commit[journal] = appended.identity, self._last_sent[journal]

    def transaction(self) -> Transaction:
        """Opens a transaction: use it with `with`. Committed at the end, rolled back on error."""
        with self._lock:
            self._check_usable()
            if self._transaction is not None:
                raise LocalProtocolError(
                    "this producer has a transaction open already; end it first, or use another "
                    "producer for a second one"
                )
            self._transaction = Transaction(self._store, self._ledger, self, self._lock)
            return self._transaction

    def close(self) -> None:
        """Ends the producer for good; an open transaction is rolled back."""
        with self._lock:
            if self._closed:
                return
            if self._transaction is not None:
                self._transaction.rollback()
            self._closed = True
            # Fenced, and forgotten long ago; or damaged, and left to recovery.
            with contextlib.suppress(ProducerFencedError, DamagedLedgerError):
                record = self._ledger.record()
                if record.decision is None and not record.touches:
                    self._ledger.settle()
            self._ledger.retire()

    # For the transaction

    def stamp_continue(self, collection: str, rows: Rows) -> Stamped:
        return self._stamp(collection, rows, Kind.CONTINUE)

    def position_committed(self, position: str) -> None:
        with self._lock:
            self._position, self._is_position_known = position, True
            self._positions_written += 1
            if self.name is not None and self._positions_written % DROP_EVERY == 0:
                drop_older_positions(self._store, self.name, self.id)

    def next_clock(self) -> int:
        with self._lock:
            return int(self._take_clocks(1)[0])

    def last_commit(self, journal: str, identity: str | None) -> int:
        """In the journal with that identity: in one that was made anew there is none yet."""
        known, clock = self._last_commit.get(journal, (identity, CLOCK_FLOOR))
        return clock if known == identity else CLOCK_FLOOR

    def ended(self, identities: Mapping[str, str], committed_at: int | None) -> None:
        """`identities` of the journals that the transaction reached, by name."""
        with self._lock:
            self._transaction = None
            for journal, identity in identities.items():
                # Rolled-back clocks are spent too: nothing may be sent below them any more.
                self._last_sent[journal] = self._clock
                if committed_at is not None:
                    self._last_commit[journal] = identity, committed_at

    def _stamp(self, collection: str, rows: Rows, kind: Kind) -> Stamped:
        spec = self._store.collection(collection)
        batch = conform(spec, rows)
        with self._lock:
            parts = []
            for journal, documents in split_by_journal(spec, batch):
                if documents.num_rows == 0:
                    continue
                clocks = self._take_clocks(documents.num_rows)
                payloads = tuple(encode_documents(spec.version, documents, self.id, clocks, kind))
                parts.append(Part(journal, int(clocks[0]), int(clocks[-1]), payloads))
            return Stamped(collection, tuple(parts), batch.num_rows)

    def _take_clocks(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The next `count` clocks: of now, or one microsecond after the last one given."""
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        first = max(self._clock + CLOCK_TICK, clock_from_unix(seconds, nanoseconds))
        last = first + (count - 1) * CLOCK_TICK
        if last > CLOCK_WRITE_MAX:
            raise LocalProtocolError(
                f"this machine's clock says {first:#x}, beyond what a document can carry; set it"
            )
        self._clock = last
        return np.arange(first, last + 1, CLOCK_TICK, dtype=np.uint64)

    def _check_usable(self) -> None:
        if self._closed:
            raise ProducerFencedError(str(self.id))


def _retire_others(store: WritableStore, ledger: ProducerLedger, name: str) -> list[ProducerLedger]:
    """The earlier producers of a name, which can write no more from here on."""
    retired = []
    for other in store.ledgers():
        if other.producer != ledger.producer and _is_named(other, name):
            other.retire()
            retired.append(other)
    return retired


def _is_named(ledger: ProducerLedger, name: str) -> bool:
    try:
        return ledger.name() == name
    except ProducerFencedError:
        return False  # forgotten just now
    except DamagedLedgerError as damage:
        if damage.known.is_retired:
            return False  # whoever it was writes no more
        raise  # it lives, and may be the one that has this name
