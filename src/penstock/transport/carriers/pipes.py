"""Sockets that one thread reads while another writes, with and without TLS.

Both kinds wait at most `silence_seconds_max` for the other end, in either direction, and then say
that it is gone. `cut` ends the wait of both threads at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import struct
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.transport.stages import Piece

PIECES_MAX: Final = 512
"""Of one gathered write. The system takes 1024."""
_TLS_PIECE_BYTES: Final = 128 * 1024
"""Smaller pieces are joined into one. A copy of theirs costs less than the calls, and the records
that are not full: TLS copies them anyway."""
_TLS_READ_BYTES: Final = 256 * 1024
"""Read at a time, as far as there is so much: TLS gives records of 16 KiB. What was read should
still be in the processor's cache when it is looked at."""


class PeerSilentError(OSError):
    """The other end did nothing for the time it is given."""


class Pipe(Protocol):
    sent_bytes: int
    """What the other end, or the system in between, has taken so far."""

    def send(self, pieces: Sequence[Piece]) -> None:
        """Writes all pieces, in order."""

    def receive_into(self, view: memoryview) -> int:
        """Reads some bytes; zero: the other end is finished."""

    def limit(self, seconds: float) -> None:
        """How long the other end may do nothing."""

    def finish(self) -> None:
        """Nothing more is written; what was written still arrives."""

    def cut(self) -> None: ...

    def close(self) -> None:
        """Gives the socket up. Only when no thread uses it any more."""


class PlainPipe:
    """Blocking calls; the system keeps the time. Pieces go out as they are, gathered."""

    def __init__(self, connected: socket.socket) -> None:
        _tune(connected)
        connected.settimeout(None)
        self._socket = connected
        self._seconds = 0.0
        self.sent_bytes = 0

    def limit(self, seconds: float) -> None:
        # The socket's own timeouts would ask the system before each call whether it would wait.
        self._seconds = seconds
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, pieces: Sequence[Piece]) -> None:
        for begin in range(0, len(pieces), PIECES_MAX):
            self._send(pieces[begin : begin + PIECES_MAX])

    def _send(self, pieces: Sequence[Piece | memoryview]) -> None:
        unsent = sum(map(len, pieces))
        while unsent:
            try:
                sent = self._socket.sendmsg(pieces)
            except BlockingIOError as error:
                raise PeerSilentError(f"it accepts no bytes for {self._seconds:g} s") from error
            unsent -= sent
            self.sent_bytes += sent
            if unsent:
                pieces = _rest(pieces, sent)

    def receive_into(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except BlockingIOError as error:
            raise PeerSilentError(f"it says nothing for {self._seconds:g} s") from error

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class TlsPipe:
    """One lock around the TLS state, which two threads must not enter at once; nobody waits while
    holding it."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        _tune(connected)
        connected.setblocking(False)
        self._socket = connected
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._read_all = False
        self._read_error: OSError | None = None
        self.sent_bytes = 0

    def limit(self, seconds: float) -> None:
        self._seconds = seconds

    def send(self, pieces: Sequence[Piece]) -> None:
        for view in _records(pieces):
            sent = 0
            while sent < len(view):
                deadline = time.monotonic() + self._seconds
                try:
                    with self._lock:
                        count = self._socket.send(view[sent:])
                    sent += count
                    self.sent_bytes += count
                    continue
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                self._wait(events, deadline, "it accepts no bytes")

    def receive_into(self, view: memoryview) -> int:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                with self._lock:
                    return self._read(view[:_TLS_READ_BYTES])
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            self._wait(events, deadline, "it says nothing")

    def _read(self, view: memoryview) -> int:
        """All records that are there, as far as they fit. What ends the reading is told after the
        bytes before it, and again to whoever asks again."""
        filled = 0
        while filled < len(view) and not self._read_all:
            try:
                count = self._socket.recv_into(view[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if filled:
                    break
                raise
            except OSError as error:
                self._read_error = error
                count = 0
            self._read_all = count == 0
            filled += count
        if self._read_error is not None and not filled:
            raise self._read_error
        return filled

    def _wait(self, events: int, deadline: float, what: str) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise PeerSilentError(f"{what} for {self._seconds:g} s")

    def finish(self) -> None:
        # Not by TLS: its own way would read on for the other end's farewell, and lose what comes.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _tune(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_CONGESTION") and _is_loopback(connected.getpeername()[0]):
        # Some systems pace every connection to spare the network. Between members on one machine
        # there is none to spare, and bursts that wait for a timer cost a third of the speed.
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _rest(pieces: Sequence[Piece | memoryview], sent: int) -> list[Piece | memoryview]:
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []


def _records(pieces: Sequence[Piece]) -> list[memoryview]:
    records: list[memoryview] = []
    small: list[Piece] = []
    small_bytes = 0
    for piece in pieces:
        if len(piece) < _TLS_PIECE_BYTES:
            small.append(piece)
            small_bytes += len(piece)
            if small_bytes < _TLS_PIECE_BYTES:
                continue
            piece = b"".join(small)  # noqa: PLW2901 - the joined piece takes its place
        elif small:
            records.append(memoryview(b"".join(small)))
        small, small_bytes = [], 0
        records.append(memoryview(piece))
    if small:
        records.append(memoryview(b"".join(small)))
    return records
