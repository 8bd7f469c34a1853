"""A frontier as a sequence of checksummed byte chunks.

Journals come in order, so many to a chunk, and every chunk of them can be read by itself. The last
chunk holds what belongs to the frontier as a whole and a seal over the chunks before it, so that
one which is missing, repeated, moved or of another frontier is noticed. Everything is
little-endian; `docs/format.md` has the bytes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.checksum import checksum
from penstock.errors import ConfigurationError, CorruptStorageError, LocalProtocolError
from penstock.frontier.names import apply_name_delta, name_delta
from penstock.frontier.table import Frontier, Int64Array, UInt16Array, UInt64Array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC: Final = b"PFRO"
VERSION: Final = 1
JOURNALS_PER_CHUNK_MAX: Final = 1_024
"""About 200 KiB with four producers each: small beside any buffer, large beside a header."""

_HEADER: Final = struct.Struct("<4sBBHIQQ")
"""Magic, version, kind, zero, sequence number, body length, checksum of all else."""
_CHECKSUM_BYTES: Final = 8
_JOURNALS: Final = struct.Struct("<II")
"""Journals, entries."""
_END: Final = struct.Struct("<IQQQIIII")
"""Chunks before, journals, entries, seal, and the lengths of the four lists that follow."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


class _Kind(enum.IntEnum):
    JOURNALS = 1
    END = 2


class CorruptFrontierError(CorruptStorageError):
    """A frontier's chunks are not what was written. Take the frontier from another copy."""

    def __init__(self, sequence: int, problem: str) -> None:
        super().__init__(sequence, problem)
        self.sequence = sequence
        self.problem = problem

    def __str__(self) -> str:
        return f"frontier chunk {self.sequence}: {self.problem}"


def encode_chunks(
    frontier: Frontier, journals_per_chunk_max: int = JOURNALS_PER_CHUNK_MAX
) -> Iterator[bytes]:
    """The chunks of a frontier, the last of them with no journals."""
    if journals_per_chunk_max < 1:
        raise ConfigurationError(f"a chunk has at least one journal, not {journals_per_chunk_max}")
    names = [name.encode() for name in frontier.journal_names.to_pylist() if name is not None]
    seal, sequence = 0, 0
    for start in range(0, frontier.journal_count, journals_per_chunk_max):
        stop = min(start + journals_per_chunk_max, frontier.journal_count)
        body = _journals_body(frontier, start, stop, names[start:stop])
        chunk = _chunk(_Kind.JOURNALS, sequence, body)
        seal = _sealed(seal, chunk)
        sequence += 1
        yield chunk
    yield _chunk(_Kind.END, sequence, _end_body(frontier, sequence, seal))


def _chunk(kind: _Kind, sequence: int, body: bytes) -> bytes:
    header = _HEADER.pack(MAGIC, VERSION, kind, 0, sequence, len(body), 0)[:-_CHECKSUM_BYTES]
    return header + struct.pack("<Q", checksum(header + body)) + body


def _sealed(seal: int, chunk: bytes) -> int:
    """The seal over the chunks so far: their headers hold their checksums."""
    return checksum(struct.pack("<Q", seal) + chunk[: _HEADER.size])


def _journals_body(frontier: Frontier, start: int, stop: int, names: list[bytes]) -> bytes:
    truncates, suffixes, previous = [], [], b""
    for name in names:
        truncate, suffix = name_delta(previous, name)
        truncates.append(truncate)
        suffixes.append(suffix)
        previous = name
    starts = frontier.producer_starts[start : stop + 1]
    entries = slice(int(starts[0]), int(starts[-1]))
    return b"".join(
        [
            _JOURNALS.pack(stop - start, entries.stop - entries.start),
            np.array(truncates, "<i4").tobytes(),
            np.array([len(suffix) for suffix in suffixes], "<u4").tobytes(),
            frontier.bindings[start:stop].astype("<u2").tobytes(),
            frontier.bytes_read_delta[start:stop].astype("<i8").tobytes(),
            frontier.bytes_behind_delta[start:stop].astype("<i8").tobytes(),
            np.diff(starts).astype("<u4").tobytes(),
            frontier.producers[entries].astype("<i8").tobytes(),
            frontier.last_commits[entries].astype("<u8").tobytes(),
            frontier.hinted_commits[entries].astype("<u8").tobytes(),
            frontier.offsets[entries].astype("<i8").tobytes(),
            *suffixes,
        ]
    )


