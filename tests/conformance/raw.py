"""Raw peers: ends of a connection that say what they like, when they like.

Each carrier has its own. What they are told to say is made valid with the transport's own encoding
and then, where it is bytes, damaged by the test.
"""

from __future__ import annotations

import importlib
import queue
import socket
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
import xxhash

from penstock.errors import RemoteProtocolError
from penstock.transport.carriers import local
from penstock.transport.carriers.framing import read_frames
from penstock.transport.certificates import member_name
from penstock.transport.credit import CONTROL_FRAMES_MAX
from penstock.transport.discovery import Address
from penstock.transport.frames import FRAME_COST_BYTES, Close, Credit, Frame, Hello, VnodeData
from penstock.transport.stages import StageEncoders
from penstock.transport.tls import client_context, server_context
from penstock.transport.wire import encode
from tests.conformance.fabric import RECEIVING, SENDING
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.transport.carriers.pipes import Pipe
    from penstock.transport.connection import Connection
    from penstock.transport.security import Security
    from tests.conformance.fabric import Fabric


class RawPeer(ABC):
    """One end of one connection."""

    @abstractmethod
    def say(self, frame: Frame) -> None:
        """Sends a frame. The other end may have hung up already; that is heard, not raised."""

    @abstractmethod
    def hear(self) -> tuple[Frame, int] | None:
        """The next frame, and what it costs in credit. None: the other end is finished."""

    @abstractmethod
    def cut(self) -> None:
        """Ends the connection without a word."""

    def greet(self, hello: Hello) -> tuple[Hello, Credit]:
        """As a sender: says Hello, and hears the answer."""
        self.say(hello)
        answer, credit = self.hear(), self.hear()
        assert answer is not None
        assert credit is not None
        assert isinstance(answer[0], Hello), answer
        assert isinstance(credit[0], Credit), credit
        return answer[0], credit[0]

    def hear_until_close(self) -> tuple[list[Frame], Close]:
        """Everything up to the other end's last word, and that."""
        frames: list[Frame] = []
        while (heard := self.hear()) is not None:
            if isinstance(heard[0], Close):
                return frames, heard[0]
            frames.append(heard[0])
        pytest.fail(f"the stream ended without a Close, after {frames}")

    def hear_close(self) -> Close:
        return self.hear_until_close()[1]


class BytesPeer(RawPeer):
    """A peer on a carrier that moves bytes."""

    @abstractmethod
    def encode(self, frame: Frame) -> bytes:
        """The bytes of a frame, the next of this connection."""

    @abstractmethod
    def say_bytes(self, data: bytes) -> None: ...

    @abstractmethod
    def say_stage(self, stage: str, body: bytes) -> None:
        """A data frame whose sums and lengths are right, with this in place of a batch."""

    @abstractmethod
    def finish(self) -> None:
        """Says no more, and still listens."""

    def say(self, frame: Frame) -> None:
        self.say_bytes(self.encode(frame))

    def say_all(self, frames: Iterable[Frame]) -> None:
        """At once, as a sender does that has many small ones."""
        self.say_bytes(b"".join(map(self.encode, frames)))


def hello_of(fabric: Fabric, member: int = SENDING, lane: int = 0, window_bytes: int = 0) -> Hello:
    """What a member would say first."""
    token = fabric.security(member).token.for_member(member)
    return Hello(member, lane, token, window_bytes)


def raw_sender(
    fabric: Fabric, member: int = SENDING, to: int = RECEIVING, security: Security | None = None
) -> RawPeer:
    """Connects to a receiver, proving to be the member where the carrier asks for a proof. It has
    not said Hello yet."""
    if fabric.kind.carrier == "local":
        return LocalSender(local._listeners[fabric.address(to).port], member)
    return bytes_sender(fabric, member, to, security)


