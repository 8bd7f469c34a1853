"""Ports of this machine that stay ours while a broker is down."""

from __future__ import annotations

import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"


class ReservedPort:
    """A free port. Its socket is bound and never listens: the system gives the port to nobody else,
    and a broker that asks for this very port gets it, any number of times."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.number}"

    def release(self) -> None:
        self._socket.close()