def _end_body(frontier: Frontier, sequence: int, seal: int) -> bytes:
    maps = (frontier.backfill_begin, frontier.backfill_complete, frontier.gap_floor)
    parts = [
        _END.pack(
            sequence,
            frontier.journal_count,
            frontier.entry_count,
            seal,
            len(frontier.flushed_lsn),
            *(len(clocks) for clocks in maps),
        ),
        frontier.flushed_lsn.astype("<u8").tobytes(),
    ]
    for clocks in maps:
        bindings = sorted(clocks)
        parts.append(np.array(bindings, "<u2").tobytes())
        parts.append(np.array([clocks[binding] for binding in bindings], "<u8").tobytes())
    return b"".join(parts)


def decode_chunks(chunks: Iterable[bytes]) -> Frontier:
    """The frontier that was encoded. Raises `CorruptFrontierError` rather than return another."""
    decoder = _Decoder()
    for chunk in chunks:
        decoder.take(chunk)
    return decoder.frontier()


def split_chunks(data: bytes) -> Iterator[bytes]:
    """The chunks of a frontier that were written one behind the other. What is no whole chunk is
    given as it is, and refused by `decode_chunks`."""
    at = 0
    while at < len(data):
        size = len(data) - at
        if size >= _HEADER.size:
            *_, length, _ = _HEADER.unpack_from(data, at)
            size = min(_HEADER.size + length, size)
        yield data[at : at + size]
        at += size


class _Body:
    """Reads a chunk's body from front to back, and never past its end."""

    def __init__(self, sequence: int, body: memoryview) -> None:
        self._sequence = sequence
        self._body = body
        self._at = 0

    def take(self, length: int) -> memoryview:
        stop = self._at + length
        if stop > len(self._body):
            problem = f"its body ends at {len(self._body)} bytes and should hold {stop} or more"
            raise CorruptFrontierError(self._sequence, problem)
        taken = self._body[self._at : stop]
        self._at = stop
        return taken

    def column(self, dtype: type[_Scalar], count: int) -> npt.NDArray[_Scalar]:
        stored = np.dtype(dtype).newbyteorder("<")
        return np.frombuffer(self.take(stored.itemsize * count), stored).astype(dtype)

    def finish(self) -> None:
        if self._at != len(self._body):
            problem = f"its body has {len(self._body) - self._at} bytes too many"
            raise CorruptFrontierError(self._sequence, problem)


@dataclass(frozen=True, slots=True)
class _Journals:
    """The columns of one chunk, in their stored order."""

    bindings: UInt16Array
    bytes_read_delta: Int64Array
    bytes_behind_delta: Int64Array
    producer_counts: npt.NDArray[np.uint32]
    producers: Int64Array
    last_commits: UInt64Array
    hinted_commits: UInt64Array
    offsets: Int64Array

    @classmethod
    def read(cls, body: _Body, journals: int, entries: int) -> _Journals:
        return cls(
            bindings=body.column(np.uint16, journals),
            bytes_read_delta=body.column(np.int64, journals),
            bytes_behind_delta=body.column(np.int64, journals),
            producer_counts=body.column(np.uint32, journals),
            producers=body.column(np.int64, entries),
            last_commits=body.column(np.uint64, entries),
            hinted_commits=body.column(np.uint64, entries),
            offsets=body.column(np.int64, entries),
        )


