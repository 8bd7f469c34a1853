"""A proxy carries what it is given, both ways and in order, and nothing while it is frozen."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.testing.kafka.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_MAX = 60.0
SILENCE_SECONDS = 0.3
"""A proxy that is not frozen delivers within a millisecond or so."""
LARGE = bytes(range(256)) * (40 << 10)
"""10 MiB: more than the buffers of sockets hold."""


@pytest.fixture
def ends() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and the two ends of one connection through it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(f"127.0.0.1:{listener.getsockname()[1]}")
        host, _, port = proxy.address.partition(":")
        with contextlib.closing(proxy), socket.create_connection((host, int(port))) as near:
            far, _ = listener.accept()
            with far:
                near.settimeout(SECONDS_MAX)
                far.settimeout(SECONDS_MAX)
                yield proxy, near, far


def receive(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = source.recv(1 << 20)
        assert data, f"the connection ended after {len(found)} bytes"
        found += data
    return bytes(found)


def test_both_ways(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    _, near, far = ends
    near.sendall(b"question")
    assert receive(far, 8) == b"question"
    far.sendall(b"answer")
    assert receive(near, 6) == b"answer"


def test_a_reader_that_is_slow_loses_nothing(
    ends: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    _, near, far = ends
    sending = threading.Thread(target=near.sendall, args=(LARGE,))
    sending.start()
    far.sendall(b"passes meanwhile")
    assert receive(near, 16) == b"passes meanwhile"
    assert receive(far, len(LARGE)) == LARGE
    sending.join(SECONDS_MAX)
    assert not sending.is_alive()


def test_nothing_passes_while_it_is_frozen(
    ends: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    proxy, near, far = ends
    for number in range(3):
        proxy.freeze()
        near.sendall(b"%d" % number)
        far.settimeout(SILENCE_SECONDS)
        with pytest.raises(TimeoutError):
            far.recv(1)
        far.settimeout(SECONDS_MAX)
        proxy.thaw()
        assert receive(far, 1) == b"%d" % number


def test_an_end_that_closes_closes_the_other_behind_what_it_sent(
    ends: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    _, near, far = ends
    near.sendall(b"last")
    near.close()
    assert receive(far, 4) == b"last"
    assert far.recv(1) == b""


def test_a_proxy_to_nobody_drops_whoever_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.closing(Proxy(address)) as proxy:
        host, _, port = proxy.address.partition(":")
        with socket.create_connection((host, int(port)), SECONDS_MAX) as near:
            assert near.recv(1) == b""


def test_a_frozen_proxy_can_be_closed(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, _ = ends
    proxy.freeze()
    proxy.close()
    assert near.recv(1) == b""
