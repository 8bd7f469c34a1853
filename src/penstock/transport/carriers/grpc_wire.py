"""Frames as gRPC messages: `proto/penstock/transport/v1/shuffle.proto` has the layout.

The bytes are made and read here by hand. Protobuf's own classes would copy each batch twice more,
and there is little else in a message: a few numbers, and the batch as it lies in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport.frames import (
    BODY_BYTES_MAX,
    FRAME_COST_BYTES,
    REASON_BYTES_MAX,
    STAGE_BYTES_MAX,
    TOKEN_BYTES_MAX,
    U64_MAX,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    VnodeData,
)
from penstock.transport.wire import short_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.transport.stages import Piece, StageDecoders

SERVICE: Final = "penstock.transport.v1.Shuffle"
METHOD: Final = "Exchange"

FRAMES_MAX: Final = 4096
"""Of one message. All of them are decoded before the first is counted against its credit."""
MESSAGE_BYTES_MAX: Final = BODY_BYTES_MAX + 64 * 1024
"""Of one message: the largest batch, and what stands around it. gRPC refuses more unread."""

_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_VARINT_BYTES_MAX: Final = 10
_TAG_MAX: Final = 2**32 - 1
_FIELDS_MAX: Final = 64
"""Of a frame, with those that a later release may add. A reader looks at each of them."""

_FRAMES: Final = 1
_HELLO: Final = 1
_DATA: Final = 2
_BARRIER: Final = 3
_FLUSH: Final = 4
_FLUSHED: Final = 5
_CREDIT: Final = 6
_CLOSE: Final = 7

_FIELDS: Final[Mapping[int, Mapping[int, int]]] = {
    _HELLO: {1: _VARINT, 2: _VARINT, 3: _VARINT, 4: _LENGTH, 5: _VARINT},
    _DATA: {1: _LENGTH, 2: _VARINT, 3: _LENGTH, 4: _LENGTH},
    _BARRIER: {1: _VARINT, 2: _VARINT, 3: _VARINT},
    _FLUSH: {1: _VARINT},
    _FLUSHED: {1: _VARINT, 2: _VARINT},
    _CREDIT: {1: _VARINT, 2: _VARINT},
    _CLOSE: {1: _LENGTH, 2: _VARINT},
}
"""The kinds of frames, and the wire types of their fields."""

_ALIGNED_BYTES: Final = 16
"""Where a bytes object of Python's begins. A batch that begins at a multiple of it in the message
is aligned wherever the message is received."""
_READ_ALIGNED_BYTES: Final = 8
"""What Arrow asks for."""
_SHARED_MAX: Final = 16
"""A batch that is smaller than its message by this factor gets memory of its own: else one that is
kept for long would keep everything that came with it."""


class Envelope:
    """Gathers frames for one message. A batch is copied once, when the message is sealed."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.size = 0
        self.frames = 0

    def add(self, frame: Hello | Barrier | Flush | Flushed | Credit | Close) -> None:
        self._put(_encode_control(frame))

    def add_data(self, frame: VnodeData, pieces: list[Piece], batch_bytes: int) -> None:
        """Adds a frame whose batch is encoded already."""
        self._put(_data_head(frame, batch_bytes, self.size))
        self._pieces += pieces
        self.size += batch_bytes

    def seal(self) -> bytes:
        """The message. The envelope is empty again."""
        message = b"".join(self._pieces)
        self._pieces, self.size, self.frames = [], 0, 0
        return message

    def _put(self, head: bytes) -> None:
        self._pieces.append(head)
        self.size += len(head)
        self.frames += 1


def frames_of(message: bytes, decoders: StageDecoders) -> Iterator[tuple[Frame, int]]:
    """The frames of a message, and what each takes of its credit. Batches point into the message.
    Raises RemoteProtocolError where the message is not what the protocol allows; the frames before
    were good."""
    for number, wire_type, begin, end in _fields(message, 0, len(message), FRAMES_MAX):
        if number != _FRAMES:
            continue
        if wire_type != _LENGTH:
            raise _malformed("its frames have the wrong wire type")
        yield _decode_frame(message, begin, end, decoders)


