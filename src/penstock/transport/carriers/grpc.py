"""Frames over gRPC: one call of `Shuffle.Exchange` for each connection, on a channel of its own.

At each end gRPC has a thread that writes what it is given, and we have one that reads. gRPC waits
for ever where a socket would not: a guard looks at the clock.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from penstock.errors import RemoteProtocolError
from penstock.threads import supervised
from penstock.transport.carriers import CLOSE_SECONDS_MAX
from penstock.transport.carriers.grpc_messages import messages
from penstock.transport.carriers.grpc_options import client_options, server_options
from penstock.transport.carriers.grpc_watch import Guard
from penstock.transport.carriers.grpc_wire import (
    MESSAGE_BYTES_MAX,
    METHOD,
    SERVICE,
    Envelope,
    Unfinished,
    frames_of,
)
from penstock.transport.discovery import Address
from penstock.transport.frames import DONE, Close, Frame
from penstock.transport.grpc_security import (
    grpc_channel_credentials,
    grpc_channel_options,
    grpc_peer_member,
    grpc_server_credentials,
)
from penstock.transport.lobby import Lobby
from penstock.transport.outbox import Outbox
from penstock.transport.stages import StageDecoders
from penstock.transport.tls import PeerRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.transport.carriers import OpenStream
    from penstock.transport.connection import Connection
    from penstock.transport.security import Security
    from penstock.transport.stream import Stream
    from penstock.transport.timing import Timing

ANSWER_SECONDS_MAX: Final = 5.0
"""For the answer to a sender's Close, which tells it that everything was read."""
CALLS_MAX: Final = 4096
"""Open at one receiver, each with two threads. A shuffle has members times lanes of them."""

_LOG: Final = logging.getLogger("penstock.transport")


def listen(
    host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
) -> GrpcListener:
    return GrpcListener(host, port, security, timing, open_stream)


def dial(address: Address, timing: Timing, connection: Connection) -> GrpcLink:
    channel = _channel(address, timing, connection)
    try:
        return GrpcLink(channel, timing, connection)
    except BaseException:
        channel.close()
        raise


