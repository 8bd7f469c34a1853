"""Frames over gRPC: one call of `Shuffle.Exchange` for each connection, on a channel of its own.

At each end gRPC has a thread that writes what it is given, and we have one that reads. gRPC hands
over whole messages, so a message that takes longer than `silence_seconds_max` to arrive is silence.
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

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.transport.carriers import CLOSE_SECONDS_MAX
from penstock.transport.carriers.grpc_watch import Guard
from penstock.transport.carriers.grpc_wire import (
    FRAMES_MAX,
    MESSAGE_BYTES_MAX,
    METHOD,
    SERVICE,
    Envelope,
    check_batch_bytes,
    frames_of,
)
from penstock.transport.discovery import Address
from penstock.transport.frames import FRAME_COST_BYTES, Close, Frame, VnodeData
from penstock.transport.grpc_security import (
    grpc_channel_credentials,
    grpc_channel_options,
    grpc_peer_member,
    grpc_server_credentials,
)
from penstock.transport.outbox import Outbox
from penstock.transport.stages import StageDecoders, StageEncoders
from penstock.transport.tls import PeerRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.transport.carriers import OpenStream
    from penstock.transport.connection import Connection
    from penstock.transport.security import Security
    from penstock.transport.stream import Stream
    from penstock.transport.timing import Timing

CALLS_MAX: Final = 4096
"""Open at one receiver, each with two threads. A shuffle has members times lanes of them."""
UNPROVEN_MAX: Final = 64
"""Calls that have not yet said who they are. More than there are members in most clusters."""
_GATHERED_BYTES: Final = 1024 * 1024
"""Small frames that wait together make a message of about this size: each message costs a tenth of
a millisecond, whatever is in it."""
_READ_BYTES: Final = 256 * 1024
"""Taken from a socket at a time."""
_LOOKAHEAD_BYTES: Final = 32 * 1024 * 1024
"""What gRPC takes in before it is asked for: it reads on while a message is decoded."""
_WRITE_BYTES: Final = 8 * 1024 * 1024
"""What gRPC takes over before it is written: the next message is made meanwhile."""
_HTTP2_FRAME_BYTES: Final = 2**24 - 1
"""The largest there is."""

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

    def __init__(self, channel: grpc.Channel, timing: Timing, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._guard: Guard | None = None
        self._begun = threading.Event()
        self._writer: threading.Thread | None = None
        exchange = channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        self._call = cast(Any, exchange(self._requests()))
        self._call.add_done_callback(lambda _: self._begun.set())
        self._wait_for_connection(timing.connect_seconds_max)
        self._guard = Guard(timing.silence_seconds_max, self._lose)
        self._reader = _thread(f"from member {connection.peer}", self._read, self._guard)

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        self._outbox.put(frame, estimate_bytes)

    def close(self, close: Close) -> None:
        self._outbox.put(close)
        if threading.current_thread() in (self._reader, self._writer) and self._guard is not None:
            # The garbage collector closed the sender within one of its own threads.
            self._guard.end_within(CLOSE_SECONDS_MAX)
            return
        # The peer answers a Close by ending the call: then it has read everything before it.
        self._reader.join(CLOSE_SECONDS_MAX)
        self.cut()

    def cut(self) -> None:
        self._outbox.discard()
        self._call.cancel()

    def _wait_for_connection(self, seconds_max: float) -> None:
        if not self._begun.wait(seconds_max):
            self._call.cancel()
            raise TimeoutError(f"no connection in {seconds_max:g} s")
        if self._call.done() and self._call.code() is not grpc.StatusCode.OK:
            raise ConnectionError(_problem(self._call))

    def _requests(self) -> Iterator[bytes]:
        """Run by a thread of gRPC's, which asks for the next message when it has written one."""
        self._writer = threading.current_thread()
        yield Envelope().seal()  # of no frames: it is written as soon as there is a connection
        self._begun.set()
        try:
            yield from _guarded(
                messages(self._outbox, self._connection.settle), lambda: self._guard
            )
        except LocalProtocolError as error:
            self._lose(str(error))

    def _read(self, guard: Guard) -> None:
        # With TLS the call has come this far only if the peer's certificate is that of the member.
        secure = self._connection.security.credentials is not None
        proven_member = self._connection.peer if secure else None
        decoders = StageDecoders()
        try:
            for message in self._call:
                guard.heard()
                for frame, _ in frames_of(message, decoders):
                    self._connection.on_frame(frame, proven_member)
            self._lose("it ended the connection")
        except RemoteProtocolError as error:
            self._outbox.put(Close(str(error), fault=True))
            self._connection.lose(str(error))
            guard.end_within(CLOSE_SECONDS_MAX)
            with contextlib.suppress(grpc.RpcError):
                for _ in self._call:
                    pass  # until the peer has read the Close
        except grpc.RpcError:
            self._lose(f"the connection broke: {_problem(self._call)}")
        finally:
            self._connection.lose("this end failed")  # no effect after any of the above
            guard.drop()
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
        self._served: set[_Served] = set()
        self._closed = False
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        self._server = grpc.server(
            cast(futures.ThreadPoolExecutor, _Threads()),
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})],
            options=_server_options(timing),
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
        # Each call ends with its last words; those that do not are ended after a while. The wait
        # has an end of its own: the garbage collector may have called this in a thread of gRPC's.
        self._server.stop(CLOSE_SECONDS_MAX).wait(2 * CLOSE_SECONDS_MAX)
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        for each in served:
            each.join(deadline)

    def _exchange(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            proven_member = None
            if self._security.credentials is not None:
                proven_member = grpc_peer_member(context.auth_context())
        except PeerRefusedError as error:
            _LOG.warning("a connection to this member was refused: %s", error)
            return iter([_last_words(str(error))])
        served = _Served(requests, context, self._timing)
        with self._lock:
            unproven = sum(not each.proven for each in self._served)
            if self._closed or unproven >= UNPROVEN_MAX:
                return iter([_last_words("the receiver is closed, or besieged by strangers")])
            self._served.add(served)
        if not context.add_callback(lambda: self._forget(served)):
            self._forget(served)
        return served.start(self._open_stream, proven_member)

    def _forget(self, served: _Served) -> None:
        served.drop()
        with self._lock:
            self._served.discard(served)


class _Served:
    """The receiver's end of one call."""

    def __init__(
        self, requests: Iterator[bytes], context: grpc.ServicerContext, timing: Timing
    ) -> None:
        self._requests = requests
        self._context = context
        self._timing = timing
        self._outbox = Outbox(timing.heartbeat_seconds)
        self._guard = Guard(timing.connect_seconds_max, self._on_overdue)
        self._stream: Stream | None = None
        self._reader: threading.Thread | None = None
        self.proven = False

    def start(self, open_stream: OpenStream, proven_member: int | None) -> Iterator[bytes]:
        """Returns the answers, to be written by the thread that calls this."""
        stream = self._stream = open_stream(proven_member, self._outbox.put, self.cut)
        self._reader = _thread("serving a connection", self._read, stream)
        return _guarded(messages(self._outbox, lambda *_: True), lambda: self._guard)

    def cut(self) -> None:
        self._outbox.discard()
        cast(Any, self._context).cancel()

    def drop(self) -> None:
        self._guard.drop()

    def join(self, deadline: float) -> None:
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(max(0.0, deadline - time.monotonic()))

    def _read(self, stream: Stream) -> None:
        decoders = StageDecoders()
        try:
            for message in self._requests:
                stream.accept_all(frames_of(message, decoders))
                del message  # not to be kept while the next one comes
                if self.proven:
                    self._guard.heard()
                elif stream.origin is not None:
                    self.proven = True
                    self._guard.limit(self._timing.silence_seconds_max)
                if stream.over:
                    break
            stream.lose("the peer ended the connection without a Close")
            self._outbox.put(Close("done"))
        except RemoteProtocolError as error:
            stream.refuse(error)
        except grpc.RpcError:
            stream.lose("the connection broke")
            self._outbox.discard()
        finally:
            stream.lose("this end failed")  # no effect after any of the above
            self._guard.end_within(CLOSE_SECONDS_MAX)

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


def messages(outbox: Outbox, settle: Callable[[int, int], bool]) -> Iterator[bytes]:
    """Encodes what is put into the outbox, until that is closed: small frames together."""
    encoders = StageEncoders()
    envelope = Envelope()
    careful = 0
    while taken := outbox.take():
        careful = max(0, careful - 1)
        for frame, estimate_bytes in taken:
            if not isinstance(frame, VnodeData):
                envelope.add(frame)
            else:
                pieces = encoders.encode(frame.stage, frame.batch)
                batch_bytes = sum(map(len, pieces))
                cost_bytes = batch_bytes + FRAME_COST_BYTES
                if cost_bytes > estimate_bytes:
                    careful = 2
                # Where a frame may have to wait for credit, nothing waits with it: the peer grants
                # credit for what it has received. Only a frame that costs more than was reserved
                # for it can cause a wait, its own or of those that were reserved before.
                if envelope.frames and (careful or envelope.size + batch_bytes > _GATHERED_BYTES):
                    yield envelope.seal()
                check_batch_bytes(frame.stage, batch_bytes)
                if not settle(estimate_bytes, cost_bytes):
                    return
                envelope.add_data(frame, pieces, batch_bytes)
            if envelope.size >= _GATHERED_BYTES or envelope.frames == FRAMES_MAX:
                yield envelope.seal()
        if envelope.frames:
            yield envelope.seal()


def _guarded(written: Iterator[bytes], guard_of: Callable[[], Guard | None]) -> Iterator[bytes]:
    """The same messages. Whoever takes one is to ask for the next one in time."""
    for message in written:
        guard = guard_of()
        with guard.writing() if guard is not None else contextlib.nullcontext():
            yield message


def _channel(address: Address, timing: Timing, connection: Connection) -> grpc.Channel:
    host = f"[{address.host}]" if ":" in address.host else address.host
    target = f"dns:///{host}:{address.port}"
    options = _client_options(timing)
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
    place = str(Address("grpc", host, port)).removeprefix("grpc://")
    try:
        if security.credentials is None:
            return server.add_insecure_port(place)
        return server.add_secure_port(place, grpc_server_credentials(security.credentials))
    except RuntimeError as error:
        raise OSError(f"the address {place} cannot be listened at: {error}") from error


def _options(timing: Timing) -> list[tuple[str, int]]:
    """Those of both ends. The sizes are for large batches over a fast network."""
    patience_seconds = timing.silence_seconds_max - timing.heartbeat_seconds
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message stays small
        ("grpc.http2.max_frame_size", _HTTP2_FRAME_BYTES),
        ("grpc.http2.write_buffer_size", _WRITE_BYTES),
        ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),  # it would lower that again
        ("grpc.experimental.tcp_read_chunk_size", _READ_BYTES),
        ("grpc.experimental.tcp_min_read_chunk_size", _READ_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", _READ_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(timing.heartbeat_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(patience_seconds)),
        ("grpc.http2.max_pings_without_data", 0),  # no limit
    ]


