"""Journals on disk: appending beside plain writes of the same bytes, reading beside plain Arrow.

The peer of an append writes the very bytes that ours puts on the disk, and makes them durable in
the same way; it does not convert, stamp, lock or check anything. The peer of a read is Arrow's own
reader over a stream file of the same batches; it does not check anything either.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bench.report import Line, compare
from penstock.ddl import schema_from_ddl
from penstock.journal import Collection, OpenStore, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

APPEND_ROWS: Final = 16_384
APPENDS: Final = 8
READ_ROWS: Final = 8_192
BATCHES: Final = 48
COLLECTION: Final = "documents"
JOURNAL: Final = "documents/000"
SCHEMA: Final = "id BIGINT NOT NULL, amount DOUBLE, text BINARY"


def documents(rows: int) -> pa.RecordBatch:
    """128 bytes a row: a key, an amount, and a text."""
    text = np.frombuffer(np.random.default_rng(7).bytes(rows * 112), dtype="S112")
    columns: list[pa.Array[Any]] = [
        pa.array(np.arange(rows, dtype=np.int64)),
        pa.array(np.arange(rows, dtype=np.float64)),
        pa.array(text, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_from_ddl(SCHEMA))


def run() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd()) as folder:
        yield append("journal.append", Path(folder) / "append", "synced")
        yield _read(Path(folder) / "read", documents(READ_ROWS))


def append(name: str, folder: Path, durability: str) -> Line:
    batch = documents(APPEND_ROWS)
    store = _open(folder, durability)
    with store.producer() as producer:

        def ours() -> None:
            for _ in range(APPENDS):
                producer.append(COLLECTION, batch)

        producer.append(COLLECTION, batch)
        frame = producer.stamp(COLLECTION, batch).parts[0].payloads[0]
        data = frame.header(0, 0) + frame.body.to_pybytes()
        descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def peer() -> None:
            for _ in range(APPENDS):
                os.write(descriptor, data)
                if durability == "synced":
                    os.fdatasync(descriptor)

        line = _megabytes(name, ours, peer, len(data) * APPENDS)
        os.close(descriptor)
    store.close()
    return line


def _read(folder: Path, batch: pa.RecordBatch) -> Line:
    store = _open(folder, "buffered")
    with store.producer() as producer:
        for _ in range(BATCHES):
            producer.append(COLLECTION, batch)
    written = [part.documents for part in store.read(JOURNAL, 0)]
    stamped = pa.record_batch(
        {
            "_producer": pa.array(np.zeros(READ_ROWS, np.int64)),
            "_clock": pa.array(np.zeros(READ_ROWS, np.uint64)),
            "_flags": pa.array(np.zeros(READ_ROWS, np.uint16)),
            **{name: batch.column(name) for name in batch.schema.names},
        }
    )
    plain = folder / "plain.arrows"
    with pa.OSFile(str(plain), "wb") as sink, pa.ipc.new_stream(sink, stamped.schema) as writer:
        for _ in range(BATCHES):
            writer.write_batch(stamped)

    def ours() -> int:
        return sum(part.rows for part in store.read(JOURNAL, 0))

    def peer() -> int:
        with pa.OSFile(str(plain), "rb") as source, pa.ipc.open_stream(source) as reader:
            return sum(part.num_rows for part in reader)

    if not ours() == peer() == sum(part.num_rows for part in written):
        raise RuntimeError("the two readers do not read the same rows")
    line = _megabytes("journal.read", ours, peer, plain.stat().st_size)
    store.close()
    return line


def _open(folder: Path, durability: str) -> OpenStore:
    store = open_store(folder, durability=durability)

    store.create(Collection.define(COLLECTION, SCHEMA, "id"))
    return store


def _megabytes(
    name: str, ours: Callable[[], object], peer: Callable[[], object], size: int
) -> Line:
    return compare(name, ours, peer, size / 1e6, "MB/s")
