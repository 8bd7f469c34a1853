"""Reading a member's queue from another machine: over Arrow Flight, with TLS of the session's own.

The member serves what is durable on its disk, to whoever shows a certificate of the session and its
read token. A reader asks as it would ask the disk: for the queue of a generation, up to an LSN,
between two frontiers.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import flight

from penstock.errors import LocalProtocolError, PeerUnavailableError
from penstock.frontier import decode_chunks, encode_chunks
from penstock.shuffle.flights import TokenServer, connect
from penstock.shuffle.parcels import READ, Stage
from penstock.shuffle.queue.reader import Measure, QueueBatch, QueueReader
from penstock.shuffle.queue.segment import read_floor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.frontier import Frontier
    from penstock.shuffle.finding import Finder
    from penstock.shuffle.queue.reader import Wanted
    from penstock.transport.certificates import Material
    from penstock.transport.security import Security

MACHINE_VARIABLE: Final = "PENSTOCK_MACHINE"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_READERS_KEPT_MAX: Final = 4
"""They remember the blocks that they looked at."""
_MEASURE: Final = "measure"
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("lsn", pa.uint64(), nullable=False),
    pa.field("stage", pa.string(), nullable=False),
    pa.field("names", pa.string(), nullable=False),
    pa.field("places", pa.binary(), nullable=False),
    pa.field("rows", pa.large_binary(), nullable=False),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""A row for each `QueueBatch`. Its own rows are an Arrow stream: stages differ in their columns."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where a queue is, and how to read it from elsewhere."""

    member: int
    machine: str
    """What `this_machine` says there."""
    location: str
    material: Material = field(repr=False)
    """What a reader shows, and whom it trusts."""
    token: str = field(repr=False)
    finder: Finder | None = None
    """Whom to ask when it is not there."""


def this_machine() -> str:
    """The same for all processes that see the same disks, and no other ones. Containers have names
    of their own."""
    said = os.environ.get(MACHINE_VARIABLE, "")
    if said:
        return said
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return f"{socket.gethostname()}/{boot}"


def open_queue(folder: Path, generation: int) -> QueueReader:
    """A reader of that very queue: another one may have been begun in the folder."""
    floor = read_floor(folder)
    if floor is None or floor.generation != generation:
        raise LocalProtocolError(
            f"the queue in {folder} is not the one that is to be read: it was begun anew since. "
            "The query asks for it again when it is restarted"
        )
    return QueueReader(folder)


# In the member's process


