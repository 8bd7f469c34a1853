"""The gRPC carrier over real sockets, between fakes of what lies above it: how calls begin and end,
and what becomes of those that do neither. The conformance suite has the rest."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, cast

import grpc
import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport import lobby
from penstock.transport.carriers import grpc as carrier
from penstock.transport.carriers import grpc_options
from penstock.transport.carriers.grpc_wire import (
    MESSAGE_BYTES_MAX,
    METHOD,
    SERVICE,
    Envelope,
    frames_of,
)
from penstock.transport.certificates import Authority
from penstock.transport.discovery import Address
from penstock.transport.frames import (
    TOKEN_BYTES_MAX,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Origin,
    VnodeData,
)
from penstock.transport.grpc_security import grpc_channel_options
from penstock.transport.security import Security, Token
from penstock.transport.stages import StageDecoders
from penstock.transport.timing import Timing
from penstock.transport.tls import Credentials
from tests.unit.transport.made_certificates import (
    files_in,
    make_issuer,
    new_key,
    pem_of,
    pem_of_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.transport.connection import Connection, Cost
    from penstock.transport.stream import Stream

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
PATIENT = Timing(connect_seconds_max=30, heartbeat_seconds=10, silence_seconds_max=60)
HASTY = Timing(connect_seconds_max=1, heartbeat_seconds=0.1, silence_seconds_max=0.5)
"""For tests of silence, which end by it."""
STRICT = Timing(connect_seconds_max=30, heartbeat_seconds=0.1, silence_seconds_max=0.5)
"""The same for those who have to connect first, however busy the machine is."""
STEADY = Timing(connect_seconds_max=30, heartbeat_seconds=0.05, silence_seconds_max=2.0)
"""For heartbeats that keep a call alive."""

TOKEN = Token("sixteen letters!")
AUTHORITY = Authority.create("orders")
SENDING, RECEIVING = 1, 2
HELLO = Hello(SENDING, 0, TOKEN.for_member(SENDING))
PLAIN = Security(RECEIVING, TOKEN, None)


def secure(member: int, authority: Authority = AUTHORITY) -> Security:
    return Security(member, TOKEN, Credentials(authority.issue(member), member))


_of_other_tests: set[threading.Thread] = set()
"""A Spark or a broker that other tests share keeps threads of this package in the process."""


def transport_threads() -> set[threading.Thread]:
    found = {each for each in threading.enumerate() if each.name.startswith("penstock")}
    return found - _of_other_tests


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.002)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What a test opens; in the end there is nothing left of it."""
    _of_other_tests.update(transport_threads())
    with ExitStack() as opened:
        yield opened
    eventually(lambda: not transport_threads(), "that no thread is left")


class FakeStream:
    """Stands where a stream would: remembers what it was told."""

    def __init__(
        self,
        proven_member: int | None,
        reply: Callable[[Frame], None],
        cut: Callable[[], None],
    ) -> None:
        self.proven_member = proven_member
        self.reply = reply
        self.cut = cut
        self.origin: Origin | None = None
        self.over = False
        self.accepted: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.groups: list[int] = []
        self.endings: list[str] = []
        self.fault: Exception | None = None

    def accept_all(self, frames: Iterable[tuple[Frame, int]]) -> None:
        count = 0
        for frame, _ in frames:
            count += 1
            if isinstance(frame, Hello):
                self.origin = Origin(frame.member, frame.lane)
            self.over = self.over or isinstance(frame, Close)
            self.accepted.put(frame)
        self.groups.append(count)
        if self.fault is not None:
            raise self.fault

    def refuse(self, error: Exception) -> None:
        self.endings.append(f"refused: {error}")
        self.over = True
        self.reply(Close(str(error), fault=True))

    def lose(self, reason: str) -> None:
        if not self.over:
            self.endings.append(reason)
        self.over = True

    def next(self) -> Frame:
        """The next frame, not counting heartbeats."""
        while (frame := self.accepted.get(timeout=WAIT_SECONDS_MAX)) == Credit():
            pass
        return frame


