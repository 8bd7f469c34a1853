"""Rows of a task as a file: an Arrow IPC stream, durable, under a name that only it has."""

from __future__ import annotations

import io
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.checksum import RunningChecksum, checksum
from penstock.errors import CorruptStorageError
from penstock.sinks.two_phase import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.sinks.two_phase import Batch, Decision
    from penstock.storage import Piece, Storage

GROUP_ROWS_MAX: Final = 65_536
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Spark hands rows over some thousand at a time; so many at once are cheaper to store."""

_FOLDER: Final = "staged"


@dataclass(slots=True)
class Sums:
    """What was written, known when the last piece was taken."""

    rows: int = 0
    size_bytes: int = 0
    checksum: int = 0

    def over(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The same pieces, summed up on their way into a file."""
        running = RunningChecksum()
        for piece in pieces:
            self.size_bytes += memoryview(piece).nbytes
            running.update(piece)
            yield piece
        self.checksum = running.intdigest()


def part_name(partition: int) -> str:
    """The token keeps attempts of one task apart, also those that run at the same time."""
    return f"{partition:06}-{secrets.token_hex(8)}"


def stage_rows(
    storage: Storage, batch: Batch, partition: int, rows: Iterable[pa.RecordBatch]
) -> Part | None:
    """Writes the rows, or nothing if there are none."""
    groups = grouped(rows)
    first = next(groups, None)
    if first is None:
        return None
    name = f"{_FOLDER}/{batch.query}/{batch.number:020}-{part_name(partition)}"
    sums = Sums()
    storage.create_from(name, sums.over(_stream(first, groups, sums)))
    return Part(name, sums.rows, sums.size_bytes, sums.checksum)


def read_part(storage: Storage, part: Part) -> Iterator[pa.RecordBatch]:
    data = storage.read_buffer(part.name)
    if data is None:
        raise CorruptStorageError(
            f"the staged part {part.name} is gone from {storage.place}, and its batch was decided "
            "and not committed. Unless it can be brought back, its rows are lost"
        )
    if (data.size, checksum(data)) != (part.size_bytes, part.checksum):
        raise CorruptStorageError(
            f"the staged part {part.name} in {storage.place} is damaged: restore it from a copy"
        )
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def remove_staged(storage: Storage, decision: Decision) -> None:
    """Whatever attempts have staged for this batch of the query and for earlier ones. Those that
    are still at it stage for nothing, and are removed after the next batch."""
    batch = decision.batch
    prefix = f"{_FOLDER}/{batch.query}/"
    end = f"{prefix}{batch.number + 1:020}"
    storage.delete_all([name for name in storage.names(prefix) if name < end])


def grouped(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, none of them empty."""
    held: list[pa.RecordBatch] = []
    count = size_bytes = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        if held and (
            count + batch.num_rows > GROUP_ROWS_MAX or size_bytes + batch.nbytes > GROUP_BYTES_MAX
        ):
            yield _joined(held)
            held, count, size_bytes = [], 0, 0
        held.append(batch)
        count += batch.num_rows
        size_bytes += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _stream(
    first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], sums: Sums
) -> Iterator[pa.Buffer]:
    collected = Collected()
    with pa.ipc.new_stream(pa.PythonFile(collected, "w"), first.schema) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            writer.write_batch(batch)
            sums.rows += batch.num_rows
            yield from collected.take()
            batch = next(rest, None)
    yield from collected.take()


class Collected(io.RawIOBase):
    """A file for those who write into one: what they wrote is taken away piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[pa.Buffer] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = pa.py_buffer(bytes(data))
        self._pieces.append(piece)
        return piece.size

    def take(self) -> list[pa.Buffer]:
        taken, self._pieces = self._pieces, []
        return taken
