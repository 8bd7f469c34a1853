"""Frames over TCP: two threads per connection and end, one that writes and one that reads."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import RemoteProtocolError
from penstock.threads import supervised
from penstock.transport.carriers import CLOSE_SECONDS_MAX
from penstock.transport.carriers.framing import read_frames, write_frames
from penstock.transport.carriers.pipes import Pipe, PlainPipe, TlsPipe
from penstock.transport.certificates import member_name
from penstock.transport.discovery import Address
from penstock.transport.frames import DONE, Close, Frame
from penstock.transport.lobby import Lobby
from penstock.transport.outbox import Outbox
from penstock.transport.tls import client_context, peer_member, server_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.carriers import OpenStream
    from penstock.transport.connection import Connection
    from penstock.transport.security import Security
    from penstock.transport.stream import Stream
    from penstock.transport.timing import Timing

BACKLOG: Final = 1024
"""Connections that the system holds for us: all members of a large cluster may come at once."""
ACCEPT_PAUSE_SECONDS: Final = 0.1
"""After an accept that failed, for want of descriptors, say. Who waits is served later."""
ANSWER_SECONDS_MAX: Final = 5.0
"""For the answer to a sender's Close, which tells it that everything was read."""

_LOG: Final = logging.getLogger("penstock.transport")


def listen(
    host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
) -> TcpListener:
    if security.credentials is not None:
        security.credentials.load()  # a bad certificate is said here, not to the first peer
    return TcpListener(host, port, security, timing, open_stream)


def dial(address: Address, timing: Timing, connection: Connection) -> TcpLink:
    deadline = time.monotonic() + timing.connect_seconds_max
    plain = socket.create_connection(
        (address.host, address.port), timeout=timing.connect_seconds_max
    )
    try:
        plain.settimeout(max(0.001, deadline - time.monotonic()))  # of the whole TLS handshake
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
    try:
        return TlsPipe(secure), peer_member(secure)
    except BaseException:
        secure.close()  # the plain one is a part of it by now
        raise


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

    @property
    def progress(self) -> int:
        return self._pipe.sent_bytes

    def wait_ended(self, seconds: float) -> bool:
        # The peer answers a Close by ending its side: then it has read everything before it.
        self._reader.join(seconds)
        return not self._reader.is_alive()

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
        except Exception as error:  # noqa: BLE001 - without its writer the connection is over
            self._lose(f"a frame cannot be encoded: {error}")

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
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.address: Final = Address("tcp", host, self._socket.getsockname()[1])
        self._security = security
        self._timing = timing
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lobby: Lobby[_Served] = Lobby(timing.connect_seconds_max)
        self._served: set[_Served] = set()
        self._failing = False
        self._closed = False
        self._acceptor = _thread(f"accepting at {self.address}", self._accept)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            served = list(self._served)
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait in accept
        self._acceptor.join()
        self._socket.close()
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        for connection in served:
            connection.close(deadline)

    # Accepting, in a thread that ends with the listener and for no other reason

    def _accept(self) -> None:
        while not self._closed:
            try:
                self._show_out()
                self._wait_for_room()
                self._let_in(*self._socket.accept())
                self._failing = False
            except TimeoutError:
                continue
            except Exception as error:  # noqa: BLE001 - those who come later are served all the same
                if not self._closed:
                    self._make_do(error)

    def _show_out(self) -> None:
        """Ends those whose time is up; the next accept waits until the next one's is."""
        now = time.monotonic()
        with self._lock:
            for served in self._lobby.overdue(now):
                self._put_out(served, "it did not say who it is in time")
            seconds = self._lobby.next_overdue_at() - now
        self._socket.settimeout(None if math.isinf(seconds) else max(0.001, seconds))

    def _wait_for_room(self) -> None:
        with self._lock:
            while not self._closed:
                now = time.monotonic()
                seconds = self._lobby.room_at(now) - now
                if seconds <= 0:
                    return
                self._changed.wait(seconds)

    def _let_in(self, connected: socket.socket, _: object) -> None:
        served = _Served(connected, self)
        with self._lock:
            if self._closed:
                connected.close()
                return
            crowded_out = self._lobby.crowded_out()
            if crowded_out is not None:
                self._put_out(crowded_out, "others came, and it had not said who it is")
            self._lobby.enter(served, time.monotonic())
            self._served.add(served)
        try:
            served.start()
        except BaseException:
            connected.close()
            self.forget(served)
            raise

    def _make_do(self, error: Exception) -> None:
        if not self._failing:  # once, not ten times a second
            _LOG.warning("no connection can be accepted at %s: %s", self.address, error)
        self._failing = True
        with self._lock:
            stranger = self._lobby.dispensable(time.monotonic())
            if stranger is not None:  # its descriptor, or its thread, may be what is missing
                self._put_out(stranger, f"no other connection can be accepted ({error})")
            if not self._closed:
                self._changed.wait(ACCEPT_PAUSE_SECONDS)

    def _put_out(self, served: _Served, reason: str) -> None:
        self._lobby.leave(served)
        _LOG.warning("a connection to this member was ended: %s", reason)
        served.cut()

    # What a connection needs, and tells

    def open_pipe(self, served: _Served, plain: socket.socket) -> tuple[Pipe, int | None]:
        """The handshake. The member is the one that the certificate proves."""
        plain.settimeout(self._timing.connect_seconds_max)
        if self._security.credentials is None:
            return PlainPipe(plain), None
        secure = server_context(self._security.credentials).wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False
        )
        served.take_over(secure)  # before it waits for the other end, so that it can be cut
        secure.do_handshake()
        member = peer_member(secure)
        with self._lock:
            self._lobby.certify(served)
            self._changed.notify_all()
        return TlsPipe(secure), member

    def open_stream(
        self, member: int | None, reply: Callable[[Frame], None], cut: Callable[[], None]
    ) -> Stream:
        return self._open_stream(member, reply, cut)

    @property
    def timing(self) -> Timing:
        return self._timing

    def know(self, served: _Served) -> None:
        """Its Hello was good."""
        with self._lock:
            self._lobby.leave(served)
            self._changed.notify_all()

    def forget(self, served: _Served) -> None:
        with self._lock:
            self._lobby.leave(served)
            self._served.discard(served)
            self._changed.notify_all()


