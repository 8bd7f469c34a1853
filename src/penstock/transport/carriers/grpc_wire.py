"""Frames as gRPC messages: `proto/penstock/transport/v1/shuffle.proto` has the layout.

The bytes are made and read here by hand. Protobuf's own classes would copy each batch twice more,
and there is little else in a message: a few numbers, and the batch as it lies in memory.

A large batch comes in parts, each in a message of its own. gRPC holds several copies of a message
while it is under way, and the interpreter's lock while it copies: both should be short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport.carriers.blocks import Blocks
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
    Mark,
    VnodeData,
)
from penstock.transport.wire import mark_kind, short_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.transport.stages import Piece, StageDecoders

SERVICE: Final = "penstock.transport.v1.Shuffle"
METHOD: Final = "Exchange"

FRAMES_MAX: Final = 4096
"""Of one message. All of them are decoded before the first is counted against its credit."""
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one message: what every gRPC library accepts unless it is told otherwise."""

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
_REST: Final = 8
_MARK: Final = 9

_FIELDS: Final[Mapping[int, Mapping[int, int]]] = {
    _HELLO: {1: _VARINT, 2: _VARINT, 3: _VARINT, 4: _LENGTH, 5: _VARINT, 6: _VARINT},
    _DATA: {1: _LENGTH, 2: _VARINT, 3: _LENGTH, 4: _LENGTH, 5: _VARINT},
    _BARRIER: {1: _VARINT, 2: _VARINT, 3: _VARINT},
    _FLUSH: {1: _VARINT},
    _FLUSHED: {1: _VARINT, 2: _VARINT},
    _CREDIT: {1: _VARINT, 2: _VARINT},
    _CLOSE: {1: _LENGTH, 2: _VARINT},
    _REST: {1: _LENGTH},
    _MARK: {1: _VARINT, 2: _VARINT},
}
"""The kinds of frames, and the wire types of their fields."""

_ALIGNED_BYTES: Final = 16
"""Where a bytes object of Python's begins. A batch that begins at a multiple of it in the message
is aligned wherever the message is received."""
_READ_ALIGNED_BYTES: Final = 8
"""What Arrow asks for."""
_SMALL: Final = [bytes([value]) for value in range(0x80)]
"""Numbers of one byte. The tags of all our fields are among them."""
_NOTHING: Final = pa.py_buffer(b"")
_SHARED_MAX: Final = 2
"""A batch that is smaller than its message by this factor gets memory of its own: else one that is
kept for long would keep everything that came with it."""


class Envelope:
    """Gathers frames for one message. A batch is copied once, when the message is sealed."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.size = 0
        self.frames = 0

    def add(self, frame: Hello | Mark | Barrier | Flush | Flushed | Credit | Close) -> None:
        self._put(_encode_control(frame))

    def add_data(
        self, frame: VnodeData, pieces: list[Piece], part_bytes: int, rest_bytes: int = 0
    ) -> None:
        """Adds a frame whose batch is encoded already, or the first part of it."""
        self._put(_data_head(frame, part_bytes, rest_bytes, self.size))
        self._append(pieces, part_bytes)

    def add_rest(self, pieces: list[Piece], part_bytes: int) -> None:
        """Adds the next part of the batch that was begun."""
        inner = _head(1, part_bytes)
        inner = _head(_REST, len(inner) + part_bytes) + inner
        self._put(_head(_FRAMES, len(inner) + part_bytes) + inner)
        self._append(pieces, part_bytes)

    def seal(self) -> bytes:
        """The message. The envelope is empty again."""
        message = b"".join(self._pieces)
        self._pieces, self.size, self.frames = [], 0, 0
        return message

    def _put(self, head: bytes) -> None:
        self._append([head], len(head))
        self.frames += 1

    def _append(self, pieces: list[Piece], size: int) -> None:
        self._pieces += pieces
        self.size += size


class Unfinished:
    """The batch of a call whose rest is yet to come; there is one at most."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._stage, self._vnode = "", 0
        self._view = memoryview(b"")
        self._buffer = _NOTHING
        self._filled = 0

    @property
    def open(self) -> bool:
        return bool(self._view)

    def begin(self, stage: str, vnode: int, batch_bytes: int) -> None:
        self._stage, self._vnode = stage, vnode
        self._view, self._buffer = self._blocks.lend(batch_bytes)
        self._filled = 0

    def add(self, part: memoryview) -> tuple[str, int, pa.Buffer] | None:
        """Takes the next part. Returns stage, vnode and batch when that is complete."""
        end = self._filled + len(part)
        if not part or end > len(self._view):
            raise RemoteProtocolError(
                f"{len(part)} bytes of a batch came where 1 to {len(self._view) - self._filled} "
                "were to come"
            )
        self._view[self._filled : end] = part
        self._filled = end
        if end < len(self._view):
            return None
        complete = self._stage, self._vnode, self._buffer
        self._view, self._buffer = memoryview(b""), _NOTHING
        return complete


def frames_of(
    message: bytes, decoders: StageDecoders, unfinished: Unfinished | None = None
) -> Iterator[tuple[Frame, int]]:
    """The frames that a message completes, and what each takes of its credit. Batches point into
    the message, unless they came in parts: `unfinished` goes from message to message, and without
    it parts are refused. Raises RemoteProtocolError where the message is not what the protocol
    allows; the frames before were good."""
    for number, wire_type, begin, end in _fields(message, 0, len(message), FRAMES_MAX):
        if number != _FRAMES:
            continue
        if wire_type != _LENGTH:
            raise _malformed("its frames have the wrong wire type")
        frame = _decode_frame(message, begin, end, decoders, unfinished)
        if frame is not None:
            yield frame


