"""Frames through a pipe: the writer's loop and the reader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    from penstock.transport.frames import Frame
    from penstock.transport.outbox import Outbox
    from penstock.transport.stages import Piece

CHUNK_BYTES: Final = 512 * 1024
"""Read at a time, as far as there is so much: many small frames by one call."""
LARGE_BYTES: Final = 192 * 1024
"""A frame above this is read into memory of its own, so that little of it is copied."""
GATHERED_BYTES: Final = 512 * 1024
"""Small frames that wait together are written together, up to about this much."""


def write_frames(pipe: Pipe, outbox: Outbox, settle: Callable[[int, int, bool], bool]) -> None:
    """Encodes and writes what is put into the outbox, until that is closed. `settle` is that of a
    Connection."""
    encoders = StageEncoders()
    while frames := outbox.take():
        gathered: list[Piece] = []
        gathered_bytes = 0
        for outgoing in frames:
            encoded = encode(outgoing.frame, encoders)
            costs = outgoing.estimate_bytes, encoded.cost_bytes
            if encoded.cost_bytes and not settle(*costs, False):
                pipe.send(gathered)
                gathered, gathered_bytes = [], 0
                if not settle(*costs, True):
                    return
            gathered += encoded.sealed()
            gathered_bytes += encoded.size
            if gathered_bytes >= GATHERED_BYTES:
                pipe.send(gathered)
                gathered, gathered_bytes = [], 0
        if gathered:
            pipe.send(gathered)
    pipe.finish()


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
                yield [decode(unfinished, self._read_large(unfinished), self._decoders)]
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
        while self._end - self._begin >= HEADER.size:
            begin = self._begin
            head = decode_header(self._view[begin : begin + HEADER.size])
            if self._of_stranger and head.tag != TAG_HELLO:
                raise RemoteProtocolError(
                    f"a stream begins with Hello; this one began with a frame of kind {head.tag}"
                )
            end = begin + head.frame_bytes
            if self._end < end or head.frame_bytes > LARGE_BYTES:
                return head
            summed = self._view[begin + HEADER.size : begin + head.end]
            check_trailer(self._view[begin + head.end : end], checksum(summed))
            body = self._chunk.slice(begin + HEADER.size, head.body_bytes)
            frames.append(decode(head, _own(body), self._decoders))
            self._begin = end
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
        check_trailer(view[head.end : head.frame_bytes], digest.intdigest())
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
