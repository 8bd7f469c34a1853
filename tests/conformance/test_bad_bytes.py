"""Bytes that are no frames, or not all of one: nothing wrong is delivered, and nobody hangs."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.transport import Barrier, Close, Flush, VnodeData
from penstock.transport.frames import BODY_BYTES_MAX, Credit, Hello
from penstock.transport.wire import HEADER
from tests.conformance.batches import numbered, same
from tests.conformance.bystander import Bystander
from tests.conformance.fabric import HASTY, RECEIVING, SENDING, over_tcp
from tests.conformance.raw import (
    BytesPeer,
    TcpPeer,
    bytes_sender,
    hello_of,
    raw_listener,
    seal,
    seal_header,
)
from tests.conformance.waiting import eventually, take, waiting_frames

if TYPE_CHECKING:
    from penstock.transport import Received, Receiver
    from penstock.transport.frames import Frame
    from tests.conformance.fabric import Fabric

pytestmark = over_tcp  # the messages of gRPC have a module of their own


def story(fabric: Fabric) -> list[Frame]:
    """A short conversation with every kind of frame, and data with and without its schema."""
    return [
        hello_of(fabric),
        numbered(1, pad_bytes=9),
        numbered(2, pad_bytes=30),
        Barrier(3, 1, flags=7),
        Credit(),
        numbered(4, stage="another", vnode=9),
        Flush(5),
        numbered(6, stage="another"),
    ]


def expect_prefix(
    receiver: Receiver, sent: list[Frame], *, ends: bool = True
) -> tuple[int, Close | None]:
    """Takes what came of one bad peer: the first of its frames, as they were sent, and no others.
    Returns how many, and the Close behind them, if its stream had begun."""
    expected = [frame for frame in sent if not isinstance(frame, Hello | Credit | Close)]
    taken: list[Received] = []
    if ends:
        eventually(lambda: _ended(receiver, taken), "that the receiver reports the end")
    else:
        taken = receiver.drain()
    close = taken.pop().frame if taken else None
    assert close is None or isinstance(close, Close)
    assert len(taken) <= len(expected)
    for received, frame in zip(taken, expected, strict=False):
        assert same(received.frame, frame), (received.frame, frame)
        assert received.origin.member == SENDING
    return len(taken), close


def _ended(receiver: Receiver, taken: list[Received]) -> bool:
    taken += receiver.drain()
    return bool(taken) and isinstance(taken[-1].frame, Close)


def cuts(fabric: Fabric, encoded: list[bytes]) -> list[int]:
    """Where to cut: everywhere, or, since handshakes take long, at the seams and some between."""
    total = sum(map(len, encoded))
    if not fabric.kind.tls:
        return list(range(total + 1))
    seams, position = {0, total}, 0
    for each in encoded:
        seams |= {position - 1, position, position + 1, position + HEADER.size}
        position += len(each)
    return sorted(cut for cut in seams | set(range(0, total, 23)) if 0 <= cut <= total)


def test_every_truncation_delivers_whole_frames_only(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    frames: list[Frame] = [hello_of(fabric), _tiny(1), _tiny(2), Barrier(3, 1)]
    encoded = _encoded(fabric, frames)
    stream = b"".join(encoded)
    for cut in cuts(fabric, encoded):
        whole = _whole(encoded, cut)
        peer = bytes_sender(fabric)
        peer.say_bytes(stream[:cut])
        peer.finish()
        answers = _answers(peer)
        peer.cut()
        count, close = expect_prefix(receiver, frames[:whole], ends=whole > 0)
        assert count == sum(not isinstance(each, Hello | Credit) for each in frames[:whole])
        within = cut != sum(map(len, encoded[:whole]))
        if whole:
            assert close is not None
            assert close.fault
            assert ("within a frame" in close.reason) == within
        if not fabric.kind.tls:  # which takes the end of one direction for an attack, and is mute
            assert not whole or isinstance(answers[0], Hello)
            assert not within or isinstance(answers[-1], Close)
            assert not within or close is None or close == answers[-1]
    bystander.check()
    assert waiting_frames(receiver) == 0


def _tiny(number: int) -> VnodeData:
    return VnodeData("s", 0, pa.RecordBatch.from_arrays([pa.array([number], pa.int8())], ["n"]))


def _encoded(fabric: Fabric, frames: list[Frame]) -> list[bytes]:
    peer = bytes_sender(fabric)
    encoded = [peer.encode(frame) for frame in frames]
    peer.cut()
    return encoded


def _whole(encoded: list[bytes], cut: int) -> int:
    """How many frames are whole before the cut."""
    whole = 0
    while whole < len(encoded) and cut >= len(encoded[whole]):
        cut -= len(encoded[whole])
        whole += 1
    return whole


def _answers(peer: BytesPeer) -> list[Frame]:
    answers = []
    while (heard := peer.hear()) is not None:
        answers.append(heard[0])
    return answers


def test_every_reset_delivers_whole_frames_only(fabric: Fabric) -> None:
    """As above, at fewer places, and without a word of farewell."""
    receiver = fabric.receiver()
    frames = story(fabric)
    encoded = _encoded(fabric, frames)
    stream = b"".join(encoded)
    for cut in cuts(fabric, encoded)[:: 2 if fabric.kind.tls else 29]:
        whole = _whole(encoded, cut)
        peer = bytes_sender(fabric)
        assert isinstance(peer, TcpPeer)
        peer.say_bytes(stream[:cut])
        if whole:
            assert peer.hear() is not None  # let in, so that its end will be reported
        peer.reset()
        _, close = expect_prefix(receiver, frames[:whole], ends=whole > 0)
        assert close is None or close.fault


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_get_nowhere(fabric: Fabric, seed: int) -> None:
    choose = random.Random(seed)
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    for _ in range(30):
        greeted = choose.random() < 0.5
        peer = bytes_sender(fabric)
        if greeted:
            peer.greet(hello_of(fabric))
            peer.say(numbered(1))
        peer.say_bytes(choose.randbytes(choose.choice((16, 17, 100, 5000, 100_000))))
        close = peer.hear_close()
        assert close.fault
        assert "not a frame's header" in close.reason
        count, ended = expect_prefix(receiver, [numbered(1)] * greeted, ends=greeted)
        assert (count, ended) == ((1, close) if greeted else (0, None))
        peer.cut()
    bystander.check()


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_never_delivered(fabric: Fabric, seed: int) -> None:
    choose = random.Random(seed)
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    frames = story(fabric)
    encoded = _encoded(fabric, frames)
    stream = b"".join(encoded)
    for _ in range(40 if fabric.kind.tls else 150):
        place, bit = choose.randrange(len(stream)), choose.randrange(8)
        damaged = bytearray(stream)
        damaged[place] ^= 1 << bit
        before = _whole(encoded, place)
        peer = bytes_sender(fabric)
        peer.say_bytes(bytes(damaged))
        peer.finish()
        close = _answers(peer)[-1]
        peer.cut()
        assert isinstance(close, Close), (place, bit)
        harmless = not close.fault  # in the zeros that fill a frame up
        count, ended = expect_prefix(
            receiver, frames[: None if harmless else before], ends=before > 0
        )
        good = sum(not isinstance(each, Hello | Credit) for each in frames[:before])
        assert count >= good, (place, bit)
        assert harmless or ended == (close if before else None)
    bystander.check()


def batch_stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def data_body(body: bytes, stage: bytes = b"good", zero: int = 0) -> bytes:
    """Vnode 0, the stage's name up to a multiple of eight bytes, and a batch."""
    head = (0).to_bytes(2, "little") + len(stage).to_bytes(2, "little") + zero.to_bytes(4, "little")
    return head + stage + bytes(-len(stage) % 8) + body


