"""Frames within one process: handed over as they are, without copies, bytes or threads."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from penstock.errors import RemoteProtocolError
from penstock.transport.discovery import Address

if TYPE_CHECKING:
    from penstock.transport.carriers import OpenStream
    from penstock.transport.connection import Connection
    from penstock.transport.frames import Close, Frame
    from penstock.transport.security import Security
    from penstock.transport.stream import Stream
    from penstock.transport.timing import Timing

_HOST: Final = "process"

_lock: Final = threading.Lock()
_numbers: Final = itertools.count(1)
_listeners: Final[dict[int, LocalListener]] = {}


def listen(
    host: str,  # noqa: ARG001 - there is but one process
    port: int,
    security: Security,  # noqa: ARG001 - the stream checks the token; there is nothing to encrypt
    timing: Timing,  # noqa: ARG001 - nothing here takes time
    open_stream: OpenStream,
) -> LocalListener:
    with _lock:
        port = port or next(_numbers)
        if port in _listeners:
            raise OSError(f"{Address('local', _HOST, port)} is taken")
        listener = _listeners[port] = LocalListener(port, open_stream)
    return listener


def dial(address: Address, timing: Timing, connection: Connection) -> LocalLink:  # noqa: ARG001
    with _lock:
        listener = _listeners.get(address.port)
    if listener is None:
        raise ConnectionRefusedError(f"nobody listens at {address} in this process")
    return listener.connect(connection)


class LocalListener:
    def __init__(self, port: int, open_stream: OpenStream) -> None:
        self.address: Final = Address("local", _HOST, port)
        self._open_stream = open_stream

    def connect(self, connection: Connection) -> LocalLink:
        link = LocalLink(connection)
        # A process proves to itself who it is: what a certificate would say is the dialer's own.
        link.stream = self._open_stream(connection.security.member, link.on_reply, link.cut)
        return link

    def close(self) -> None:
        with _lock:
            _listeners.pop(self.address.port, None)


class LocalLink:
    """Both ends of a connection in one object, since nothing lies between them."""

    encodes = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._over = False
        self.stream: Stream

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        if self._over:
            return
        if estimate_bytes and not self._connection.settle([(estimate_bytes, estimate_bytes)]):
            return
        try:
            self.stream.accept(frame, estimate_bytes)
        except RemoteProtocolError as error:
            self.stream.refuse(error)

    def on_reply(self, frame: Frame) -> None:
        if not self._over:
            self._connection.on_frame(frame, self._connection.peer)

    def close(self, close: Close) -> None:
        self.offer(close)
        self._over = True

    @property
    def progress(self) -> int:
        return 0

    def wait_ended(self, seconds: float) -> bool:  # noqa: ARG002 - what is offered has arrived
        return True

    def cut(self) -> None:
        if not self._over:
            self._over = True
            self.stream.lose("the peer's end was dropped")
            self._connection.lose("the peer ended the stream")
