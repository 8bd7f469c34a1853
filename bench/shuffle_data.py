"""Documents for the benchmark of the shuffle: 128 bytes each, one in twenty written twice, and one
in ten in a transaction over all journals.

Several producers take turns, as several writers would: their clocks overlap, and so the rows of one
journal have to be put between those of others.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.ddl import schema_from_ddl
from penstock.journal import Collection, open_store

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from penstock.journal import OpenStore
    from penstock.journal.producer import OpenProducer

COLLECTION: Final = "events"
SCHEMA: Final = "id BIGINT NOT NULL, shard STRING NOT NULL, body BINARY NOT NULL"
ROW_BYTES: Final = 128
BODY_BYTES: Final = ROW_BYTES - 16
"""The rest is the key, the shard, and where the body begins."""
BATCH_ROWS: Final = 16_384
JOURNALS: Final = 8
PRODUCERS: Final = 4


def make_store(folder: Path) -> OpenStore:
    store = open_store(folder, durability="buffered")
    store.create(Collection.define(COLLECTION, SCHEMA, key="id", partition_by="shard"))
    return store


def write_documents(store: OpenStore, documents: int, first: int = 0) -> None:
    """So many documents, not counting repetitions; their ids count from `first`."""
    with Writer(store, first) as writer:
        while writer.documents < documents:
            writer.write(min(BATCH_ROWS, documents - writer.documents))


class Writer:
    """Several producers that take turns. A context."""

    def __init__(self, store: OpenStore, first: int = 0) -> None:
        self.documents = 0
        """Written so far, not counting repetitions."""
        self._first = first
        self._random = np.random.default_rng(first)
        self._stack = contextlib.ExitStack()
        self._producers = [self._stack.enter_context(store.producer()) for _ in range(PRODUCERS)]
        self._turns = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, rows: int) -> None:
        turn = next(self._turns)
        begin = self._first + self.documents
        _write(self._producers[turn % PRODUCERS], self._random, turn, begin, rows)
        self.documents += rows


def _write(
    producer: OpenProducer, random: np.random.Generator, number: int, begin: int, rows: int
) -> None:
    if number % 10 == 9:
        with producer.transaction() as transaction:
            for part in range(JOURNALS):
                low, high = (rows * place // JOURNALS for place in (part, part + 1))
                if low < high:
                    transaction.append(COLLECTION, _batch(random, begin + low, high - low, part))
        return
    stamped = producer.stamp(COLLECTION, _batch(random, begin, rows, number % JOURNALS))
    producer.send(stamped)
    if number % 18 == 0:
        producer.send(stamped)  # as after an answer that got lost


def _batch(random: np.random.Generator, first: int, rows: int, journal: int) -> pa.RecordBatch:
    offsets = np.arange(0, (rows + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    body = pa.py_buffer(random.bytes(rows * BODY_BYTES))
    columns: list[pa.Array[Any]] = [
        pa.array(np.arange(first, first + rows)),
        pa.repeat(f"{journal}", rows),
        pa.BinaryArray.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(offsets.tobytes()), body]
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_from_ddl(SCHEMA))
