"""What the shuffle is set against: Spark over the same documents, and a copy of the same bytes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.shuffle_data import COLLECTION
from penstock.checksum import RunningChecksum
from penstock.ids import Kind
from penstock.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.journal import OpenStore
    from penstock.journal.store import JournalBatch

CORES: Final = 2
FILE_ROWS: Final = 131_072
FILES_PER_TRIGGER: Final = 4
"""Half a million documents in a micro-batch. With half as many it takes about as long."""
CHUNK_BYTES: Final = 1024 * 1024
CHANGELOGS: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PARTITIONS: Final = "spark.sql.shuffle.partitions"
AS_IT_COMES: Final = {CHANGELOGS: "false", PARTITIONS: "200"}
"""Spark's own settings, where ours differ from them."""
TUNED: Final = {CHANGELOGS: "true", PARTITIONS: str(CORES)}

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Took:
    """What a run took: on the clock, and of processors."""

    seconds: float
    processor_seconds: float


class Watch:
    """The time, and the processor time of processes, since it was made."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes
        self._processor_seconds = self._spent()
        self._begin = time.monotonic()

    def took(self) -> Took:
        seconds = time.monotonic() - self._begin
        return Took(seconds, self._spent() - self._processor_seconds)

    def _spent(self) -> float:
        return sum(map(_processor_seconds, self._processes))


def _processor_seconds(process: int) -> float:
    """All its threads', in user mode and in the system's."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


# A copy


def copy(source: Path, target: Path) -> Took:
    """Reads every file once, sums it up, and writes it to one that is made durable."""
    target.mkdir()
    chunk = memoryview(bytearray(CHUNK_BYTES))
    watch = Watch([os.getpid()])
    for number, path in enumerate(_files(source)):
        running = RunningChecksum()
        with (
            path.open("rb", buffering=0) as reading,
            (target / str(number)).open("wb", buffering=0) as writing,
        ):
            while size := reading.readinto(chunk):
                running.update(chunk[:size])
                writing.write(chunk[:size])
            os.fsync(writing.fileno())
    return watch.took()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# Spark


def write_parquet(store: OpenStore, folder: Path) -> None:
    """The documents as they stand in the journals, repetitions too, with their clocks."""
    folder.mkdir()
    waiting: list[pa.RecordBatch] = []
    number = 0
    for batch in _interleaved(store):
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= FILE_ROWS:
            _write_file(folder, number, waiting)
            number, waiting = number + 1, []
    if waiting:
        _write_file(folder, number, waiting)


def _interleaved(store: OpenStore) -> Iterator[pa.RecordBatch]:
    """A batch of each journal in turn, about as they were written."""
    journals = [store.read(journal.name, 0) for journal in store.journals(COLLECTION)]
    while journals:
        for journal in list(journals):
            batch = next(journal, None)
            if batch is None:
                journals.remove(journal)
            else:
                yield _documents(batch)


def _documents(batch: JournalBatch) -> pa.RecordBatch:
    clocks: pa.Array[Any] = pa.array(batch.clocks.astype(np.int64))
    documents = batch.documents.append_column("clock", clocks)
    is_document = batch.flags & np.uint16(3) != Kind.ACK.value
    return documents if is_document.all() else documents.filter(pa.array(is_document))


def _write_file(folder: Path, number: int, batches: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    pq.write_table(table, folder / f"{number:05}.parquet", compression="none")


class Spark:
    """One session, for all runs: what it loads and compiles it does in the first of them."""

    def __init__(self) -> None:
        state = "spark.sql.streaming.stateStore"
        providers = "org.apache.spark.sql.execution.streaming.state"
        settings: dict[str, str | int | bool] = {
            f"{state}.providerClass": f"{providers}.RocksDBStateStoreProvider",
            "spark.driver.memory": "4g",
        }
        self._session: SparkSession = local_session("penstock bench", CORES, **settings)
        gateway: Any = self._session.sparkContext._gateway  # noqa: SLF001 - whose time counts
        self._process: int = gateway.proc.pid

    def run(self, documents: Path, place: Path, settings: dict[str, str]) -> Took:
        """Each document once, to the partition of its key, by its clock; written to Parquet files
        as they come. Until the last micro-batch is committed."""
        for name, value in settings.items():
            self._session.conf.set(name, value)
        schema = self._session.read.parquet(str(documents)).schema

        def sort(batch: DataFrame, number: int) -> None:
            ordered = batch.repartition(CORES, "id").sortWithinPartitions("clock")
            ordered.write.parquet(str(place / "out" / str(number)))

        watch = Watch([self._process, os.getpid()])
        query = (
            self._session.readStream.schema(schema)
            .option("maxFilesPerTrigger", FILES_PER_TRIGGER)
            .parquet(str(documents))
            .dropDuplicates(["id"])
            .writeStream.foreachBatch(sort)
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return watch.took()

    def count(self, place: Path) -> int:
        """The documents that a run has written."""
        return self._session.read.parquet(*map(str, (place / "out").iterdir())).count()

    def close(self) -> None:
        self._session.stop()
