"""What users do with a store that they may write to: the same for every form of store."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.journal.cut import take_cut
from penstock.journal.errors import DamagedLedgerError, ProducerFencedError
from penstock.journal.producer import OpenProducer
from penstock.journal.producing import ProducingStore
from penstock.journal.recovery import (
    OpenTransaction,
    abort,
    fence,
    find_open,
    recover,
    recover_at_once,
)
from penstock.journal.writable import Abort, WritableStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.ids import Producer
    from penstock.journal.cut import AsOf, JournalCut


log = logging.getLogger(__name__)


class OpenStore(WritableStore, ProducingStore):
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

    def cut(
        self,
        journals: Sequence[str] | Callable[[], Sequence[str]],
        as_of: AsOf = None,
        binding: int = 0,
    ) -> list[JournalCut]:
        """By what the ledgers say."""
        return take_cut(self, journals, as_of, binding)

    def open_transactions(self) -> Counter[str]:
        """The dead producers' among them."""
        found: Counter[str] = Counter()
        for ledger in self.ledgers():
            # Settled and forgotten just now; or damaged, and told by `doctor`.
            with contextlib.suppress(ProducerFencedError, DamagedLedgerError):
                record = ledger.record()
                if not record.settled:
                    found.update({touch.journal for touch in record.touches})
        return found
