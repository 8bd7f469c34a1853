"""The bytes of frames: as the layout says, to the last bit, and refused when one is not."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport import wire
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
from penstock.transport.wire import (
    HEADER,
    MAGIC,
    TAG_HELLO,
    Header,
    check_trailer,
    decode,
    decode_header,
    encode,
    short_reason,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.transport.stages import Piece

BATCH = pa.record_batch([pa.array(["a", None, "ccc"]), pa.array([1, 2, 3])], ["text", "number"])
LARGE = pa.record_batch([pa.array(range(2_000)), pa.array(["word"] * 2_000)], ["n", "text"])

# Body bytes, tag, zero, check of these; body; zeros to a multiple of eight; sum of body and zeros.
GOLDEN: list[tuple[Frame, str]] = [
    (
        Hello(0x0001020304050607, 0x0203, b"token", 2**24, version=1),
        "1d000000 01 00 699a 5053544b 0100 0302 0706050403020100 0000000100000000 746f6b656e"
        "000000 f3936cb21c55ce79",
    ),
    (
        Barrier(0x11, 0x22, 0x33),
        "18000000 03 00 c61c 1100000000000000 2200000000000000 3300000000000000 4844924e5e8a2b8e",
    ),
    (
        Mark(MarkKind.DELAYED, 0x66),
        "10000000 08 00 f8cb 6600000000000000 0100000000000000 c9e4be5db902d7bd",
    ),
    (Flush(0x0102030405060708), "08000000 04 00 ef15 0807060504030201 9eca585019af8f90"),
    (
        Flushed(0x44, 0x55),
        "10000000 05 00 d9ad 4400000000000000 5500000000000000 617b9ba79381a012",
    ),
    (
        Credit(2**20, 2**10),
        "10000000 06 00 514b 0000100000000000 0004000000000000 a1c42f6765f2d77d",
    ),
    (Close(), "01000000 07 00 005b 00 00000000000000 d9ac876fbb3a7bc7"),
    (
        Close("greüße", fault=True),
        "09000000 07 00 b2a9 01 677265c3bcc39f65 00000000000000 7e535f47e7282c2e",
    ),
]
U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
U63 = st.integers(0, 2**63 - 1)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, U64, U16, st.binary(max_size=TOKEN_BYTES_MAX), U63, U16),
    st.builds(
        Hello, U64, U16, st.binary(max_size=TOKEN_BYTES_MAX), st.just(0), U16, generation=U63
    ),
    st.builds(Mark, st.sampled_from(MarkKind), U64),
    st.builds(Barrier, U64, U64, U64),
    st.builds(Flush, U64),
    st.builds(Flushed, U64, U64),
    st.builds(Credit, U64, U64),
    st.builds(Close, st.text(st.characters(codec="utf-8"), max_size=50), st.booleans()),
)


def joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece.to_pybytes() for piece in pieces)


def written(frame: Frame, encoders: StageEncoders | None = None) -> bytes:
    encoded = encode(frame, encoders or StageEncoders())
    data = joined(encoded.pieces)
    assert encoded.size == len(data)
    assert len(data) % 8 == 0, "the next frame is aligned"
    return data


def read(data: bytes, decoders: StageDecoders | None = None) -> tuple[Frame, int]:
    """One frame and its cost, as a carrier reads it."""
    header = decode_header(data[:8])
    assert len(data) == header.frame_bytes
    check_trailer(memoryview(data), header.end, xxhash.xxh3_64_intdigest(data[8 : header.end]))
    body = pa.py_buffer(data).slice(8, header.body_bytes)
    return decode(header.tag, body, decoders or StageDecoders())


def header_of(tag: int, body_bytes: int) -> bytes:
    head = struct.pack("<IBx", body_bytes, tag)
    return head + struct.pack("<H", xxhash.xxh3_64_intdigest(head) & 0xFFFF)


def made(tag: int, body: bytes) -> bytes:
    """A frame whose check and sum are right, whatever it says."""
    filled = body + bytes(-len(body) % 8)
    body_sum = struct.pack("<Q", xxhash.xxh3_64_intdigest(filled))
    return header_of(tag, len(body)) + filled + body_sum


@pytest.mark.parametrize(("frame", "text"), GOLDEN)
def test_the_bytes_are_these_for_ever(frame: Frame, text: str) -> None:
    data = bytes.fromhex(text)
    assert written(frame).hex(" ") == data.hex(" ")
    assert read(data) == (frame, 0)


def test_the_bytes_of_a_batch_are_arrow_s() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        writer.write_batch(BATCH)
    batch_bytes = sink.getvalue().to_pybytes().removesuffix(b"\xff\xff\xff\xff\0\0\0\0")
    # vnode, length of the stage's name, zero, the name, zeros up to a multiple of eight
    prefix = bytes.fromhex("0201 0500 00000000 6f72646572 000000".replace(" ", ""))
    data = written(VnodeData("order", 0x0102, BATCH))
    assert data[4:6] == b"\x02\x00"
    assert data[8:24] == prefix
    assert data == made(2, prefix + batch_bytes), "without Arrow's end of stream"
    frame, _ = read(data)
    assert isinstance(frame, VnodeData)
    assert (frame.stage, frame.vnode) == ("order", 0x0102)
    assert frame.batch.equals(BATCH)


@given(FRAMES)
def test_control_frames_come_back(frame: Frame) -> None:
    assert encode(frame, StageEncoders()).cost_bytes == 0
    assert read(written(frame)) == (frame, 0)


STAGE_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@given(STAGE_NAMES, U16, st.sampled_from([BATCH, BATCH.slice(0, 0), LARGE, LARGE.slice(100)]))
def test_data_frames_come_back(stage: str, vnode: int, batch: pa.RecordBatch) -> None:
    encoders, decoders = StageEncoders(), StageDecoders()
    sent = VnodeData(stage, vnode, batch)
    first = encode(sent, StageEncoders()).cost_bytes
    later = pa.ipc.get_record_batch_size(batch) + FRAME_COST_BYTES
    prefix_bytes = 8 + -(-len(stage.encode()) // 8) * 8
    for expected in (first, later):
        data = written(sent, encoders)
        frame, cost_bytes = read(data, decoders)
        assert frame == sent
        assert cost_bytes == expected, "both ends count alike"
        assert cost_bytes == len(data) - 16 - prefix_bytes + FRAME_COST_BYTES
        assert isinstance(frame, VnodeData)
        begin = pa.py_buffer(data).address
        for column in frame.batch.columns:
            for buffer in column.buffers():
                assert not buffer or (buffer.address - begin) % 8 == 0


def test_large_buffers_are_not_copied() -> None:
    pieces = encode(VnodeData("s", 0, LARGE), StageEncoders()).pieces
    addresses = [piece.address for piece in pieces if not isinstance(piece, bytes)]
    expected = [buffer.address for column in LARGE.columns for buffer in column.buffers() if buffer]
    assert addresses == expected
    assert len(pieces) <= 2 * len(expected) + 1, "and what is small is joined"


@pytest.mark.parametrize("data", [bytes.fromhex(text) for _, text in GOLDEN])
def test_any_flipped_bit_is_refused(data: bytes) -> None:
    check_flips(data)


def test_any_flipped_bit_of_a_data_frame_is_refused() -> None:
    check_flips(written(VnodeData("s", 1, BATCH)))


def check_flips(data: bytes) -> None:
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError, match="damaged"):
            read(bytes(flipped))


def test_any_bits_changed_in_a_header_are_refused() -> None:
    """A check of sixteen bits lets one of 65,536 pass: of some thousand changes at most a few."""
    header = bytes.fromhex(GOLDEN[1][1])[:8]
    passed = 0
    for first in range(64):
        for second in range(first):
            changed = int.from_bytes(header, "little") ^ (1 << first) ^ (1 << second)
            try:
                decode_header(changed.to_bytes(8, "little"))
            except RemoteProtocolError:
                continue
            passed += 1
    assert passed <= 2


@pytest.mark.parametrize(
    ("tag", "least", "most"),
    [
        (1, 24, 24 + TOKEN_BYTES_MAX),
        (2, 8, BODY_BYTES_MAX),
        (3, 24, 24),
        (4, 8, 8),
        (5, 16, 16),
        (6, 16, 16),
        (7, 1, 1 + REASON_BYTES_MAX),
    ],
)
def test_a_length_is_judged_before_anything_is_allocated(tag: int, least: int, most: int) -> None:
    for size in (least, most):
        assert decode_header(header_of(tag, size)).body_bytes == size
    for size in (0, least - 1, most + 1, 2**32 - 1):
        with pytest.raises(RemoteProtocolError, match=f"has {least} to {most} bytes, not {size}"):
            decode_header(header_of(tag, size))


def test_a_kind_that_is_not_known_is_refused() -> None:
    for tag in (0, *range(9, 256)):
        with pytest.raises(RemoteProtocolError, match=f"no frame of kind {tag}"):
            decode_header(header_of(tag, 8))


def test_what_is_kept_for_later_is_zero() -> None:
    head = struct.pack("<IBB", 8, 4, 1)
    check = struct.pack("<H", xxhash.xxh3_64_intdigest(head) & 0xFFFF)
    with pytest.raises(RemoteProtocolError, match="not a frame's header"):
        decode_header(head + check)


def test_another_protocol_is_refused_at_once() -> None:
    for data in (
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcde",
        bytes(16),
    ):
        with pytest.raises(RemoteProtocolError, match="not of Penstock"):
            decode_header(data[:8])


@pytest.mark.parametrize(
    ("tag", "body", "problem"),
    [
        (1, b"HTTP" + bytes(20), "the transport's mark"),
        (7, b"\x02", r"a fault \(1\) or none \(0\)"),
        (7, b"\x00\xff", "utf-8"),
        (7, b"\x00\xed\xa0\x80", "utf-8"),
        (2, struct.pack("<HHI", 0, 1, 1) + b"s" + bytes(7), "prefix is not valid"),
        (2, struct.pack("<HHI", 0, 9, 0) + bytes(8), "prefix is not valid"),
        (2, struct.pack("<HHI", 0, 65_535, 0) + bytes(8), "prefix is not valid"),
        (2, struct.pack("<HHI", 0, 2, 0) + b"\xff\xff" + bytes(6), "utf-8"),
        (2, struct.pack("<HHI", 0, 1, 0) + b"s" + bytes(7), "'s': the bytes are not a record"),
        (2, struct.pack("<HHI", 0, 1, 0) + b"s" + bytes(7) + b"?" * 64, "not a record batch"),
    ],
)
def test_a_body_that_says_what_it_may_not_is_refused(tag: int, body: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read(made(tag, body))


@pytest.mark.parametrize("stage_bytes", [0, STAGE_BYTES_MAX + 1])
def test_a_stage_s_name_has_its_length(stage_bytes: int) -> None:
    batch_bytes = joined(StageEncoders().encode("s", BATCH))
    name = b"s" * stage_bytes + bytes(-stage_bytes % 8)
    prefix = struct.pack("<HHI", 0, stage_bytes, 0)
    with pytest.raises(RemoteProtocolError, match="a stage's name has 1 to 255 bytes"):
        read(made(2, prefix + name + batch_bytes))


def test_a_version_of_another_release_is_read() -> None:
    """Its Hello is understood, so that the peer can be told why it is not wanted."""
    hello = Hello(1, 0, b"token", version=65_535)
    assert read(written(hello)) == (hello, 0)


def test_a_frame_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = VnodeData("s", 0, BATCH)
    body_bytes = encode(frame, StageEncoders()).size - 16
    monkeypatch.setattr(wire, "BODY_BYTES_MAX", body_bytes)
    assert encode(frame, StageEncoders()).size == 16 + body_bytes
    monkeypatch.setattr(wire, "BODY_BYTES_MAX", body_bytes - 1)
    with pytest.raises(LocalProtocolError, match="its schema or its dictionaries are too large"):
        encode(frame, StageEncoders())


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 4))
def test_a_reason_is_cut_between_characters(end: str, short: int) -> None:
    reason = "r" * (REASON_BYTES_MAX - short) + end
    cut = short_reason(reason).decode()
    assert reason.startswith(cut)
    assert len(cut.encode()) <= REASON_BYTES_MAX
    rest = reason[len(cut) : len(cut) + 1]
    assert not rest or len((cut + rest).encode()) > REASON_BYTES_MAX, "as much as fits is kept"
    assert read(written(Close(reason))) == (Close(cut), 0)


def test_a_reason_that_is_not_text_is_sent_all_the_same() -> None:
    """A path in an error of the system may hold bytes that are no text."""
    frame, _ = read(written(Close("no such file: \udcff", fault=True)))
    assert isinstance(frame, Close)
    assert frame.reason.startswith("no such file: ")


def test_a_header_is_what_it_says() -> None:
    for begin in (0, 3):
        found = decode_header(bytes(begin) + header_of(7, 1) + b"more", begin)
        assert found == Header(tag=7, body_bytes=1, end=16, frame_bytes=24)


def test_a_hello_of_a_release_without_generations_is_understood() -> None:
    """Its bytes, as that release wrote them; and a generation stands where that one never looks."""
    token = bytes(range(32))
    old = MAGIC + struct.pack("<HHQQ", 1, 3, 7, 0) + token
    assert decode(TAG_HELLO, pa.py_buffer(old), StageDecoders())[0] == Hello(7, 3, token)
    pieces = encode(Hello(7, 3, token, generation=9), StageEncoders()).pieces
    new = b"".join(bytes(piece) for piece in pieces)[HEADER.size : HEADER.size + len(old)]
    assert new == MAGIC + struct.pack("<HHQQ", 1, 3, 7, 2**63 | 9) + token
