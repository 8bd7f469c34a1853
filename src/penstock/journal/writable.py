"""What can be written into a store: the half beside reading (store.py).

Who writes reads, too: a rollback needs a producer's last commit, and recovery what it acknowledged.
Transactions stand on ledgers, which only this half knows: readers ask for a cut.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.journal.store import ReadableStore

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.ids import Producer
    from penstock.journal.collection import Collection
    from penstock.journal.frames import Payload


@dataclass(frozen=True, slots=True)
class Appended:
    """Rows were placed at [begin, end); they are durable once `sync` has covered `end`."""

    begin: int
    end: int
    identity: str = field(default="", compare=False)
    """Of the journal that has them."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A producer's open transaction reached a journal: from which offset on its rows are found,
    and the producer's last commit there, which is the clock a rollback needs."""

    journal: str
    offset: int
    last_commit: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A transaction is committed: its ACKs of this clock are to be in all of these journals, from
    the offsets of the touches on. It holds them itself: those noted may not outlive a power cut."""

    clock: int
    touches: tuple[Touch, ...]

    @property
    def journals(self) -> tuple[str, ...]:
        return tuple(touch.journal for touch in self.touches)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """What the store knows of a producer: the proof of its transactions.

    `completed` is the clock of the last transaction all of whose ACKs are durable. `decision` is a
    transaction that is committed but perhaps not acknowledged everywhere. `touches` are the
    journals of the open transaction; `is_carried_out` says that they are still those of the one
    that was completed last, and only have to be forgotten.
    """

    producer: Producer
    name: str | None
    retired: bool
    completed: int
    decision: Decision | None
    touches: tuple[Touch, ...]
    settled: bool
    is_carried_out: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody aborted a producer's transaction by hand."""

    producer: Producer
    name: str | None
    at: float
    """Seconds of the wall clock."""
    by: str
    journals: tuple[str, ...]
    """Those that the transaction had touched."""
    outcome: str | None = None
    """`rolled back`; or `committed`, if that was decided before; or `nothing was open`, if it ended
    in this very moment, or somebody else settled it. None: whoever aborted it did not come to the
    end of it, and recovery does what was left."""


class ProducerLedger(abc.ABC):
    """The durable record of one producer's transactions, in the hands of its owner or settler."""

    producer: Producer

    @abc.abstractmethod
    def record(self) -> ProducerRecord:
        """ProducerFencedError if it was settled and forgotten; DamagedLedgerError if a part of it
        cannot be read."""

    @abc.abstractmethod
    def name(self) -> str | None:
        """That it was opened with, if any. The same errors as of `record`."""

    @abc.abstractmethod
    def check_open(self) -> None:
        """ProducerFencedError unless the producer may still write."""

    @abc.abstractmethod
    def touch(self, touch: Touch) -> None:
        """Notes a journal of the open transaction, before the first row goes there."""

    @abc.abstractmethod
    def decide(self, decision: Decision) -> None:
        """Makes the commit true, durably and once. CommitFailedError if the producer was fenced."""

    @abc.abstractmethod
    def confirm(self) -> None:
        """Of a retired producer: what it decided is durable from here on, and nothing more will
        be decided. Its owner may have died in between, or be alive and in the middle of it."""

    @abc.abstractmethod
    def complete(self) -> None:
        """The decided transaction's ACKs are durable everywhere: nothing is left to do for it."""

    @abc.abstractmethod
    def clear(self) -> None:
        """The open transaction is over: forgets its touches."""

    @abc.abstractmethod
    def retire(self) -> None:
        """From here on the producer can neither append nor decide."""

    @abc.abstractmethod
    def settle(self) -> None:
        """A retired producer has nothing left in flight."""


class WritableStore(ReadableStore):
    """A store that can be read, with what its producers and their recovery need."""

    # Collections

    @abc.abstractmethod
    def create(self, collection: Collection) -> Collection:
        """Creates a collection; the same one again is fine, a different one is refused."""

    @abc.abstractmethod
    def evolve(self, name: str, schema: pa.Schema | str) -> Collection:
        """Adds nullable columns; a schema that would break written documents is refused."""

    # Journals

    @abc.abstractmethod
    def append(
        self, journal: str, payloads: Sequence[Payload], ledger: ProducerLedger | None
    ) -> Appended:
        """Places the payloads one after another, in one order over all appenders. The ledger is
        checked in that same order; none is given by who settles a retired producer. Not durable
        before `sync`."""

    @abc.abstractmethod
    def sync(self, journal: str, through: int) -> None:
        """Returns once all rows below `through` are durable, and so visible to readers."""

    @abc.abstractmethod
    def drop_before(self, journal: str, offset: int) -> int:
        """Retention: drops what can be dropped below `offset`; gives the first kept offset."""

    @abc.abstractmethod
    def suspend(self, journal: str) -> None:
        """Drops every row. The journal reads as empty at its head until the next append."""

    # Producers

    @abc.abstractmethod
    def open_ledger(self, name: str | None) -> ProducerLedger:
        """Registers a new producer, alive as long as this process is."""

    @abc.abstractmethod
    def naming(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Held while this name of producers changes hands."""

    @abc.abstractmethod
    def ledgers(self) -> list[ProducerLedger]:
        """All producers that may have a transaction in flight, or had one lately."""

    def unsettled(self) -> list[ProducerLedger]:
        """The retired ones among them that nobody has settled yet."""
        return self.ledgers()

    @abc.abstractmethod
    def retire_dead(self) -> None:
        """Retires the producers whose process is gone, and forgets those long settled."""

    @abc.abstractmethod
    def note_abort(self, abort: Abort) -> Abort:
        """Durably; in place of an earlier note of the same producer, unless that one has an
        outcome. Gives what is on record then."""

    @abc.abstractmethod
    def aborts(self) -> list[Abort]:
        """All that were ever noted, the newest first."""
