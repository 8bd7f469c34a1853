"""Frames over TCP: two threads per connection and end, one that writes and one that reads."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.threads import supervised
from penstock.transport.carriers import CLOSE_SECONDS_MAX
from penstock.transport.carriers.framing import read_frames, write_frames
from penstock.transport.carriers.pipes import Pipe, PlainPipe, TlsPipe
from penstock.transport.certificates import member_name
from penstock.transport.discovery import Address
from penstock.transport.frames import Close, Frame
from penstock.transport.outbox import Outbox
from penstock.transport.tls import PeerRefusedError, client_context, peer_member, server_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.carriers import OpenStream
    from penstock.transport.connection import Connection
    from penstock.transport.security import Security
    from penstock.transport.timing import Timing

UNPROVEN_MAX: Final = 64
"""Connections that have not yet said who they are. More than there are members in most clusters."""

_LOG: Final = logging.getLogger("penstock.transport")


def listen(
    host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
) -> TcpListener:
    if security.credentials is not None:
        security.credentials.load()  # a bad certificate is said here, not to the first peer
    return TcpListener(host, port, security, timing, open_stream)


def dial(address: Address, timing: Timing, connection: Connection) -> TcpLink:
    plain = socket.create_connection(
        (address.host, address.port), timeout=timing.connect_seconds_max
    )
    try:
        pipe, proven_member = _client_pipe(plain, connection)
    except BaseException:
        plain.close()
        raise
    pipe.limit(timing.silence_seconds_max)
    return TcpLink(pipe, proven_member, timing, connection)


def _client_pipe(plain: socket.socket, connection: Connection) -> tuple[Pipe, int | None]:
    credentials = connection.security.credentials
    if credentials is None:
        return PlainPipe(plain), None
    secure = client_context(credentials).wrap_socket(
        plain, server_hostname=member_name(connection.peer)
    )
    return TlsPipe(secure), peer_member(secure)


class TcpLink:
    """The sender's end."""

    encodes = True

    def __init__(
        self, pipe: Pipe, proven_member: int | None, timing: Timing, connection: Connection
    ) -> None:
        self._pipe = pipe
        self._connection = connection
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._read_all = threading.Event()
        self._writer = _thread(f"to member {connection.peer}", self._write)
        self._reader = _thread(f"from member {connection.peer}", self._read, proven_member)

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        self._outbox.put(frame, estimate_bytes)

    def close(self, close: Close) -> None:
        self._outbox.put(close)
        # The peer answers a Close by ending its side: then it has read everything before it.
        self._reader.join(CLOSE_SECONDS_MAX)
        self.cut()

    def cut(self) -> None:
        self._outbox.discard()
        self._pipe.cut()

    def _write(self) -> None:
        try:
            write_frames(self._pipe, self._outbox, self._connection.settle)
        except OSError as error:
            # If the peer ended the connection it said why. What it said is read first.
            self._read_all.wait(CLOSE_SECONDS_MAX)
            self._lose(f"it cannot be written to: {error}")
        except LocalProtocolError as error:
            self._lose(str(error))

    def _read(self, proven_member: int | None) -> None:
        try:
            for frames in read_frames(self._pipe):
                for frame, _ in frames:
                    self._connection.on_frame(frame, proven_member)
            self._lose("it ended the connection")
        except RemoteProtocolError as error:
            self._outbox.put(Close(str(error), fault=True))
            self._connection.lose(str(error))
        except OSError as error:
            self._lose(f"the connection broke: {error}")
        finally:
            self._connection.lose("this end failed")  # no effect after any of the above
            self._read_all.set()
            self._writer.join(CLOSE_SECONDS_MAX)
            self._pipe.cut()
            self._writer.join()
            self._pipe.close()

    def _lose(self, reason: str) -> None:
        self._connection.lose(reason)
        self._outbox.discard()
        self._pipe.cut()


