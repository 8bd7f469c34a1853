"""What can go wrong with journals, and who must act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.disk import DiskError
from penstock.errors import (
    ConfigurationError,
    CorruptStorageError,
    LocalProtocolError,
    PenstockError,
)
from penstock.journal.names import shown

WAY_BACK: Final = (
    "Restore the store from a backup (penstock restore), or bring out what is whole "
    "(penstock salvage)"
)
"""What to do about damage."""


class UnknownCollectionError(ConfigurationError):
    """The store has no such collection. Create it, or correct the name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        there = ", ".join(self.known[:10]) or "none yet"
        return f"there is no collection {self.name!r} in this store; it has: {there}"


class UnknownJournalError(ConfigurationError):
    """The store has no such journal. It may have been deleted."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self.journal = journal

    def __str__(self) -> str:
        return f"there is no journal {self.journal!r}; list them with `penstock journals`"


class IncompatibleSchemaError(ConfigurationError):
    """A schema change would break documents already written. Only add nullable columns."""


class BadRowsError(ConfigurationError):
    """Rows do not fit the collection. Nothing of that append was written: mend and append again."""

    def __init__(self, collection: str, row: int | None, column: str | None, reason: str) -> None:
        super().__init__(collection, row, column, reason)
        self.collection, self.row, self.column, self.reason = collection, row, column, reason

    def __str__(self) -> str:
        row = "" if self.row is None else f" row {self.row},"
        column = "" if self.column is None else f" column {self.column!r},"
        place = (row + column).rstrip(",")
        return (
            f"rows refused for collection {self.collection!r}:{place and place + ':'} {self.reason}"
        )


class OffsetDroppedError(PenstockError):
    """A read starts below the first kept offset: retention dropped those rows. Start later."""

    def __init__(self, journal: str, asked: int, first_kept: int) -> None:
        super().__init__(journal, asked, first_kept)
        self.journal, self.asked, self.first_kept = journal, asked, first_kept

    def __str__(self) -> str:
        return (
            f"{self.journal}: offset {self.asked} was asked for, but retention has dropped "
            f"everything below {self.first_kept}; start at {self.first_kept} or later"
        )


class DataLossError(PenstockError):
    """Rows are gone that were not read yet, or that were read and taken back, and the user wants to
    know. Starting again does not help: go on without them, or begin with a new checkpoint."""

    def __init__(self, reader: str, journal: str, what: str) -> None:
        super().__init__(reader, journal, what)
        self.reader, self.journal, self.what = reader, journal, what

    def __str__(self) -> str:
        return (
            f"{self.reader} lost rows of {shown(self.journal)}: {self.what}. Starting again "
            "does not help. To go on without these rows set the option failOnDataLoss to false; or "
            "begin anew (a stream: with another checkpoint), with startingOffsets that are there"
        )


class RowsTakenBackError(PenstockError):
    """A log lost rows at its end that were read already: offsets name other rows now. What was
    computed from them has to be computed again."""

    kept: int
    """The log agrees with what was read below this offset, as far as it is known."""


class NothingToAbortError(ConfigurationError):
    """The producer has no transaction open: it was never there, or is over. Look again."""

    def __init__(self, producer: str, has_another: bool = False) -> None:
        super().__init__(producer, has_another)
        self.producer = producer
        self.has_another = has_another

    def __str__(self) -> str:
        if self.has_another:
            return (
                f"producer {self.producer} has ended the transaction that you saw, and has another "
                "one open now: nothing was done. Look again"
            )
        return (
            f"producer {self.producer} has no transaction open in this store: it has ended "
            "meanwhile, or the name is wrong. `penstock explain` shows those that are open"
        )


class AppendFailedError(PenstockError):
    """The disk refused an append: full, or broken. The journal is as before; mend it, try again."""


class SyncFailedError(DiskError):
    """The disk failed to make appended rows durable, now or before. They were not acknowledged and
    may be lost. Mend the disk, then open the store again: that reads the journal back from it."""

    def __init__(self, journal: str, path: str, number: int | None, reason: str) -> None:
        super().__init__("sync", path, number, reason)
        self.journal = journal

    def __reduce__(self) -> tuple[type[SyncFailedError], tuple[str, str, int | None, str]]:
        return type(self), (self.journal, self.path, self.errno, self.reason)

    def __str__(self) -> str:
        return (
            f"{self.journal}: the disk failed to sync {self.path}: {self.reason}. Rows that were "
            "not acknowledged may be lost, and no process can append to this journal until it was "
            "read back from the disk: mend the disk, then close the store and open it again, or "
            "run `penstock doctor --repair`"
        )


class CorruptJournalError(CorruptStorageError):
    """Bytes of a journal are not what was written. Restore the store, or salvage what is whole."""

    def __init__(self, journal: str, segment: str, position: int, reason: str) -> None:
        super().__init__(journal, segment, position, reason)
        self.journal, self.segment, self.position, self.reason = journal, segment, position, reason

    def __str__(self) -> str:
        return (
            f"{self.journal}: segment {self.segment} is damaged at byte {self.position}: "
            f"{self.reason}; nothing from there on was returned. {WAY_BACK}"
        )


class PositionUnknownError(LocalProtocolError):
    """An earlier producer of the name has a transaction that could not be settled, because its
    ledger is damaged or a process holds its journals. Run `penstock recover`, and ask again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the position of {self.name!r} is not known: an earlier producer of that name has a "
            "transaction that is not settled. `penstock recover` settles it, or names what is "
            "in the way"
        )


class ProducerFencedError(LocalProtocolError):
    """This producer was fenced, closed or forgotten, and may never write again. Open a new one."""

    def __init__(
        self, producer: str, aborted: str | None = None, outcome: str | None = None
    ) -> None:
        super().__init__(producer, aborted, outcome)
        self.producer, self.aborted, self.outcome = producer, aborted, outcome
        """Who aborted its transaction by hand, and when, and what became of that; None if nobody
        did, or it is not over."""

    def __str__(self) -> str:
        if self.aborted is not None:
            what = "its transaction was aborted"
            if self.outcome == "committed":
                what = "its transaction, whose commit was decided and was carried out, was ended"
            return (
                f"producer {self.producer} was fenced, and cannot write again: {what} by "
                f"{self.aborted}. What it had committed before stands. Ask there why; then open "
                "a new producer"
            )
        return (
            f"producer {self.producer} was fenced, closed or forgotten and cannot write again; "
            "its committed documents stand. Open a new producer"
        )


@dataclass(frozen=True, slots=True)
class LedgerMarks:
    """What a ledger tells by which of its files are there, whatever is in them."""

    is_retired: bool
    """The producer may write no more."""
    is_decided: bool
    """A commit was decided, and perhaps not carried out."""
    is_settled: bool
    """Nothing is in flight any more."""


class DamagedLedgerError(CorruptStorageError):
    """A file of a producer's ledger is not what was written, or is missing. Other producers and the
    journals are not concerned. Once the producer's process has ended, `recover()` settles what it
    had in flight from what the journals hold."""

    def __init__(self, producer: str, file: str, reason: str, known: LedgerMarks) -> None:
        super().__init__(producer, file, reason, known)
        self.producer, self.file, self.reason, self.known = producer, file, reason, known

    def __str__(self) -> str:
        return (
            f"{self.file} is damaged: {self.reason}. It is of producer {self.producer}; when that "
            "one's process has ended, `penstock recover` settles its transaction from what the "
            "journals hold, and until then the transaction stays hidden"
        )