class Listening:
    """A listener, and the streams that were opened at it."""

    def __init__(
        self,
        stack: ExitStack,
        security: Security = PLAIN,
        timing: Timing = PATIENT,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.opened: queue.SimpleQueue[FakeStream] = queue.SimpleQueue()
        self.listener = carrier.listen(host, port, security, timing, self._open)
        self.address = self.listener.address
        stack.callback(self.listener.close)

    def _open(
        self, proven_member: int | None, reply: Callable[[Frame], None], cut: Callable[[], None]
    ) -> Stream:
        stream = FakeStream(proven_member, reply, cut)
        self.opened.put(stream)
        return cast("Stream", stream)

    def stream(self) -> FakeStream:
        return self.opened.get(timeout=WAIT_SECONDS_MAX)


class FakeConnection:
    """Stands where a connection would."""

    def __init__(self, security: Security, peer: int = RECEIVING) -> None:
        self.security = security
        self.peer = peer
        self.heard: queue.SimpleQueue[tuple[Frame, int | None]] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.on_each: Callable[[Frame], object] = lambda _: None
        self.on_settle: Callable[[], object] = lambda: None

    def settle(self, _costs: list[Cost]) -> bool:
        self.on_settle()
        return True

    def on_frame(self, frame: Frame, proven_member: int | None) -> None:
        self.heard.put((frame, proven_member))
        self.on_each(frame)

    def lose(self, reason: str) -> None:
        self.lost.put(reason)

    def next(self) -> Frame:
        while (frame := self.heard.get(timeout=WAIT_SECONDS_MAX)[0]) == Credit():
            pass
        return frame

    def next_loss(self) -> str:
        return self.lost.get(timeout=WAIT_SECONDS_MAX)


def dial(
    stack: ExitStack,
    address: Address,
    security: Security | None = None,
    timing: Timing = PATIENT,
    peer: int = RECEIVING,
) -> tuple[carrier.GrpcLink, FakeConnection]:
    connection = FakeConnection(security or Security(SENDING, TOKEN, None), peer)
    link = carrier.dial(address, timing, cast("Connection", connection))
    stack.callback(link.cut)
    return link, connection


class RawCall:
    """A client that says what it is told to."""

    def __init__(self, stack: ExitStack, address: Address, **options: Any) -> None:
        target = f"{address.host}:{address.port}"
        settings: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1)]
        settings += [("grpc.max_send_message_length", -1)]
        credentials = options.pop("credentials", None)
        if credentials is None:
            self.channel = grpc.insecure_channel(target, settings, **options)
        else:
            settings += grpc_channel_options(RECEIVING)
            self.channel = grpc.secure_channel(target, credentials, settings, **options)
        stack.callback(self.channel.close)
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stack.callback(self._messages.put, None)
        exchange = self.channel.stream_stream(f"/{SERVICE}/{METHOD}", None, None)
        self.call: Any = exchange(iter(self._messages.get, None), timeout=3 * WAIT_SECONDS_MAX)

    def say(self, *frames: Frame) -> None:
        self.say_bytes(message_of(*frames))

    def say_bytes(self, message: bytes) -> None:
        self._messages.put(message)

    def finish(self) -> None:
        self._messages.put(None)

    def hear_all(self) -> list[Frame]:
        """Until the call ends, which must be in order."""
        decoders = StageDecoders()
        frames = [frame for message in self.call for frame, _ in frames_of(message, decoders)]
        return [frame for frame in frames if frame != Credit()]

    def code(self) -> grpc.StatusCode:
        """How the call ends."""
        with suppress(grpc.RpcError):
            for _ in self.call:
                pass
        return cast(grpc.StatusCode, self.call.code())


def message_of(*frames: Frame) -> bytes:
    envelope = Envelope()
    for frame in frames:
        assert not isinstance(frame, VnodeData)
        envelope.add(frame)
    return envelope.seal()


class RawServer:
    """A server whose method is given."""

    def __init__(
        self, stack: ExitStack, exchange: Callable[[Iterator[bytes], Any], Iterator[bytes]]
    ) -> None:
        handler = grpc.stream_stream_rpc_method_handler(exchange)
        server = grpc.server(
            ThreadPoolExecutor(2),
            handlers=[grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})],
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        stack.callback(lambda: server.stop(None).wait())
        self.address = Address("grpc", "127.0.0.1", port)


