"""A Slice's part of a snapshot: where its reads stand, and everything that it ever learned.

Bytes: the magic, how many pieces follow, the length of each, and the pieces: two Arrow streams,
of the reads and of their producers, and the chunks of a frontier. What is said once is in the
metadata of the first. Checksums are the snapshot's own.
"""

from __future__ import annotations

import itertools
import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptStorageError, PenstockError
from penstock.frontier import Frontier, decode_chunks, encode_chunks
from penstock.journal.names import name_of
from penstock.sequence import StateColumns
from penstock.shuffle.slice.reads import Read
from penstock.shuffle.slice.states import NO_STATES, ReadStates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.shuffle.plan import BindingPlan
    from penstock.shuffle.slice.replay import SpanReplay

MAGIC: Final = b"PSL1"
_HEADER: Final = struct.Struct("<4sI")
_READ_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("journal", pa.string(), nullable=False),
    pa.field("binding", pa.uint16(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("key", pa.uint64(), nullable=False),
    pa.field("reported_offset", pa.int64(), nullable=False),
    pa.field("reported_head", pa.int64(), nullable=False),
    pa.field("missing", pa.int64(), nullable=False),
]
_STATE_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("read", pa.uint32(), nullable=False),
    pa.field("producer", pa.int64(), nullable=False),
    pa.field("last_commit", pa.uint64(), nullable=False),
    pa.field("max_continue", pa.uint64(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
]
_ABOUT: Final = b"penstock.slice"


class CorruptSliceError(CorruptStorageError):
    """The bytes are not a Slice's part of a snapshot. Restore from another epoch."""


@dataclass(frozen=True, slots=True)
class SavedRead:
    journal: str
    """As frontiers know it."""
    binding: int
    offset: int
    """Up to here it was drained."""
    key: int
    reported_offset: int
    reported_head: int
    missing: int
    """Rows that are missing before the offset, if no gap floor tells that yet."""
    states: StateColumns

    @classmethod
    def of(cls, read: Read) -> SavedRead:
        return cls(
            journal=read.known_as,
            binding=read.binding.place,
            offset=read.offset,
            key=read.key,
            reported_offset=read.reported_offset,
            reported_head=read.reported_head,
            missing=read.missing,  # a gap that is still ahead is found again
            states=read.states.columns(),
        )

    @property
    def has_open_spans(self) -> bool:
        """As `Read.has_open_spans`: whose rows were sent."""
        is_open = (self.states.max_continues != 0) & (
            self.states.max_continues != self.states.last_commits
        )
        return bool(is_open.any())

    def restored(self, number: int, binding: BindingPlan) -> Read:
        read = Read(
            number,
            binding,
            name_of(self.journal),
            self.offset,
            ReadStates(self.states.to_dict()),
            self.key,
            self.reported_offset,
            self.reported_head,
        )
        read.missing = self.missing
        return read


@dataclass(frozen=True, slots=True)
class SavedReplay:
    journal: str
    binding: int
    producer: int
    begin: int
    end: int
    key: int

    @classmethod
    def of(cls, replay: SpanReplay) -> SavedReplay:
        read = replay.read
        return cls(
            read.known_as, read.binding.place, replay.producer, replay.begin, replay.end, replay.key
        )


@dataclass(frozen=True, slots=True)
class SliceSnapshot:
    reads: tuple[SavedRead, ...]
    frontier: Frontier
    """All entries and hints; its bytes are those that were not told yet."""
    promised: int
    """No row with a lesser key follows."""
    cycle: int
    """Of the last flush."""
    replays: tuple[SavedReplay, ...] = ()
    """Those under way: one, or several that came together when vnodes changed hands."""

    def encode(self) -> bytes:
        about = {
            "promised": self.promised,
            "cycle": self.cycle,
            "replays": [asdict(replay) for replay in self.replays],
        }
        reads_schema = pa.schema(_READ_FIELDS, metadata={_ABOUT: json.dumps(about).encode()})
        reads = [[getattr(read, field.name) for read in self.reads] for field in _READ_FIELDS]
        pieces = [
            _stream(reads_schema, reads),
            _stream(pa.schema(_STATE_FIELDS), _state_columns([read.states for read in self.reads])),
            *encode_chunks(self.frontier),
        ]
        lengths = struct.pack(f"<{len(pieces)}Q", *map(len, pieces))
        return b"".join([_HEADER.pack(MAGIC, len(pieces)), lengths, *pieces])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> SliceSnapshot:
        try:
            reads, states, *chunks = _pieces(memoryview(data))
            return _decoded(reads, states, decode_chunks(map(bytes, chunks)))
        except (ValueError, KeyError, TypeError, struct.error, pa.ArrowException) as error:
            raise CorruptSliceError(f"this is no Slice's state: {error}") from error
        except PenstockError as error:
            raise CorruptSliceError(f"this is no Slice's state: {error}") from error


def _state_columns(states: Sequence[StateColumns]) -> list[np.ndarray[Any, Any]]:
    """The columns of all reads' states, with the number of each one's read before them."""
    all_states = [NO_STATES, *states]
    numbers = np.repeat(np.arange(len(states), dtype=np.uint32), [len(each) for each in states])
    names = ("producers", "last_commits", "max_continues", "offsets")
    return [
        numbers,
        *(np.concatenate([getattr(each, name) for each in all_states]) for name in names),
    ]


def _stream(schema: pa.Schema, columns: Sequence[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


def _pieces(data: memoryview) -> list[memoryview]:
    magic, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not {MAGIC!r}")
    lengths = struct.unpack_from(f"<{count}Q", data, _HEADER.size)
    begin = _HEADER.size + 8 * count
    if begin + sum(lengths) != len(data):
        raise ValueError(f"it has {len(data)} bytes and should have {begin + sum(lengths)}")
    pieces = []
    for length in lengths:
        pieces.append(data[begin : begin + length])
        begin += length
    return pieces


def _decoded(reads: memoryview, states: memoryview, frontier: Frontier) -> SliceSnapshot:
    read_table = pa.ipc.open_stream(pa.py_buffer(reads)).read_all()
    about = json.loads((read_table.schema.metadata or {})[_ABOUT])
    numbers, *state_columns = (
        column.to_numpy() for column in pa.ipc.open_stream(pa.py_buffer(states)).read_all().columns
    )
    # A read's states stand together, in the order of reads.
    bounds = np.searchsorted(numbers, np.arange(read_table.num_rows + 1))
    if bounds[-1] != len(numbers) or (numbers[1:] < numbers[:-1]).any():
        raise ValueError("states are of reads that it does not have")
    of_read = [
        StateColumns(*(column[begin:end] for column in state_columns))
        for begin, end in itertools.pairwise(bounds.tolist())
    ]
    return SliceSnapshot(
        reads=tuple(
            SavedRead(**row, states=states_of)
            for row, states_of in zip(read_table.to_pylist(), of_read, strict=True)
        ),
        frontier=frontier,
        promised=about["promised"],
        cycle=about["cycle"],
        replays=tuple(SavedReplay(**replay) for replay in about["replays"]),
    )
