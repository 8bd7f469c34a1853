"""Positions of named producers: how far a program has come with its own work, as it says itself.

A program that copies from anywhere into a store has to know, after a crash, what it had committed.
So it names its producer, and says with each transaction where it stands:
`txn.position("line 1200")`. The position is one more document of that transaction, in the
collection `penstock.positions` and a journal of the name's own. It is therefore committed if and
only if the transaction is; recovery, backups and salvage treat it like every document.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, LocalProtocolError, PenstockError
from penstock.journal.collection import Collection
from penstock.journal.documents import read_documents
from penstock.journal.errors import (
    DamagedLedgerError,
    PositionUnknownError,
    ProducerFencedError,
    UnknownCollectionError,
)
from penstock.journal.names import journal_name
from penstock.journal.progress import states_of

if TYPE_CHECKING:
    from penstock.ids import Producer
    from penstock.journal.writable import WritableStore

POSITIONS: Final = Collection.define(
    "penstock.positions", "name STRING NOT NULL, position STRING NOT NULL", "name", "name"
)
POSITION_BYTES_MAX: Final = 1 << 20
"""It is written with every transaction."""
DROP_EVERY: Final = 10_000
"""Transactions of a producer, after which it drops the segments of its older positions: it reads
those that are left to find the last."""

log = logging.getLogger(__name__)


def check_position(name: str | None, position: str) -> None:
    if name is None:
        raise LocalProtocolError(
            "a position belongs to a name, by which a later producer finds it: open this one with "
            'producer(name="...")'
        )
    if not isinstance(position, str):
        raise ConfigurationError(
            f"a position is a text, and {position!r} is a {type(position).__name__}; "
            "json.dumps makes one of most things"
        )
    if (size := len(position.encode())) > POSITION_BYTES_MAX:
        raise ConfigurationError(f"a position of {size:,} bytes is above {POSITION_BYTES_MAX:,}")
    journal_of(name)


def journal_of(name: str) -> str:
    """ConfigurationError if the name is too long for one."""
    return journal_name(POSITIONS.name, POSITIONS.partition_by, (name,))


def read_position(store: WritableStore, name: str, own: Producer) -> str | None:
    """The last one of the name that was committed, for its producer of now."""
    try:
        store.collection(POSITIONS.name)
    except UnknownCollectionError:
        return None
    if not store.probes([journal_of(name)]):
        return None
    found = _last(store, name, own)
    return None if found is None else found.position


def drop_older_positions(store: WritableStore, name: str, own: Producer) -> None:
    """Gives back the disk of the positions before the last one. Nothing depends on it."""
    try:
        found = _last(store, name, own)
        if found is not None:
            store.drop_before(journal_of(name), found.offset)
    except (PenstockError, OSError) as error:
        log.warning("older positions of %r are kept: %s", name, error)


@dataclass(frozen=True, slots=True)
class _Found:
    offset: int
    position: str


def _last(store: WritableStore, name: str, own: Producer) -> _Found | None:
    (cut,) = store.cut([journal_of(name)])
    doubtful = {
        producer
        for producer, state in states_of(store, cut).items()
        if state.max_continue or state.last_commit > cut.limit(producer)
    }
    if doubtful & _unsettled(store, own):
        raise PositionUnknownError(name)
    last = None
    for found in read_documents(store, cut, ["position"]):
        last = _Found(int(found.offsets[-1]), found.documents.column("position")[-1].as_py())
    return last


def _unsettled(store: WritableStore, own: Producer) -> set[int]:
    """Other producers that may have a commit which nobody has carried out yet."""
    found = set()
    for ledger in store.ledgers():
        try:
            is_settled = ledger.record().settled
        except ProducerFencedError:
            is_settled = True  # and forgotten just now
        except DamagedLedgerError as damage:
            is_settled = damage.known.is_settled
        if not is_settled and ledger.producer != own:
            found.add(ledger.producer.int64)
    return found
