"""Peers that break the rules with valid frames: each is told why, and harms nobody else."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import PeerUnavailableError
from penstock.routing import VNODE_COLUMN, VNODES
from penstock.transport import Barrier, Close, Flush, Flushed, VnodeData, stream
from penstock.transport.credit import CONTROL_FRAMES_MAX
from penstock.transport.frames import STAGES_MAX, Credit, Hello
from tests.conformance.batches import numbered, numbers
from tests.conformance.bystander import Bystander, close_of
from tests.conformance.fabric import (
    HASTY,
    RECEIVING,
    SENDING,
    SMALL_WINDOW_BYTES,
    over_bytes,
)
from tests.conformance.raw import RawPeer, bytes_sender, hello_of, raw_listener, raw_sender
from tests.conformance.waiting import (
    Background,
    eventually,
    never,
    take,
    waiting_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.frames import Frame
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow


FIRST_WORDS: dict[str, Frame] = {
    "data": numbered(1),
    "barrier": Barrier(1, 1),
    "flush": Flush(1),
    "flushed": Flushed(1, 1),
    "credit": Credit(1, 1),
    "heartbeat": Credit(),
    "close": Close("good day"),
}


@pytest.mark.parametrize("word", FIRST_WORDS)
def test_a_stream_that_does_not_begin_with_hello_is_refused(fabric: Fabric, word: str) -> None:
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = raw_sender(fabric)
    peer.say(FIRST_WORDS[word])
    peer.say(hello_of(fabric))  # too late
    peer.say(numbered(2))
    close = peer.hear_close()
    assert close.fault
    assert "a stream begins with Hello; this one began with" in close.reason
    bystander.check()
    never(receiver.drain, "something came of a stream that was refused")


def _with_vnodes(*arrays: pa.Array[Any], names: list[str]) -> VnodeData:
    return VnodeData("by vnode", 0, pa.RecordBatch.from_arrays(list(arrays), names))


_ONE = pa.array([1])
WRONG_WORDS: dict[str, tuple[Frame, str]] = {
    "hello again": (Hello(SENDING, 0, b""), "Hello in the middle"),
    "flushed": (Flushed(1, 1), "Flushed in the middle"),
    "credit": (Credit(1, 0), "a sender grants no credit"),
    "control credit": (Credit(0, 1), "a sender grants no credit"),
    "vnode type": (
        _with_vnodes(_ONE, pa.array([1], pa.int32()), names=["number", VNODE_COLUMN]),
        "must be uint16",
    ),
    "vnode null": (
        _with_vnodes(_ONE, pa.array([None], pa.uint16()), names=["number", VNODE_COLUMN]),
        "nulls",
    ),
    "vnode too large": (
        _with_vnodes(_ONE, pa.array([VNODES], pa.uint16()), names=["number", VNODE_COLUMN]),
        f"vnode {VNODES}",
    ),
    "vnode twice": (
        _with_vnodes(*[pa.array([1], pa.uint16())] * 2, names=[VNODE_COLUMN] * 2),
        "2 columns",
    ),
}


@pytest.mark.parametrize("word", WRONG_WORDS)
def test_a_wrong_word_ends_its_stream_with_the_reason(fabric: Fabric, word: str) -> None:
    frame, reason = WRONG_WORDS[word]
    receiver = fabric.receiver()
    bystander = Bystander(fabric, receiver)
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say(numbered(1))
    peer.say(Barrier(1, 1))
    peer.say(Credit())  # a heartbeat is no wrong word
    peer.say(frame)
    peer.say(numbered(2))
    taken, close = close_of(receiver)
    assert [each.frame for each in taken[1:]] == [Barrier(1, 1)]
    assert numbers(taken) == [1]
    assert close.fault
    assert reason in close.reason
    told = peer.hear_close()
    assert told == close
    bystander.check()
    never(receiver.drain, "something came after the end of a stream")


def test_a_flush_that_comes_twice_is_refused(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say(Flush(5))
    assert [each.frame for each in take(receiver)] == [Flush(5)]
    peer.say(Flush(5))
    assert "cycle 5 came twice" in close_of(receiver)[1].reason
    assert peer.hear_close().fault


def test_a_version_that_is_not_ours_is_refused(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    peer = raw_sender(fabric)
    token = fabric.security(SENDING).token.for_member(SENDING)
    peer.say(Hello(SENDING, 0, token, 0, version=2))
    close = peer.hear_close()
    assert "version 2" in close.reason
    assert receiver.drain() == []


def test_a_peer_that_floods_with_data_is_cut_off(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    bystander = Bystander(fabric, receiver)
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    for number in range(200):
        peer.say(numbered(number, pad_bytes=4000))
    told = peer.hear_close()
    taken, close = close_of(receiver)
    assert told == close
    assert close.fault
    assert "exceeded its credit" in close.reason
    # What was within its credit is good; and memory held no more than that.
    assert numbers(taken) == list(range(len(taken)))
    assert 10 < len(taken) < SMALL_WINDOW_BYTES / 4000
    bystander.check()
    assert waiting_frames(receiver) == 0


def test_a_peer_that_floods_with_barriers_is_cut_off(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    bystander = Bystander(fabric, receiver)
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    for number in range(CONTROL_FRAMES_MAX + 50):
        peer.say(Barrier(number, 1))
    told = peer.hear_close()
    assert "exceeded its credit" in told.reason
    assert f"{CONTROL_FRAMES_MAX} control frames" in told.reason
    taken, close = close_of(receiver)
    assert told == close
    assert [each.frame for each in taken] == [Barrier(n, 1) for n in range(CONTROL_FRAMES_MAX)]
    bystander.check()


def test_a_peer_that_floods_with_flushes_is_cut_off(fabric: Fabric) -> None:
    """They are taken at once, but not answered: each costs its receiver a little still."""
    receiver = fabric.receiver()
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    for number in range(CONTROL_FRAMES_MAX + 50):
        peer.say(Flush(number))
        if number < CONTROL_FRAMES_MAX:
            take(receiver)
    assert "Flushes are open already" in close_of(receiver)[1].reason


def test_a_peer_that_floods_with_connections_is_held_off(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends in a Close that nobody takes. There is an end to them, and a way back."""
    limit = 20
    monkeypatch.setattr(stream, "CONTROL_FRAMES_MAX", limit)  # a thousand would take too long
    receiver = fabric.receiver()
    refused = None
    for _ in range(2 * limit):
        peer = raw_sender(fabric)
        peer.say(hello_of(fabric))
        heard = peer.hear()
        assert heard is not None
        if isinstance(heard[0], Close):
            refused = heard[0]
            break
        peer.cut()
    assert refused is not None
    assert "nobody takes the frames of member 1 lane 0" in refused.reason
    assert waiting_frames(receiver) <= limit + 1
    assert len(receiver.drain()) >= limit
    sender = fabric.sender()
    sender.send(RECEIVING, numbered(1))
    eventually(lambda: 1 in numbers(receiver.drain()), "that the peer is let in again")


