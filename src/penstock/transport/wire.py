"""Frames as bytes on TCP. docs/format.md has the layout; this is its only code.

A frame is a header of 8 bytes, a body filled up to a multiple of eight, so that a batch in it is
aligned wherever it is read, and a trailer of 8. The header has a check of its own, so that a
damaged length is known before anything is allocated or waited for. The trailer is the checksum of
what lies between: at the end, so that it can be taken while that comes in.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.checkpoint.barrier import BARRIER_BYTES
from penstock.checksum import RunningChecksum, checksum
from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport.frames import (
    BODY_BYTES_MAX,
    FRAME_COST_BYTES,
    REASON_BYTES_MAX,
    TOKEN_BYTES_MAX,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Mark,
    MarkKind,
    VnodeData,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.transport.stages import Piece, StageDecoders, StageEncoders

HEADER: Final = struct.Struct("<IBBH")
"""Body bytes, tag, zero, and a check of all that."""
TRAILER: Final = struct.Struct("<Q")
_CHECKED: Final = struct.Struct("<IBB")

MAGIC: Final = b"PSTK"
_HELLO: Final = struct.Struct("<4sHHQQ")
_GENERATION: Final = 1 << 63
"""In a Hello, beside the number: it is a sender's generation. Without, it is a receiver's window,
or the zero of a sender of a release that knew no generations; that one looks at neither."""
_DATA: Final = struct.Struct("<HHI")
_FLUSH: Final = struct.Struct("<Q")
_FLUSHED: Final = struct.Struct("<QQ")
_CREDIT: Final = struct.Struct("<QQ")
_MARK: Final = struct.Struct("<QQ")

TAG_HELLO: Final = 1
_TAG_DATA: Final = 2
_TAG_BARRIER: Final = 3
_TAG_FLUSH: Final = 4
_TAG_FLUSHED: Final = 5
_TAG_CREDIT: Final = 6
_TAG_CLOSE: Final = 7
_TAG_MARK: Final = 8

_BODY_BYTES_RANGE: Final = {
    TAG_HELLO: (_HELLO.size, _HELLO.size + TOKEN_BYTES_MAX),
    _TAG_DATA: (_DATA.size, BODY_BYTES_MAX),
    _TAG_BARRIER: (BARRIER_BYTES, BARRIER_BYTES),
    _TAG_FLUSH: (_FLUSH.size, _FLUSH.size),
    _TAG_FLUSHED: (_FLUSHED.size, _FLUSHED.size),
    _TAG_CREDIT: (_CREDIT.size, _CREDIT.size),
    _TAG_CLOSE: (1, 1 + REASON_BYTES_MAX),
    _TAG_MARK: (_MARK.size, _MARK.size),
}

_JOINED_BYTES_MAX: Final = 2048
"""Pieces up to this size are joined: one more copy of little, for fewer pieces to gather."""


class Encoded(NamedTuple):
    pieces: list[Piece]
    """All of the frame, in order."""
    size: int
    """Of the whole frame."""
    cost_bytes: int
    """What a data frame takes of its credit; zero for all others."""


class Header(NamedTuple):
    tag: int
    body_bytes: int
    end: int
    """Where the trailer begins, from the frame's beginning."""
    frame_bytes: int


def encode(frame: Frame, encoders: StageEncoders) -> Encoded:
    """A frame's pieces, in order. Those of a batch are its own buffers."""
    match frame:
        case VnodeData():
            return _encode_data(frame, encoders)
        case Hello():
            number = frame.window_bytes or (frame.generation and _GENERATION | frame.generation)
            head = _HELLO.pack(MAGIC, frame.version, frame.lane, frame.member, number)
            return _encode_control(TAG_HELLO, head + frame.token)
        case Mark():
            return _encode_control(_TAG_MARK, _MARK.pack(frame.key, frame.kind))
        case Barrier():
            return _encode_control(_TAG_BARRIER, frame.to_bytes())
        case Flush():
            return _encode_control(_TAG_FLUSH, _FLUSH.pack(frame.cycle))
        case Flushed():
            return _encode_control(_TAG_FLUSHED, _FLUSHED.pack(frame.cycle, frame.lsn))
        case Credit():
            body = _CREDIT.pack(frame.data_bytes, frame.control_frames)
            return _encode_control(_TAG_CREDIT, body)
        case Close():
            return _encode_control(_TAG_CLOSE, bytes([frame.fault]) + short_reason(frame.reason))


def decode_header(data: bytes | memoryview, begin: int = 0) -> Header:
    """Reads a header. Whatever it says afterwards, it was written so, and its length is allowed."""
    body_bytes, tag, zero, check = HEADER.unpack_from(data, begin)
    if check != _header_check(data[begin : begin + _CHECKED.size]) or zero:
        raise RemoteProtocolError("the bytes are not a frame's header: damaged, or not of Penstock")
    allowed = _BODY_BYTES_RANGE.get(tag)
    if allowed is None:
        raise RemoteProtocolError(f"there is no frame of kind {tag}")
    if not allowed[0] <= body_bytes <= allowed[1]:
        raise RemoteProtocolError(
            f"a frame of kind {tag} has {allowed[0]} to {allowed[1]} bytes, not {body_bytes}"
        )
    end = HEADER.size + body_bytes + -body_bytes % 8
    return Header(tag, body_bytes, end, end + TRAILER.size)


