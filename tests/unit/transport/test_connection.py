"""The sender's end: who waits, who is woken, and what a receiver may say to it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import PeerUnavailableError, RemoteProtocolError
from penstock.transport import connection as connection_module
from penstock.transport.connection import Connection, SendTimeoutError
from penstock.transport.credit import CONTROL_FRAMES_MAX, QUEUED_BYTES_MAX
from penstock.transport.discovery import Address
from penstock.transport.frames import (
    ALIVE,
    FRAME_COST_BYTES,
    PROTOCOL_VERSION,
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
from penstock.transport.security import Security, Token
from penstock.transport.stages import SchemaChangedError
from penstock.transport.timing import Timing
from penstock.transport.tls import PeerRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_SECONDS_MAX = 30.0
"""How long a test waits for what must come: it is reached only by a failure."""
PEER = 2
TOKEN = Token("sixteen letters!")
ADDRESS = Address("tcp", "nowhere", 1)
HELLO = Hello(PEER, 0, TOKEN.for_member(PEER), 40_000)
FULL = Credit(40_000, CONTROL_FRAMES_MAX)
BATCH = pa.record_batch([pa.array([1, 2, 3])], ["n"])
DATA = VnodeData("s", 0, BATCH)


class FakeLink:
    """A carrier's end of a connection that leads nowhere."""

    def __init__(self) -> None:
        self.offered: list[tuple[Frame, int]] = []
        self.closed: list[Close] = []
        self.cuts = 0
        self.on_hello: Callable[[], object] = lambda: None

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        self.offered.append((frame, estimate_bytes))
        if isinstance(frame, Hello):
            self.on_hello()

    def close(self, close: Close) -> None:
        self.closed.append(close)

    def cut(self) -> None:
        self.cuts += 1

    @property
    def frames(self) -> list[Frame]:
        return [frame for frame, _ in self.offered if not isinstance(frame, Hello)]