def bytes_sender(
    fabric: Fabric, member: int = SENDING, to: int = RECEIVING, security: Security | None = None
) -> BytesPeer:
    security = security or fabric.security(member)
    peer: BytesPeer
    if fabric.kind.carrier == "grpc":
        raw_grpc = importlib.import_module("tests.conformance.raw_grpc")
        peer = raw_grpc.GrpcSender(fabric.address(to), security, to)
    else:
        peer = TcpPeer(_client_socket(connect(fabric, fabric.address(to)), security, to))
    fabric.at_end(peer.cut)
    return peer


def cost_of(frame: VnodeData) -> int:
    """What a frame costs in credit, where it is not encoded."""
    return pa.ipc.get_record_batch_size(frame.batch) + FRAME_COST_BYTES


def connect(fabric: Fabric, address: Address) -> socket.socket:
    """A bare socket, to whoever is there."""
    plain = socket.create_connection((address.host, address.port), timeout=WAIT_SECONDS_MAX)
    fabric.at_end(plain.close)
    return plain


class RawListener(ABC):
    """Stands where a receiver would, under its address."""

    def __init__(self, fabric: Fabric, member: int) -> None:
        self._fabric = fabric
        self._member = member

    @abstractmethod
    def accept(self) -> RawPeer:
        """The receiver's end of the next connection."""

    def serve(
        self,
        opening: Callable[[], object],
        *,
        window_bytes: int = 10**6,
        credit: Credit | None = None,
    ) -> RawPeer:
        """The receiver's end of a connection that is opened meanwhile, after the greeting."""
        call = Background(opening, "opening a connection")
        peer = self.accept()
        heard = peer.hear()
        assert heard is not None
        assert isinstance(heard[0], Hello)
        peer.say(hello_of(self._fabric, self._member, window_bytes=window_bytes))
        peer.say(credit or Credit(window_bytes, CONTROL_FRAMES_MAX))
        call.result()
        return peer


def raw_listener(
    fabric: Fabric, member: int = RECEIVING, security: Security | None = None
) -> RawListener:
    if fabric.kind.carrier == "local":
        return LocalListener(fabric, member)
    security = security or fabric.security(member)
    if fabric.kind.carrier == "grpc":
        raw_grpc = importlib.import_module("tests.conformance.raw_grpc")
        return cast(RawListener, raw_grpc.GrpcListener(fabric, member, security))
    return TcpListener(fabric, member, security)


