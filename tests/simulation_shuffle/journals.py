"""Journals in memory: rows, and the batches that readers get of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.ids import Kind, clock_from_unix
from penstock.journal.collection import Collection
from penstock.journal.store import JournalBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("k", pa.int64(), nullable=True),
    pa.field("v", pa.int64(), nullable=True),
    pa.field("text", pa.string(), nullable=True),
]
SCHEMA: Final = pa.schema(_FIELDS)
KEYS: Final = 12
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

    @property
    def key(self) -> int:
        return self.value % KEYS


@dataclass(slots=True)
class Journal:
    name: str
    collection: str
    rows: list[Row] = field(default_factory=list)
    head: int = 0
    """Rows below it can be read; the others are still on their way there."""

    def batch(self, begin: int, end: int) -> JournalBatch:
        rows = self.rows[begin:end]
        documents = [
            (None, None, None)
            if row.kind is Kind.ACK
            else (row.key, row.value, f"{row.value:0{row.size_bytes}}")
            for row in rows
        ]
        arrays: list[pa.Array[Any]] = [
            pa.array([document[place] for document in documents], SCHEMA.field(place).type)
            for place in range(len(SCHEMA))
        ]
        return JournalBatch(
            self.name,
            begin,
            np.array([row.producer for row in rows], np.int64),
            np.array([row.clock for row in rows], np.uint64),
            np.array([row.kind for row in rows], np.uint16),
            pa.RecordBatch.from_arrays(arrays, schema=SCHEMA),
            {place: row.hints for place, row in enumerate(rows) if row.hints},
        )


@dataclass(frozen=True, slots=True)
class Transaction:
    """That was decided: its ACKs are in these journals, or will be."""

    producer: int
    clock: int
    journals: tuple[str, ...]


class Journals:
    """All there are. One comes to be with its first row."""

    def __init__(self, collections: Iterable[str]) -> None:
        self.collections = {name: Collection.define(name, SCHEMA, "k") for name in collections}
        self.by_name: dict[str, Journal] = {}
        self.transactions: list[Transaction] = []

    def collection(self, name: str) -> Collection:
        return self.collections[name]

    def append(self, name: str, rows: Sequence[Row]) -> Journal:
        journal = self.by_name.get(name)
        if journal is None:
            journal = self.by_name[name] = Journal(name, name.partition("/")[0])
        journal.rows += rows
        return journal

    def of_collection(self, collection: str) -> list[str]:
        return sorted(
            journal.name
            for journal in self.by_name.values()
            if journal.collection == collection and journal.head
        )