def large(size: int) -> VnodeData:
    numbers = pa.array(range(size // 16), pa.int64())
    return VnodeData("large", 3, pa.record_batch({"first": numbers, "second": numbers}))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_frames_go_both_ways(stack: ExitStack, tls: bool) -> None:
    listening = Listening(stack, secure(RECEIVING) if tls else PLAIN)
    link, connection = dial(stack, listening.address, secure(SENDING) if tls else None)
    stream = listening.stream()
    assert stream.proven_member == (SENDING if tls else None)
    frames: list[Frame] = [HELLO, large(1_000), Barrier(1, 2, 3), large(9_000_000), Flush(4)]
    for frame in frames:
        link.offer(frame)
    assert [stream.next() for _ in frames] == frames
    stream.reply(Flushed(4, 5))
    proven = RECEIVING if tls else None
    assert connection.heard.get(timeout=WAIT_SECONDS_MAX) == (Flushed(4, 5), proven)
    link.close(Close("done"))
    assert stream.next() == Close("done")
    assert connection.next() == Close("done")
    assert stream.endings == []


def test_what_comes_together_is_accepted_together(stack: ExitStack) -> None:
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    stream = listening.stream()
    call.say(HELLO, *[Flush(cycle) for cycle in range(50)])
    for _ in range(51):
        stream.next()
    assert stream.groups == [51]


def test_ipv6(stack: ExitStack) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    listening = Listening(stack, host="::1")
    link, _ = dial(stack, listening.address)
    link.offer(HELLO)
    assert listening.stream().next() == HELLO


def test_a_name_is_resolved(stack: ExitStack) -> None:
    listening = Listening(stack)
    link, _ = dial(stack, Address("grpc", "localhost", listening.address.port))
    link.offer(HELLO)
    assert listening.stream().next() == HELLO


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_nobody_there_is_said_at_once(stack: ExitStack) -> None:
    with pytest.raises(ConnectionError, match="Connection refused"):
        dial(stack, Address("grpc", "127.0.0.1", free_port()))


def test_a_name_that_nobody_has_is_said_at_once(stack: ExitStack) -> None:
    with pytest.raises(ConnectionError, match="no-such-host"):
        dial(stack, Address("grpc", "no-such-host.invalid", 1))


def test_who_does_not_speak_grpc_is_left(stack: ExitStack) -> None:
    mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    with pytest.raises(TimeoutError, match=r"no connection in 1 s"):
        dial(stack, Address("grpc", *mute.getsockname()), timing=HASTY)


def test_a_proxy_in_the_environment_is_not_asked(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    listening = Listening(stack)
    link, _ = dial(stack, listening.address)
    link.offer(HELLO)
    assert listening.stream().next() == HELLO


def refusals() -> list[tuple[Security, Security | None, int]]:
    stranger = Authority.create("orders")
    return [
        (secure(RECEIVING, stranger), secure(SENDING), RECEIVING),
        (secure(RECEIVING), secure(SENDING, stranger), RECEIVING),
        (secure(5), secure(SENDING), RECEIVING),
        (secure(RECEIVING), None, RECEIVING),
        (PLAIN, secure(SENDING), RECEIVING),
    ]


@pytest.mark.parametrize(
    "place", range(5), ids=["server", "client", "member", "plain client", "plain server"]
)
def test_who_cannot_prove_itself_is_not_connected(stack: ExitStack, place: int) -> None:
    server, client, peer = refusals()[place]
    listening = Listening(stack, server)
    with pytest.raises(ConnectionError, match=r"UNAVAILABLE"):
        dial(stack, listening.address, client, peer=peer)
    assert listening.opened.empty()


def test_a_certificate_of_no_member_is_refused_with_the_reason(stack: ExitStack) -> None:
    issuer = make_issuer()
    listening = Listening(
        stack, Security(RECEIVING, TOKEN, Credentials(issuer.material(RECEIVING), RECEIVING))
    )
    key = new_key()
    certificate = pem_of(issuer.leaf(["nobody.penstock"], key=key))
    credentials = grpc.ssl_channel_credentials(issuer.pem, pem_of_key(key), certificate)
    call = RawCall(stack, listening.address, credentials=credentials)
    (close,) = call.hear_all()
    assert isinstance(close, Close)
    assert close.fault
    assert "names no member" in close.reason
    assert listening.opened.empty()


def test_a_bad_certificate_is_said_when_the_listener_opens(
    stack: ExitStack, tmp_path: Path
) -> None:
    port = free_port()
    security = Security(RECEIVING, TOKEN, Credentials(files_in(tmp_path), RECEIVING))
    with pytest.raises(ConfigurationError, match="certificate"):
        Listening(stack, security, port=port)
    Listening(stack, port=port)  # nothing was left at the port


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_port_that_is_taken_is_said(stack: ExitStack, tls: bool) -> None:
    security = secure(RECEIVING) if tls else PLAIN
    first = Listening(stack, security)
    with pytest.raises(OSError, match=r"in use"):
        Listening(stack, security, port=first.address.port)


def test_an_address_that_is_not_ours_is_said(stack: ExitStack) -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(OSError, match=r"."):
            Listening(stack, host=host)


def test_a_stranger_that_never_says_hello_is_cut_off(stack: ExitStack) -> None:
    """Not even if it says something now and then."""
    listening = Listening(stack, timing=HASTY)
    call = RawCall(stack, listening.address)
    stream = listening.stream()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not stream.over:
        assert time.monotonic() < deadline, "it may stay"
        call.say_bytes(b"")
        time.sleep(0.05)
    assert call.code() is grpc.StatusCode.CANCELLED
    assert stream.endings == ["the connection broke: it says nothing for 1 s"]


def test_there_is_an_end_to_strangers(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment the next one is refused; then the one that says nothing for longest goes."""
    monkeypatch.setattr(lobby, "STRANGERS_MAX", 2)
    monkeypatch.setattr(lobby, "GRACE_SECONDS", 2 * WAIT_SECONDS_MAX)
    listening = Listening(stack)
    strangers = [RawCall(stack, listening.address) for _ in range(2)]
    first, second = (listening.stream() for _ in strangers)
    (close,) = RawCall(stack, listening.address).hear_all()
    assert isinstance(close, Close)
    assert "too many strangers" in close.reason
    monkeypatch.setattr(lobby, "GRACE_SECONDS", 0.0)
    third = RawCall(stack, listening.address)
    third.say(HELLO)
    stream = listening.stream()
    eventually(lambda: first.over, "that the oldest has made room")
    eventually(lambda: stream.origin, "that the newcomer is known")
    assert not second.over


def test_a_sender_that_falls_silent_is_lost(stack: ExitStack) -> None:
    listening = Listening(stack, timing=HASTY)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    eventually(lambda: stream.over, "that silence is noticed")
    assert stream.endings == ["the connection broke: it says nothing for 0.5 s"]
    assert call.code() is grpc.StatusCode.CANCELLED


def test_heartbeats_keep_a_call_alive(stack: ExitStack) -> None:
    listening = Listening(stack, timing=STEADY)
    link, connection = dial(stack, listening.address, timing=STEADY)
    link.offer(HELLO)
    stream = listening.stream()
    time.sleep(1.2 * STEADY.silence_seconds_max)
    link.offer(Flush(1))
    assert [stream.next(), stream.next()] == [HELLO, Flush(1)]
    assert stream.endings == []
    assert connection.lost.empty()


def test_a_receiver_that_falls_silent_is_lost(stack: ExitStack) -> None:
    def exchange(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for _ in requests:
            pass
        yield message_of(Close("too late"))

    server = RawServer(stack, exchange)
    _, connection = dial(stack, server.address, timing=STRICT)
    assert connection.next_loss() == "it says nothing for 0.5 s"


def test_a_receiver_that_accepts_nothing_is_lost(stack: ExitStack) -> None:
    over = threading.Event()
    stack.callback(over.set)

    def exchange(_requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        while not over.wait(0.05):
            yield message_of(Credit())

    server = RawServer(stack, exchange)
    link, connection = dial(stack, server.address, timing=STRICT)
    for _ in range(20):
        link.offer(large(1_000_000))
    # The same of its Credits, where the machine is busy.
    reasons = ("it accepts no bytes for 0.5 s", "it says nothing for 0.5 s")
    assert connection.next_loss() in reasons
    over.set()


def test_a_sender_that_accepts_nothing_is_lost(stack: ExitStack) -> None:
    """It never reads an answer, and goes on to say that it is alive, however busy the machine."""
    seconds = 4
    listening = Listening(stack, timing=Timing(WAIT_SECONDS_MAX, 0.1, seconds))
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    cycle = 0
    while not stream.over:
        assert time.monotonic() < deadline, "nobody notices"
        for _ in range(1000):
            cycle += 1
            stream.reply(Flushed(cycle, 2**63))
        call.say(Credit())
    # Of a machine that is busy, grpc's threads may hear none of the Credits for as long.
    assert stream.endings in (
        [f"the connection broke: it accepts no bytes for {seconds} s"],
        [f"the connection broke: it says nothing for {seconds} s"],
    )


def test_an_end_without_a_close_is_a_loss(stack: ExitStack) -> None:
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    call.finish()
    assert call.hear_all() == [Close("done")]
    assert stream.endings == ["the peer ended the connection without a Close"]


def test_a_call_that_is_dropped_is_a_loss(stack: ExitStack) -> None:
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    call.channel.close()
    eventually(lambda: stream.over, "that the end is noticed")
    # grpc hears of the end of messages and of the cancellation in either order.
    endings = [["the connection broke"], ["the peer ended the connection without a Close"]]
    assert stream.endings in endings


@pytest.mark.parametrize("how", ["bytes", "frame"])
def test_a_fault_is_said_before_the_call_ends(stack: ExitStack, how: str) -> None:
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    assert stream.next() == HELLO
    if how == "frame":
        stream.fault = RemoteProtocolError("on purpose")
        call.say(Flush(1))
    else:
        call.say_bytes(message_of(Flush(1)) + b"\x0a")
    for _ in range(20):  # it does not know yet
        call.say(Flush(2))
    (close,) = call.hear_all()
    assert isinstance(close, Close)
    assert close.fault
    assert ("on purpose" if how == "frame" else "not valid protobuf") in close.reason
    assert stream.next() == Flush(1), "what came before the fault was good"
    assert stream.endings == [f"refused: {close.reason}"]


def test_a_peer_that_does_not_hear_of_its_fault_is_cut_off(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "CLOSE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(grpc_options, "WRITE_BYTES", 64 * 1024)
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    for _ in range(100_000):  # more than gRPC takes over before it is read
        stream.reply(Hello(2**64 - 1, 1, bytes(TOKEN_BYTES_MAX), 2**63 - 1))
    stream.fault = RemoteProtocolError("on purpose")
    call.say(Flush(1))
    eventually(lambda: not transport_threads(), "that the call is ended")
    assert stream.endings == ["refused: on purpose"]


def test_a_message_that_is_too_large_ends_its_call(stack: ExitStack) -> None:
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    call.say_bytes(bytes(MESSAGE_BYTES_MAX + 1))
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    eventually(lambda: stream.over, "that the end is noticed")


def test_a_compressed_message_ends_its_call(stack: ExitStack) -> None:
    """A small one could become a large one in our memory."""
    listening = Listening(stack)
    call = RawCall(stack, listening.address, compression=grpc.Compression.Gzip)
    call.say_bytes(message_of(HELLO) + b"\x92\x06" + b"\xff\x7f" + bytes(16383))
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert listening.opened.empty() or listening.stream().accepted.empty()


def test_a_cut_ends_the_call_from_any_thread(stack: ExitStack) -> None:
    listening = Listening(stack)
    link, connection = dial(stack, listening.address)
    link.offer(HELLO)
    stream = listening.stream()
    stream.next()
    stream.cut()
    assert "the connection broke" in connection.next_loss()
    eventually(lambda: stream.over, "that the end is noticed")
    eventually(lambda: not transport_threads(), "that both ends are gone")


@pytest.mark.parametrize("error", [LocalProtocolError, ValueError, MemoryError])
def test_a_batch_that_cannot_be_sent_loses_the_connection(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error("on purpose")

    monkeypatch.setattr("penstock.transport.carriers.grpc_messages.check_batch_bytes", fail)
    listening = Listening(stack)
    link, connection = dial(stack, listening.address)
    link.offer(large(100))
    assert connection.next_loss() == "a frame cannot be encoded: on purpose"


def test_a_wrong_answer_is_told_to_who_gave_it(stack: ExitStack) -> None:
    listening = Listening(stack)
    link, connection = dial(stack, listening.address)

    def fail(_frame: Frame) -> None:
        raise RemoteProtocolError("on purpose")

    connection.on_each = fail
    link.offer(HELLO)
    stream = listening.stream()
    stream.next()
    stream.reply(Flushed(1, 1))
    assert stream.next() == Close("on purpose", fault=True)
    assert connection.next_loss() == "on purpose"


def test_a_peer_that_does_not_end_is_left(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of its fault, and goes on as if nothing was."""
    monkeypatch.setattr(carrier, "CLOSE_SECONDS_MAX", 0.2)
    over = threading.Event()
    stack.callback(over.set)

    def exchange(_requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        yield message_of(Flushed(1, 1))
        while not over.wait(0.05):
            yield message_of(Credit())

    server = RawServer(stack, exchange)
    _, connection = dial(stack, server.address)

    def fail(_frame: Frame) -> None:
        raise RemoteProtocolError("on purpose")

    connection.on_each = fail
    assert connection.next_loss() == "on purpose"
    eventually(lambda: not transport_threads(), "that the sender gives up")


@pytest.mark.parametrize("thread", ["reader", "writer"])
def test_the_garbage_collector_may_close_a_link_in_its_own_thread(
    stack: ExitStack, thread: str
) -> None:
    listening = Listening(stack)
    link, connection = dial(stack, listening.address)

    def close() -> None:
        link.close(Close("collected"))
        assert link.wait_ended(WAIT_SECONDS_MAX)

    if thread == "reader":
        connection.on_each = lambda _: close()
    else:
        connection.on_settle = close
    link.offer(HELLO)
    link.offer(large(100))
    stream = listening.stream()
    assert [stream.next(), stream.next()] == [HELLO, large(100)]
    stream.reply(Flushed(1, 1))
    assert stream.next() == Close("collected")
    eventually(lambda: not transport_threads(), "that both ends are gone")


def test_closing_lets_last_words_be_written(stack: ExitStack) -> None:
    listening = Listening(stack)
    link, connection = dial(stack, listening.address)
    link.offer(HELLO)
    stream = listening.stream()
    stream.next()
    for cycle in range(20_000):
        stream.reply(Flushed(cycle, cycle))
    stream.reply(Close("the receiver was closed"))
    listening.listener.close()
    assert [connection.next() for _ in range(20_000)][-1] == Flushed(19_999, 19_999)
    assert connection.next() == Close("the receiver was closed")
    with pytest.raises(ConnectionError, match="refused"):
        dial(stack, listening.address)


def test_closing_does_not_wait_for_strangers(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some have a connection, some have begun a call; none has said who it is."""
    monkeypatch.setattr(carrier, "CLOSE_SECONDS_MAX", 10 * WAIT_SECONDS_MAX)
    listening = Listening(stack)
    host, port = listening.address.host, listening.address.port
    silent = [stack.enter_context(socket.create_connection((host, port))) for _ in range(3)]
    call = RawCall(stack, listening.address)
    listening.stream()
    closing = threading.Thread(target=listening.listener.close, daemon=True)
    closing.start()
    closing.join(WAIT_SECONDS_MAX / 3)
    assert not closing.is_alive(), "it waits"
    assert call.code() is grpc.StatusCode.CANCELLED
    for stranger in silent:
        stranger.settimeout(WAIT_SECONDS_MAX)
        with suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass  # the greeting of HTTP/2


def test_closing_does_not_wait_for_ever(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that nobody ended, and a peer that does not hear."""
    monkeypatch.setattr(carrier, "CLOSE_SECONDS_MAX", 0.2)
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    call.say(HELLO)
    stream = listening.stream()
    stream.next()
    listening.listener.close()
    assert stream.over
    assert call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    listening.listener.close()


def test_a_listener_may_be_closed_by_its_own_thread(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "CLOSE_SECONDS_MAX", 0.2)
    listening = Listening(stack)
    call = RawCall(stack, listening.address)
    stream = listening.stream()
    closed = threading.Event()
    accept_all = stream.accept_all

    def closing(frames: Iterable[tuple[Frame, int]]) -> None:
        accept_all(frames)
        listening.listener.close()
        closed.set()

    monkeypatch.setattr(stream, "accept_all", closing)
    call.say(HELLO)
    assert closed.wait(WAIT_SECONDS_MAX)
    eventually(lambda: not transport_threads(), "that nothing is left")


def test_open_ends_do_not_keep_a_process_alive(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import warnings
            from penstock.directory.keyvalue import MemoryKeyValue
            from penstock.transport import Barrier, Receiver, Sender
            from penstock.transport.security import ClusterSecurity

            warnings.simplefilter("ignore")
            cluster = ClusterSecurity.insecure()
            keyvalue = MemoryKeyValue(2)
            receiver = Receiver(cluster.member_security(2), keyvalue, carrier="grpc")
            sender = Sender(cluster.member_security(1), keyvalue.view(1))
            sender.send(2, Barrier(1, 1))
            print(receiver.receive(30).frame)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Barrier(checkpoint=1" in done.stdout
    assert "Traceback" not in done.stderr