class TcpPeer(BytesPeer):
    """A socket, with or without TLS around it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(WAIT_SECONDS_MAX)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self._encoders = StageEncoders()
        read = read_frames(cast("Pipe", self))
        self._frames = (frame for frames in read for frame in frames)

    def encode(self, frame: Frame) -> bytes:
        return b"".join(bytes(piece) for piece in encode(frame, self._encoders).pieces)

    def say_bytes(self, data: bytes) -> None:
        with suppress(OSError):
            self.socket.sendall(data)

    def say_stage(self, stage: str, body: bytes) -> None:
        name = stage.encode()
        head = struct.pack("<HHI", 0, len(name), 0) + name + bytes(-len(name) % 8)
        self.say_bytes(seal(2, head + body))

    def hear(self) -> tuple[Frame, int] | None:
        return next(self._frames, None)

    def receive_into(self, view: memoryview) -> int:
        try:
            return self.socket.recv_into(view)
        except TimeoutError:
            pytest.fail("waited in vain for an answer, or for the end of the connection")
        except OSError:
            return 0

    def finish(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_WR)

    def cut(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends the connection as a crashed machine does once it is back: with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class TcpListener(RawListener):
    def __init__(self, fabric: Fabric, member: int, security: Security) -> None:
        super().__init__(fabric, member)
        self._security = security
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(WAIT_SECONDS_MAX)
        fabric.at_end(self._socket.close)
        fabric.publish(member, Address("tcp", *self._socket.getsockname()))

    def accept(self) -> TcpPeer:
        connected, _ = self._socket.accept()
        connected.settimeout(WAIT_SECONDS_MAX)
        if self._security.credentials is not None:
            context = server_context(self._security.credentials)
            connected = context.wrap_socket(connected, server_side=True)
        peer = TcpPeer(connected)
        self._fabric.at_end(peer.cut)
        return peer


def seal(tag: int, body: bytes, *, zero: int = 0) -> bytes:
    """A frame whose sums are right, whatever is in it: written here without the code under test."""
    filled = body + bytes(-len(body) % 8)
    return (
        seal_header(len(body), tag, zero)
        + filled
        + xxhash.xxh3_64_intdigest(filled).to_bytes(8, "little")
    )


def seal_header(body_bytes: int, tag: int, zero: int = 0) -> bytes:
    checked = struct.pack("<IBB", body_bytes, tag, zero)
    return checked + struct.pack("<H", xxhash.xxh3_64_intdigest(checked) & 0xFFFF)


class LocalSender(RawPeer):
    """Feeds a receiver's stream with frames, as its carrier would."""

    def __init__(self, listener: local.LocalListener, proven_member: int) -> None:
        self._heard: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._stream = listener._open_stream(proven_member, self._heard.put, self._end)

    def say(self, frame: Frame) -> None:
        cost_bytes = cost_of(frame) if isinstance(frame, VnodeData) else 0
        try:
            self._stream.accept(frame, cost_bytes)
        except RemoteProtocolError as error:
            self._stream.refuse(error)
            self._end()

    def hear(self) -> tuple[Frame, int] | None:
        return _heard_from(self._heard)

    def cut(self) -> None:
        self._stream.lose("the raw peer is gone")

    def _end(self) -> None:
        self._heard.put(None)


class LocalListener(RawListener):
    """Takes a listener's place among those of the process."""

    def __init__(self, fabric: Fabric, member: int) -> None:
        super().__init__(fabric, member)
        self._accepted: queue.SimpleQueue[LocalServed] = queue.SimpleQueue()
        with local._lock:
            port = next(local._numbers)
            local._listeners[port] = cast(local.LocalListener, self)
        fabric.at_end(lambda: local._listeners.pop(port))
        fabric.publish(member, Address("local", "process", port))

    def connect(self, connection: Connection) -> local.LocalLink:
        link = local.LocalLink(connection)
        served = LocalServed(link)
        link.stream = cast(Any, served)
        self._accepted.put(served)
        return link

    def accept(self) -> LocalServed:
        return self._accepted.get(timeout=WAIT_SECONDS_MAX)


class LocalServed(RawPeer):
    """Stands where a stream would: hears what is accepted."""

    def __init__(self, link: local.LocalLink) -> None:
        self._link = link
        self._heard: queue.SimpleQueue[tuple[Frame, int] | None] = queue.SimpleQueue()

    def accept(self, frame: Frame, cost_bytes: int = 0) -> None:
        self._heard.put((frame, cost_bytes))

    def refuse(self, error: Exception) -> None:
        raise error  # it accepts everything, so it never refuses

    def lose(self, _reason: str) -> None:
        self._heard.put(None)

    def say(self, frame: Frame) -> None:
        self._link.on_reply(frame)

    def hear(self) -> tuple[Frame, int] | None:
        try:
            return self._heard.get(timeout=WAIT_SECONDS_MAX)
        except queue.Empty:
            pytest.fail("waited in vain for a frame")

    def cut(self) -> None:
        self._link.cut()


def _heard_from(heard: queue.SimpleQueue[Frame | None]) -> tuple[Frame, int] | None:
    try:
        frame = heard.get(timeout=WAIT_SECONDS_MAX)
    except queue.Empty:
        pytest.fail("waited in vain for an answer")
    return None if frame is None else (frame, 0)


def _client_socket(plain: socket.socket, security: Security, to: int) -> socket.socket:
    if security.credentials is None:
        return plain
    context = client_context(security.credentials)
    return context.wrap_socket(plain, server_hostname=member_name(to))
