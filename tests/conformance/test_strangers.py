"""Strangers: whatever they do before they prove who they are, members come in, and stay."""

from __future__ import annotations

import errno
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from penstock.transport import Timing, lobby
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import RECEIVING, over_bytes, over_tcp
from tests.conformance.raw import connect, seal_header
from tests.conformance.waiting import Background, eventually, take

if TYPE_CHECKING:
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow  # none of it within a process, where there are no strangers

BRIEF = Timing(connect_seconds_max=1, heartbeat_seconds=10, silence_seconds_max=60)
"""Strangers have a second."""
PATIENT = Timing(connect_seconds_max=3600, heartbeat_seconds=10, silence_seconds_max=60)
"""Nobody's time is up in a test."""
PAUSE_SECONDS = 0.3
"""Between two bytes of one who speaks slowly: no single wait for a byte is too long."""


def is_over(stranger: socket.socket) -> bool:
    """Whether the other end has ended the connection, whatever it said before."""
    stranger.setblocking(False)
    try:
        while stranger.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@over_bytes
def test_silent_strangers_keep_no_member_out(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are places, and each has all the time of the world."""
    monkeypatch.setattr(lobby, "STRANGERS_MAX", 4)
    monkeypatch.setattr(lobby, "GRACE_SECONDS", 0.05)
    receiver = fabric.receiver(timing=PATIENT)
    strangers = [connect(fabric, receiver.address) for _ in range(20)]
    senders = [fabric.sender(lane=lane) for lane in range(6)]
    for number, sender in enumerate(senders):
        sender.send(RECEIVING, numbered(number))
    more = [connect(fabric, receiver.address) for _ in range(20)]
    for number, sender in enumerate(senders, 6):
        sender.send(RECEIVING, numbered(number))
    assert sorted(numbers(take(receiver, 12))) == list(range(12))
    assert [sender.losses() for sender in senders] == [[]] * 6, "who is known keeps its place"
    if fabric.kind.carrier == "tcp":  # gRPC's own server has those who do not speak its language
        eventually(
            lambda: sum(not is_over(each) for each in [*strangers, *more]) <= lobby.STRANGERS_MAX,
            "that strangers make room, with their time not up",
        )
    for stranger in [*strangers, *more]:
        stranger.close()


@over_tcp
def test_a_stranger_has_its_time_however_slowly_it_speaks(fabric: Fabric) -> None:
    """A byte now and then ends no wait: the time is that of the whole handshake. They begin a TLS
    record of 16 KiB, or a Hello, and are ended long before they come to its end."""
    receiver = fabric.receiver(timing=BRIEF)
    record = b"\x16\x03\x01\x40\0\x01\0\x3f\xfc\x03\x03" + bytes(16 * 1024 - 6)
    hello = seal_header(56, tag=1) + bytes(56)
    words = record if fabric.kind.tls else hello
    strangers = {connect(fabric, receiver.address): deque(words) for _ in range(3)}

    def all_over() -> bool:
        speaking = [each for each in strangers.items() if not is_over(each[0])]
        for stranger, rest in speaking:
            assert len(rest) > 1, "it was listened to until it had nearly said all"
            with suppress(OSError):
                stranger.send(bytes([rest.popleft()]))
        threading.Event().wait(PAUSE_SECONDS)
        return not speaking

    eventually(all_over, "that strangers who speak slowly are ended")


@over_tcp
@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "too many"), MemoryError(), RuntimeError()]
)
def test_no_error_ends_the_accepting(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Out of descriptors, of memory or of threads: members come in when that is over."""
    accept: Any = socket.socket.accept
    failures = 3

    def failing(self: socket.socket) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise error
        return accept(self)

    receiver = fabric.receiver()
    stranger = connect(fabric, receiver.address)
    fabric.sender(lane=9).send(RECEIVING, numbered(0))  # the stranger was accepted before
    monkeypatch.setattr(socket.socket, "accept", failing)
    sending = Background(lambda: fabric.sender().send(RECEIVING, numbered(1)), "sending")
    sending.result()
    Background(lambda: fabric.sender(lane=1).send(RECEIVING, numbered(2)), "sending").result()
    assert sorted(numbers(take(receiver, 3))) == [0, 1, 2]
    assert not failures
    stranger.close()


@over_tcp
def test_a_connection_that_gets_no_thread_is_ended_and_the_next_is_served(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = fabric.receiver()
    start = threading.Thread.start
    refused = 2

    def failing(self: threading.Thread) -> None:
        nonlocal refused
        if refused and "serving" in self.name:
            refused -= 1
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", failing)
    strangers = [connect(fabric, receiver.address) for _ in range(2)]
    eventually(lambda: all(is_over(each) for each in strangers), "that they are ended")
    fabric.sender().send(RECEIVING, numbered(1))
    assert numbers(take(receiver)) == [1]
