"""Two ends of a TLS connection, over a real pair of sockets."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.transport.certificates import member_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.transport.certificates import Material

WAIT_SECONDS = 120
"""Only a test that fails waits this long."""


@dataclass
class Pair:
    """The two ends after hands were shaken; an end that refused is its error."""

    client: ssl.SSLSocket | OSError
    server: ssl.SSLSocket | OSError

    @property
    def ends(self) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
        assert isinstance(self.client, ssl.SSLSocket), self.client
        assert isinstance(self.server, ssl.SSLSocket), self.server
        return self.client, self.server


def wrapped(
    context: ssl.SSLContext, plain: socket.socket, **options: Any
) -> ssl.SSLSocket | OSError:
    try:
        return context.wrap_socket(plain, **options)
    except OSError as error:
        plain.close()
        return error


@contextmanager
def shake(server: ssl.SSLContext, client: ssl.SSLContext, member: int = 1) -> Iterator[Pair]:
    """A connection of a client to what it takes for this member."""
    plain = socket.socketpair()
    for end in plain:
        end.settimeout(WAIT_SECONDS)
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(wrapped, server, plain[0], server_side=True)
        connected = wrapped(client, plain[1], server_hostname=member_name(member))
        accepted = accepting.result()
    pair = Pair(connected, accepted)
    try:
        yield pair
    finally:
        for wrapped_end in (pair.client, pair.server):
            if not isinstance(wrapped_end, OSError):
                wrapped_end.close()


def talk(pair: Pair) -> None:
    client, server = pair.ends
    for sender, receiver in ((client, server), (server, client)):
        sender.sendall(b"hello")
        assert receiver.recv(5) == b"hello"


def raw_context(
    protocol: int, folder: Path, material: Material | None, trusted: bytes
) -> ssl.SSLContext:
    """An end that uses what it was given without a check: as an attacker, or a mistake, would."""
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(cadata=trusted.decode())
    if material is not None:
        path = folder / "raw.pem"
        path.write_bytes(material.certificate + material.key)
        context.load_cert_chain(path)
    return context


def read_something(end: ssl.SSLSocket) -> bytes:
    data = end.recv(1)
    if not data:
        raise ConnectionResetError("closed")
    return data
