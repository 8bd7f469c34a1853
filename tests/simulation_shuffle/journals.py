"""Journals in memory: rows, and the batches that readers get of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.ids import Kind, clock_from_unix
from penstock.journal.collection import Collection
from penstock.journal.names import known_as
from penstock.journal.store import JournalBatch, ReadableStore
from penstock.sequence import UNSEEN, Outcome, ProducerState, sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.journal.transaction_log import TransactionLog

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("k", pa.int64(), nullable=True),
    pa.field("v", pa.int64(), nullable=True),
    pa.field("text", pa.string(), nullable=True),
]
SCHEMA: Final = pa.schema(_FIELDS)
_ADDED: Final = pa.field("twice", pa.int64(), nullable=True)
"""A column that a collection gets later: twice the value, in rows that are written from then on."""
WIDE_SCHEMA: Final = pa.schema([*_FIELDS, _ADDED])
KEYS: Final = 12
DUPLICATES: Final = (
    Outcome.OUTSIDE_DUPLICATE,
    Outcome.CONTINUE_DUPLICATE,
    Outcome.ACK_DUPLICATE,
)
_BEGINNING: Final = clock_from_unix(1_000_000_000)


def clock_at(seconds: float) -> int:
    """The clock of a moment of simulated time."""
    return _BEGINNING + (int(seconds * 10_000_000) << 4)


@dataclass(frozen=True, slots=True)
class Row:
    producer: int
    clock: int
    kind: Kind
    value: int = -1
    size_bytes: int = 0
    hints: tuple[str, ...] = ()
    twice: int | None = None

    @property
    def key(self) -> int:
        return self.value % KEYS


@dataclass(slots=True, eq=False)
class Journal:
    name: str
    collection: str
    identity: str
    rows: list[Row] = field(default_factory=list)
    head: int = 0
    """Rows below it can be read; the others are still on their way there."""
    first_kept: int = 0
    """Those before it are dropped."""
    is_gone: bool = False
    """Somebody has deleted it, or moved it away."""
    is_away: bool = False
    """Moved, and will be back."""
    was_away: bool = False
    is_made_anew: bool = False
    """Once it is gone, whoever writes makes another one in its place."""

    @property
    def known_as(self) -> str:
        return known_as(self.name, self.identity)

    def drop(self, first_kept: int) -> int:
        """Gives how many rows that is."""
        dropped = max(0, first_kept - self.first_kept)
        self.first_kept += dropped
        return dropped

    def suspend(self) -> int:
        """Keeps none, and shows that it does."""
        self.head = len(self.rows)
        return self.drop(self.head)

    def states(self, offset: int) -> dict[int, ProducerState]:
        """Where producers stand there, as a segment's header has it."""
        states: dict[int, ProducerState] = {}
        for at, row in enumerate(self.rows[:offset]):
            before = states.get(row.producer, UNSEEN)
            outcome, last_commit, max_continue = sequence(
                row.kind, row.clock, before.last_commit, before.max_continue
            )
            place = before.offset
            if outcome is Outcome.CONTINUE_BEGIN:
                place = at
            elif not max_continue and outcome not in DUPLICATES:
                place = -(at + 1)
            states[row.producer] = ProducerState(last_commit, max_continue, place)
        return states

    def batch(self, begin: int, end: int, schema: pa.Schema = SCHEMA) -> JournalBatch:
        if begin < self.first_kept:
            raise LocalProtocolError(f"{self.name} begins at {self.first_kept}, not {begin}")
        rows = self.rows[begin:end]
        documents = [
            (None, None, None, None)
            if row.kind is Kind.ACK
            else (row.key, row.value, f"{row.value:0{row.size_bytes}}", row.twice)
            for row in rows
        ]
        arrays: list[pa.Array[Any]] = [
            pa.array([document[place] for document in documents], schema.field(place).type)
            for place in range(len(schema))
        ]
        return JournalBatch.numbered(
            self.name,
            begin,
            np.array([row.producer for row in rows], np.int64),
            np.array([row.clock for row in rows], np.uint64),
            np.array([row.kind for row in rows], np.uint16),
            pa.RecordBatch.from_arrays(arrays, schema=schema),
            {place: row.hints for place, row in enumerate(rows) if row.hints},
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """That was decided: its ACKs are in these journals, or will be."""

    producer: int
    clock: int
    journals: tuple[str, ...]
    homes: tuple[str, ...]
    """What frontiers call those that have the last of its documents."""


class Journals:
    """All there are. One comes to be with its first row, and perhaps another in its place."""

    # What a plan asks a store.
    is_timed = ReadableStore.is_timed
    by_offset = ReadableStore.by_offset
    own_key = ReadableStore.own_key
    fails_on_loss = ReadableStore.fails_on_loss
    is_own_key = ReadableStore.is_own_key
    holding = ReadableStore.holding

    def __init__(self, collections: Iterable[str]) -> None:
        # Of a document its journal's name has the partition, and nobody asks for it again.
        schema = pa.schema([*SCHEMA, pa.field("part", pa.string())])
        self.collections = {
            name: Collection.define(name, schema, "k", partition_by="part") for name in collections
        }
        self.by_name: dict[str, Journal] = {}
        """The newest of each name."""
        self.all: dict[str, Journal] = {}
        """All that there ever were, by what frontiers call them."""
        self.transactions: list[Transaction] = []
        self._wide: set[str] = set()

    def widen(self, collection: str) -> None:
        """The collection gets one more column. Older documents have it too, with nothing in it."""
        self._wide.add(collection)

    def batch(self, name: str, begin: int, end: int) -> JournalBatch:
        journal = self.by_name[name]
        is_wide = journal.collection in self._wide
        return journal.batch(begin, end, WIDE_SCHEMA if is_wide else SCHEMA)

    def collection(self, name: str) -> Collection:
        return self.collections[name]

    def append(self, name: str, rows: Sequence[Row]) -> Journal:
        journal = self.open(name)
        if journal.is_gone and not journal.is_away:
            return journal  # and stays so
        if journal.collection in self._wide:
            rows = [
                row if row.kind is Kind.ACK else replace(row, twice=2 * row.value) for row in rows
            ]
        journal.rows += rows
        return journal

    def open(self, name: str) -> Journal:
        """Where whoever writes under this name does. One that is moved away is written on where it
        is."""
        journal = self.by_name.get(name)
        if journal is None or (journal.is_gone and journal.is_made_anew):
            journal = self.new_journal(name, name.partition("/")[0], f"{len(self.all):04x}")
            self.by_name[name] = self.all[journal.known_as] = journal
        return journal

    def new_journal(self, name: str, collection: str, identity: str) -> Journal:
        return Journal(name, collection, identity)

    def transaction_log(
        self,
        begins: Mapping[int, int] | None = None,  # noqa: ARG002
    ) -> TransactionLog | None:
        """Acknowledgements name each other's journals."""
        return None

    def find(self, name: str, identity: str) -> Journal | None:
        """The journal, unless it is gone, or another one has its name."""
        journal = self.by_name[name]
        return None if journal.is_gone or journal.identity != identity else journal

    def of_collection(self, collection: str) -> dict[str, str]:
        """Names and identities."""
        return {
            journal.name: journal.identity
            for journal in self.by_name.values()
            if journal.collection == collection and journal.head and not journal.is_gone
        }