class QueueServer(TokenServer):
    """From its making to `close`."""

    def __init__(self, folder: Path, security: Security, host: str, token: str) -> None:
        super().__init__(security, host, token)
        self._folder = folder
        self._lock = threading.Lock()
        self._readers: list[tuple[int, QueueReader]] = []
        """Those that nobody uses just now, with their generations. A reader has one thread."""

    def do_get(self, _: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        asked = _Asked.decode(self.admitted(ticket.ticket))
        return flight.GeneratorStream(SCHEMA, self._batches(asked))

    def do_action(self, _: object, action: flight.Action) -> Iterator[bytes]:
        if action.type != _MEASURE:
            raise flight.FlightServerError(f"there is no action {action.type!r} here")
        asked = _Asked.decode(self.admitted(action.body.to_pybytes()))
        reader = self._take(asked.generation)
        measure = reader.measure(asked.start, asked.end, asked.lsn)
        self._give(asked.generation, reader)
        yield json.dumps([measure.documents, measure.bytes]).encode()

    def close(self) -> None:
        self.shutdown()
        with self._lock:
            for _, reader in self._readers:
                reader.close()
            self._readers.clear()

    def _batches(self, asked: _Asked) -> Iterator[pa.RecordBatch]:
        reader = self._take(asked.generation)
        for found in reader.read(asked.start, asked.end, asked.lsn, asked.columns):
            yield encode_found(found)
        self._give(asked.generation, reader)  # after an error it is not used again

    def _take(self, generation: int) -> QueueReader:
        with self._lock:
            for index, (of, _) in enumerate(self._readers):
                if of == generation:
                    return self._readers.pop(index)[1]
        return open_queue(self._folder, generation)

    def _give(self, generation: int, reader: QueueReader) -> None:
        with self._lock:
            if len(self._readers) < _READERS_KEPT_MAX:
                self._readers.append((generation, reader))
                return
        reader.close()


# In the process that reads


class RemoteQueue:
    """What a `QueueReader` does, for a queue on another machine."""

    def __init__(self, served: Served, generation: int) -> None:
        self._served = served
        self._generation = generation
        self._client = connect(served.location, served.member, served.material)

    def read(
        self, start: Frontier, end: Frontier, lsn: int, columns: Wanted = None
    ) -> Iterator[QueueBatch]:
        try:
            stream = self._client.do_get(flight.Ticket(self._asked(start, end, lsn, columns)))
            for chunk in stream:
                if chunk.data is not None:
                    yield from decode_found(chunk.data)
        except flight.FlightError as error:
            raise self._unavailable(error) from error

    def measure(self, start: Frontier, end: Frontier, lsn: int) -> Measure:
        action = flight.Action(_MEASURE, self._asked(start, end, lsn))
        try:
            (result,) = self._client.do_action(action)
        except flight.FlightError as error:
            raise self._unavailable(error) from error
        return Measure(*json.loads(result.body.to_pybytes()))

    def close(self) -> None:
        self._client.close()

    def _asked(self, start: Frontier, end: Frontier, lsn: int, columns: Wanted = None) -> bytes:
        asked = _Asked(self._generation, lsn, start, end, columns)
        return self._served.token.encode() + b"\n" + asked.encode()

    def _unavailable(self, error: BaseException) -> PeerUnavailableError:
        return PeerUnavailableError(
            f"the queue of member {self._served.member} cannot be read at "
            f"{self._served.location}: {error}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    generation: int
    lsn: int
    start: Frontier
    end: Frontier
    columns: Wanted

    def encode(self) -> bytes:
        frontiers = [
            [base64.b64encode(chunk).decode() for chunk in encode_chunks(frontier)]
            for frontier in (self.start, self.end)
        ]
        columns = None if self.columns is None else sorted(self.columns)
        return json.dumps([self.generation, self.lsn, columns, *frontiers]).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Asked:
        generation, lsn, columns, *frontiers = json.loads(data)
        start, end = ([base64.b64decode(chunk) for chunk in chunks] for chunks in frontiers)
        return cls(generation, lsn, decode_chunks(start), decode_chunks(end), columns)


def encode_found(found: QueueBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.batch.schema) as writer:
        writer.write_batch(found.batch)
    has_reads = READ in found.batch.schema.names
    reads = np.unique(found.batch.column(READ).to_numpy()).tolist() if has_reads else []
    names = {str(read): found.names[read] for read in reads}
    columns: list[pa.Array[Any]] = [
        pa.array([found.lsn], pa.uint64()),
        pa.array([str(found.stage)], pa.string()),
        pa.array([json.dumps(names)], pa.string()),
        pa.array([found.places.tobytes()], pa.binary()),
        _one_value(sink.getvalue()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def decode_found(batch: pa.RecordBatch) -> Iterator[QueueBatch]:
    for row in range(batch.num_rows):
        lsn, stage, names, places = (batch.column(index)[row].as_py() for index in range(4))
        with pa.ipc.open_stream(batch.column(4)[row].as_buffer()) as reader:
            (rows,) = reader
        named = {int(read): (one[0], one[1]) for read, one in json.loads(names).items()}
        yield QueueBatch(lsn, Stage.parse(stage), rows, np.frombuffer(places, np.uint32), named)


def _one_value(data: pa.Buffer) -> pa.Array[Any]:
    """An array of this one value, which is not copied."""
    offsets = pa.py_buffer(np.array([0, data.size], np.int64).tobytes())
    found: pa.Array[Any] = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, data])
    return found