class World:
    """A connection with its link, and what it told its owner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link = FakeLink()
        self.flushed: list[tuple[int, Flushed]] = []
        self.lost: list[tuple[int, str]] = []
        self.connection = Connection(
            PEER,
            Origin(1, 3),
            Security(1, TOKEN, None),
            lambda member, frame: self.flushed.append((member, frame)),
            lambda member, reason: self.lost.append((member, reason)),
        )
        self.answers: list[Frame] = [HELLO, FULL]
        self.link.on_hello = self.answer
        self.dial_error: Exception | None = None
        carrier = SimpleNamespace(dial=self.dial)
        monkeypatch.setattr(connection_module, "carrier_of", lambda _: carrier)

    def dial(self, *arguments: object) -> FakeLink:
        assert (arguments[0], arguments[2]) == (ADDRESS, self.connection)
        if self.dial_error:
            raise self.dial_error
        return self.link

    def answer(self) -> None:
        for frame in self.answers:
            self.connection.on_frame(frame, None)

    def open(self, connect_seconds_max: float = WAIT_SECONDS_MAX) -> Connection:
        self.connection.open(ADDRESS, Timing(connect_seconds_max, 1.0, 10.0))
        return self.connection


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def pool(world: World) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
        world.connection.lose("the test is over")  # so that nobody waits on


def batch_bytes_of(cost_bytes: int) -> int:
    return cost_bytes - FRAME_COST_BYTES


def waits(future: Future[Any]) -> None:
    """It has most likely begun to wait by now. If not, what follows holds all the same."""
    time.sleep(0.03)
    assert not future.done()


def test_it_says_hello_and_waits_for_the_answer(world: World) -> None:
    connection = world.open()
    assert world.link.offered == [(Hello(1, 3, TOKEN.for_member(1)), 0)]
    assert connection.alive
    assert connection.credit_bytes == 40_000


def test_the_answer_may_come_late(world: World, pool: ThreadPoolExecutor) -> None:
    answers, world.answers = world.answers, []
    opening = pool.submit(world.open)
    waits(opening)
    for frame in (ALIVE, answers[0], ALIVE):
        world.connection.on_frame(frame, None)
    waits(opening)
    world.connection.on_frame(answers[1], None)
    assert opening.result(WAIT_SECONDS_MAX).alive


def test_nothing_is_sent_before_it_is_open(world: World) -> None:
    with pytest.raises(PeerUnavailableError, match="member 2: the connection is not open"):
        world.connection.send(Flush(1))


def test_a_peer_that_cannot_be_reached(world: World) -> None:
    world.dial_error = ConnectionRefusedError("nobody there")
    with pytest.raises(PeerUnavailableError, match="cannot be reached at tcp://nowhere:1: nobody"):
        world.open()


def test_a_peer_that_refuses_is_quoted(world: World) -> None:
    world.answers = [Close("your token is of another cluster", fault=True)]
    with pytest.raises(PeerUnavailableError, match="your token is of another cluster"):
        world.open()
    assert world.link.cuts == 1
    assert not world.connection.alive


def test_a_peer_that_does_not_answer(world: World) -> None:
    world.answers = [HELLO]
    with pytest.raises(PeerUnavailableError, match=r"no answer to Hello in 0\.01 s"):
        world.open(connect_seconds_max=0.01)
    assert world.link.cuts == 1
    assert not world.connection.alive


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([Hello(3, 0, TOKEN.for_member(3), 40_000)], "member 3 answers at the address of member 2"),
        ([Hello(PEER, 0, TOKEN.for_member(3), 40_000)], "a peer as member 2 was refused"),
        ([Hello(PEER, 0, b"", version=PROTOCOL_VERSION + 1)], "run the same release"),
        ([Credit(1, 0)], "credit before its Hello"),
        ([Credit(0, 1)], "credit before its Hello"),
        ([HELLO, HELLO], "Hello twice"),
        ([HELLO, Credit(40_001, 0)], "granted more than its window"),
        ([HELLO, FULL, Credit(1, 0)], "granted more than its window"),
        ([HELLO, FULL, Credit(0, 1)], "granted more than its window"),
        ([HELLO, FULL, Flushed(1, 1)], "Flush of cycle 1 that is not open"),
        ([HELLO, FULL, DATA], "a receiver does not say VnodeData"),
        ([HELLO, FULL, Barrier(1, 1)], "a receiver does not say Barrier"),
        ([HELLO, FULL, Flush(1)], "a receiver does not say Flush"),
    ],
)
def test_what_a_receiver_may_not_say(world: World, answers: list[Frame], problem: str) -> None:
    for frame in answers[:-1]:
        world.connection.on_frame(frame, None)
    with pytest.raises(RemoteProtocolError, match=problem):
        world.connection.on_frame(answers[-1], None)


def test_a_certificate_overrules_a_claim(world: World) -> None:
    with pytest.raises(PeerRefusedError, match="its certificate is that of member 7"):
        world.connection.on_frame(HELLO, 7)


def test_messages_are_offered_in_order_with_their_cost(world: World) -> None:
    connection = world.open()
    connection.send(DATA, 476)
    connection.send(Barrier(1, 2))
    connection.send(Flush(3))
    assert world.link.offered[1:] == [(DATA, 1_500), (Barrier(1, 2), 0), (Flush(3), 0)]
    assert connection.credit_bytes == 38_500


def test_data_waits_for_credit(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    connection.send(DATA, batch_bytes_of(30_000))
    sending = pool.submit(connection.send, DATA, batch_bytes_of(20_000))
    waits(sending)
    assert connection.settle(30_000, 30_000)
    connection.on_frame(Credit(9_999, 0), None)
    waits(sending)
    connection.on_frame(Credit(1, 0), None)
    sending.result(WAIT_SECONDS_MAX)
    assert world.link.frames == [DATA, DATA]


def test_data_without_credit_is_given_up_in_time(world: World) -> None:
    connection = world.open()
    connection.send(DATA, batch_bytes_of(30_000))
    with pytest.raises(SendTimeoutError, match=r"member 2 granted no credit in 0\.01 s"):
        connection.send(DATA, batch_bytes_of(20_000), 0.01)
    with pytest.raises(SendTimeoutError):
        connection.send(DATA, batch_bytes_of(20_000), 0)
    assert len(world.link.frames) == 1
    connection.send(DATA, batch_bytes_of(10_000), 0)  # what was not sent took no credit


def test_a_barrier_overtakes_data_that_waits(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    connection.send(DATA, batch_bytes_of(40_000))
    sending = pool.submit(connection.send, VnodeData("t", 0, BATCH), batch_bytes_of(20_000))
    waits(sending)
    for message in (Barrier(1, 2), Flush(3)):
        pool.submit(connection.send, message).result(WAIT_SECONDS_MAX)
    assert connection.settle(40_000, 40_000)
    connection.on_frame(Credit(20_000, 0), None)
    sending.result(WAIT_SECONDS_MAX)
    assert world.link.frames == [DATA, Barrier(1, 2), Flush(3), VnodeData("t", 0, BATCH)]


def test_control_frames_wait_for_theirs(world: World, pool: ThreadPoolExecutor) -> None:
    world.answers[1] = Credit(40_000, 2)
    connection = world.open()
    connection.send(Flush(1))
    connection.send(Flush(2))
    with pytest.raises(SendTimeoutError):
        connection.send(Flush(3), timeout_seconds=0.01)
    sending = pool.submit(connection.send, Barrier(1, 2))
    waits(sending)
    connection.on_frame(Credit(0, 1), None)
    sending.result(WAIT_SECONDS_MAX)
    connection.on_frame(Flushed(2, 20), None)
    with pytest.raises(RemoteProtocolError, match="cycle 3 that is not open"):
        connection.on_frame(Flushed(3, 30), None)


def test_a_credit_is_looked_at_by_all_who_wait(world: World, pool: ThreadPoolExecutor) -> None:
    world.answers[1] = Credit(20_000, 1)
    connection = world.open()
    connection.send(Flush(1))
    large = pool.submit(connection.send, DATA, batch_bytes_of(30_000))
    waits(large)
    others = [
        pool.submit(connection.send, Flush(2)),
        pool.submit(connection.send, Flush(3)),
    ]
    for sending in others:
        waits(sending)
    connection.on_frame(Credit(0, 2), None)
    for sending in others:
        sending.result(WAIT_SECONDS_MAX)
    assert not large.done()


def test_an_answer_to_a_flush_is_passed_on_once(world: World) -> None:
    connection = world.open()
    connection.send(Flush(5))
    connection.on_frame(Flushed(5, 77), None)
    with pytest.raises(RemoteProtocolError, match="cycle 5 that is not open"):
        connection.on_frame(Flushed(5, 78), None)
    connection.send(Flush(5))
    connection.on_frame(Flushed(5, 79), None)
    assert world.flushed == [(PEER, Flushed(5, 77)), (PEER, Flushed(5, 79))]


def test_whoever_waits_is_told_of_a_loss(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    for _ in range(2):
        connection.send(DATA, batch_bytes_of(2_000))
    assert connection.settle(2_000, 30_000)
    settling = pool.submit(connection.settle, 2_000, 30_000)
    waiting = [
        pool.submit(connection.send, DATA, batch_bytes_of(20_000)),
        pool.submit(connection.send, DATA, batch_bytes_of(20_000), WAIT_SECONDS_MAX),
    ]
    for sending in waiting:
        waits(sending)
    connection.lose("the cable was cut")
    connection.lose("again")
    for sending in waiting:
        with pytest.raises(PeerUnavailableError, match="member 2: the cable was cut"):
            sending.result(WAIT_SECONDS_MAX)
    assert settling.result(WAIT_SECONDS_MAX) is False
    assert world.lost == [(PEER, "the cable was cut")]
    assert not connection.alive
    with pytest.raises(PeerUnavailableError, match="the cable was cut"):
        connection.send(Flush(1))
    connection.close()
    assert (world.link.cuts, world.link.closed) == (1, [])


def test_the_peer_s_last_words_are_the_reason(world: World) -> None:
    connection = world.open()
    connection.on_frame(Close("the receiver was closed"), None)
    connection.lose("it ended the connection")
    assert world.lost == [(PEER, "the peer ended the stream: the receiver was closed")]


def test_a_close_lets_what_is_queued_go(world: World, pool: ThreadPoolExecutor) -> None:
    connection = world.open()
    connection.send(DATA, batch_bytes_of(30_000))
    sending = pool.submit(connection.send, DATA, batch_bytes_of(20_000))
    waits(sending)
    connection.close()
    with pytest.raises(PeerUnavailableError, match="this end was closed"):
        sending.result(WAIT_SECONDS_MAX)
    assert world.link.closed == [Close("done")]
    assert connection.settle(30_000, 30_000), "it was queued before"
    assert world.lost == [], "nobody is told of a loss that is none"


def test_another_schema_ends_the_stream(world: World) -> None:
    connection = world.open()
    connection.send(DATA, 100)
    other = VnodeData("s", 0, pa.record_batch([pa.array(["text"])], ["n"]))
    with pytest.raises(SchemaChangedError, match="'s' changed its schema"):
        connection.send(other, 100)
    data, close = world.link.frames
    assert data == DATA
    assert isinstance(close, Close)
    assert close.fault
    assert "changed its schema" in close.reason
    assert connection.settle(1_124, 1_124), "what was queued before is good"
    assert not connection.alive
    with pytest.raises(PeerUnavailableError, match="changed its schema"):
        connection.send(Flush(1))
    assert len(world.lost) == 1
    connection.close()
    assert world.link.closed == [Close("done")]
    assert world.link.cuts == 0


def test_a_connection_is_lost_once(world: World) -> None:
    connection = world.open()
    connection.send(DATA, 100)
    connection.lose("the cable was cut")
    other = VnodeData("s", 0, pa.record_batch([pa.array(["text"])], ["n"]))
    with pytest.raises(PeerUnavailableError, match="the cable was cut"):
        connection.send(other, 100)
    assert world.lost == [(PEER, "the cable was cut")]


def test_room_that_an_estimate_took_in_vain_is_used(world: World, pool: ThreadPoolExecutor) -> None:
    """The encoder knows it first: no credit will come for it."""
    connection = world.open()
    connection.send(DATA, batch_bytes_of(30_000))
    sending = pool.submit(connection.send, DATA, batch_bytes_of(20_000))
    waits(sending)
    assert connection.settle(30_000, 5_000)
    sending.result(WAIT_SECONDS_MAX / 10)


def test_an_encoder_waits_for_what_an_estimate_left_out(
    world: World, pool: ThreadPoolExecutor
) -> None:
    connection = world.open()
    for _ in range(2):
        connection.send(DATA, batch_bytes_of(2_000))
    assert connection.settle(2_000, 30_000)
    settling = pool.submit(connection.settle, 2_000, 30_000)
    waits(settling)
    connection.on_frame(Credit(20_000, 0), None)
    assert settling.result(WAIT_SECONDS_MAX) is True
    assert connection.credit_bytes == 0


def test_a_caller_far_ahead_goes_on_when_the_encoder_has_caught_up(
    world: World, pool: ThreadPoolExecutor
) -> None:
    window_bytes = 8 * QUEUED_BYTES_MAX
    world.answers = [
        Hello(PEER, 0, TOKEN.for_member(PEER), window_bytes),
        Credit(window_bytes, CONTROL_FRAMES_MAX),
    ]
    connection = world.open()
    connection.send(DATA, batch_bytes_of(QUEUED_BYTES_MAX))
    sending = pool.submit(connection.send, DATA, 1_000)
    waits(sending)
    assert connection.settle(QUEUED_BYTES_MAX, QUEUED_BYTES_MAX)
    sending.result(WAIT_SECONDS_MAX)
