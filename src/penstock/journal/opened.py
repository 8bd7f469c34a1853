"""What users do with an open store: the same for every form of store."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.journal.cut import take_cut
from penstock.journal.producer import OpenProducer
from penstock.journal.progress import frontier_of
from penstock.journal.recovery import (
    OpenTransaction,
    abort,
    fence,
    find_open,
    recover,
    recover_at_once,
)
from penstock.journal.store import Abort, JournalStore

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from penstock.frontier import Frontier
    from penstock.ids import Producer
    from penstock.journal.cut import AsOf


log = logging.getLogger(__name__)


class OpenStore(JournalStore):
    """A store with the conveniences of this folder on it."""

    def producer(self, name: str | None = None) -> OpenProducer:
        """A new producer of this process. A name fences every earlier producer of that name."""
        return OpenProducer.open(self, name)

    def recover(self) -> list[Producer]:
        """Finishes what dead producers left: decided transactions are acknowledged everywhere,
        undecided ones rolled back. Gives the producers that had something in flight. One that
        cannot be settled now holds up none of the others, and is logged."""
        return recover(self).settled

    def recover_if_possible(self) -> None:
        """Before a read: what dead producers decided is to be seen. Where that cannot be (the store
        may be read-only) or would have to wait for somebody, it stays hidden, whole."""
        try:
            recover_at_once(self)
        except (OSError, PenstockError) as error:
            log.warning("%s: reading without recovery: %s", self.url, error)

    def fence(self, producer: Producer) -> None:
        """Ends a producer for good, alive or not, and settles its transaction."""
        for ledger in self.ledgers():
            if ledger.producer == producer:
                fence(self, ledger)

    def abort(self, producer: Producer, by: str, seen: OpenTransaction | None = None) -> Abort:
        """Ends a producer for good because of the transaction that it has open, which is rolled
        back; that is kept on record. NothingToAbortError if it has none, or another than the one
        that was seen."""
        return abort(self, producer, by, time.time(), seen)

    def open_transaction(self, producer: Producer) -> OpenTransaction:
        """What there is to abort. NothingToAbortError if there is nothing."""
        return find_open(self, producer)

    def frontier(self, *collections: str, as_of: AsOf = None) -> Frontier:
        """How far these collections have come together: no transaction is seen in part. Read each
        of them `as_of` this frontier to see them at one and the same point."""

        def journals() -> list[str]:
            return [
                journal.name for collection in collections for journal in self.journals(collection)
            ]

        return frontier_of(self, take_cut(self, journals, as_of))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