class _Served:
    """The receiver's end of one connection."""

    def __init__(self, connected: socket.socket, listener: TcpListener) -> None:
        self._connected = connected
        self._listener = listener
        self._outbox = Outbox(listener.timing.heartbeat_seconds)
        self._reader: threading.Thread | None = None
        self._known = False
        self._cut = False

    def start(self) -> None:
        self._reader = _thread("serving a connection", self._serve)

    def take_over(self, connected: socket.socket) -> None:
        """The connection goes on in this one."""
        self._connected = connected
        if self._cut:  # while it was neither in the one nor in the other
            raise ConnectionAbortedError("this end has ended it")

    def close(self, deadline: float) -> None:
        """Lets the last words be written, then ends the connection."""
        if self._reader is not None and self._known:
            self._reader.join(max(0.0, deadline - time.monotonic()))
        self.cut()
        if self._reader is not None:
            self._reader.join()

    def cut(self) -> None:
        self._cut = True
        self._outbox.discard()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connected, socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            try:
                pipe, proven_member = self._listener.open_pipe(self, self._connected)
                pipe.limit(self._listener.timing.connect_seconds_max)
            except Exception as error:  # noqa: BLE001 - whatever a stranger does, or our own files
                _LOG.warning("a connection to this member was refused: %s", error)
                return
            self._run(pipe, proven_member)
        finally:
            self._connected.close()
            self._listener.forget(self)

    def _run(self, pipe: Pipe, proven_member: int | None) -> None:
        stream = self._listener.open_stream(proven_member, self._outbox.put, self.cut)
        writer = _thread("answering a connection", self._write, pipe)
        try:
            for frames in read_frames(pipe, of_stranger=True):
                stream.accept_all(frames)
                if not self._known:
                    self._known = True
                    self._listener.know(self)
                    pipe.limit(self._listener.timing.silence_seconds_max)
                if stream.over:
                    break
            stream.lose("the peer ended the connection without a Close")
            self._outbox.put(DONE)
        except RemoteProtocolError as error:
            stream.refuse(error)
        except OSError as error:
            stream.lose(f"the connection broke: {error}")
            self._outbox.discard()
        finally:
            stream.lose("this end failed")  # no effect after any of the above
            writer.join(ANSWER_SECONDS_MAX)
            self.cut()
            writer.join()

    def _write(self, pipe: Pipe) -> None:
        try:
            write_frames(pipe, self._outbox, lambda _: True)
        except Exception as error:  # noqa: BLE001 - without its writer the connection is over
            if not isinstance(error, OSError):
                _LOG.exception("an answer to a peer cannot be written")
            pipe.cut()  # the reader tells why


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = supervised(name, target, *arguments)
    thread.start()
    return thread