class TcpListener:
    """Accepts connections, each served by threads of its own."""

    def __init__(
        self, host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=UNPROVEN_MAX)
        self.address: Final = Address("tcp", host, self._socket.getsockname()[1])
        self._security = security
        self._timing = timing
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._served: set[_Served] = set()
        self._closed = False
        self._acceptor = _thread(f"accepting at {self.address}", self._accept)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            served = list(self._served)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait in accept
        self._acceptor.join()
        self._socket.close()
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        for connection in served:
            connection.close(deadline)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # Out of file descriptors, say. Those who wait are served when some are free again.
                _LOG.warning("no connection can be accepted at %s: %s", self.address, error)
                time.sleep(0.1)
                continue
            with self._lock:
                unproven = sum(not served.proven for served in self._served)
                if self._closed or unproven >= UNPROVEN_MAX:
                    connected.close()
                    continue
                served = _Served(
                    connected, self._security, self._timing, self._open_stream, self._forget
                )
                self._served.add(served)
            served.start()

    def _forget(self, served: _Served) -> None:
        with self._lock:
            self._served.discard(served)


class _Served:
    """The receiver's end of one connection."""

    def __init__(
        self,
        connected: socket.socket,
        security: Security,
        timing: Timing,
        open_stream: OpenStream,
        forget: Callable[[_Served], None],
    ) -> None:
        self._connected = connected
        self._security = security
        self._timing = timing
        self._open_stream = open_stream
        self._forget = forget
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._reader: threading.Thread | None = None
        self.proven = False

    def start(self) -> None:
        self._reader = _thread("serving a connection", self._serve)

    def close(self, deadline: float) -> None:
        """Lets the last words be written, then ends the connection."""
        if self._reader is not None and self.proven:
            self._reader.join(max(0.0, deadline - time.monotonic()))
        self._cut()
        if self._reader is not None:
            self._reader.join()

    def _cut(self) -> None:
        self._outbox.discard()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connected, socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            self._connected.settimeout(self._timing.connect_seconds_max)
            try:
                pipe, proven_member = self._server_pipe()
            except (OSError, PeerRefusedError) as error:
                _LOG.warning("a connection to this member was refused: %s", error)
                return
            pipe.limit(self._timing.connect_seconds_max)
            self._run(pipe, proven_member)
        finally:
            self._connected.close()
            self._forget(self)

    def _server_pipe(self) -> tuple[Pipe, int | None]:
        if self._security.credentials is None:
            return PlainPipe(self._connected), None
        secure = server_context(self._security.credentials).wrap_socket(
            self._connected, server_side=True, do_handshake_on_connect=False
        )
        self._connected = secure  # before it waits for the other end, so that it can be cut
        secure.do_handshake()
        return TlsPipe(secure), peer_member(secure)

    def _run(self, pipe: Pipe, proven_member: int | None) -> None:
        stream = self._open_stream(proven_member, self._outbox.put, self._cut)
        writer = _thread("answering a connection", self._write, pipe)
        try:
            for frames in read_frames(pipe, of_stranger=True):
                stream.accept_all(frames)
                if not self.proven:
                    self.proven = True
                    pipe.limit(self._timing.silence_seconds_max)
                if stream.over:
                    break
            stream.lose("the peer ended the connection without a Close")
            self._outbox.put(Close("done"))
        except RemoteProtocolError as error:
            stream.refuse(error)
        except OSError as error:
            stream.lose(f"the connection broke: {error}")
            self._outbox.discard()
        finally:
            stream.lose("this end failed")  # no effect after any of the above
            writer.join(CLOSE_SECONDS_MAX)
            self._cut()
            writer.join()

    def _write(self, pipe: Pipe) -> None:
        try:
            write_frames(pipe, self._outbox, lambda costs, _: len(costs))
        except OSError:
            pipe.cut()  # the reader tells why


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = supervised(name, target, *arguments)
    thread.start()
    return thread
