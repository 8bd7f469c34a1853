"""The writer's loop: what is in the outbox, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.transport.carriers.grpc_wire import FRAMES_MAX, Envelope, check_batch_bytes
from penstock.transport.frames import FRAME_COST_BYTES, VnodeData
from penstock.transport.stages import StageEncoders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.transport.connection import Cost
    from penstock.transport.outbox import Outbox
    from penstock.transport.stages import Piece

GATHERED_BYTES: Final = 1024 * 1024
"""Small frames that wait together make a message of about this size: each message costs a tenth of
a millisecond, whatever is in it."""
WHOLE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A larger batch goes in parts, and is put together by the receiver. A smaller one is used there as
it arrived, without a copy."""
PART_BYTES: Final = 1024 * 1024
"""Of a batch in parts. Neither end holds the interpreter's lock for long to copy so much."""


def messages(outbox: Outbox, settle: Callable[[list[Cost]], bool]) -> Iterator[bytes]:
    """Encodes what is put into the outbox, until that is closed. `settle` is that of a
    Connection."""
    encoders = StageEncoders()
    envelope = Envelope()
    while taken := outbox.take():
        for frame, estimate_bytes in taken:
            if not isinstance(frame, VnodeData):
                envelope.add(frame)
            else:
                pieces = encoders.encode(frame.stage, frame.batch)
                batch_bytes = sum(map(len, pieces))
                if envelope.frames and envelope.size + batch_bytes > GATHERED_BYTES:
                    yield envelope.seal()
                check_batch_bytes(frame.stage, batch_bytes)
                if not settle([(estimate_bytes, batch_bytes + FRAME_COST_BYTES)]):
                    return
                if batch_bytes <= WHOLE_BYTES_MAX:
                    envelope.add_data(frame, pieces, batch_bytes)
                else:
                    yield from _parts(frame, pieces, batch_bytes)
            if envelope.size >= GATHERED_BYTES or envelope.frames == FRAMES_MAX:
                yield envelope.seal()
        if envelope.frames:
            yield envelope.seal()


def _parts(frame: VnodeData, pieces: list[Piece], batch_bytes: int) -> Iterator[bytes]:
    """A message for each part of a large batch."""
    envelope = Envelope()
    rest_bytes = batch_bytes
    part: list[Piece] = []
    part_bytes = 0
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            end = min(len(piece), begin + PART_BYTES - part_bytes)
            part.append(_cut(piece, begin, end))
            part_bytes += end - begin
            begin = end
            if part_bytes < min(PART_BYTES, rest_bytes):
                continue
            first = rest_bytes == batch_bytes
            rest_bytes -= part_bytes
            if first:
                envelope.add_data(frame, part, part_bytes, rest_bytes)
            else:
                envelope.add_rest(part, part_bytes)
            yield envelope.seal()
            part, part_bytes = [], 0


def _cut(piece: Piece, begin: int, end: int) -> Piece:
    if end - begin == len(piece):
        return piece
    return piece.slice(begin, end - begin) if isinstance(piece, pa.Buffer) else piece[begin:end]
