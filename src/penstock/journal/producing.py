"""What whoever writes rows does with a store: the words that all kinds of stores have in common.

A store of files has more (writable.py): it makes collections, keeps ledgers and recovers. In a log
broker's topics these are the broker's affair, and this is all that there is to write with.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from penstock.journal.store import ReadableStore

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from penstock.journal.rows import Rows


class StoreTransaction(abc.ABC):
    """Rows of any collections of the store, visible all or none. Use it with `with`."""

    @property
    @abc.abstractmethod
    def is_over(self) -> bool:
        """It was committed or rolled back, or whether it was is not known."""

    @abc.abstractmethod
    def append(self, collection: str, rows: Rows) -> int:
        """Adds rows to the transaction; gives how many. Refused rows leave it as it was."""

    @abc.abstractmethod
    def position(self, position: str) -> None:
        """Commits with the transaction how far the program has come with its own work. A later
        producer of the same name finds it as `position`. Of several, the last one counts."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Makes the transaction visible. On CommitFailedError it is rolled back. On
        CommitStateUnknownError a later producer of the name knows by its position."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Discards the transaction. The producer may go on with another."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_over:
            return
        if error is None:
            self.commit()
        else:
            self.rollback()


class StoreProducer(abc.ABC):
    """Held open by one process. Threads may share one; what they do takes turns."""

    name: str | None

    @property
    @abc.abstractmethod
    def position(self) -> str | None:
        """What the last committed transaction that had a position said, of this producer or of an
        earlier one of its name. None: there was none, or this producer has no name."""

    @abc.abstractmethod
    def append(self, collection: str, rows: Rows) -> int:
        """Appends rows outside of transactions; gives how many. Durable and visible on return."""

    @abc.abstractmethod
    def transaction(self) -> StoreTransaction:
        """Opens a transaction: use it with `with`. Committed at the end, rolled back on error."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the producer for good; an open transaction is rolled back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ProducingStore(ReadableStore):
    """A store that producers write to."""

    @abc.abstractmethod
    def producer(self, name: str | None = None) -> StoreProducer:
        """A new producer of this process. A name fences every earlier producer of that name."""
