"""Ends of receivers, and what their peers notice of them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PeerUnavailableError
from penstock.transport import Barrier, Close, Sender
from penstock.transport.inbox import Inbox
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import OTHER, PATIENT, RECEIVING, over_bytes
from tests.conformance.raw import connect, hello_of, raw_sender
from tests.conformance.waiting import Background, arrived, eventually, never, open_sockets, take

if TYPE_CHECKING:
    from penstock.transport import Receiver
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow


def blocked_sender(fabric: Fabric, lane: int = 0) -> tuple[Sender, Background[None]]:
    """A sender to a receiver whose consumer sleeps: it waits for credit, and notices nothing."""
    sender = fabric.sender(lane=lane)

    def send_on() -> None:
        for number in range(10_000):
            sender.send(RECEIVING, numbered(number, pad_bytes=4000))

    sending = Background(send_on, "sending without end")
    eventually(
        lambda: 0 < sender.credit_bytes(RECEIVING) < 5200 or not sending.running,
        "that the window is full",
    )
    never(lambda: not sending.running, "a sender went on without credit")
    return sender, sending


def test_closing_wakes_senders_that_wait(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    sender, sending = blocked_sender(fabric)
    receiver.close()
    with pytest.raises(PeerUnavailableError, match="the receiver was closed"):
        sending.result()
    assert sender.credit_bytes(RECEIVING) == 0
    assert [each.member for each in sender.losses()] == [RECEIVING]


def test_dropping_a_receiver_wakes_senders_that_wait(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    sockets = open_sockets()
    sender, sending = blocked_sender(fabric)
    fabric.let_go(receiver)
    del receiver
    gc.collect()
    with pytest.raises(PeerUnavailableError):
        sending.result()
    assert [each.member for each in sender.losses()] == [RECEIVING]
    sender.close()
    if fabric.kind.carrier != "local":
        eventually(lambda: open_sockets() < sockets, "that the receiver's sockets are closed")


def test_idle_peers_notice_at_once(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    sender = fabric.sender()
    sender.send(RECEIVING, Barrier(1, 1))
    take(receiver)
    assert sender.credit_bytes(RECEIVING) > 0
    receiver.close()
    losses = eventually(sender.losses, "that an idle sender notices")
    assert [each.member for each in losses] == [RECEIVING]
    assert "the receiver was closed" in losses[0].reason
    assert sender.credit_bytes(RECEIVING) == 0
    with pytest.raises(PeerUnavailableError):
        sender.send(RECEIVING, numbered(1))


def test_a_receiver_in_a_circle_may_be_collected_by_any_thread(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads for it makes objects, so it is likely to be the one."""
    receiver = fabric.receiver()
    senders = [fabric.sender(lane=lane) for lane in range(3)]
    for sender in senders:
        sender.send(RECEIVING, Barrier(1, 1))
    take(receiver, 3)
    put = Inbox.put

    def collecting(self: Inbox, *arguments: Any) -> None:
        gc.collect()
        put(self, *arguments)

    gc.disable()
    try:
        circle: list[Receiver | list[Any]] = [receiver]
        circle.append(circle)
        fabric.let_go(receiver)
        del receiver, circle
        monkeypatch.setattr(Inbox, "put", collecting)
        sending = Background(lambda: senders[1].send(RECEIVING, numbered(1)), "sending")
        sending.result()
        for sender in senders:
            eventually(sender.losses, "that the peers of a collected receiver notice")
    finally:
        gc.enable()


def test_what_arrived_can_be_taken_after_the_end(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(5):
        sender.send(RECEIVING, numbered(number))
    (first,) = take(receiver)
    arrived(receiver, 4)
    receiver.close()
    receiver.stage(first)
    taken = receiver.drain()
    assert numbers(taken) == list(range(5))
    assert isinstance(taken[-1].frame, Close)
    assert receiver.receive() is None  # without waiting: nothing will come
    receiver.close()


def test_closing_wakes_takers(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    taking = [Background(receiver.receive, "taking a frame") for _ in range(2)]
    never(lambda: not all(each.running for each in taking), "nothing came, yet it was returned")
    receiver.close()
    assert [each.result() for each in taking] == [None, None]


def test_a_peer_that_says_nothing_does_not_hold_up_the_end(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    raw_sender(fabric).greet(hello_of(fabric))
    Background(receiver.close, "closing a receiver with an idle peer").result()


@over_bytes
def test_a_stranger_that_says_nothing_does_not_hold_up_the_end(fabric: Fabric) -> None:
    """Under TLS it has not even shaken hands. The receiver would wait for it for long."""
    receiver = fabric.receiver()
    strangers = [connect(fabric, receiver.address) for _ in range(3)]
    sender = fabric.sender()
    sender.send(RECEIVING, numbered(1))  # accepted after the strangers
    take(receiver)
    closing = Background(receiver.close, "closing a receiver with silent strangers")
    closing.result(PATIENT.connect_seconds_max / 3)
    for stranger in strangers:
        while stranger.recv(1000):  # some carriers greet everybody
            pass


def test_the_next_receiver_of_a_member_is_found(fabric: Fabric) -> None:
    first = fabric.receiver()
    sender = fabric.sender()
    sender.send(RECEIVING, numbered(1))
    take(first)
    first.close()
    other = fabric.receiver(OTHER)  # takes the next port, and perhaps the old one
    second = fabric.receiver()
    eventually(sender.losses, "that the sender notices")
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(second)) == [2]
    assert other.drain() == []
