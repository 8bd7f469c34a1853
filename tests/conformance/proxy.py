"""A TCP proxy that a test can break: bytes vanish in it, and nobody is told."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from multiprocessing import connection
from typing import TYPE_CHECKING, cast

from penstock.transport.discovery import Address
from tests.conformance.waiting import WAIT_SECONDS_MAX

if TYPE_CHECKING:
    from tests.conformance.fabric import Fabric

TO_RECEIVER, TO_SENDER = "to the receiver", "to the sender"


class Proxy:
    """Passes bytes on between members, until it is told to swallow those of one direction. From
    then on it keeps both connections open, whatever their ends do."""

    def __init__(self, fabric: Fabric, member: int) -> None:
        self._behind = fabric.address(member)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._swallowed: frozenset[str] = frozenset()
        self._ended = threading.Event()
        self._sockets = [self._server]
        self._thread = threading.Thread(target=self._accept, name="test: proxy", daemon=True)
        self._thread.start()
        fabric.at_end(self.close)
        port = self._server.getsockname()[1]
        fabric.publish(member, Address(self._behind.carrier, "127.0.0.1", port))

    def swallow(self, *directions: str) -> None:
        self._swallowed = frozenset(directions)

    def cut(self) -> None:
        """Ends all connections at once."""
        for each in self._sockets[1:]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_SECONDS_MAX)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        """Serves every connection in one thread, which wakes up often enough to see the end."""
        passing: dict[socket.socket, tuple[socket.socket, str]] = {}
        while not self._ended.is_set():
            # Not `select`, which knows no descriptor above 1,023: this process may have many.
            for ready in connection.wait([self._server, *passing], 0.05):
                source = cast("socket.socket", ready)
                if source is self._server:
                    self._connect(passing)
                else:
                    self._pass_on(source, passing)

    def _connect(self, passing: dict[socket.socket, tuple[socket.socket, str]]) -> None:
        with suppress(OSError):
            front, _ = self._server.accept()
            back = socket.create_connection((self._behind.host, self._behind.port))
            self._sockets += [front, back]
            passing[front] = back, TO_RECEIVER
            passing[back] = front, TO_SENDER

    def _pass_on(
        self, source: socket.socket, passing: dict[socket.socket, tuple[socket.socket, str]]
    ) -> None:
        target, direction = passing[source]
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            del passing[source]
        if self._swallowed and (direction in self._swallowed or not data):
            return
        with suppress(OSError):
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
