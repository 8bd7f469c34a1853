"""The bytes of gRPC messages, beside the official protobuf runtime: both read what the other wrote,
and what is not allowed is refused, however it is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport.carriers.blocks import Blocks
from penstock.transport.carriers.grpc_wire import (
    FRAMES_MAX,
    MESSAGE_BYTES_MAX,
    Envelope,
    Unfinished,
    check_batch_bytes,
    frames_of,
)
from penstock.transport.frames import (
    BODY_BYTES_MAX,
    FRAME_COST_BYTES,
    REASON_BYTES_MAX,
    STAGE_BYTES_MAX,
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
from penstock.transport.stages import StageDecoders, StageEncoders
from tests.protobuf import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHUFFLE = "penstock/transport/v1/shuffle.proto"
Protobuf = Any
"""The module that protoc made: its classes are known only when the tests run."""


@pytest.fixture(scope="module")
def protobuf(tmp_path_factory: pytest.TempPathFactory) -> Protobuf:
    return compiled(SHUFFLE, tmp_path_factory.mktemp("protobuf"))


class AnyBatch:
    """Takes any bytes for a batch: here it is about what stands around them."""

    def decode(self, _stage: str, body: pa.Buffer) -> pa.Buffer:
        return body


ANY_BATCH = cast(StageDecoders, AnyBatch())

U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
U63 = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
CONTROL: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, U64, U16, st.binary(max_size=TOKEN_BYTES_MAX), U63, U16),
    st.builds(
        Hello, U64, U16, st.binary(max_size=TOKEN_BYTES_MAX), st.just(0), U16, generation=U63
    ),
    st.builds(Barrier, U64, U64, U64),
    st.builds(Flush, U64),
    st.builds(Flushed, U64, U64),
    st.builds(Credit, U64, U64),
    st.builds(Close, TEXTS, st.booleans()),
)
DATA: st.SearchStrategy[Frame] = st.builds(
    VnodeData,
    TEXTS,
    U16,
    st.binary(max_size=300).map(pa.py_buffer),
)
FRAMES = st.lists(CONTROL | DATA, max_size=8)


def written(frames: list[Frame]) -> bytes:
    envelope = Envelope()
    for frame in frames:
        if isinstance(frame, VnodeData):
            body = cast(pa.Buffer, frame.batch)
            envelope.add_data(frame, [body], body.size)
        else:
            envelope.add(frame)
    assert envelope.frames == len(frames)
    size = envelope.size
    message = envelope.seal()
    assert len(message) == size
    assert (envelope.size, envelope.frames) == (0, 0)
    return message


def read(message: bytes, unfinished: Unfinished | None = None) -> list[Frame]:
    return [frame for frame, _ in frames_of(message, ANY_BATCH, unfinished)]


def official(protobuf: Protobuf, frame: Frame) -> Any:
    """The frame, as an object of the official runtime."""
    made = protobuf.Frame()
    match frame:
        case Hello():
            made.hello.version, made.hello.member = frame.version, frame.member
            made.hello.lane, made.hello.token = frame.lane, frame.token
            made.hello.window_bytes = frame.window_bytes
            made.hello.generation = frame.generation
            made.hello.SetInParent()
        case VnodeData():
            made.vnode_data.stage, made.vnode_data.vnode = frame.stage, frame.vnode
            made.vnode_data.batch = cast(pa.Buffer, frame.batch).to_pybytes()
            made.vnode_data.SetInParent()
        case Barrier():
            made.barrier.checkpoint, made.barrier.epoch = frame.checkpoint, frame.epoch
            made.barrier.flags = frame.flags
            made.barrier.SetInParent()
        case Mark():
            made.mark.key, made.mark.kind = frame.key, frame.kind
            made.mark.SetInParent()
        case Flush():
            made.flush.cycle = frame.cycle
            made.flush.SetInParent()
        case Flushed():
            made.flushed.cycle, made.flushed.lsn = frame.cycle, frame.lsn
            made.flushed.SetInParent()
        case Credit():
            made.credit.data_bytes = frame.data_bytes
            made.credit.control_frames = frame.control_frames
            made.credit.SetInParent()
        case Close():
            made.close.reason, made.close.fault = frame.reason, frame.fault
            made.close.SetInParent()
    return made


def all_official(protobuf: Protobuf, frames: list[Frame]) -> Any:
    return protobuf.Frames(frames=[official(protobuf, frame) for frame in frames])


def stripped(parsed: Any) -> Any:
    """Without what says nothing: filling, and fields that are not known."""
    for frame in parsed.frames:
        if frame.WhichOneof("kind") == "vnode_data":
            frame.vnode_data.ClearField("filling")
    parsed.DiscardUnknownFields()
    return parsed


@given(frames=FRAMES)
def test_the_official_runtime_reads_what_we_write(protobuf: Protobuf, frames: list[Frame]) -> None:
    parsed = protobuf.Frames.FromString(written(frames))
    assert stripped(parsed) == all_official(protobuf, frames)


@given(frames=FRAMES)
def test_we_read_what_the_official_runtime_writes(protobuf: Protobuf, frames: list[Frame]) -> None:
    assert read(all_official(protobuf, frames).SerializeToString()) == frames


def varint(value: int, extra: int = 0) -> bytes:
    """A number, with bytes more than it needs."""
    groups = [value >> 7 * place & 0x7F for place in range(max(1, -(-value.bit_length() // 7)))]
    groups += [0] * min(extra, 10 - len(groups))
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def block(number: int, data: bytes, extra: int = 0) -> bytes:
    return varint(number << 3 | 2, min(extra, 3)) + varint(len(data), extra) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


UNKNOWN = st.builds(
    lambda field, made: varint(field << 3 | made[0]) + made[1],
    st.integers(20, 2**29 - 1),
    st.one_of(
        st.tuples(st.just(0), U64.map(varint)),
        st.tuples(st.just(1), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(2), st.binary(max_size=40).map(lambda data: varint(len(data)) + data)),
        st.tuples(st.just(5), st.binary(min_size=4, max_size=4)),
    ),
)
BYTES_FIELDS = {"token", "filling", "batch"}


@st.composite
def foreign_frames(draw: st.DrawFn) -> bytes:
    """What another implementation may write: fields in any order, more than once, with lengths
    longer than they need be, among fields that we do not know."""
    kind = draw(st.integers(1, 7))
    numbers = {1: (1, 3), 2: (2,), 3: (1, 2, 3), 4: (1,), 5: (1, 2), 6: (1, 2), 7: ()}[kind]
    fields = [
        number(field, draw(U16)) for field in draw(st.lists(st.sampled_from(numbers or (9,))))
    ]
    if kind == 1:
        fields += [block(4, token) for token in draw(st.lists(st.binary(max_size=64), max_size=2))]
    if kind == 2:
        fields += [block(1, text.encode()) for text in draw(st.lists(TEXTS, max_size=2))]
        fields += [block(3, data) for data in draw(st.lists(st.binary(max_size=20), max_size=1))]
        fields += [block(4, data) for data in draw(st.lists(st.binary(max_size=99), max_size=2))]
    if kind == 7:
        fields += [block(1, text.encode()) for text in draw(st.lists(TEXTS, max_size=2))]
        fields += [number(2, draw(U64)) for _ in range(draw(st.integers(0, 1)))]
    fields += draw(st.lists(UNKNOWN, max_size=2))
    return block(kind, b"".join(draw(st.permutations(fields))), draw(st.integers(0, 2)))


@st.composite
def foreign_messages(draw: st.DrawFn) -> bytes:
    frames = [
        block(1, b"".join(draw(st.lists(foreign_frames(), min_size=1, max_size=3))), extra)
        for extra in draw(st.lists(st.integers(0, 2), max_size=4))
    ]
    return b"".join(draw(st.permutations([*frames, *draw(st.lists(UNKNOWN, max_size=2))])))


@settings(max_examples=150)
@given(message=foreign_messages())
def test_we_read_whatever_another_implementation_writes(protobuf: Protobuf, message: bytes) -> None:
    expected = stripped(protobuf.Frames.FromString(message))
    assert all_official(protobuf, read(message)) == expected


@st.composite
def damaged_messages(draw: st.DrawFn) -> bytes:
    data = bytearray(
        draw(st.one_of(foreign_messages(), FRAMES.map(written), st.binary(max_size=60)))
    )
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(data)))
        end = draw(st.integers(begin, min(len(data), begin + 5)))
        data[begin:end] = draw(st.binary(max_size=5))
    return bytes(data[: draw(st.integers(0, len(data)))])


@settings(max_examples=300)
@given(message=damaged_messages())
@example(message=b"\xff" * 11)
@example(message=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_what_we_accept_is_what_the_official_runtime_reads(
    protobuf: Protobuf, message: bytes
) -> None:
    """Whatever the bytes are: they are refused, or understood as everybody else does."""
    try:
        frames = read(message, Unfinished())
    except RemoteProtocolError:
        return
    parsed = stripped(protobuf.Frames.FromString(message))
    if not any(each.vnode_data.rest_bytes for each in parsed.frames):  # parts: see below
        assert all_official(protobuf, frames) == parsed


def test_the_official_runtime_refuses_some_of_these(protobuf: Protobuf) -> None:
    """Else the test above would say nothing."""
    for message in (b"\x0a", b"\x0a\x05\x0a", b"\x00\x01", b"\xff" * 11, b"\x0a\x03\x0a\x02\x08"):
        with pytest.raises(DecodeError):
            protobuf.Frames.FromString(message)
        with pytest.raises(RemoteProtocolError, match="not valid protobuf"):
            read(message)


@given(frames=st.lists(CONTROL | DATA, min_size=1, max_size=3))
def test_a_message_cut_short_anywhere_gives_whole_frames_only(frames: list[Frame]) -> None:
    message = written(frames)
    for size in range(len(message)):
        found: list[Frame] = []
        reading = frames_of(message[:size], ANY_BATCH)
        try:
            found.extend(frame for frame, _ in reading)
        except RemoteProtocolError:
            pass
        else:
            assert written(found) == message[:size]
        assert found == frames[: len(found)]


# Frames, number 1; then the kind, its length, and its fields, those that are not zero.
GOLDEN: list[tuple[Frame, str]] = [
    (
        Hello(300, 3, b"token", 2**24, version=1),
        "0a15 0a13 0801 10ac02 1803 2205746f6b656e 2880808008",
    ),
    (Barrier(0x11, 0x22, 0x33), "0a08 1a06 0811 1022 1833"),
    (Mark(MarkKind.IDLE, 0x66), "0a06 4a04 0866 1002"),
    (Flush(2**64 - 1), "0a0d 220b 08ffffffffffffffffff01"),
    (Flushed(0x44, 0), "0a04 2a02 0844"),
    (Credit(), "0a02 3200"),
    (Close(), "0a02 3a00"),
    (Close("grüß", fault=True), "0a0c 3a0a 0a066772c3bcc39f 1001"),
    (
        VnodeData("s", 7, cast(Any, pa.py_buffer(b"batch"))),
        "0a13 1211 0a0173 1007 1a03 000000 2205 6261746368",
    ),
]


@pytest.mark.parametrize(("frame", "text"), GOLDEN)
def test_the_bytes_are_these_for_ever(frame: Frame, text: str) -> None:
    data = bytes.fromhex(text)
    assert written([frame]).hex(" ") == data.hex(" ")
    assert read(data) == [frame]


BATCH = pa.record_batch([pa.array(["a", None, "ccc"]), pa.array([1, 2, 3])], ["text", "number"])
LARGE = pa.record_batch([pa.array(range(20_000)), pa.array(["word"] * 20_000)], ["n", "text"])


@given(
    st.lists(st.tuples(TEXTS.filter(bool), U16, st.sampled_from([BATCH, LARGE]))),
    st.integers(0, 300),
)
def test_batches_come_back_aligned(
    data: list[tuple[str, int, pa.RecordBatch]], reason_bytes: int
) -> None:
    encoders, decoders, envelope = StageEncoders(), StageDecoders(), Envelope()
    frames = [VnodeData(f"{stage} {batch.num_rows}", vnode, batch) for stage, vnode, batch in data]
    costs = []
    for index, frame in enumerate(frames):
        if index % 2:
            envelope.add(Close("r" * reason_bytes))  # what is in front has any length
        pieces = encoders.encode(frame.stage, frame.batch)
        batch_bytes = sum(map(len, pieces))
        costs.append(batch_bytes + FRAME_COST_BYTES)
        envelope.add_data(frame, pieces, batch_bytes)
    message = envelope.seal()
    found = [each for each in frames_of(message, decoders) if each[1]]
    assert [each for each, _ in found] == frames
    assert [cost_bytes for _, cost_bytes in found] == costs
    for each, _ in found:
        assert isinstance(each, VnodeData)
        assert all(address % 8 == 0 for address in memory_of(each.batch))


def memory_of(batch: pa.RecordBatch) -> list[int]:
    return [buffer.address for column in batch.columns for buffer in column.buffers() if buffer]


def one_batch(message: bytes) -> pa.RecordBatch:
    ((frame, _),) = frames_of(message, StageDecoders())
    assert isinstance(frame, VnodeData)
    return frame.batch


def test_a_batch_is_used_where_it_arrived() -> None:
    pieces = StageEncoders().encode("s", LARGE)
    envelope = Envelope()
    envelope.add_data(VnodeData("s", 0, LARGE), pieces, sum(map(len, pieces)))
    message = envelope.seal()
    begin = pa.py_buffer(message).address
    found = one_batch(message)
    assert found.equals(LARGE)
    assert all(begin <= address < begin + len(message) for address in memory_of(found))


@pytest.mark.parametrize("shift", range(1, 8))
def test_a_batch_that_is_not_aligned_is_copied(shift: int) -> None:
    body = b"".join(map(bytes, StageEncoders().encode("s", LARGE)))
    front = block(1, b"s")
    inner_bytes = len(front) + 1 + len(varint(len(body))) + len(body)
    head_bytes = (
        2 + len(varint(inner_bytes + 4)) + len(varint(inner_bytes)) + inner_bytes - len(body)
    )
    filling = bytes((shift - head_bytes - 2) % 8)
    message = block(1, block(2, front + block(3, filling) + block(4, body)))
    found = one_batch(message)
    assert (len(message) - len(body)) % 8 == shift
    assert found.equals(LARGE)
    assert all(address % 8 == 0 for address in memory_of(found))


def test_small_batches_do_not_keep_what_came_with_them() -> None:
    encoders, decoders, envelope = StageEncoders(), StageDecoders(), Envelope()
    for _ in range(100):
        pieces = encoders.encode("s", BATCH)
        envelope.add_data(VnodeData("s", 0, BATCH), pieces, sum(map(len, pieces)))
    message = envelope.seal()
    begin = pa.py_buffer(message).address
    for frame, _ in frames_of(message, decoders):
        addresses = memory_of(cast(VnodeData, frame).batch)
        assert not any(begin <= address < begin + len(message) for address in addresses)


def parts_of(data: VnodeData, body: bytes, sizes: list[int]) -> Iterator[bytes]:
    """A message for each part; the sizes add up to the body."""
    rest = body
    for index, size in enumerate(sizes):
        part, rest = rest[:size], rest[size:]
        envelope = Envelope()
        if index == 0:
            envelope.add_data(data, [part], size, len(rest))
        else:
            envelope.add_rest([part], size)
        yield envelope.seal()
    assert not rest


@given(body=st.binary(min_size=1, max_size=500), data=st.data())
def test_a_batch_in_parts_is_put_together(
    protobuf: Protobuf, body: bytes, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body)), max_size=5)) | {len(body)})
    sizes = [end - begin for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)]
    frame = VnodeData("orders", 513, cast(Any, pa.py_buffer(body)))
    unfinished = Unfinished()
    messages = list(parts_of(frame, body, sizes))
    found = [each for message in messages for each in frames_of(message, ANY_BATCH, unfinished)]
    assert found == [(frame, len(body) + FRAME_COST_BYTES)]
    assert not unfinished.open
    parsed = [frame for each in messages for frame in protobuf.Frames.FromString(each).frames]
    assert parsed[0].vnode_data.rest_bytes == sum(sizes[1:])
    assert b"".join([parsed[0].vnode_data.batch, *(each.rest.batch for each in parsed[1:])]) == body
    # All in one message, with frames around it, they are the same.
    together = written([Flush(1)]) + b"".join(messages) + written([Flush(2)])
    assert read(together, Unfinished()) == [Flush(1), frame, Flush(2)]


def name_of(value: object) -> str:
    """Of a case: what is wrong with it, without its bytes."""
    return value if isinstance(value, str) else ""


def first_part(rest_bytes: int, part: bytes = b"12345678", stage: bytes = b"s") -> bytes:
    return block(1, block(2, block(1, stage) + block(4, part) + number(5, rest_bytes)))


def rest(part: bytes) -> bytes:
    return block(1, block(8, block(1, part)))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (rest(b"1"), "none was begun"),
        (first_part(4) + rest(b"1234") + rest(b"1"), "none was begun"),
        (first_part(4) + written([Flush(1)]), "another frame came before the rest"),
        (first_part(4) + first_part(4), "another frame came before the rest"),
        (first_part(4) + rest(b"12345"), "5 bytes of a batch came where 1 to 4 were to come"),
        (first_part(4) + rest(b""), "0 bytes of a batch came where 1 to 4 were to come"),
        (first_part(4, b""), "0 bytes of a batch came where 1 to 4 were to come"),
    ],
    ids=name_of,
)
def test_parts_that_do_not_fit_are_refused(message: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read(message, Unfinished())


def test_parts_are_refused_where_no_stream_is_open() -> None:
    """A stranger would have memory reserved for what it never sends."""
    with pytest.raises(RemoteProtocolError, match="before the stream was opened"):
        read(first_part(4))
    with pytest.raises(RemoteProtocolError, match="none was begun"):
        read(rest(b"1"))


def test_nothing_is_allocated_for_a_batch_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lend(_blocks: object, _size: int) -> Any:
        pytest.fail("memory was taken")

    monkeypatch.setattr(Blocks, "lend", lend)
    for rest_bytes in (BODY_BYTES_MAX - 7, 2**63, 2**64 - 1):
        with pytest.raises(RemoteProtocolError, match="a batch has at most"):
            read(first_part(rest_bytes), Unfinished())


def hello(fields: bytes) -> bytes:
    return block(1, block(1, fields))


def data(fields: bytes) -> bytes:
    return block(1, block(2, fields))


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda size: hello(block(4, b"t" * size)), TOKEN_BYTES_MAX),
        (lambda size: data(block(1, b"s" * size)), STAGE_BYTES_MAX),
        (lambda size: block(1, block(7, block(1, b"r" * size))), REASON_BYTES_MAX),
        (lambda value: hello(number(1, value)), 2**16 - 1),
        (lambda value: hello(number(3, value)), 2**16 - 1),
        (lambda value: data(number(2, value)), 2**16 - 1),
        (lambda count: written([Flush(1)] * count), FRAMES_MAX),
        (lambda count: hello(number(99, 1) * count), 64),
        (lambda count: block(1, number(99, 1) * (count - 1) + block(4, b"")), 64),
        (lambda count: number(99, 1) * count, FRAMES_MAX),
    ],
    ids=[
        *("token", "stage", "reason", "version", "lane", "vnode"),
        *("frames", "fields", "kinds", "fields beside frames"),
    ],
)
def test_every_limit_holds(make: Callable[[int], bytes], most: int) -> None:
    read(make(most))
    with pytest.raises(RemoteProtocolError):
        read(make(most + 1))


def test_a_batch_that_is_too_large_is_not_sent() -> None:
    check_batch_bytes("orders", BODY_BYTES_MAX)
    with pytest.raises(LocalProtocolError, match=r"'orders'.*its dictionaries are too large"):
        check_batch_bytes("orders", BODY_BYTES_MAX + 1)


WIRE_TYPES = {0: b"\x01", 1: bytes(8), 2: b"\x01x", 5: bytes(4)}
FIELDS = {
    1: {1: 0, 2: 0, 3: 0, 4: 2, 5: 0},
    2: {1: 2, 2: 0, 3: 2, 4: 2, 5: 0},
    3: {1: 0, 2: 0, 3: 0},
    4: {1: 0},
    5: {1: 0, 2: 0},
    6: {1: 0, 2: 0},
    7: {1: 2, 2: 0},
    8: {1: 2},
}


def test_a_wrong_wire_type_is_refused_everywhere() -> None:
    """The official runtime would take such a field for one it does not know: then a batch, say,
    would be empty. It is better to say so."""
    wrong = [
        block(1, block(kind, varint(field << 3 | wire_type) + value))
        for kind, fields in FIELDS.items()
        for field, right in fields.items()
        for wire_type, value in WIRE_TYPES.items()
        if wire_type != right
    ]
    wrong += [
        block(1, varint(kind << 3 | wire_type) + value)
        for kind in FIELDS
        for wire_type, value in WIRE_TYPES.items()
        if wire_type != 2
    ]
    wrong += [varint(1 << 3 | wire_type) + WIRE_TYPES[wire_type] for wire_type in (0, 1, 5)]
    for message in wrong:
        with pytest.raises(RemoteProtocolError, match="wrong wire type"):
            read(message)


@pytest.mark.parametrize("wire_type", [3, 4, 6, 7])
def test_wire_types_that_proto3_does_not_have_are_refused(wire_type: int) -> None:
    for message in (
        varint(99 << 3 | wire_type) + b"\x01",
        hello(varint(9 << 3 | wire_type) + b"x"),
    ):
        with pytest.raises(RemoteProtocolError, match=f"no wire type {wire_type}"):
            read(message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (block(1, b""), "of no kind that this release knows"),
        (block(1, block(10, b"")), "of no kind that this release knows"),
        (b"\x02\x00", "no such field number"),
        (varint(2**32 + 10) + b"\x00", "no such field number"),
        (number(99, 2**63) + b"\x0a\x80", "cut short"),
        (varint(99 << 3) + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (varint(99 << 3) + b"\x80" * 10 + b"\x01", "more than 64 bits"),
        (varint(99 << 3) + b"\x80" * 10 + b"\x00", "more than 64 bits"),
        (b"\x0a" + varint(2**63), "longer than what it stands in"),
        (block(1, b"\x0a\x05"), "longer than what it stands in"),
        (block(1, b"\x0a\x01") + bytes(9), "longer than what it stands in"),
        (block(1, block(7, block(1, b"\xff"))), "utf-8"),
        (block(1, block(2, block(1, b"\xed\xa0\x80"))), "utf-8"),
    ],
    ids=name_of,
)
def test_what_is_no_message_is_refused_with_the_reason(message: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read(message)


def test_a_batch_that_is_none_is_refused() -> None:
    for body in (b"", b"?" * 64):
        message = data(block(1, b"orders") + block(4, body))
        with pytest.raises(RemoteProtocolError, match="'orders': the bytes are not a record batch"):
            list(frames_of(message, StageDecoders()))
    with pytest.raises(RemoteProtocolError, match="a stage's name has 1 to 255 bytes"):
        list(frames_of(data(block(4, b"?" * 64)), StageDecoders()))


def test_frames_before_a_damaged_one_are_read() -> None:
    reading = frames_of(written([Flush(1), Flush(2)]) + b"\x0a", ANY_BATCH)
    assert [next(reading), next(reading)] == [(Flush(1), 0), (Flush(2), 0)]
    with pytest.raises(RemoteProtocolError):
        next(reading)


def test_a_reason_is_cut_to_its_length() -> None:
    (close,) = read(written([Close("ü" * REASON_BYTES_MAX)]))
    assert close == Close("ü" * (REASON_BYTES_MAX // 2))


def test_a_version_of_another_release_is_read() -> None:
    """Its Hello is understood, so that the peer can be told why it is not wanted."""
    frame = Hello(1, 0, b"token", version=65_535)
    assert read(written([frame])) == [frame]


def test_a_message_is_as_large_as_every_library_accepts() -> None:
    assert MESSAGE_BYTES_MAX == 4 * 1024 * 1024


@pytest.mark.parametrize("count", [1, 2, 3, 12, 23])
def test_a_batch_keeps_no_more_than_twice_its_own_memory(count: int) -> None:
    """One that waits for long would keep the message it came in, which no credit counts."""
    batch = pa.record_batch([pa.array(range(5_000))], ["n"])
    encoders, envelope = StageEncoders(), Envelope()
    for _ in range(count):
        pieces = encoders.encode("s", batch)
        envelope.add_data(VnodeData("s", 0, batch), pieces, sum(map(len, pieces)))
    message = envelope.seal()
    whole = pa.py_buffer(message)
    for frame, _ in frames_of(message, StageDecoders()):
        assert isinstance(frame, VnodeData)
        buffer = frame.batch.columns[0].buffers()[1]
        assert buffer is not None
        is_shared = whole.address <= buffer.address < whole.address + whole.size
        assert not is_shared or whole.size <= 2 * batch.nbytes + 4_096
