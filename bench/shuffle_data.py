"""Documents for the benchmark of the shuffle: 128 bytes each, one in twenty written twice, and one in
ten in a transaction over all journals."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

import penstock as ps

COLLECTION: Final = "events"
SCHEMA: Final = "id BIGINT NOT NULL, shard STRING NOT NULL, body BINARY NOT NULL"
ROW_BYTES: Final = 128
BATCH_ROWS: Final = 16_384
JOURNALS: Final = 8


def write_documents(url: str, documents: int, first: int = 0) -> Any:
    """A store with so many documents, apart from repetitions; ids count from `first`."""
    store = ps.open_store(url, durability="buffered")
    store.create(ps.Collection.define(COLLECTION, SCHEMA, key="id", partition_by="shard"))
    random = np.random.default_rng(first)
    with store.producer() as producer:
        for number, begin in enumerate(range(first, first + documents, BATCH_ROWS)):
            rows = min(BATCH_ROWS, first + documents - begin)
            if number % 10 == 9:
                with producer.transaction() as txn:
                    for part in range(JOURNALS):
                        low, high = (rows * place // JOURNALS for place in (part, part + 1))
                        txn.append(COLLECTION, _batch(random, begin + low, high - low, part))
                continue
            stamped = producer.stamp(COLLECTION, _batch(random, begin, rows, number % JOURNALS))
            producer.send(stamped)
            if number % 19 == 0:
                producer.send(stamped)  # as after an answer that got lost
    return store


def _batch(random: np.random.Generator, first: int, rows: int, journal: int) -> pa.RecordBatch:
    body_bytes = ROW_BYTES - 16
    offsets = np.arange(0, (rows + 1) * body_bytes, body_bytes, dtype=np.int32)
    bodies = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(rows * body_bytes))]
    )
    columns: list[pa.Array[Any]] = [
        pa.array(np.arange(first, first + rows)),
        pa.repeat(f"{journal}", rows),
        bodies,
    ]
    return pa.RecordBatch.from_arrays(columns, names=["id", "shard", "body"])
