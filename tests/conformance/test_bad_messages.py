"""gRPC messages that are none of ours, or not all of one: no crash, no hang, nobody else hurt.

A message has no checksum of ours: under it are those of TCP, and of TLS. So a bit that a test flips
in it makes another message, and may make a valid one.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.transport import Barrier, Close, Flush, VnodeData
from penstock.transport.frames import Credit, Hello
from tests.conformance.batches import numbered, same
from tests.conformance.bystander import Bystander
from tests.conformance.fabric import RECEIVING, over_grpc
from tests.conformance.raw import BytesPeer, bytes_sender, connect, hello_of, raw_listener
from tests.conformance.waiting import eventually, never, take, waiting_frames

if TYPE_CHECKING:
    from penstock.transport import Received, Receiver
    from penstock.transport.frames import Frame
    from tests.conformance.fabric import Fabric

pytestmark = over_grpc


def story(fabric: Fabric) -> list[Frame]:
    return [
        hello_of(fabric),
        numbered(1, pad_bytes=9),
        numbered(2, pad_bytes=30),
        Barrier(3, 1, flags=7),
        Credit(),
        Flush(5),
    ]


def until_close(receiver: Receiver) -> list[Received]:
    taken: list[Received] = []

    def ended() -> bool:
        taken.extend(receiver.drain())
        return bool(taken) and isinstance(taken[-1].frame, Close)

    eventually(ended, "that the receiver reports the end")
    return taken


def answers_of(peer: BytesPeer) -> list[Frame]:
    answers = []
    while (heard := peer.hear()) is not None:
        answers.append(heard[0])
    return answers


def encoded_story(fabric: Fabric, frames: list[Frame]) -> list[bytes]:
    peer = bytes_sender(fabric)
    encoded = [peer.encode(frame) for frame in frames]
    peer.cut()
    return encoded


@pytest.mark.parametrize("place", range(6))
def test_every_truncation_of_a_message_is_refused(fabric: Fabric, place: int) -> None:
    receiver = fabric.receiver()
    frames = story(fabric)
    encoded = encoded_story(fabric, frames)
    bystander = Bystander(fabric, receiver)
    step = 29 if fabric.kind.tls else 5 if len(encoded[place]) > 100 else 1
    for size in range(1, len(encoded[place]), step):
        peer = bytes_sender(fabric)
        for message in encoded[:place]:
            peer.say_bytes(message)
        peer.say_bytes(encoded[place][:size])
        peer.finish()
        close = answers_of(peer)[-1]
        peer.cut()
        assert isinstance(close, Close)
        assert close.fault, size
        if place:
            *taken, last = until_close(receiver)
            assert last.frame == close
            good = [each for each in frames[:place] if not isinstance(each, Hello | Credit)]
            assert len(taken) == len(good)
            assert all(map(same, (each.frame for each in taken), good))
    bystander.check()
    assert waiting_frames(receiver) == 0


@pytest.mark.parametrize("seed", range(2))
def test_random_messages_get_nowhere(fabric: Fabric, seed: int) -> None:
    choose = random.Random(seed)
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    for _ in range(20):
        peer = bytes_sender(fabric)
        greeted = choose.random() < 0.6
        if greeted:
            peer.greet(hello_of(fabric))
        # A first byte of 10 makes it look like a frame.
        for _ in range(choose.choice((1, 30))):
            peer.say_bytes(choose.choice((b"", b"\n")) + choose.randbytes(choose.randint(8, 300)))
        peer.finish()
        answers = answers_of(peer)
        peer.cut()
        assert isinstance(answers[-1], Close)
        if greeted:
            *taken, _ = until_close(receiver)
            assert taken == []
    bystander.check()
    assert waiting_frames(receiver) == 0


def test_flipped_bits_crash_nobody(fabric: Fabric) -> None:
    choose = random.Random(1)
    receiver = fabric.receiver()
    frames = story(fabric)
    encoded = encoded_story(fabric, frames)
    bystander = Bystander(fabric, receiver)
    for _ in range(100 if not fabric.kind.tls else 30):
        place = choose.randrange(1, len(encoded))
        damaged = bytearray(encoded[place])
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        peer = bytes_sender(fabric)
        for message in (*encoded[:place], bytes(damaged), *encoded[place + 1 :]):
            peer.say_bytes(message)
        peer.finish()
        answers_of(peer)
        peer.cut()
        *taken, _ = until_close(receiver)
        good = [each for each in frames[:place] if not isinstance(each, Hello | Credit)]
        assert len(taken) >= len(good)
        assert all(map(same, (each.frame for each in taken), good))
    bystander.check()


def number(field: int, value: int) -> bytes:
    """A protobuf field of one byte."""
    return bytes([field << 3, value])


def block(field: int, data: bytes) -> bytes:
    """A protobuf field of bytes. Its length is always written with five bytes."""
    size = len(data)
    digits = [size >> 7 * place & 0x7F | 0x80 for place in range(4)]
    return bytes([field << 3 | 2, *digits, size >> 28]) + data


FRAME, HELLO, DATA, BARRIER, FLUSH, FLUSHED, CREDIT, CLOSE = 1, 1, 2, 3, 4, 5, 6, 7
WRONG: dict[str, bytes] = {
    "a frame of no kind": block(FRAME, b""),
    "a frame of a kind to come": block(FRAME, block(15, b"")),
    "frames that are numbers": number(FRAME, 1),
    "a kind that is a number": block(FRAME, number(BARRIER, 1)),
    "a cycle that is bytes": block(FRAME, block(FLUSH, block(1, b"x"))),
    "field zero": b"\x00\x01",
    "a group": b"\x0b\x0c",
    "a number without an end": b"\x08" + b"\xff" * 11,
    "a number of more than 64 bits": b"\x78" + b"\xff" * 9 + b"\x7f",
    "a length without an end": b"\x0a\xff\xff\xff\xff",
    "a field beyond its frame": block(FRAME, b"\x1a\x05abc"),
    "data without a stage": block(FRAME, block(DATA, block(4, b"x"))),
    "data without a batch": block(FRAME, block(DATA, block(1, b"good"))),
    "data of another stage without a schema": block(
        FRAME, block(DATA, block(1, b"new") + block(4, b"x" * 100))
    ),
    "a stage not of text": block(FRAME, block(DATA, block(1, b"\xff\xfe") + block(4, b"x"))),
    "a stage too long": block(FRAME, block(DATA, block(1, b"x" * 256) + block(4, b"x"))),
    "a vnode too large": block(
        FRAME, block(DATA, block(1, b"good") + b"\x10\xff\xff\xff\x7f" + block(4, b"x"))
    ),
    "a reason too long": block(FRAME, block(CLOSE, block(1, b"x" * 2049))),
    "a reason not of text": block(FRAME, block(CLOSE, block(1, b"\xff"))),
    "a token too long": block(FRAME, block(HELLO, block(4, b"x" * 65))),
    "more frames than a message has": block(FRAME, block(CREDIT, b"")) * 4097,
    "more fields than a frame has": block(FRAME, block(BARRIER, number(9, 1) * 65)),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_messages_are_refused(fabric: Fabric, what: str) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say(numbered(1, stage="good"))
    peer.say_bytes(WRONG[what])
    peer.say(Barrier(1, 1))
    close = peer.hear_close()
    assert close.fault
    assert close.reason
    first, last = until_close(receiver)
    assert same(first.frame, numbered(1, stage="good"))
    assert last.frame == close
    bystander.check()


def test_frames_of_one_message_may_be_many_and_of_one_frame_several(fabric: Fabric) -> None:
    """How a stream is cut into messages has no meaning, and neither have fields to come."""
    receiver = fabric.receiver()
    peer = bytes_sender(fabric)
    sent: list[Frame] = [
        numbered(1),
        Barrier(1, 2),
        numbered(2),
        numbered(3, stage="other"),
        Flush(3),
    ]
    peer.say(hello_of(fabric))
    peer.say_bytes(b"")
    peer.say_bytes(block(9, b"of a later release") + b"".join(peer.encode(each) for each in sent))
    taken = take(receiver, len(sent))
    assert all(map(same, (each.frame for each in taken), sent))


def test_a_message_beyond_the_limit_ends_its_stream(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say_bytes(bytes(80 * 1024 * 1024))
    (last,) = until_close(receiver)
    assert isinstance(last.frame, Close)
    assert last.frame.fault
    bystander.check()


def test_what_is_not_http_gets_nowhere(fabric: Fabric) -> None:
    choose = random.Random(2)
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    for words in (b"GET / HTTP/1.1\r\n\r\n", choose.randbytes(3000), bytes(100)):
        stranger = connect(fabric, receiver.address)
        with suppress(OSError):
            stranger.sendall(words)
            while stranger.recv(1000):
                pass
        stranger.close()
        bystander.check()
    never(lambda: waiting_frames(receiver), "something of a stranger got in")


def test_there_is_one_method(fabric: Fabric) -> None:
    from tests.conformance.raw_grpc import GrpcSender  # noqa: PLC0415 - only where gRPC is

    receiver = fabric.receiver()
    peer = GrpcSender(receiver.address, fabric.security(1), RECEIVING, "Reflect")
    fabric.at_end(peer.cut)
    peer.say(hello_of(fabric))
    assert peer.hear() is None
    assert peer.call.code().name == "UNIMPLEMENTED"
    assert receiver.drain() == []


def test_answers_that_are_no_messages_end_the_connection(fabric: Fabric) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    for count, what in enumerate(("field zero", "a group", "a frame of no kind")):
        peer = listener.serve(partial(sender.send, RECEIVING, Barrier(count, 1)))
        assert isinstance(peer, BytesPeer)
        peer.say_bytes(WRONG[what])
        (loss,) = eventually(sender.losses, "that the sender leaves")
        frames, close = peer.hear_until_close()
        assert frames == [Barrier(count, 1)]
        assert close.fault
        assert close.reason == loss.reason


def test_a_batch_is_looked_at_before_it_is_handed_out(fabric: Fabric) -> None:
    """A member that is at fault itself: its batches are refused, or can at least be looked at."""
    choose = random.Random(3)
    receiver = fabric.receiver()
    message = encoded_story(fabric, [numbered(1)])[0]
    for _ in range(60):
        damaged = bytearray(message)
        for _ in range(choose.randint(1, 3)):
            damaged[choose.randrange(40, len(damaged))] ^= 1 << choose.randrange(8)
        peer = bytes_sender(fabric)
        peer.greet(hello_of(fabric))
        peer.say_bytes(bytes(damaged))
        peer.finish()
        answers_of(peer)
        peer.cut()
        for received in until_close(receiver)[:-1]:
            assert isinstance(received.frame, VnodeData)
            assert received.frame.batch.num_rows >= 0
