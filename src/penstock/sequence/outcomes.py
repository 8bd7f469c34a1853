"""The words in which sequencing speaks: outcomes, faults, producer states, sequenced batches."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.ids import CLOCK_FLOOR, CLOCK_MAX, Producer

if TYPE_CHECKING:
    from collections.abc import Mapping

Rows: TypeAlias = NDArray[np.intp]
"""Row numbers in a batch."""
Int64s: TypeAlias = NDArray[np.int64]
Clocks: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.uint16]
Outcomes: TypeAlias = NDArray[np.uint8]


class Outcome(enum.IntEnum):
    """What one document turned out to be. Numbered so that the groups below are ranges."""

    CONTINUE_EXTEND = 0
    CONTINUE_BEGIN = 1
    OUTSIDE_COMMIT = 2
    ACK_COMMIT = 3
    ACK_EMPTY = 4
    ACK_CLEAN_ROLLBACK = 5
    ACK_DEEP_ROLLBACK = 6
    OUTSIDE_DUPLICATE = 7
    CONTINUE_DUPLICATE = 8
    ACK_DUPLICATE = 9


# The limits of the groups, as plain numbers: they are compared with whole columns.
BEGIN: Final = Outcome.CONTINUE_BEGIN.value
KEEP_LAST: Final = Outcome.OUTSIDE_COMMIT.value
"""Up to here the document is stored."""
CLOSE_FIRST: Final = Outcome.OUTSIDE_COMMIT.value
"""From here to CLOSE_LAST the producer has no open span afterwards, and has made progress."""
ROLLBACK_FIRST: Final = Outcome.ACK_CLEAN_ROLLBACK.value
"""From here to CLOSE_LAST stored documents are discarded."""
CLOSE_LAST: Final = Outcome.ACK_DEEP_ROLLBACK.value
"""After here are the duplicates, which change nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document stands and who wrote it."""

    journal: str
    offset: int
    producer: int

    def __str__(self) -> str:
        producer = Producer.from_int64(self.producer)
        return f"journal {self.journal} at offset {self.offset}: producer {producer}"


class SequenceFaultError(RemoteProtocolError):
    """A producer broke the order of its own transactions. Look at the process that writes as it."""

    what = "broke the order of its transactions"
    remedy = "Find the process that writes as this producer."

    def __init__(
        self, clock: int, last_commit: int, max_continue: int, place: Place | None = None
    ) -> None:
        super().__init__(clock, last_commit, max_continue, place)
        self.clock = clock
        self.last_commit = last_commit
        self.max_continue = max_continue
        self.place = place
        """Known once a reader raises the error (`Sequenced.raise_fault`)."""

    def at(self, place: Place) -> SequenceFaultError:
        """The same error, saying where, if it does not yet."""
        return type(self)(self.clock, self.last_commit, self.max_continue, self.place or place)

    def __str__(self) -> str:
        return (
            f"{self.place or 'a producer'} {self.what} (clock {self.clock:#x}, last commit "
            f"{self.last_commit:#x}, open span up to {self.max_continue:#x}). Nothing from this "
            f"document on was read. {self.remedy} Two processes that write as one producer also "
            "cause this: give each its own."
        )


class OutsideWithPrecedingContinueError(SequenceFaultError):
    """A document outside of transactions came while a span is open. The writer must ACK first."""

    what = "wrote a document outside of transactions while a transaction of it is open"
    remedy = "Its writer must ACK the open transaction, to commit it or roll it back, before that."


class AckPartialCommitError(SequenceFaultError):
    """An ACK would commit a part of its span. The writer must ACK at or after its last clock."""

    what = "acknowledged only a part of its open transaction"
    remedy = "Its writer must ACK with a clock that is not before any document it commits."


@dataclass(frozen=True, slots=True)
class ProducerState:
    """Where one producer stands in one journal.

    `max_continue` is the last clock of its open span, 0 if none is open. Equal to `last_commit` it
    stands for a span whose documents are still to be read again (a gapped producer).
    `offset` >= 0 is where the open span begins; < 0 it is minus the end of the last close.
    """

    last_commit: int
    max_continue: int
    offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.last_commit <= CLOCK_MAX or (
            self.max_continue != 0 and not self.last_commit <= self.max_continue <= CLOCK_MAX
        ):
            raise LocalProtocolError(f"no producer can be in this state: {self}")


UNSEEN: Final = ProducerState(last_commit=CLOCK_FLOOR, max_continue=0, offset=0)
"""A producer before its first document."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that may not follow those before it, with its producer's state before it."""

    row: int
    offset: int
    producer: int
    clock: int
    last_commit: int
    max_continue: int
    error: type[SequenceFaultError]


@dataclass(frozen=True, slots=True, eq=False)
class Discards:
    """The rollbacks of a batch in row order.

    Each discards the documents of its producer that were stored before its row, in this batch or
    an earlier one, and have `after < clock <= through`.
    """

    rows: Rows
    producers: Int64s
    after: Clocks
    through: Clocks

    @classmethod
    def none(cls) -> Discards:
        clocks = np.empty(0, np.uint64)
        return cls(np.empty(0, np.intp), np.empty(0, np.int64), clocks, clocks)


@dataclass(frozen=True, slots=True, eq=False)
class Sequenced:
    """A batch sequenced up to its end or its first fault: all of this is about rows < `count`."""

    count: int
    outcomes: Outcomes
    """One `Outcome` per row."""
    keep: NDArray[np.bool_]
    """True for the documents to store."""
    closes: Rows
    """The rows after which their producer's progress may be reported."""
    discards: Discards
    changed: dict[int, ProducerState]
    """After the last row, the states of the producers that may stand elsewhere than before it.
    Duplicates make no producer known."""
    before: Mapping[int, ProducerState]
    """The states that the batch was sequenced from."""
    fault: Fault | None

    @classmethod
    def of(
        cls,
        outcomes: Outcomes,
        discards: Discards,
        changed: dict[int, ProducerState],
        before: Mapping[int, ProducerState],
        fault: Fault | None,
    ) -> Sequenced:
        return cls(
            count=len(outcomes),
            outcomes=outcomes,
            keep=outcomes <= KEEP_LAST,
            # The subtraction wraps around, so one comparison sees to both limits.
            closes=np.flatnonzero(outcomes - CLOSE_FIRST <= CLOSE_LAST - CLOSE_FIRST),
            discards=discards,
            changed=changed,
            before=before,
            fault=fault,
        )

    @property
    def states(self) -> dict[int, ProducerState]:
        """Every known producer's state after the last row. This copies all of them: who goes from
        batch to batch updates its own by `changed`."""
        return {**self.before, **self.changed}

    def raise_fault(self, journal: str) -> None:
        """Raises the fault as an error about that journal; does nothing if there is none."""
        if (fault := self.fault) is not None:
            place = Place(journal, fault.offset, fault.producer)
            raise fault.error(fault.clock, fault.last_commit, fault.max_continue, place)