@over_bytes  # nothing is kept for a stage where nothing is decoded
def test_a_peer_that_floods_with_stages_is_refused(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    peer = bytes_sender(fabric)
    peer.greet(hello_of(fabric))
    empty = pa.record_batch({"number": pa.array([], pa.int64())})
    stages = (VnodeData(f"stage {number}", 0, empty) for number in range(STAGES_MAX + 5))
    for _ in range(STAGES_MAX // 128):
        peer.say_all(itertools.islice(stages, 128))
        take(receiver, 128)
    peer.say_all(stages)
    assert f"at most {STAGES_MAX} stages" in close_of(receiver)[1].reason


@over_bytes
@pytest.mark.parametrize("word", ["data", "barrier", "flush", "flushed", "hello again"])
def test_a_receiver_that_says_a_wrong_word_is_left(fabric: Fabric, word: str) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    peer = listener.serve(lambda: sender.send(RECEIVING, Barrier(1, 1)))
    hello = hello_of(fabric, RECEIVING, window_bytes=10**6)
    peer.say(hello if word == "hello again" else FIRST_WORDS[word])
    (loss,) = eventually(sender.losses, "that the sender leaves")
    assert loss.member == RECEIVING
    frames, close = peer.hear_until_close()
    assert frames == [Barrier(1, 1)]
    assert close.fault
    assert close.reason == loss.reason
    again = listener.serve(lambda: sender.send(RECEIVING, Barrier(2, 1)))
    assert again.hear() == (Barrier(2, 1), 0)


@over_bytes
def test_a_receiver_that_stops_reading_is_left(fabric: Fabric) -> None:
    sender = fabric.sender(timing=HASTY)
    listener = raw_listener(fabric)
    window_bytes = 256 * 1024 * 1024
    peer = listener.serve(lambda: sender.send(RECEIVING, Barrier(1, 1)), window_bytes=window_bytes)
    stop = keep_saying(peer, Credit())  # it is alive, it just does not read

    def send_on() -> None:
        for number in range(10_000):
            sender.send(RECEIVING, numbered(number, pad_bytes=1_000_000))

    with pytest.raises(PeerUnavailableError, match="accepts no bytes"):
        Background(send_on, "sending to a peer that does not read").result()
    stop()


@over_bytes
def test_a_sender_that_does_not_read_is_served_while_it_keeps_to_its_credit(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    for number in range(200):  # some windows full; it counts its credit for itself
        peer.say(numbered(number, pad_bytes=4000))
        assert numbers(take(receiver)) == [number]


def keep_saying(peer: RawPeer, frame: Frame) -> Callable[[], None]:
    """Says a frame again and again, until told to stop."""
    stopped = threading.Event()

    def say() -> None:
        while not stopped.wait(HASTY.heartbeat_seconds):
            peer.say(frame)

    saying = Background(say, "saying a heartbeat")

    def stop() -> None:
        stopped.set()
        saying.result()

    return stop
