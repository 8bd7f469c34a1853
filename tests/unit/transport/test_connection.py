"""The sender's end: how it opens, what a receiver may say to it, and how it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import PeerUnavailableError, RemoteProtocolError
from penstock.transport.connection import finish_all
from penstock.transport.frames import (
    ALIVE,
    DONE,
    PROTOCOL_VERSION,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    VnodeData,
)
from penstock.transport.stages import SchemaChangedError
from penstock.transport.tls import PeerRefusedError
from tests.unit.transport.fake_link import (
    FULL,
    HELLO,
    PEER,
    TOKEN,
    WAIT_SECONDS_MAX,
    World,
    data,
    price_by_rows,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    price_by_rows(monkeypatch)
    return World(monkeypatch)


@pytest.fixture
def pool(world: World) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
        world.connection.lose("the test is over")  # so that nobody waits on


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
    with pytest.raises(PeerUnavailableError, match="member 2: not open"):
        world.connection.send(data(1_100))


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
        ([HELLO, FULL, data(1)], "a receiver does not say VnodeData"),
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
    connection.send(data(30_000))
    waiting = [
        pool.submit(connection.send, data(20_000)),
        pool.submit(connection.send, data(20_000), WAIT_SECONDS_MAX),
    ]
    for sending in waiting:
        waits(sending)
    connection.lose("the cable was cut")
    connection.lose("again")
    for sending in waiting:
        with pytest.raises(PeerUnavailableError, match="member 2: the cable was cut"):
            sending.result(WAIT_SECONDS_MAX)
    assert not connection.settle([(30_000, 30_000)])
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
    connection.send(data(30_000))
    sending = pool.submit(connection.send, data(20_000))
    waits(sending)
    connection.close()
    with pytest.raises(PeerUnavailableError, match="this end was closed"):
        sending.result(WAIT_SECONDS_MAX)
    assert world.link.closed == [Close("done")]
    assert connection.settle([(30_000, 30_000)]), "it was queued before"
    connection.on_frame(DONE, None)
    connection.lose("it ended the connection")
    assert world.lost == [], "nobody is told of a loss that is none"


@pytest.mark.parametrize("how", ["broken", "closed there", "a fault", "stuck"])
def test_a_close_that_is_not_answered_is_a_loss(world: World, how: str) -> None:
    """What was queued may not have arrived: the owner is told, and by whom."""
    connection = world.open()
    connection.send(data(1_500))
    if how == "stuck":
        world.link.on_wait = lambda: False
    finishing = finish_all if how == "stuck" else lambda *_: connection.close()
    finishing([connection], 0.001)
    if how == "broken":
        connection.lose("the cable was cut")
    elif how == "closed there":
        connection.on_frame(Close("the receiver was closed"), None)
    elif how == "a fault":
        connection.on_frame(Close("done", fault=True), None)
    assert [member for member, _ in world.lost] == [PEER]
    connection.lose("and again")
    assert len(world.lost) == 1
    assert world.link.cuts == (how == "stuck")


def test_a_close_waits_as_long_as_the_peer_takes_something(world: World) -> None:
    connection = world.open()
    left = 5

    def still_reading() -> bool:
        nonlocal left
        left -= 1
        world.link.progress += 1
        if not left:
            connection.on_frame(DONE, None)
        return not left

    world.link.on_wait = still_reading
    finish_all([connection], 0.001)
    assert left == 0
    assert world.lost == []
    assert world.link.cuts == 0


def test_another_schema_ends_the_stream(world: World) -> None:
    connection = world.open()
    connection.send(data(1_124))
    other = VnodeData("s", 0, pa.record_batch([pa.array(["text"])], ["n"]))
    with pytest.raises(SchemaChangedError, match="'s' changed its schema"):
        connection.send(other)
    sent, close = world.link.frames
    assert sent == data(1_124)
    assert isinstance(close, Close)
    assert close.fault
    assert "changed its schema" in close.reason
    assert connection.settle([(1_124, 1_124)]), "what was queued before is good"
    assert not connection.alive
    with pytest.raises(PeerUnavailableError, match="changed its schema"):
        connection.send(Flush(1))
    assert len(world.lost) == 1
    connection.close()
    assert world.link.closed == [Close("done")]
    assert world.link.cuts == 0


def test_a_connection_is_lost_once(world: World) -> None:
    connection = world.open()
    connection.send(data(1_124))
    connection.lose("the cable was cut")
    other = VnodeData("s", 0, pa.record_batch([pa.array(["text"])], ["n"]))
    with pytest.raises(PeerUnavailableError, match="the cable was cut"):
        connection.send(other)
    assert world.lost == [(PEER, "the cable was cut")]