_BATCH = numbered(1).batch
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_STREAM = batch_stream(_BATCH).removesuffix(_END_OF_STREAM)
_SCHEMA = pa.schema([("number", pa.int64())]).serialize().to_pybytes()
SEALED: dict[str, bytes] = {
    "no such tag": seal(9, b"12345678"),
    "tag zero": seal(0, b"12345678"),
    "third byte set": seal(4, b"12345678", zero=1),
    "flush too short": seal(4, b"1234567"),
    "flush too long": seal(4, b"123456789"),
    "barrier too short": seal(3, b"x" * 23),
    "close without a flag": seal(7, b""),
    "close of another kind": seal(7, b"\x02no"),
    "close not of text": seal(7, b"\x00\xff\xfe"),
    "close too long": seal(7, b"\x00" + b"x" * 2049),
    "hello without its mark": seal(1, b"x" * 24),
    "data shorter than its prefix": seal(2, b"1234567"),
    "stage longer than the frame": seal(2, b"\x00\x00\xff\x00\x00\x00\x00\x00abc"),
    "stage of no name": seal(2, data_body(_STREAM, b"")),
    "stage too long": seal(2, data_body(_STREAM, b"x" * 256)),
    "stage not of text": seal(2, data_body(_STREAM, b"\xff\xfe")),
    "prefix not zero": seal(2, data_body(_STREAM, zero=1)),
    "no batch": seal(2, data_body(b"")),
    "a schema alone": seal(2, data_body(_SCHEMA)),
    "the end of a stream": seal(2, data_body(_SCHEMA + _END_OF_STREAM)),
    "a batch without a schema": seal(2, data_body(_STREAM[len(_STREAM) // 2 :])),
    "two batches": seal(2, data_body(batch_stream(_BATCH, _BATCH).removesuffix(_END_OF_STREAM))),
    "bytes after the batch": seal(2, data_body(_STREAM + b"12345678")),
    "half a batch": seal(2, data_body(_STREAM[: len(_STREAM) - 16])),
    "random bytes": seal(2, data_body(random.Random(1).randbytes(500))),
    "another schema": seal(2, data_body(batch_stream(pa.record_batch({"x": pa.array(["y"])})))),
}


@pytest.mark.parametrize("what", SEALED)
def test_wrong_bytes_with_right_sums_are_refused(fabric: Fabric, what: str) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say(numbered(1, stage="good"))
    peer.say_bytes(SEALED[what])
    peer.say(Barrier(1, 1))
    close = peer.hear_close()
    assert close.fault
    assert close.reason
    count, ended = expect_prefix(receiver, [numbered(1, stage="good")])
    assert (count, ended) == (1, close)
    bystander.check()


def test_a_length_beyond_the_limit_is_refused_before_it_is_waited_for(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    for size in (BODY_BYTES_MAX + 1, 2**32 - 1):
        peer = bytes_sender(fabric)
        peer.greet(hello_of(fabric))
        peer.say_bytes(seal_header(size, 2))
        close = peer.hear_close()
        assert str(size) in close.reason
        assert [each.frame for each in take(receiver)] == [close]


def test_a_stranger_cannot_make_a_receiver_wait_for_more_than_a_hello(fabric: Fabric) -> None:
    """Who has not said Hello is nobody: for nobody, no tens of megabytes are kept."""
    receiver = fabric.receiver()
    peer = bytes_sender(fabric)
    peer.say_bytes(seal_header(BODY_BYTES_MAX, 2))
    close = peer.hear_close()
    assert close.fault
    assert "begins with Hello" in close.reason
    assert receiver.drain() == []


def test_damaged_batches_with_right_sums_harm_nobody(fabric: Fabric) -> None:
    """A member that is at fault itself: its batches are refused, or can at least be looked at."""
    choose = random.Random(3)
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    for _ in range(60 if fabric.kind.tls else 200):
        damaged = bytearray(_STREAM)
        for _ in range(choose.randint(1, 3)):
            damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        peer = bytes_sender(fabric)
        peer.greet(hello_of(fabric))
        peer.say_bytes(seal(2, data_body(bytes(damaged))))
        peer.finish()
        _answers(peer)
        peer.cut()
        *taken, close = _until_close(receiver)
        assert isinstance(close.frame, Close)
        for received in taken:
            assert isinstance(received.frame, VnodeData)
            assert received.frame.batch.num_rows >= 0
    bystander.check()


def _until_close(receiver: Receiver) -> list[Received]:
    taken: list[Received] = []
    eventually(lambda: _ended(receiver, taken), "that the receiver reports the end")
    return taken


def test_answers_that_are_no_frames_end_the_connection(fabric: Fabric) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    choose = random.Random(5)
    for number in range(5):
        peer = listener.serve(partial(sender.send, RECEIVING, Barrier(number, 1)))
        assert isinstance(peer, BytesPeer)
        peer.say_bytes(choose.randbytes(40))
        (loss,) = eventually(sender.losses, "that the sender leaves")
        assert "not a frame's header" in loss.reason
        frames, close = peer.hear_until_close()
        assert frames == [Barrier(number, 1)]
        assert close.fault
        assert close.reason == loss.reason


def test_half_an_answer_ends_the_connection(fabric: Fabric) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    for number in range(3):
        peer = listener.serve(partial(sender.send, RECEIVING, Barrier(number, 1)))
        assert isinstance(peer, BytesPeer)
        peer.say_bytes(peer.encode(Credit(0, 0))[: 1 + 10 * number])
        peer.finish()
        (loss,) = eventually(sender.losses, "that the sender leaves")
        assert "within a frame" in loss.reason


def test_a_peer_that_stops_in_the_middle_of_a_frame_is_left(fabric: Fabric) -> None:
    """It keeps the connection, and says no more."""
    receiver = fabric.receiver(timing=HASTY)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say_bytes(peer.encode(numbered(1))[:-1])
    close = take(receiver)[0].frame
    assert isinstance(close, Close)
    assert close.fault
    assert "says nothing" in close.reason