def check_batch_bytes(stage: str, batch_bytes: int) -> None:
    """Before a frame is added: no receiver would take a larger one."""
    if batch_bytes > BODY_BYTES_MAX:
        raise LocalProtocolError(
            f"stage {stage!r}: a frame of {batch_bytes:,} bytes is above the limit of "
            f"{BODY_BYTES_MAX:,}; its schema or its dictionaries are too large"
        )


def _encode_control(frame: Hello | Barrier | Flush | Flushed | Credit | Close) -> bytes:
    match frame:
        case Hello():
            body = _numbers(frame.version, frame.member, frame.lane)
            body += _block(4, frame.token) + _number(5, frame.window_bytes)
            kind = _HELLO
        case Barrier():
            kind, body = _BARRIER, _numbers(frame.checkpoint, frame.epoch, frame.flags)
        case Flush():
            kind, body = _FLUSH, _numbers(frame.cycle)
        case Flushed():
            kind, body = _FLUSHED, _numbers(frame.cycle, frame.lsn)
        case Credit():
            kind, body = _CREDIT, _numbers(frame.data_bytes, frame.control_frames)
        case Close():
            kind, body = _CLOSE, _block(1, short_reason(frame.reason)) + _number(2, frame.fault)
    inner = _head(kind, len(body)) + body
    return _head(_FRAMES, len(inner)) + inner


def _data_head(frame: VnodeData, batch_bytes: int, begin: int) -> bytes:
    """Everything before the batch, of a length with which the batch is aligned."""
    front = _block(1, frame.stage.encode()) + _number(2, frame.vnode)
    batch = _head(4, batch_bytes)
    filling_bytes = 0
    while True:
        # More filling may make the lengths in front longer; it is never taken back, so this ends.
        filling = _head(3, filling_bytes) + bytes(filling_bytes)
        body = front + filling + batch
        inner = _head(_DATA, len(body) + batch_bytes) + body
        head = _head(_FRAMES, len(inner) + batch_bytes) + inner
        missing_bytes = -(begin + len(head)) % _ALIGNED_BYTES
        if not missing_bytes:
            return head
        filling_bytes += missing_bytes