def _client_options(timing: Timing) -> list[tuple[str, int]]:
    return [
        *_options(timing),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each channel
        ("grpc.enable_retries", 0),  # a stream that was lost must be known to be lost
        ("grpc.enable_http_proxy", 0),  # members speak to each other directly
        ("grpc.service_config_disable_resolution", 1),
    ]


def _server_options(timing: Timing) -> list[tuple[str, int]]:
    return [
        *_options(timing),
        ("grpc.so_reuseport", 0),  # else two receivers could share a port, and take turns
        ("grpc.http2.max_ping_strikes", 0),  # no limit
        ("grpc.server_handshake_timeout_ms", _milliseconds(timing.connect_seconds_max)),
        ("grpc.max_connection_idle_ms", _milliseconds(timing.silence_seconds_max)),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _last_words(reason: str) -> bytes:
    envelope = Envelope()
    envelope.add(Close(reason, fault=True))
    return envelope.seal()


def _problem(call: Any) -> str:
    return f"{call.details()} ({call.code().name})"


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=f"penstock {name}", daemon=True)
    thread.start()
    return thread


def _keep_large_blocks() -> None:
    """Makes the C library keep blocks of a message's size for the next message, for the whole
    process: it gives large ones back to the system at once, and clearing the pages of new ones
    takes as long as all the rest. A block just below its limit of 32 MiB, when freed, raises the
    size up to which it keeps them. Elsewhere than with glibc it does nothing."""
    bytes(32 * 1024 * 1024 - 64 * 1024)


_keep_large_blocks()
