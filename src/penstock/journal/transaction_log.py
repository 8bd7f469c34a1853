"""What a log of transactions tells, where transactions are decided beside the journals. Pure.

In the embedded store and in Gazette an acknowledgement names the other journals of its transaction.
Kafka's markers do not: there a topic of its own, the transaction log, names the partitions of every
transaction before the first marker is written. A store that has such a log gives it to readers as a
`TransactionLog`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.journal.offset_identity import READER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Marker:
    """A row that ends a producer's transaction in a journal, as one binding reads it."""

    journal: str
    """What frontiers call it."""
    binding: int
    producer: int
    """`READER`: this is no marker. The journal has lost rows before the offset, and whatever
    markers were among them."""
    offset: int
    epoch: int
    is_commit: bool
    is_empty: bool = False
    """It commits nothing. A coordinator that takes over writes markers again that the one before it
    had written: this may be such a repetition, which the log has no entry for."""

    @classmethod
    def lost(cls, journal: str, binding: int, offset: int) -> Marker:
        """Rows right before the offset are gone."""
        return cls(journal, binding, READER.int64, offset, NO_EPOCH, is_commit=False)

    @property
    def is_lost(self) -> bool:
        return self.producer == READER.int64


@dataclass(frozen=True, slots=True)
class Decided:
    """A transaction was decided, and its markers are being written."""

    producer: int
    number: int
    """Where the log has it: a producer's later transactions have greater ones."""
    epoch: int
    """Of its markers."""
    is_commit: bool
    journals: tuple[str, ...]
    """All that get a marker, by name; those that no binding reads are left out."""
    partition: int = 0
    """Of the log. All that the log has of one producer is in one partition."""


@dataclass(frozen=True, slots=True)
class Idle:
    """All markers of what a producer decided before are written."""

    producer: int
    number: int
    """Where the log has it."""
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Missed:
    """The log was compacted before it was read here: decisions of any producer may be missing."""


LogEntry: TypeAlias = Decided | Idle | Missed


@dataclass(frozen=True, slots=True)
class Look:
    """The ends of journals, and what the log had around the moment at which they were taken."""

    before: tuple[LogEntry, ...]
    """Logged before it for certain, and not read yet."""
    ends: Mapping[tuple[str, str], int]
    """By a journal's name and identity."""
    around: tuple[LogEntry, ...]
    """Logged before it or after it."""
    later: tuple[LogEntry, ...]
    """Logged after it for certain."""


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A producer of transactions, as the log knows it."""

    name: str
    """What its owner calls it: Kafka's transactional id."""
    began: float | None
    """When its open transaction began, in seconds of the wall clock. None: none is open."""


class TransactionLog(abc.ABC):
    """A reader of the log, with a place in it. One thread uses it."""

    @abc.abstractmethod
    def read(self) -> Sequence[LogEntry]:
        """What was logged since the last call, up to the log's end of now; at the first call,
        all that the log still has. Entries of one producer are in order."""

    @abc.abstractmethod
    def look(self, journals: Sequence[str]) -> Look:
        """The ends of these journals, between two moments at which the log's end is known. The
        closer these are to each other, the fewer producers commit in between."""

    def named(self, producer: int) -> NamedProducer | None:  # noqa: ARG002
        """What was read of a producer. Any thread may ask."""
        return None

    @abc.abstractmethod
    def close(self) -> None: ...