def _numbers(*values: int) -> bytes:
    """Fields 1, 2 and so on."""
    return b"".join(_number(number, value) for number, value in enumerate(values, 1))


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def _block(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data if data else b""


def _head(number: int, size: int) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(size)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _decode_frame(
    message: bytes, begin: int, end: int, decoders: StageDecoders
) -> tuple[Frame, int]:
    # As protobuf has it: of several kinds the last one counts, and of one kind the parts add up.
    kind = 0
    parts: list[tuple[int, int]] = []
    for number, wire_type, part_begin, part_end in _fields(message, begin, end, _FIELDS_MAX):
        if number not in _FIELDS:
            continue
        if wire_type != _LENGTH:
            raise _malformed("a frame has the wrong wire type")
        if number != kind:
            kind, parts = number, []
        parts.append((part_begin, part_end))
    if not kind:
        raise RemoteProtocolError(
            "a frame is of no kind that this release knows; run the same release on all members"
        )
    numbers, blocks = _values(message, kind, parts)
    try:
        if kind == _DATA:
            return _decode_data(message, numbers, blocks, decoders)
        return _decode_control(message, kind, numbers, blocks), 0
    except (LocalProtocolError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a frame is not valid: {error}") from error


def _values(
    message: bytes, kind: int, parts: list[tuple[int, int]]
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """The fields of a frame: numbers, and where the others begin and end in the message."""
    known = _FIELDS[kind]
    numbers: dict[int, int] = {}
    blocks: dict[int, tuple[int, int]] = {}
    for part_begin, part_end in parts:
        for number, wire_type, first, last in _fields(message, part_begin, part_end, _FIELDS_MAX):
            expected = known.get(number)
            if expected is None:
                continue
            if wire_type != expected:
                raise _malformed(f"field {number} of a frame has the wrong wire type")
            if wire_type == _VARINT:
                numbers[number] = first
            else:
                blocks[number] = first, last
    return numbers, blocks


def _decode_data(
    message: bytes,
    numbers: dict[int, int],
    blocks: dict[int, tuple[int, int]],
    decoders: StageDecoders,
) -> tuple[Frame, int]:
    stage = _cut(message, blocks.get(1), STAGE_BYTES_MAX, "a stage's name").decode()
    begin, end = blocks.get(4, (0, 0))
    batch_bytes = end - begin
    if batch_bytes > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"a batch has at most {BODY_BYTES_MAX} bytes, not {batch_bytes}")
    body = pa.py_buffer(message).slice(begin, batch_bytes)
    if body.address % _READ_ALIGNED_BYTES or batch_bytes * _SHARED_MAX < len(message):
        body = pa.py_buffer(body.to_pybytes())
    batch = decoders.decode(stage, body)
    return VnodeData(stage, numbers.get(2, 0), batch), batch_bytes + FRAME_COST_BYTES


def _decode_control(
    message: bytes, kind: int, numbers: dict[int, int], blocks: dict[int, tuple[int, int]]
) -> Frame:
    first, second, third = (numbers.get(number, 0) for number in (1, 2, 3))
    if kind == _HELLO:
        token = _cut(message, blocks.get(4), TOKEN_BYTES_MAX, "a token")
        return Hello(second, third, token, numbers.get(5, 0), first)
    if kind == _BARRIER:
        return Barrier(first, second, third)
    if kind == _FLUSH:
        return Flush(first)
    if kind == _FLUSHED:
        return Flushed(first, second)
    if kind == _CREDIT:
        return Credit(first, second)
    reason = _cut(message, blocks.get(1), REASON_BYTES_MAX, "a reason")
    return Close(reason.decode(), fault=bool(second))


def _cut(message: bytes, place: tuple[int, int] | None, bytes_max: int, what: str) -> bytes:
    begin, end = place or (0, 0)
    if end - begin > bytes_max:
        raise RemoteProtocolError(f"{what} has at most {bytes_max} bytes, not {end - begin}")
    return message[begin:end]


def _fields(
    message: bytes, begin: int, end: int, fields_max: int
) -> Iterator[tuple[int, int, int, int]]:
    """The fields between two places of a message: number and wire type, then for a number its
    value, and for all others where they begin and end."""
    left = fields_max
    while begin < end:
        if not left:
            raise _malformed(f"more than {fields_max} fields stand where fewer should")
        left -= 1
        tag, begin = _read_varint(message, begin, end)
        number, wire_type = tag >> 3, tag & 7
        if not number or tag > _TAG_MAX:
            raise _malformed("there is no such field number")
        if wire_type == _VARINT:
            value, begin = _read_varint(message, begin, end)
            yield number, wire_type, value, 0
            continue
        if wire_type == _LENGTH:
            size, begin = _read_varint(message, begin, end)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise _malformed(f"there is no wire type {wire_type} in proto3")
        if size > end - begin:
            raise _malformed("a field is longer than what it stands in")
        yield number, wire_type, begin, begin + size
        begin += size


def _read_varint(message: bytes, begin: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    if begin < end and message[begin] < 0x80:
        return message[begin], begin + 1  # nearly all are of this kind
    value = 0
    for place in range(begin, min(end, begin + _VARINT_BYTES_MAX)):
        value |= (message[place] & 0x7F) << 7 * (place - begin)
        if message[place] < 0x80:
            if value > U64_MAX:
                break
            return value, place + 1
    raise _malformed("a number is cut short, or has more than 64 bits")


def _malformed(problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a message is not valid protobuf of this protocol: {problem}")