def check_trailer(data: memoryview, begin: int, body_sum: int) -> None:
    if TRAILER.unpack_from(data, begin)[0] != body_sum:
        raise RemoteProtocolError("a frame's body fails its checksum: damaged on the way")


def decode(tag: int, body: pa.Buffer, decoders: StageDecoders) -> tuple[Frame, int]:
    """The frame, and what it takes of its credit, from a body whose checksum holds. Its batch
    points into the body."""
    if tag == _TAG_DATA:
        return _decode_data(body, decoders)
    try:
        return _decode_control(tag, body.to_pybytes()), 0
    except (LocalProtocolError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a frame of kind {tag} is not valid: {error}") from error


def short_reason(reason: str) -> bytes:
    """A reason that fits its frame, cut between characters."""
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore").encode()


def data_prefix(frame: VnodeData) -> bytes:
    """What comes before a batch: its vnode and stage, up to a multiple of eight bytes."""
    stage = frame.stage.encode()
    return _DATA.pack(frame.vnode, len(stage), 0) + stage + bytes(-len(stage) % 8)


def _encode_data(frame: VnodeData, encoders: StageEncoders) -> Encoded:
    batch_pieces = encoders.encode(frame.stage, frame.batch)
    batch_bytes = sum(map(len, batch_pieces))
    prefix = data_prefix(frame)
    body_bytes = len(prefix) + batch_bytes
    if body_bytes > BODY_BYTES_MAX:
        raise LocalProtocolError(
            f"stage {frame.stage!r}: a frame of {body_bytes:,} bytes is above the limit of "
            f"{BODY_BYTES_MAX:,}; its schema or its dictionaries are too large"
        )
    # Both the prefix and what Arrow writes are multiples of eight: there is nothing to fill up.
    pieces = _joined([prefix, *batch_pieces])
    digest = RunningChecksum()
    for piece in pieces:
        digest.update(piece)
    pieces[0] = _pack_header(_TAG_DATA, body_bytes) + pieces[0]  # the prefix is always joined
    pieces.append(TRAILER.pack(digest.intdigest()))
    size = HEADER.size + body_bytes + TRAILER.size
    return Encoded(pieces, size, batch_bytes + FRAME_COST_BYTES)


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) <= _JOINED_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined


def _encode_control(tag: int, body: bytes) -> Encoded:
    filled = body + bytes(-len(body) % 8)
    piece = _pack_header(tag, len(body)) + filled + TRAILER.pack(checksum(filled))
    return Encoded([piece], len(piece), 0)


def _pack_header(tag: int, body_bytes: int) -> bytes:
    checked = _CHECKED.pack(body_bytes, tag, 0)
    return checked + _header_check(checked).to_bytes(2, "little")


def _header_check(checked: bytes | memoryview) -> int:
    return checksum(checked) & 0xFFFF


def _decode_data(body: pa.Buffer, decoders: StageDecoders) -> tuple[Frame, int]:
    vnode, stage_bytes, zero = _DATA.unpack_from(body)
    begin = _DATA.size + stage_bytes + -stage_bytes % 8
    if zero or begin > body.size:
        raise RemoteProtocolError("a data frame's prefix is not valid")
    try:
        stage = body.slice(_DATA.size, stage_bytes).to_pybytes().decode()
        batch_body = body.slice(begin)
        batch = decoders.decode(stage, batch_body)
        return VnodeData(stage, vnode, batch), batch_body.size + FRAME_COST_BYTES
    except (LocalProtocolError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a data frame is not valid: {error}") from error


def _decode_control(tag: int, body: bytes) -> Frame:
    if tag == TAG_HELLO:
        magic, version, lane, member, number = _HELLO.unpack_from(body)
        if magic != MAGIC:
            raise LocalProtocolError("it does not begin with the transport's mark")
        is_generation = number & _GENERATION
        window_bytes = 0 if is_generation else number
        generation = number ^ _GENERATION if is_generation else 0
        return Hello(member, lane, body[_HELLO.size :], window_bytes, version, generation)
    if tag == _TAG_MARK:
        key, kind = _MARK.unpack(body)
        return Mark(mark_kind(kind), key)
    if tag == _TAG_BARRIER:
        return Barrier.from_bytes(body)
    if tag == _TAG_FLUSH:
        return Flush(*_FLUSH.unpack(body))
    if tag == _TAG_FLUSHED:
        return Flushed(*_FLUSHED.unpack(body))
    if tag == _TAG_CREDIT:
        return Credit(*_CREDIT.unpack(body))
    if body[0] > 1:
        raise LocalProtocolError("Close is a fault (1) or none (0)")
    return Close(body[1:].decode(), fault=bool(body[0]))


def mark_kind(number: int) -> MarkKind:
    try:
        return MarkKind(number)
    except ValueError:
        raise LocalProtocolError(f"there is no mark of kind {number}") from None
