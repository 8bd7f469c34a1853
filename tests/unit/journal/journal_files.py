"""What the tests of journals share: a small collection, rows for it, and folders of their own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.ids import CLOCK_TICK, Kind, Producer
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal.frames import Ack, Payload, encode_ack, encode_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.journal.file.store import FileStore

NUMBERS: Final = Collection.define("numbers", "id BIGINT NOT NULL, text STRING", key="id")
JOURNAL: Final = "numbers/000"
FIRST_CLOCK: Final = 0x1B21DD2138140000
_SHARED_MEMORY: Final = Path("/dev/shm")


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder for one of a property's many examples: in memory, where syncing costs nothing."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def open_numbers(
    folder: Path,
    *,
    segment_bytes_max: int = 1 << 20,
    durability: str = "synced",
    collection: Collection = NUMBERS,
) -> FileStore:
    store = open_store(folder, durability=durability, segment_bytes_max=segment_bytes_max)
    store.create(collection)
    return store


def journal_folder(folder: Path) -> Path:
    return folder / "journals" / "numbers" / "000"


def segments(folder: Path) -> list[Path]:
    return sorted(journal_folder(folder).glob("*.segment"))


def batch_of(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([text_of(number) for number in ids], pa.string())],
        schema=NUMBERS.schema,
    )


def text_of(number: int) -> str:
    return f"row {number} " + "x" * (number % 13)


class Writer:
    """Writes rows of one producer straight to the store, without the producer's own care."""

    def __init__(self, producer: Producer | None = None, clock: int = FIRST_CLOCK) -> None:
        self.producer = producer or Producer.random()
        self.clock = clock

    def documents(self, ids: Sequence[int], kind: Kind = Kind.OUTSIDE) -> list[Payload]:
        first = self.clock + CLOCK_TICK
        self.clock += CLOCK_TICK * len(ids)
        clocks = np.arange(first, self.clock + 1, CLOCK_TICK, dtype=np.uint64)
        return list(encode_documents(1, batch_of(ids), self.producer, clocks, kind))

    def ack(self, clock: int | None = None, hints: tuple[str, ...] = ()) -> Payload:
        if clock is None:
            self.clock += CLOCK_TICK
        return encode_ack(1, Ack(self.producer, self.clock if clock is None else clock, hints))


def append(store: OpenStore, payloads: Sequence[Payload], journal: str = JOURNAL) -> int:
    """Appends and syncs; gives the offset of the first row."""
    appended = store.append(journal, payloads, None)
    store.sync(journal, appended.end)
    return appended.begin


def ids_of(store: OpenStore, begin: int = 0, end: int | None = None) -> list[int | None]:
    return [row[3] for row in rows_of(store, begin, end)]


def rows_of(store: OpenStore, begin: int = 0, end: int | None = None) -> list[tuple[Any, ...]]:
    """Raw rows as (offset, producer, clock, id, text)."""
    rows: list[tuple[Any, ...]] = []
    for batch in store.read(JOURNAL, begin, end):
        values = batch.documents.to_pylist()
        rows += [
            (offset, producer, clock, value["id"], value["text"])
            for offset, producer, clock, value in zip(
                batch.offsets.tolist(),
                batch.producers.tolist(),
                batch.clocks.tolist(),
                values,
                strict=True,
            )
        ]
    return rows