class GrpcLink:
    """The sender's end."""

    encodes = True

    def __init__(self, channel: grpc.Channel, timing: Timing, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._begun = threading.Event()
        self._guard = Guard(timing.connect_seconds_max + timing.silence_seconds_max, self._lose)
        self._writer: threading.Thread | None = None
        self._written = 0
        exchange = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        self._call = cast(Any, exchange(self._requests()))
        self._call.add_done_callback(lambda _: self._begun.set())
        self._wait_for_connection(timing.connect_seconds_max)
        self._guard.limit(timing.silence_seconds_max)
        self._reader = _thread(f"from member {connection.peer}", self._read)

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        self._outbox.put(frame, estimate_bytes)

    def close(self, close: Close) -> None:
        self._outbox.put(close)

    @property
    def progress(self) -> int:
        return self._written

    def wait_ended(self, seconds: float) -> bool:
        if threading.current_thread() in (self._reader, self._writer):
            # The garbage collector closed the sender within one of its own threads.
            self._guard.end_within(CLOSE_SECONDS_MAX)
            return True
        # The peer answers a Close by ending the call: then it has read everything before it.
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def cut(self) -> None:
        self._call.cancel()
        self._outbox.discard()  # the other way round would end the call in order

    def _wait_for_connection(self, seconds_max: float) -> None:
        if not self._begun.wait(seconds_max):
            self._guard.drop()
            self.cut()
            raise TimeoutError(f"no connection in {seconds_max:g} s")
        if self._call.done() and self._call.code() is not grpc.StatusCode.OK:
            self._guard.drop()
            raise ConnectionError(_problem(self._call))

    def _requests(self) -> Iterator[bytes]:
        """Run by a thread of gRPC's, which asks for the next message when it has written one."""
        self._writer = threading.current_thread()
        yield Envelope().seal()  # of no frames: it is written as soon as there is a connection
        self._begun.set()
        try:
            for message in messages(self._outbox, self._connection.settle):
                with self._guard.writing():
                    yield message
                self._written += 1
        except Exception as error:  # noqa: BLE001 - without its writer the connection is over
            self._lose(f"a frame cannot be encoded: {error}")

    def _read(self) -> None:
        # With TLS the call has come this far only if the peer's certificate is that of the member.
        secure = self._connection.security.credentials is not None
        proven_member = self._connection.peer if secure else None
        decoders = StageDecoders()
        try:
            for message in self._call:
                self._guard.heard()
                for frame, _ in frames_of(message, decoders):
                    self._connection.on_frame(frame, proven_member)
            self._lose("it ended the connection")
        except RemoteProtocolError as error:
            self._outbox.put(Close(str(error), fault=True))
            self._connection.lose(str(error))
            self._guard.end_within(CLOSE_SECONDS_MAX)
            with contextlib.suppress(grpc.RpcError):
                for _ in self._call:
                    pass  # until the peer has read the Close
        except grpc.RpcError:
            self._lose(f"the connection broke: {_problem(self._call)}")
        finally:
            self._connection.lose("this end failed")  # no effect after any of the above
            self._guard.drop()
            self.cut()
            self._channel.close()

    def _lose(self, reason: str) -> None:
        self._connection.lose(reason)
        self.cut()


class GrpcListener:
    """A gRPC server with one method. Each call is served by threads of its own."""

    def __init__(
        self, host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
    ) -> None:
        self._security = security
        self._timing = timing
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._lobby: Lobby[_Served] = Lobby(timing.connect_seconds_max)
        self._served: set[_Served] = set()
        self._closed = False
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server = grpc.server(
            cast(futures.ThreadPoolExecutor, _Threads()),
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})],
            options=server_options(timing),
            maximum_concurrent_rpcs=CALLS_MAX,
            compression=grpc.Compression.NoCompression,
        )
        self.address: Final = Address("grpc", host, _bind(self._server, host, port, security))
        self._server.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            served = list(self._served)
        for each in served:
            if not each.proven:
                each.cut()
        # Each call ends with its last words, and those that do not are ended. No wait is without
        # end: the garbage collector may have called this in a thread that is waited for.
        stopped = self._server.stop(CLOSE_SECONDS_MAX)
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        for each in served:
            each.wait_for_end(deadline)
        self._server.stop(0)  # now those who never began a call
        stopped.wait(CLOSE_SECONDS_MAX)
        for each in served:
            each.join()

    def _exchange(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        proven_member = None
        if self._security.credentials is not None:
            try:
                proven_member = grpc_peer_member(context.auth_context())
            except PeerRefusedError as error:
                return _refused(str(error))
        with self._lock:
            if self._closed:
                return _refused("the receiver is closed")
            now = time.monotonic()
            if self._lobby.room_at(now) > now:
                return _refused("too many strangers came at once; try again")
            crowded_out = self._lobby.crowded_out()
            served = _Served(requests, context, self._timing, self._know)
            self._lobby.enter(served, now)
            if proven_member is not None:
                self._lobby.certify(served)
            self._served.add(served)
        if crowded_out is not None:
            self._know(crowded_out)
            crowded_out.cut()
        if not context.add_callback(lambda: self._forget(served)):
            self._forget(served)
        return served.start(self._open_stream, proven_member)

    def _know(self, served: _Served) -> None:
        """Its Hello was good, or it goes: it needs no place among the strangers."""
        with self._lock:
            self._lobby.leave(served)

    def _forget(self, served: _Served) -> None:
        served.on_end()
        self._know(served)
        with self._lock:
            self._served.discard(served)


class _Served:
    """The receiver's end of one call."""

    def __init__(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        timing: Timing,
        on_known: Callable[[_Served], None],
    ) -> None:
        self._on_known = on_known
        self._requests = requests
        self._context = context
        self._timing = timing
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._guard = Guard(timing.connect_seconds_max, self._on_overdue)
        self._stream: Stream | None = None
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()
        self.proven = False

    def start(self, open_stream: OpenStream, proven_member: int | None) -> Iterator[bytes]:
        """Returns the answers, to be written by the thread that calls this."""
        stream = self._stream = open_stream(proven_member, self._outbox.put, self.cut)
        self._reader = _thread("serving a connection", self._read, stream)
        return self._answers()

    def cut(self) -> None:
        cast(Any, self._context).cancel()
        self._outbox.discard()  # the other way round would end the call in order

    def on_end(self) -> None:
        """The call is over: all was written, or it was cut."""
        self._guard.drop()
        self._ended.set()

    def wait_for_end(self, deadline: float) -> None:
        self._ended.wait(max(0.0, deadline - time.monotonic()))

    def join(self) -> None:
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(CLOSE_SECONDS_MAX)

    def _answers(self) -> Iterator[bytes]:
        for message in messages(self._outbox, lambda _: True):
            with self._guard.writing():
                yield message

    def _read(self, stream: Stream) -> None:
        decoders, unfinished = StageDecoders(), Unfinished()
        try:
            for message in self._requests:
                # A stranger is given no memory for a batch in parts.
                frames = frames_of(message, decoders, unfinished if self.proven else None)
                stream.accept_all(frames)
                del message, frames  # not to be kept while the next one comes
                if self.proven:
                    self._guard.heard()
                elif stream.origin is not None:
                    self.proven = True
                    self._on_known(self)
                    self._guard.limit(self._timing.silence_seconds_max)
                if stream.over:
                    break
            stream.lose("the peer ended the connection without a Close")
            self._outbox.put(DONE)
        except RemoteProtocolError as error:
            stream.refuse(error)
        except grpc.RpcError:
            stream.lose("the connection broke")
            self._outbox.discard()
        finally:
            stream.lose("this end failed")  # no effect after any of the above
            self._guard.end_within(ANSWER_SECONDS_MAX)

    def _on_overdue(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.lose(f"the connection broke: {reason}")
        self.cut()


class _Threads(futures.Executor):
    """A thread for each call, as long as that lasts. Those of the usual pool would stay, and keep
    the interpreter from ending while a receiver is open."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - gRPC looks at it
                future.set_exception(error)

        _thread("answering a connection", run)
        return future


def _channel(address: Address, timing: Timing, connection: Connection) -> grpc.Channel:
    target = f"dns:///{_place(address.host, address.port)}"
    options = client_options(timing)
    credentials = connection.security.credentials
    if credentials is None:
        return grpc.insecure_channel(target, options, grpc.Compression.NoCompression)
    return grpc.secure_channel(
        target,
        grpc_channel_credentials(credentials),
        [*options, *grpc_channel_options(connection.peer)],
        grpc.Compression.NoCompression,
    )


def _bind(server: grpc.Server, host: str, port: int, security: Security) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # gRPC says that it failed, and not why; the system says why.
    socket.create_server((host, port), family=family).close()
    place = _place(host, port)
    try:
        if security.credentials is None:
            return server.add_insecure_port(place)
        return server.add_secure_port(place, grpc_server_credentials(security.credentials))
    except RuntimeError as error:
        raise OSError(f"the address {place} cannot be listened at: {error}") from error


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refused(reason: str) -> Iterator[bytes]:
    """The only answer of a call that is not served."""
    _LOG.warning("a connection to this member was refused: %s", reason)
    envelope = Envelope()
    envelope.add(Close(reason, fault=True))
    return iter([envelope.seal()])


def _problem(call: Any) -> str:
    return f"{call.details()} ({call.code().name})"


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = supervised(name, target, *arguments)
    thread.start()
    return thread


def _keep_large_blocks() -> None:
    """Makes the C library keep freed blocks of up to 8 MiB, twice a message, for the next message.
    Left alone it gives such blocks back to the system, which clears the pages of new ones: that
    takes as long as all the rest. The limit rises, for the whole process, when a block above it is
    freed; up to 16 MiB stay free then. With another library than glibc this does nothing."""
    bytes(2 * MESSAGE_BYTES_MAX)


_keep_large_blocks()
