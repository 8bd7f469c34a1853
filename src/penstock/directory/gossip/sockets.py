"""Datagrams, and connections for what does not fit them."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from penstock.directory.gossip.address import Address
from penstock.directory.gossip.messages import (
    DATAGRAM_BYTES_MAX,
    HEAD,
    MESSAGE_BYTES_MAX,
    check_head,
)
from penstock.errors import ConfigurationError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.directory.gossip.messages import ClusterKey

CONNECTION_SECONDS_MAX: Final = 5.0
"""For a whole message over TCP: 4 MiB in that time is less than a megabyte per second."""
CONNECTIONS_MAX: Final = 16
"""Open at once from others. Each holds at most one message: 64 MiB in the worst case."""
WAITING_MAX: Final = 64
"""Connections that wait to be accepted. Who comes to a full queue tries again after a second."""
PORT_TRIES_MAX: Final = 20
"""To find a port that is free for both UDP and TCP."""

_LENGTH: Final = struct.Struct("<I")
_CHUNK_BYTES: Final = 256 * 1024


class Sockets:
    """A UDP socket and a TCP listener at the same address."""

    def __init__(self, host: str, port: int) -> None:
        number, family = _own_address(host)
        self.udp, self.listener = _bind(number, family, port)
        self.address: Final = Address(number, self.udp.getsockname()[1])
        self.udp.setblocking(False)
        self.listener.setblocking(False)

    def send(self, data: bytes, address: Address) -> bool:
        """Sends a datagram if the system takes it. Whoever needed it asks again."""
        try:
            self.udp.sendto(data, (address.host, address.port))
        except OSError:
            return False
        return True

    def receive(self) -> tuple[bytes, Address] | None:
        """The next datagram that is there already, and where it came from: any address a datagram
        can bear, port 0 too. OSError: none can be received for now."""
        while True:
            try:
                data, (host, port, *_) = self.udp.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                return None
            except ConnectionError:
                continue  # word of an earlier datagram that nobody took
            return data, Address(host, port)

    def close(self) -> None:
        self.udp.close()
        self.listener.close()


def look_up(seed: Address, address: Address) -> Address | None:
    """A seed's address in numbers, of the kind that can be reached from `address`. It may wait for
    a name server."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(seed.host, seed.port, family, socket.SOCK_DGRAM)
        return Address(str(found[0][4][0]), seed.port)
    return None


def send_message(make: Callable[[], bytes | None], address: Address) -> None:
    """Opens a connection, sends one message, and ends it. What is sent is made when the other end
    is there: it may be newer by then."""
    deadline = time.monotonic() + CONNECTION_SECONDS_MAX
    with socket.create_connection(
        (address.host, address.port), timeout=CONNECTION_SECONDS_MAX
    ) as connection:
        data = make()
        if data is None:
            return
        unsent = memoryview(_LENGTH.pack(len(data)) + data)
        while unsent:
            connection.settimeout(_left_seconds(deadline))
            unsent = unsent[connection.send(unsent[:_CHUNK_BYTES]) :]


def receive_message(connection: socket.socket, key: ClusterKey) -> bytes:
    """The one message of a connection. Memory is taken as bytes come in, and only for whoever knows
    the cluster's sign."""
    deadline = time.monotonic() + CONNECTION_SECONDS_MAX
    received = bytearray()
    _receive_into(received, connection, _LENGTH.size + HEAD.size, deadline)
    (length,) = _LENGTH.unpack_from(received)
    if not HEAD.size <= length <= MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a message of {length} bytes cannot be: it has {HEAD.size} to {MESSAGE_BYTES_MAX}"
        )
    check_head(memoryview(received)[_LENGTH.size :].tobytes(), key)
    _receive_into(received, connection, _LENGTH.size + length, deadline)
    return bytes(received[_LENGTH.size :])


def _receive_into(
    received: bytearray, connection: socket.socket, length: int, deadline: float
) -> None:
    while len(received) < length:
        connection.settimeout(_left_seconds(deadline))
        chunk = connection.recv(min(length - len(received), _CHUNK_BYTES))
        if not chunk:
            raise RemoteProtocolError(
                f"the connection ended within a message: {len(received)} of {length} bytes came"
            )
        received += chunk


def _left_seconds(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"the message took longer than {CONNECTION_SECONDS_MAX:g} seconds")
    return left


def _own_address(host: str) -> tuple[str, socket.AddressFamily]:
    try:
        # Nothing is what systems take for "all addresses", as they do the one of zeros.
        found = socket.getaddrinfo(host or "::", None, type=socket.SOCK_DGRAM)
        family, _, _, _, place = found[0]
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"the host {host!r} is not known here: {error}") from error
    number = str(place[0])
    if ipaddress.ip_address(number).is_unspecified:
        raise ConfigurationError(
            f"{host!r} is no address that others can reach: they are told it, so name the one by "
            "which they find this machine"
        )
    return number, family


def _bind(
    host: str, family: socket.AddressFamily, port: int
) -> tuple[socket.socket, socket.socket]:
    for last_try in reversed(range(PORT_TRIES_MAX)):
        listener = None
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            listener = socket.create_server((host, port), family=family, backlog=WAITING_MAX)
            udp.bind((host, listener.getsockname()[1]))
        except (OSError, OverflowError) as error:
            udp.close()
            if listener is not None:
                listener.close()
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if taken and port == 0 and last_try:
                continue  # free for TCP, but not for UDP
            wish = "choose another, or 0 for any" if taken else "correct host and port"
            raise ConfigurationError(
                f"gossip cannot be at {Address(host, port)}: {error}; {wish}"
            ) from error
        return udp, listener
    raise AssertionError("the last try raises")
