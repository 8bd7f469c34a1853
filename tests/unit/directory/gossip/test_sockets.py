"""Real sockets: limits on what is read, and addresses that cannot be."""

from __future__ import annotations

import contextlib
import socket
import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from penstock.directory.gossip import sockets
from penstock.directory.gossip.address import Address
from penstock.directory.gossip.messages import (
    DATAGRAM_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    StrangerError,
    encode,
)
from penstock.directory.gossip.sockets import Sockets, look_up, receive_message, send_message
from penstock.errors import ConfigurationError, RemoteProtocolError
from tests.conformance.waiting import Background, eventually
from tests.unit.directory.gossip.made_messages import EXAMPLE, KEY, OTHER_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = encode(EXAMPLE, KEY)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_datagram_arrives_and_says_where_it_came_from() -> None:
    one, two = Sockets("127.0.0.1", 0), Sockets("127.0.0.1", 0)
    with contextlib.closing(one), contextlib.closing(two):
        assert two.receive() is None
        assert one.send(b"x" * DATAGRAM_BYTES_MAX, two.address)
        received = eventually(two.receive, "that the datagram arrives")
        assert received == (b"x" * DATAGRAM_BYTES_MAX, one.address)


def test_a_datagram_that_is_too_large_is_not_taken_for_a_whole_one() -> None:
    with contextlib.closing(Sockets("127.0.0.1", 0)) as one:
        assert one.send(b"x" * 5000, one.address)
        received = eventually(one.receive, "that the datagram arrives")
        assert received is not None
        assert len(received[0]) > DATAGRAM_BYTES_MAX


def test_sending_to_nobody_is_no_error() -> None:
    with contextlib.closing(Sockets("127.0.0.1", 0)) as one:
        nobody = Sockets("127.0.0.1", 0)
        nobody.close()
        one.send(b"x", nobody.address)
        assert not one.send(b"x", Address("::1", 9)), "an address of another kind"
        assert one.receive() is None


def test_ipv6() -> None:
    try:
        one = Sockets("::1", 0)
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    with contextlib.closing(one):
        assert str(one.address).startswith("[::1]:")
        one.send(b"x", one.address)
        assert eventually(one.receive, "that the datagram arrives") == (b"x", one.address)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_port_in_use_is_refused_and_said(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}.*choose another"):
            Sockets("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("0.0.0.0", 0, "others can reach"),
        ("::", 0, "others can reach"),
        ("", 0, "others can reach"),
        ("no-such-host.invalid", 0, "not known here"),
        ("192.0.2.1", 0, "correct host and port"),
        ("127.0.0.1", 65536, "correct host and port"),
    ],
)
def test_a_place_that_cannot_be_is_refused(host: str, port: int, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Sockets(host, port)


def test_names_become_numbers() -> None:
    with contextlib.closing(Sockets("localhost", 0)) as one:
        assert one.address.is_number
        found = look_up(Address("localhost", 4100), one.address)
        assert found is not None
        assert found.is_number
        assert look_up(Address("no-such-host.invalid", 4100), one.address) is None


def test_a_message_over_a_connection_arrives_whole() -> None:
    large = DATA[:16] + bytes(3_000_000)
    with contextlib.closing(Sockets("127.0.0.1", 0)) as one:
        one.listener.setblocking(True)
        sending = Background(lambda: send_message(lambda: large, one.address))
        connection, _ = one.listener.accept()
        with connection:
            assert receive_message(connection, KEY) == large
        sending.result()


def test_nothing_is_sent_if_there_is_nothing_by_then() -> None:
    with contextlib.closing(Sockets("127.0.0.1", 0)) as one:
        one.listener.setblocking(True)
        send_message(lambda: None, one.address)
        connection, _ = one.listener.accept()
        with connection:
            assert connection.recv(1) == b""


@pytest.mark.parametrize("length", [0, 15, MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_cannot_be_is_refused_before_anything_is_allocated(
    pair: tuple[socket.socket, socket.socket], length: int
) -> None:
    ours, theirs = pair
    theirs.sendall(struct.pack("<I", length) + DATA)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"of {length} bytes cannot be"):
            receive_message(ours, KEY)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_stranger_is_known_by_the_first_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nothing more is read: the rest is never sent here."""
    ours, theirs = pair
    theirs.sendall(struct.pack("<I", MESSAGE_BYTES_MAX) + encode(EXAMPLE, OTHER_KEY)[:16])
    with pytest.raises(StrangerError):
        receive_message(ours, KEY)


def test_a_connection_that_ends_early_is_noticed_at_each_byte() -> None:
    whole = struct.pack("<I", len(DATA)) + DATA
    for length in range(len(whole)):
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                theirs.sendall(whole[:length])
            with pytest.raises(RemoteProtocolError, match=f"{length} of"):
                receive_message(ours, KEY)


def test_who_sends_too_slowly_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for all of it: a byte now and then does not help."""
    monkeypatch.setattr(sockets, "CONNECTION_SECONDS_MAX", 0.2)
    ours, theirs = pair
    receiving = Background(lambda: receive_message(ours, KEY))
    whole = iter(struct.pack("<I", len(DATA)) + DATA)

    def drip() -> bool:
        theirs.send(bytes((next(whole),)))
        return not receiving.running

    eventually(drip, "that it is given up")
    with pytest.raises(TimeoutError):
        receiving.result()
