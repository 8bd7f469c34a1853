"""Frames through a pipe: the writer's loop and the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from penstock.checksum import RunningChecksum, checksum
from penstock.errors import RemoteProtocolError
from penstock.transport.carriers.blocks import Blocks
from penstock.transport.stages import StageDecoders, StageEncoders
from penstock.transport.wire import (
    HEADER,
    TAG_HELLO,
    Header,
    check_trailer,
    decode,
    decode_header,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.transport.carriers.pipes import Pipe
    from penstock.transport.connection import Cost
    from penstock.transport.frames import Frame
    from penstock.transport.outbox import Outbox
    from penstock.transport.stages import Piece
    from penstock.transport.wire import Encoded

CHUNK_BYTES: Final = 512 * 1024
"""Read at a time, as far as there is so much: many small frames by one call."""
LARGE_BYTES: Final = 192 * 1024
"""A frame above this is read into memory of its own, so that little of it is copied."""
GATHERED_BYTES: Final = 512 * 1024
"""Small frames that wait together are written together, up to about this much."""


Settle: TypeAlias = "Callable[[list[Cost], bool], int]"
"""That of a Connection."""


def write_frames(pipe: Pipe, outbox: Outbox, settle: Settle) -> None:
    """Encodes and writes what is put into the outbox, until that is closed."""
    encoders = StageEncoders()
    while frames := outbox.take():
        gathered = _Gathered()
        for frame, estimate_bytes in frames:
            gathered.add(encode(frame, encoders), estimate_bytes)
            if gathered.size >= GATHERED_BYTES:
                if not gathered.write(pipe, settle):
                    return
                gathered = _Gathered()
        if gathered.size and not gathered.write(pipe, settle):
            return
    pipe.finish()


class _Gathered:
    """Encoded frames that are settled and written together: each step costs a change between the
    threads of the caller and the writer."""

    __slots__ = ("_begins", "_costs", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []
        self._costs: list[Cost] = []
        self._begins: list[int] = []
        """Of each data frame: how many pieces are before it."""

    def add(self, encoded: Encoded, estimate_bytes: int) -> None:
        pieces, size, cost_bytes = encoded
        if cost_bytes:
            self._costs.append((estimate_bytes, cost_bytes))
            self._begins.append(len(self._pieces))
        self._pieces += pieces
        self.size += size

    def write(self, pipe: Pipe, settle: Settle) -> bool:
        """False: the connection is gone."""
        written = 0
        settled = settle(self._costs, False)
        while settled < len(self._costs):
            # It has to wait for credit, which comes only for what has arrived.
            begin = self._begins[settled]
            pipe.send(self._pieces[written:begin])
            written = begin
            more = settle(self._costs[settled:], True)
            if not more:
                return False
            settled += more
        pipe.send(self._pieces[written:] if written else self._pieces)
        return True


def read_frames(pipe: Pipe, *, of_stranger: bool = False) -> Iterator[list[tuple[Frame, int]]]:
    """Every frame, and what it takes of its credit, until the other end is finished: each time
    those that came together. A connection that ends within a frame is an error. A stranger's first
    frame must be a Hello: nothing larger is waited for."""
    return iter(_Reader(pipe, of_stranger))


class _Reader:
    """Reads chunks and decodes the frames in them. A batch points into the chunk it came in, so a
    chunk is filled from front to back, once, and belongs to its batches then."""

    def __init__(self, pipe: Pipe, of_stranger: bool) -> None:
        self._pipe = pipe
        self._of_stranger = of_stranger
        self._decoders = StageDecoders(checksummed=True)
        self._blocks = Blocks()
        self._view, self._chunk = self._blocks.lend(CHUNK_BYTES)
        # Of what was read into the chunk and not yet decoded.
        self._begin = self._end = 0

    def __iter__(self) -> Iterator[list[tuple[Frame, int]]]:
        while True:
            frames: list[tuple[Frame, int]] = []
            try:
                unfinished = self._decode_into(frames)
            except RemoteProtocolError:
                if frames:  # those before the fault were good
                    yield frames
                raise
            if frames:
                yield frames
            if unfinished is not None and unfinished.frame_bytes > LARGE_BYTES:
                yield [decode(unfinished.tag, self._read_large(unfinished), self._decoders)]
                continue
            wanted = unfinished.frame_bytes if unfinished else HEADER.size
            self._make_room(wanted)
            count = self._pipe.receive_into(self._view[self._end :])
            if count == 0:
                if self._begin != self._end:
                    raise _ended_within(self._end - self._begin, wanted)
                return
            self._end += count

    def _decode_into(self, frames: list[tuple[Frame, int]]) -> Header | None:
        """Decodes what is complete. Returns the header of what is not, if that is there."""
        view, filled = self._view, self._end
        while filled - self._begin >= HEADER.size:
            begin = self._begin
            head = decode_header(view, begin)
            tag, body_bytes, end, frame_bytes = head
            if self._of_stranger and tag != TAG_HELLO:
                raise RemoteProtocolError(
                    f"a stream begins with Hello; this one began with a frame of kind {tag}"
                )
            if filled < begin + frame_bytes or frame_bytes > LARGE_BYTES:
                return head
            body_begin, body_end = begin + HEADER.size, begin + end
            check_trailer(view, body_end, checksum(view[body_begin:body_end]))
            body = self._chunk.slice(body_begin, body_bytes)
            frames.append(decode(tag, _own(body), self._decoders))
            self._begin = begin + frame_bytes
            self._of_stranger = False
        return None

    def _make_room(self, wanted: int) -> None:
        if self._begin + wanted > len(self._view) or self._end == len(self._view):
            self._restart(self._view[self._begin : self._end])

    def _restart(self, early: memoryview) -> None:
        """Goes on in a new chunk, or in this one if it has room, with what came already."""
        if len(self._view) - self._end < LARGE_BYTES:
            self._view, self._chunk = self._blocks.lend(CHUNK_BYTES)
            self._end = 0
        self._begin, self._end = self._end, self._end + len(early)
        self._view[self._begin : self._end] = early

    def _read_large(self, head: Header) -> pa.Buffer:
        """A large frame's body, in memory of its own with room for the next header. The checksum
        is taken as the body comes in, while it is in the processor's cache."""
        view, buffer = self._blocks.lend(head.frame_bytes + HEADER.size)
        early = self._view[self._begin : self._end]
        filled = min(len(early), head.frame_bytes)
        view[:filled] = early[:filled]
        self._begin += filled
        digest = RunningChecksum()
        summed = HEADER.size
        while True:
            digest.update(view[summed : min(filled, head.end)])
            summed = min(filled, head.end)
            if filled >= head.frame_bytes:
                break
            count = self._pipe.receive_into(view[filled:])
            if count == 0:
                raise _ended_within(filled, head.frame_bytes)
            filled += count
        check_trailer(view, head.end, digest.intdigest())
        if filled > head.frame_bytes:
            self._restart(view[head.frame_bytes : filled])
        return buffer.slice(HEADER.size, head.body_bytes)


def _own(body: pa.Buffer) -> pa.Buffer:
    """A small body gets memory of its own: else a batch of a hundred bytes, kept for long, would
    keep everything that was read with it."""
    return body if body.size >= CHUNK_BYTES // 8 else pa.py_buffer(body.to_pybytes())


def _ended_within(came_bytes: int, wanted_bytes: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the connection ended within a frame: {came_bytes} of {wanted_bytes} bytes came"
    )
