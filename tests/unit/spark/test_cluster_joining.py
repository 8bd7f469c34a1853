"""How tasks come in: over real sockets, with the token and not without."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import pickle
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PeerUnavailableError, RemoteProtocolError
from penstock.shuffle.member_messages import Failed, encode_message
from penstock.shuffle.process_member import Order
from penstock.spark.cluster import joining
from penstock.spark.cluster.joining import TOKEN_BYTES, UNPROVEN_MAX, Door, Joining, Ticket, join
from penstock.spark.cluster.places import Held
from penstock.transport.security import ClusterSecurity
from tests.conformance.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS_MAX = 120.0
QUIET_SECONDS = 0.3
JOINING = Joining("127.0.0.1", "here", 4711, "/queues", {1: Held("/queues/member-1", 5)})


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", ClusterSecurity.create("test"))
    yield made
    made.close()


def ticket(door: Door) -> Ticket:
    return Ticket("127.0.0.1", door.port, door.authority, door.token, "feed", "", "", True)


def test_a_task_comes_in_and_both_ends_speak(door: Door) -> None:
    theirs = join(ticket(door), JOINING)
    came = door.wait(WAIT_SECONDS_MAX)
    assert came is not None
    ours, said = came
    assert said == JOINING
    ours.send(Order.START)
    theirs.send_bytes(encode_message(Failed("large" * 3_000)))
    assert theirs.recv() is Order.START
    assert ours.receive() == Failed("large" * 3_000)
    door.close()
    ours.send(None)
    assert theirs.recv() is None
    ours.cut()
    with pytest.raises((EOFError, OSError)):
        theirs.recv()
    theirs.close()
    ours.close()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(JOINING),
        b"",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b'{"host": "h", "machine": "m", "process": -1, "folder": "f", "held": {}}',
        b'{"host": "h", "machine": "m", "process": 1, "folder": "f", "held": {"1": "x"}}',
        b'{"host": "h", "machine": "m", "process": 1, "folder": "f", "held": {"x": ["f", 1]}}',
        b'{"host": "h", "machine": "m", "process": 1, "folder": "f", "held": []}',
    ],
)
def test_a_task_is_understood_as_plain_data_or_refused(data: bytes) -> None:
    assert Joining.decode(JOINING.encode()) == JOINING
    with pytest.raises(RemoteProtocolError):
        Joining.decode(data)


def test_who_has_another_token_stays_outside(door: Door) -> None:
    wrong = dataclasses.replace(ticket(door), token=b"0" * 32)
    stranger = dataclasses.replace(JOINING, machine="elsewhere")
    with contextlib.suppress(PeerUnavailableError, OSError):  # it may be shut out as it speaks
        join(wrong, stranger)
    wire = join(ticket(door), JOINING)
    came = door.wait(WAIT_SECONDS_MAX)
    assert came is not None
    assert came[1] == JOINING
    assert door.wait(QUIET_SECONDS) is None
    wire.close()


def test_a_task_tells_the_driver_by_its_certificate(door: Door) -> None:
    other = ClusterSecurity.create("other").authority
    assert other is not None
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        join(dataclasses.replace(ticket(door), authority=other.certificate), JOINING)
    assert door.wait(QUIET_SECONDS) is None


def test_who_speaks_no_tls_is_no_task_and_others_come_in_meanwhile(door: Door) -> None:
    with socket.create_connection(("127.0.0.1", door.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wire = join(ticket(door), JOINING)
        assert door.wait(WAIT_SECONDS_MAX) is not None
    wire.close()


def test_nobody_comes_in_after_the_end(door: Door) -> None:
    door.close()
    with pytest.raises(PeerUnavailableError, match="cannot be reached"):
        join(ticket(door), JOINING)


def test_secrets_are_not_shown(door: Door) -> None:
    assert str(door.token) not in repr(ticket(door))


class Stranger:
    """Has no token. It comes as far as `phase`, and says nothing more, or a byte now and then."""

    def __init__(self, door: Door, phase: str) -> None:
        self.connected = socket.create_connection(("127.0.0.1", door.port))
        if phase == "silent":
            return
        if phase == "within the handshake":
            self.connected.sendall(b"\x16\x03\x01\x02\x00\x01")
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.connected = context.wrap_socket(self.connected)
        if phase == "within the token":
            self.connected.sendall(b"x")

    def drip(self, *, silent: bool) -> bool:
        """Sends a byte, or none. Whether the door still listens to it a moment later."""
        try:
            if not silent:
                self.connected.sendall(b"x")
            self.connected.settimeout(0.1)
            return self.connected.recv(1) != b""
        except TimeoutError:
            return True
        except OSError:
            return False


PHASES = ["silent", "within the handshake", "within the token"]


@pytest.mark.parametrize("phase", PHASES)
def test_strangers_that_take_every_place_keep_no_task_out(
    door: Door, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "PROOF_SECONDS_MAX", 600.0)  # not by their deadline
    strangers = [Stranger(door, phase) for _ in range(UNPROVEN_MAX + 5)]
    eventually(lambda: len(door._newcomers) <= UNPROVEN_MAX, "that some made room")
    wires = []
    for _ in range(3):
        wires.append(join(ticket(door), JOINING))
        assert door.wait(WAIT_SECONDS_MAX) is not None
    for each in strangers:
        each.connected.close()
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("phase", [*PHASES, "within the first message"])
def test_there_is_one_deadline_for_all_phases(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """A byte now and then does not move it, nor does the token."""
    monkeypatch.setattr(joining, "PROOF_SECONDS_MAX", 1.0)
    door = Door("127.0.0.1", ClusterSecurity.create("test"))
    try:
        if phase == "within the first message":
            stranger = Stranger(door, "")
            stranger.connected.sendall(door.token + (1000).to_bytes(4, "little"))
        else:
            stranger = Stranger(door, phase)
        drips = 0
        while stranger.drip(silent=phase == "silent"):
            drips += 1
            assert drips < TOKEN_BYTES - 2, "with one more the token is whole, and wrong"
        eventually(lambda: not door._newcomers, "that its place is free")
    finally:
        door.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ECONNABORTED])
def test_a_door_that_cannot_accept_for_a_moment_opens_again(
    door: Door, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refusals = [number] * 3

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            accepted = listener.accept()
            if refusals:
                accepted[0].close()
                raise OSError(refusals.pop(), "no")
            return accepted

    listener = door._listener
    monkeypatch.setattr(door, "_listener", Refusing())

    def let_in() -> bool:
        with contextlib.suppress(PeerUnavailableError, OSError):
            join(ticket(door), JOINING)
        return door.wait(QUIET_SECONDS) is not None

    eventually(lambda: let_in() and not refusals, "that a task comes in")
    assert door._thread.is_alive()


def test_a_thread_that_cannot_be_started_shuts_no_door(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failing = threading.Thread.start, [True, True]

    def start(self: threading.Thread) -> None:
        if self.name == "penstock door" and failing:
            failing.pop()
            raise RuntimeError("can't start new thread")
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(2):
        with contextlib.suppress(PeerUnavailableError, OSError):
            join(ticket(door), JOINING)
    eventually(lambda: not failing, "that both were refused")
    wire = join(ticket(door), JOINING)
    assert door.wait(WAIT_SECONDS_MAX) is not None
    wire.close()