class _Decoder:
    """Takes chunks one by one, and gives the frontier once the last was there."""

    def __init__(self) -> None:
        self._sequence = 0
        self._seal = 0
        self._names: list[bytes] = []
        # One without rows, so that a frontier without journals has columns too.
        self._journals = [_Journals.read(_Body(0, memoryview(b"")), 0, 0)]
        self._end: _Body | None = None

    def take(self, chunk: bytes) -> None:
        if self._end is not None:
            raise CorruptFrontierError(self._sequence, "it comes after the last chunk")
        kind, body = self._open(chunk)
        match kind:
            case _Kind.JOURNALS:
                self._take_journals(body)
                self._seal = _sealed(self._seal, chunk)
            case _Kind.END:
                self._end = body
            case _:
                assert_never(kind)
        self._sequence += 1

    def _open(self, chunk: bytes) -> tuple[_Kind, _Body]:
        expected = self._sequence
        if len(chunk) < _HEADER.size:
            problem = f"it has {len(chunk)} bytes, and a header alone has {_HEADER.size}"
            raise CorruptFrontierError(expected, problem)
        magic, version, kind, zero, sequence, length, wanted = _HEADER.unpack_from(chunk)
        if magic != MAGIC:
            raise CorruptFrontierError(expected, f"it begins with {magic!r}, not {MAGIC!r}")
        if version != VERSION:
            problem = f"it is of version {version}, and this reader knows {VERSION}"
            raise CorruptFrontierError(expected, problem)
        if length != len(chunk) - _HEADER.size:
            problem = f"its body has {len(chunk) - _HEADER.size} bytes and should have {length}"
            raise CorruptFrontierError(expected, problem)
        body = chunk[_HEADER.size :]
        header = chunk[: _HEADER.size - _CHECKSUM_BYTES]
        found = checksum(header + body)
        if found != wanted:
            problem = f"its checksum is {found:016x} and should be {wanted:016x}"
            raise CorruptFrontierError(expected, problem)
        if sequence != expected:
            problem = f"it is numbered {sequence}: chunks are missing, repeated or out of order"
            raise CorruptFrontierError(expected, problem)
        if zero or kind not in list(_Kind):
            problem = f"it is of kind {kind} (and {zero}), which this reader does not know"
            raise CorruptFrontierError(expected, problem)
        return _Kind(kind), _Body(sequence, memoryview(body))

    def _take_journals(self, body: _Body) -> None:
        journals, entries = _JOURNALS.unpack(body.take(_JOURNALS.size))
        truncates = body.column(np.int32, journals).tolist()
        suffix_lengths = body.column(np.uint32, journals).tolist()
        self._journals.append(_Journals.read(body, journals, entries))
        previous = b""
        for truncate, length in zip(truncates, suffix_lengths, strict=True):
            previous = apply_name_delta(previous, truncate, bytes(body.take(length)))
            self._names.append(previous)
        body.finish()

    def frontier(self) -> Frontier:
        end = self._end
        if end is None:
            raise CorruptFrontierError(self._sequence, "it is missing: the last chunk never came")
        sequence = self._sequence - 1
        chunk_count, journal_count, entry_count, seal, lsn_count, *map_lengths = _END.unpack(
            end.take(_END.size)
        )
        flushed_lsn = end.column(np.uint64, lsn_count)
        backfill_begin, backfill_complete, gap_floor = (_clocks(end, n) for n in map_lengths)
        end.finish()
        parts = self._journals
        producers = np.concatenate([part.producers for part in parts])
        found = (sequence, len(self._names), len(producers), self._seal)
        if found != (chunk_count, journal_count, entry_count, seal):
            problem = "the chunks before it are not those of its frontier"
            raise CorruptFrontierError(sequence, problem)
        starts = np.zeros(journal_count + 1, np.int64)
        np.cumsum(np.concatenate([part.producer_counts for part in parts]), out=starts[1:])
        try:
            return Frontier(
                journal_names=pa.array([name.decode() for name in self._names], pa.string()),
                bindings=np.concatenate([part.bindings for part in parts]),
                bytes_read_delta=np.concatenate([part.bytes_read_delta for part in parts]),
                bytes_behind_delta=np.concatenate([part.bytes_behind_delta for part in parts]),
                producer_starts=starts,
                producers=producers,
                last_commits=np.concatenate([part.last_commits for part in parts]),
                hinted_commits=np.concatenate([part.hinted_commits for part in parts]),
                offsets=np.concatenate([part.offsets for part in parts]),
                flushed_lsn=flushed_lsn,
                backfill_begin=backfill_begin,
                backfill_complete=backfill_complete,
                gap_floor=gap_floor,
            )
        except (UnicodeDecodeError, LocalProtocolError) as error:
            # Intact chunks with a wrong frontier in them: whoever wrote them did not check it.
            problem = f"together the chunks break a rule of frontiers: {error}"
            raise CorruptFrontierError(sequence, problem) from error


def _clocks(end: _Body, length: int) -> dict[int, int]:
    bindings = end.column(np.uint16, length).tolist()
    return dict(zip(bindings, end.column(np.uint64, length).tolist(), strict=True))
