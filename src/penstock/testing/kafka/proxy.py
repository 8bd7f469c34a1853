"""A way between brokers that a test can freeze, or cut.

A frozen way looks to both ends like a network that delivers nothing: connections stay, bytes wait.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Final

from penstock.errors import PeerUnavailableError
from penstock.testing.kafka.ports import LOOPBACK
from penstock.threads import supervised

OBEY_SECONDS_MAX: Final = 30.0
"""For a thread to do what it is told, on a machine that is busy."""
CONNECT_SECONDS_MAX: Final = 5.0
_CHUNK_BYTES: Final = 256 << 10
_BACKLOG: Final = 64


class Proxy:
    """Passes connections on to `target`, a host and a port. One thread carries them all."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._wake, self._wakened = socket.socketpair()
        self._is_frozen, self._is_closing = False, False
        self._turned = threading.Event()
        """Set by the thread when it has seen what it is told."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._ends: dict[socket.socket, _End] = {}
        self._failure: BaseException | None = None
        self._thread = supervised(
            f"proxy to {target}", self._run, fail=self._fail, until=lambda: self._is_closing
        )
        self._thread.start()

    def freeze(self) -> None:
        """No byte passes from when this returns until `thaw`."""
        self._is_frozen = True
        self._turn()

    def thaw(self) -> None:
        self._is_frozen = False
        self._turn()

    def close(self) -> None:
        """Drops all connections. Called again, it does nothing."""
        self._is_closing = True
        if self._thread.is_alive():
            self._wake.send(b".")
            self._thread.join(OBEY_SECONDS_MAX)
        for end in (*self._ends, self._listener, self._wake, self._wakened):
            end.close()
        self._selector.close()

    def _turn(self) -> None:
        """Has the thread look at what it is told, and waits until it has."""
        if self._failure is not None:
            raise PeerUnavailableError(f"the proxy ended: {self._failure}") from self._failure
        self._turned.clear()
        self._wake.send(b".")
        if not self._turned.wait(OBEY_SECONDS_MAX):
            raise PeerUnavailableError("the proxy's thread does not answer")

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def _run(self) -> None:
        while not self._is_closing:
            if self._is_frozen:
                self._take_turn()
                continue
            for key, events in self._selector.select():
                if key.fileobj is self._wakened:
                    self._take_turn()
                    break  # what else is ready may not pass any more
                if key.fileobj is self._listener:
                    self._accept()
                elif (end := self._ends.get(key.fileobj)) is not None:  # type: ignore[call-overload] # a socket of ours
                    self._carry(end, events)

    def _take_turn(self) -> None:
        self._wakened.recv(_CHUNK_BYTES)
        self._turned.set()

    def _accept(self) -> None:
        """Whoever connects while nobody listens behind is dropped, as without a proxy."""
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(self._target, CONNECT_SECONDS_MAX)
        except OSError:
            client.close()
            return
        first, second = _End(client), _End(server)
        first.other, second.other = second, first
        for end in (first, second):
            end.socket.setblocking(False)
            self._ends[end.socket] = end
            self._selector.register(end.socket, selectors.EVENT_READ)

    def _carry(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                end.send()
            if events & selectors.EVENT_READ and not end.other.waiting:
                data = end.socket.recv(_CHUNK_BYTES)
                if not data:  # and all that came before has gone on
                    self._drop(end)
                    return
                end.other.waiting += data
                end.other.send()
        except BlockingIOError:
            pass  # it was not ready after all
        except OSError:
            self._drop(end)
            return
        self._watch(end)
        self._watch(end.other)

    def _watch(self, end: _End) -> None:
        """An end is read while what came from it before has gone on, and no faster."""
        events = 0 if end.other.waiting else selectors.EVENT_READ
        events |= selectors.EVENT_WRITE if end.waiting else 0
        registered = self._selector.get_map().get(end.socket)
        if registered is None:
            if events:
                self._selector.register(end.socket, events)
        elif not events:
            self._selector.unregister(end.socket)
        elif registered.events != events:
            self._selector.modify(end.socket, events)

    def _drop(self, end: _End) -> None:
        for each in (end, end.other):
            self._ends.pop(each.socket, None)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each.socket)
            each.socket.close()


class _End:
    """A socket, what waits to be sent to it, and the end to which it belongs."""

    __slots__ = ("other", "socket", "waiting")
    other: _End

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.waiting = bytearray()

    def send(self) -> None:
        """As much as it takes now."""
        with contextlib.suppress(BlockingIOError):
            del self.waiting[: self.socket.send(self.waiting)]
