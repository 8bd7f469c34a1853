"""Strangers: whatever they do before they prove who they are, members come in, and stay."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from penstock.transport import Timing, lobby
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import RECEIVING, over_bytes, over_tcp
from tests.conformance.raw import connect
from tests.conformance.waiting import Background, eventually, take

if TYPE_CHECKING:
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow  # none of it within a process, where there are no strangers

BRIEF = Timing(connect_seconds_max=1, heartbeat_seconds=10, silence_seconds_max=60)
"""Strangers have a second. Members, which have it too, are given more: see `PATIENT`."""


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
    receiver = fabric.receiver()
    strangers = [connect(fabric, receiver.address) for _ in range(20)]
    senders = [fabric.sender(lane=lane) for lane in range(6)]
    for number, sender in enumerate(senders):
        sender.send(RECEIVING, numbered(number))
    more = [connect(fabric, receiver.address) for _ in range(20)]
    for number, sender in enumerate(senders, 6):
        sender.send(RECEIVING, numbered(number))
    assert sorted(numbers(take(receiver, 12))) == list(range(12))
    assert [sender.losses() for sender in senders] == [[]] * 6, "who is known keeps its place"
    for stranger in [*strangers, *more]:
        stranger.close()


@over_tcp
def test_a_stranger_has_its_time_however_slowly_it_speaks(fabric: Fabric) -> None:
    """A byte now and then ends no wait: the time is that of the whole handshake. Some speak TLS as
    far as its first record's length, or what a Hello would begin with."""
    receiver = fabric.receiver(timing=BRIEF)
    hello = b"\x38\0\0\0\x01\0"
    begun = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" if fabric.kind.tls else hello
    strangers = {connect(fabric, receiver.address): iter(begun) for _ in range(3)}

    def all_over() -> bool:
        for stranger, rest in strangers.items():
            byte = next(rest, None)
            if byte is not None:
                with suppress(OSError):
                    stranger.send(bytes([byte]))
        threading.Event().wait(0.1)
        return all(is_over(stranger) for stranger in strangers)

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
