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
"""A frame above this is read into memory of its own, a smaller one is copied out of its chunk: what
waits in the inbox keeps its own memory and no more, whatever was read together with it."""
GATHERED_BYTES: Final = 512 * 1024
"""Small frames that wait together are written together, up to about this much."""


Settle: TypeAlias = "Callable[[list[Cost]], bool]"
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

    __slots__ = ("_costs", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []
        self._costs: list[Cost] = []

    def add(self, encoded: Encoded, estimate_bytes: int) -> None:
        pieces, size, cost_bytes = encoded
        if cost_bytes:
            self._costs.append((estimate_bytes, cost_bytes))
        self._pieces += pieces
        self.size += size

    def write(self, pipe: Pipe, settle: Settle) -> bool:
        """False: the connection is gone."""
        if self._costs and not settle(self._costs):
            return False
        pipe.send(self._pieces)
        return True


def read_frames(pipe: Pipe, *, of_stranger: bool = False) -> Iterator[list[tuple[Frame, int]]]:
    """Every frame, and what it takes of its credit, until the other end is finished: each time
    those that came together. A connection that ends within a frame is an error. A stranger's first
    frame must be a Hello: nothing larger is waited for."""
    return iter(_Reader(pipe, of_stranger))


class _Reader:
    """Reads chunks and decodes the frames in them. Every frame gets memory of its own, so there is
    one chunk, which is filled again and again."""

    def __init__(self, pipe: Pipe, of_stranger: bool) -> None:
        self._pipe = pipe
        self._of_stranger = of_stranger
        self._decoders = StageDecoders()
        self._blocks = Blocks()
        self._view = memoryview(pa.allocate_buffer(CHUNK_BYTES)).cast("B")
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
            body = pa.py_buffer(view[body_begin : body_begin + body_bytes].tobytes())
            frames.append(decode(tag, body, self._decoders))
            self._begin = begin + frame_bytes
            self._of_stranger = False
        return None

    def _make_room(self, wanted: int) -> None:
        if self._begin + wanted > len(self._view) or self._end == len(self._view):
            self._restart(self._view[self._begin : self._end])

    def _restart(self, early: memoryview) -> None:
        """Goes on at the chunk's beginning, with what came already."""
        self._view[: len(early)] = early
        self._begin, self._end = 0, len(early)

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


def _ended_within(came_bytes: int, wanted_bytes: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the connection ended within a frame: {came_bytes} of {wanted_bytes} bytes came"
    )
