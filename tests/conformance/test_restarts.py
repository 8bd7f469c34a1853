"""Members that restart, vanish, or fall silent: it is noticed, and the next send finds them."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PeerUnavailableError
from penstock.transport import Barrier, Close, Flush, Flushed, Sender, Timing
from tests.conformance.batches import numbered, numbers
from tests.conformance.bystander import close_of
from tests.conformance.fabric import HASTY, OTHER, RECEIVING, SENDING, over_bytes
from tests.conformance.proxy import TO_RECEIVER, TO_SENDER, Proxy
from tests.conformance.raw import hello_of, raw_listener, raw_sender
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    eventually,
    never,
    open_sockets,
    take,
    transport_threads,
)

if TYPE_CHECKING:
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow

QUIET = Timing(connect_seconds_max=10, heartbeat_seconds=0.1, silence_seconds_max=1)
"""As hasty, but a busy machine may take its time."""
BRIEF = Timing(connect_seconds_max=0.3, heartbeat_seconds=0.1, silence_seconds_max=0.5)
"""Where no connection comes to be."""


def cut_connection(sender: Sender, member: int = RECEIVING) -> None:
    """As if the network had ended it."""
    link = sender._pool.connections[member]._link
    assert link is not None
    link.cut()


def test_a_member_that_restarts_elsewhere_is_found_by_the_next_send(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled = fabric.count_dials(monkeypatch)
    sender = fabric.sender()
    addresses = []
    for number in range(4):
        receiver = fabric.receiver()
        addresses.append(receiver.address)
        sender.send(RECEIVING, numbered(number))
        (received,) = take(receiver)
        assert (numbers([received]), received.connection) == ([number], 1)
        placeholder = fabric.receiver(OTHER, port=0)  # so that the next port is another one
        receiver.close()
        eventually(sender.losses, "that the sender notices")
        assert placeholder.drain() == []
    assert dialled == addresses
    assert len(set(addresses)) == 4


def test_what_died_is_purged(fabric: Fabric) -> None:
    """Its threads and sockets go with it, and do not pile up."""
    receiver = fabric.receiver()
    sender = fabric.sender()
    sender.send(RECEIVING, numbered(0))
    take(receiver)
    threads, sockets = len(transport_threads()), open_sockets()
    for number in range(1, 6):
        cut_connection(sender)
        eventually(sender.losses, "that the sender notices")
        sender.send(RECEIVING, numbered(number))
        # The Close of the old connection may come before it or after.
        assert numbers(take(receiver, 2)) == [number]
    eventually(lambda: len(transport_threads()) <= threads, "that old threads end")
    eventually(lambda: open_sockets() <= sockets, "that old sockets close")
    assert len(sender._pool.connections) == 1


def test_a_connection_that_ends_is_reported_at_both_ends(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(3):
        sender.send(RECEIVING, numbered(number))
    assert numbers(take(receiver, 3)) == [0, 1, 2]
    cut_connection(sender)
    (received,) = take(receiver)
    assert isinstance(received.frame, Close)
    assert received.frame.fault
    assert received.frame.reason
    (loss,) = eventually(sender.losses, "that the sender notices")
    assert (loss.member, bool(loss.reason)) == (RECEIVING, True)
    assert sender.losses() == []


def test_senders_that_restart_supersede_themselves(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    for life in range(5):
        sender = fabric.sender()
        for number in range(10):
            sender.send(RECEIVING, numbered(10 * life + number))
        if life % 2:
            sender.close()
        else:
            cut_connection(sender)
        taken, close = close_of(receiver)
        assert close.fault == (life % 2 == 0)
        assert len(taken) == 10 or close.fault
        found = numbers(taken)
        assert found == [10 * life + place for place in range(len(found))]
        assert len({each.connection for each in taken}) <= 1


def test_a_reason_reaches_a_sender_that_goes_on_sending(fabric: Fabric) -> None:
    """The receiver hangs up with bytes unread. What it said before must not be lost by that."""
    receiver = fabric.receiver()
    for lane in range(8):
        sender = fabric.sender(lane=lane)
        sender.send(RECEIVING, Flush(1))
        sender.send(RECEIVING, Flush(1))  # the cycle is open: this is refused
        for number in range(300):
            with suppress(PeerUnavailableError):
                sender.send(RECEIVING, numbered(number, pad_bytes=9000), WAIT_SECONDS_MAX)
            if losses := sender.losses():
                break
            receiver.drain()
        else:
            losses = eventually(sender.losses, "that the sender notices")
        assert "came twice" in losses[0].reason


@over_bytes  # within a process nothing can be half open
@pytest.mark.parametrize("direction", [TO_RECEIVER, TO_SENDER])
def test_half_open_connections_are_noticed_by_both_ends(fabric: Fabric, direction: str) -> None:
    receiver = fabric.receiver(timing=HASTY)
    direct = receiver.address
    proxy = Proxy(fabric, RECEIVING)
    sender = fabric.sender(timing=HASTY)
    sender.send(RECEIVING, numbered(1))
    assert numbers(take(receiver)) == [1]
    proxy.swallow(direction)
    (loss,) = eventually(sender.losses, "that the sender notices the silence")
    assert loss.member == RECEIVING
    taken, close = close_of(receiver)
    assert taken == []
    assert close.fault
    fabric.publish(RECEIVING, direct)
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(receiver)) == [2]


@over_bytes
def test_a_sender_that_waits_for_credit_notices_the_silence(fabric: Fabric) -> None:
    receiver = fabric.small_receiver(timing=HASTY)
    proxy = Proxy(fabric, RECEIVING)
    sender = fabric.sender(timing=HASTY)

    def send_on() -> None:
        for number in range(1000):
            sender.send(RECEIVING, numbered(number, pad_bytes=4000))

    sending = Background(send_on, "sending without end")
    eventually(lambda: 0 < sender.credit_bytes(RECEIVING) < 5200, "that the window is full")
    proxy.swallow(TO_RECEIVER, TO_SENDER)
    with pytest.raises(PeerUnavailableError, match=f"member {RECEIVING}"):
        sending.result()
    close_of(receiver)


@over_bytes
def test_a_connection_that_is_silent_from_the_start_is_given_up(fabric: Fabric) -> None:
    fabric.receiver()
    proxy = Proxy(fabric, RECEIVING)
    proxy.swallow(TO_RECEIVER, TO_SENDER)
    sender = fabric.sender(timing=BRIEF)
    sockets = open_sockets()
    for _ in range(2):
        with pytest.raises(PeerUnavailableError, match=f"member {RECEIVING}"):
            sender.send(RECEIVING, numbered(1))
    proxy.close()
    eventually(lambda: open_sockets() <= sockets, "that nothing is left of the attempts")


@over_bytes
def test_a_proxy_that_ends_is_noticed_at_once(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    proxy = Proxy(fabric, RECEIVING)
    sender = fabric.sender()
    for number in range(3):
        sender.send(RECEIVING, numbered(number))
        # From the second on, there is the Close of the last connection too, before it or after.
        assert numbers(take(receiver, 2 if number else 1)) == [number]
        proxy.cut()
        eventually(sender.losses, "that the sender notices")


@over_bytes  # within a process nobody listens for silence
def test_a_connection_on_which_nothing_moves_stays(fabric: Fabric) -> None:
    """For longer than silence is allowed: one sender has nothing to say, and another one waits for
    a consumer that takes nothing. Both ends of both say so."""
    receiver = fabric.small_receiver(timing=QUIET)
    idle, waiting = fabric.sender(timing=QUIET), fabric.sender(OTHER, timing=QUIET)
    count = 60

    def send_all() -> None:
        for number in range(count):
            # Rows that grow: their size is hard to know before they are encoded.
            message = numbered(number, pad_bytes=6000 if number > 4 else 100)
            waiting.send(RECEIVING, message, WAIT_SECONDS_MAX)

    idle.send(RECEIVING, Flush(1))
    (asked,) = take(receiver)
    sending = Background(send_all, "sending to a consumer that sleeps")
    threading.Event().wait(1.7 * QUIET.silence_seconds_max)
    assert sending.running
    assert idle.losses() == waiting.losses() == []
    assert receiver.reply(idle.origin, Flushed(1, 1)) is True
    assert idle.receive_flushed(WAIT_SECONDS_MAX) == (RECEIVING, Flushed(1, 1))
    taken = take(receiver, count)
    assert numbers(taken) == list(range(count))
    assert {each.connection for each in taken} == {2}
    sending.result()
    idle.send(RECEIVING, numbered(1))
    assert take(receiver)[0].connection == asked.connection


@over_bytes
def test_a_silent_receiver_is_left(fabric: Fabric) -> None:
    listener = raw_listener(fabric)
    sender = fabric.sender(timing=HASTY)
    listener.serve(lambda: sender.send(RECEIVING, Barrier(1, 1)))
    (loss,) = eventually(sender.losses, "that the sender leaves")
    assert "says nothing" in loss.reason


@over_bytes
def test_a_silent_sender_is_left(fabric: Fabric) -> None:
    receiver = fabric.receiver(timing=HASTY)
    peer = raw_sender(fabric)
    peer.greet(hello_of(fabric))
    peer.say(numbered(1))
    taken, close = close_of(receiver)
    assert numbers(taken) == [1]
    assert close.fault
    assert "says nothing" in close.reason
    sender = fabric.sender(SENDING, timing=HASTY)
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(receiver)) == [2]
    never(sender.losses, "a good connection was ended")