def check_batch_bytes(stage: str, batch_bytes: int) -> None:
    """Before a frame is added: no receiver would take a larger one."""
    if batch_bytes > BODY_BYTES_MAX:
        raise LocalProtocolError(
            f"stage {stage!r}: a frame of {batch_bytes:,} bytes is above the limit of "
            f"{BODY_BYTES_MAX:,}; its schema or its dictionaries are too large"
        )


def _encode_control(frame: Hello | Mark | Barrier | Flush | Flushed | Credit | Close) -> bytes:
    match frame:
        case Hello():
            body = _numbers(frame.version, frame.member, frame.lane)
            body += _block(4, frame.token) + _number(5, frame.window_bytes)
            body += _number(6, frame.generation)
            kind = _HELLO
        case Mark():
            kind, body = _MARK, _numbers(frame.key, frame.kind)
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


def _data_head(frame: VnodeData, part_bytes: int, rest_bytes: int, begin: int) -> bytes:
    """Everything before the batch, of a length with which the batch is aligned."""
    front = _block(1, frame.stage.encode()) + _number(2, frame.vnode) + _number(5, rest_bytes)
    batch = _head(4, part_bytes)
    filling_bytes = 0
    while True:
        body_bytes = len(front) + 2 + filling_bytes + len(batch) + part_bytes
        inner = _head(_DATA, body_bytes)
        outer = _head(_FRAMES, len(inner) + body_bytes)
        end = begin + len(outer) + len(inner) + body_bytes - part_bytes
        if end % _ALIGNED_BYTES == 0:
            return b"".join(
                (outer, inner, front, _head(3, filling_bytes), bytes(filling_bytes), batch)
            )
        # More filling may make the lengths in front longer; it is never taken back, so this ends
        # after a few rounds, and its own length takes one byte.
        filling_bytes += -end % _ALIGNED_BYTES


def _numbers(*values: int) -> bytes:
    """Fields 1, 2 and so on."""
    return b"".join(_number(number, value) for number, value in enumerate(values, 1))


def _number(number: int, value: int) -> bytes:
    return _SMALL[number << 3 | _VARINT] + _varint(value) if value else b""


def _block(number: int, data: bytes) -> bytes:
    return _head(number, len(data)) + data if data else b""


def _head(number: int, size: int) -> bytes:
    return _SMALL[number << 3 | _LENGTH] + _varint(size)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _decode_frame(
    message: bytes, begin: int, end: int, decoders: StageDecoders, unfinished: Unfinished | None
) -> tuple[Frame, int] | None:
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
    if unfinished is not None and unfinished.open and kind != _REST:
        raise RemoteProtocolError("another frame came before the rest of a batch")
    try:
        if kind == _DATA:
            return _decode_data(message, numbers, blocks, decoders, unfinished)
        if kind == _REST:
            return _decode_rest(message, blocks, decoders, unfinished)
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
    unfinished: Unfinished | None,
) -> tuple[Frame, int] | None:
    stage = _cut(message, blocks.get(1), STAGE_BYTES_MAX, "a stage's name").decode()
    vnode, rest_bytes = numbers.get(2, 0), numbers.get(5, 0)
    begin, end = blocks.get(4, (0, 0))
    batch_bytes = end - begin + rest_bytes
    if batch_bytes > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"a batch has at most {BODY_BYTES_MAX} bytes, not {batch_bytes}")
    if rest_bytes:
        if unfinished is None:
            raise RemoteProtocolError("a batch in parts came before the stream was opened")
        unfinished.begin(stage, vnode, batch_bytes)
        unfinished.add(memoryview(message)[begin:end])
        return None
    body = pa.py_buffer(message).slice(begin, batch_bytes)
    if body.address % _READ_ALIGNED_BYTES or batch_bytes * _SHARED_MAX < len(message):
        body = pa.py_buffer(body.to_pybytes())
    return _data(stage, vnode, body, decoders)


def _decode_rest(
    message: bytes,
    blocks: dict[int, tuple[int, int]],
    decoders: StageDecoders,
    unfinished: Unfinished | None,
) -> tuple[Frame, int] | None:
    if unfinished is None or not unfinished.open:
        raise RemoteProtocolError("the rest of a batch came, and none was begun")
    begin, end = blocks.get(1, (0, 0))
    complete = unfinished.add(memoryview(message)[begin:end])
    return None if complete is None else _data(*complete, decoders)


def _data(
    stage: str, vnode: int, body: pa.Buffer, decoders: StageDecoders
) -> tuple[VnodeData, int]:
    return VnodeData(stage, vnode, decoders.decode(stage, body)), body.size + FRAME_COST_BYTES


def _decode_control(
    message: bytes, kind: int, numbers: dict[int, int], blocks: dict[int, tuple[int, int]]
) -> Frame:
    first, second, third = (numbers.get(number, 0) for number in (1, 2, 3))
    if kind == _HELLO:
        token = _cut(message, blocks.get(4), TOKEN_BYTES_MAX, "a token")
        return Hello(second, third, token, numbers.get(5, 0), first, numbers.get(6, 0))
    if kind == _MARK:
        return Mark(mark_kind(second), first)
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
        tag = message[begin]
        begin += 1
        if tag >= 0x80:
            tag, begin = _read_varint(message, begin - 1, end)
        number, wire_type = tag >> 3, tag & 7
        if not number or tag > _TAG_MAX:
            raise _malformed("there is no such field number")
        if wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            size, begin = _read_varint(message, begin, end)
            if wire_type == _VARINT:
                yield number, wire_type, size, 0
                continue
            if wire_type != _LENGTH:
                raise _malformed(f"there is no wire type {wire_type} in proto3")
        stop = begin + size
        if stop > end:
            raise _malformed("a field is longer than what it stands in")
        yield number, wire_type, begin, stop
        begin = stop


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
