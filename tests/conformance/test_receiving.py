"""The receiver: hands out what arrived, in several ways, and loses none of it."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.transport import Barrier, Close, Flush, Flushed, Origin, Received, VnodeData
from tests.conformance.batches import number_of, numbered, numbers
from tests.conformance.fabric import OTHER, RECEIVING, SENDING, over_bytes
from tests.conformance.raw import hello_of, raw_sender
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    arrived,
    eventually,
    never,
    take,
)

if TYPE_CHECKING:
    from penstock.transport import Receiver
    from tests.conformance.fabric import Fabric


def _somebody_waits(receiver: Receiver) -> bool:
    return bool(receiver._inbox._ready._waiters)  # type: ignore[attr-defined]


@over_bytes  # a process has no ports
def test_port_zero_binds_to_a_free_one_and_publishes_it(fabric: Fabric) -> None:
    first, second = fabric.receiver(), fabric.receiver(OTHER)
    assert first.address.port != second.address.port
    assert min(first.address.port, second.address.port) > 0
    assert fabric.address(RECEIVING) == first.address
    assert fabric.address(OTHER) == second.address
    assert first.address.carrier == fabric.kind.carrier


def test_a_port_that_is_taken_is_said_at_once(fabric: Fabric) -> None:
    first = fabric.receiver()
    with pytest.raises(OSError, match=r"[Aa]ddress|taken"):
        fabric.receiver(OTHER, port=first.address.port)
    sender = fabric.sender()
    sender.send(RECEIVING, numbered(1))
    assert numbers(take(first)) == [1]


def test_lanes_and_members_are_told_apart(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    origins = [Origin(SENDING, 0), Origin(SENDING, 1), Origin(OTHER, 0)]
    senders = [fabric.sender(origin.member, lane=origin.lane) for origin in origins]
    for number, sender in enumerate(senders):
        sender.send(RECEIVING, numbered(number))
    taken = take(receiver, 3)
    assert {number_of(each.frame): each.origin for each in taken} == dict(enumerate(origins))
    assert len({each.connection for each in taken}) == 3


def test_nothing_is_returned_after_a_timeout_or_an_interrupt(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    assert receiver.receive(0) is None
    assert receiver.receive(0.01) is None
    waiting = [Background(lambda: receiver.receive(WAIT_SECONDS_MAX)) for _ in range(3)]
    eventually(
        lambda: len(receiver._inbox._ready._waiters) == 3,  # type: ignore[attr-defined]
        "that three threads wait",
    )
    receiver.interrupt()
    assert [each.result() for each in waiting] == [None] * 3
    # An interrupt is for those who wait: it does not wait for the next who comes.
    sender.send(RECEIVING, numbered(1))
    assert numbers(take(receiver)) == [1]
    assert receiver.receive(0) is None


def test_a_signal_in_the_wait_loses_nothing(fabric: Fabric) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    fabric.at_end(lambda: signal.signal(signal.SIGINT, before))
    receiver, sender = fabric.receiver(), fabric.sender()
    main = threading.main_thread()
    assert threading.current_thread() is main
    taken: list[Received] = []

    def interrupt_and_send(number: int) -> None:
        eventually(lambda: _somebody_waits(receiver), "that the main thread waits")
        assert main.ident is not None
        signal.pthread_kill(main.ident, signal.SIGINT)
        sender.send(RECEIVING, numbered(number))  # comes just as the wait is cut short

    for number in range(20):
        sending = Background(partial(interrupt_and_send, number))
        with pytest.raises(KeyboardInterrupt):
            receiver.receive(WAIT_SECONDS_MAX)
        taken += take(receiver)
        sending.result()
    assert numbers(taken) == list(range(20))
    assert receiver.drain() == []


def test_drains_take_what_they_name_and_leave_the_rest(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    assert receiver.drain() == []
    stages = ["a/1", "b", "a/2", "a", "ab", "b"]
    for number, stage in enumerate(stages):
        sender.send(RECEIVING, numbered(number, stage=stage))
    sender.send(RECEIVING, Barrier(1, 1))
    sender.send(RECEIVING, numbered(6, stage="b"))
    sender.send(RECEIVING, Flush(1))
    sender.send(RECEIVING, numbered(7, stage="a/1"))
    arrived(receiver, 10)
    assert receiver.drain_stage("unheard of") == []
    assert receiver.drain_prefix("unheard of") == {}
    assert numbers(receiver.drain_stage("b")) == [1, 5, 6]
    found = receiver.drain_prefix("a/")
    assert {stage: numbers(taken) for stage, taken in found.items()} == {"a/1": [0, 7], "a/2": [2]}
    assert receiver.drain_stage("b") == []
    control = receiver.drain_control()
    assert [each.frame for each in control] == [Barrier(1, 1), Flush(1)]
    rest = receiver.drain()
    assert numbers(rest) == [3, 4]
    # Whoever drains in parts can still tell what came before the barrier.
    assert [each.number < control[0].number for each in found["a/1"]] == [True, False]
    assert receiver.drain() == []


def test_barriers_met_on_the_way_are_kept(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(30):
        sender.send(RECEIVING, numbered(number, stage="a" if number % 2 else "b"))
        sender.send(RECEIVING, Barrier(number, 1))
    arrived(receiver, 60)
    assert numbers(receiver.drain_stage("a")) == list(range(1, 30, 2))
    assert len(receiver.drain_prefix("b")["b"]) == 15
    assert [each.frame for each in take(receiver, 30)] == [Barrier(n, 1) for n in range(30)]


def test_a_prefix_of_nothing_takes_every_batch_and_no_barrier(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, numbered(1, stage="a"))
    sender.send(RECEIVING, Barrier(1, 1))
    sender.send(RECEIVING, numbered(2, stage="b"))
    arrived(receiver, 3)
    assert set(receiver.drain_prefix("")) == {"a", "b"}
    assert [each.frame for each in receiver.drain()] == [Barrier(1, 1)]


def test_what_is_staged_comes_back_in_its_old_place(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(6):
        sender.send(RECEIVING, numbered(number, stage="a" if number < 4 else "b"))
    sender.send(RECEIVING, Barrier(1, 1))
    taken = take(receiver, 7)
    sender.send(RECEIVING, numbered(7, stage="a"))
    arrived(receiver, 1)
    for place in (3, 6, 0, 5):  # in no order
        receiver.stage(taken[place])
    assert receiver.drain_stage("b") == [taken[5]]
    receiver.stage(taken[5])
    first = receiver.receive(0)
    assert first == taken[0]
    stage_a = receiver.drain_stage("a")
    assert stage_a[0] == taken[3]
    assert numbers(stage_a) == [3, 7]
    assert receiver.drain() == [taken[5], taken[6]]


def test_a_frame_is_staged_once(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, numbered(1))
    (taken,) = take(receiver)
    receiver.stage(taken)
    with pytest.raises(LocalProtocolError, match="staged already"):
        receiver.stage(taken)
    assert receiver.drain() == [taken]


def test_staging_wakes_who_waits(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, numbered(1))
    (taken,) = take(receiver)
    waiting = Background(lambda: receiver.receive(WAIT_SECONDS_MAX))
    eventually(lambda: _somebody_waits(receiver), "that somebody waits")
    receiver.stage(taken)
    assert waiting.result() == taken


def test_many_takers_get_each_frame_once(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()

    def take_until_end() -> list[int]:
        found = []
        while (received := receiver.receive(WAIT_SECONDS_MAX)) is not None:
            if isinstance(received.frame, Close):
                receiver.close()  # nothing comes after it: the others may stop
            else:
                found.append(number_of(received.frame))
        return found

    takers = [Background(take_until_end) for _ in range(4)]
    for number in range(400):
        sender.send(RECEIVING, numbered(number, stage=f"stage-{number % 3}"), WAIT_SECONDS_MAX)
    sender.close()
    found = [taker.result() for taker in takers]
    assert Counter(number for each in found for number in each) == Counter(range(400))


def test_a_flush_is_answered_to_its_sender_once(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    first, second = fabric.sender(), fabric.sender(OTHER)
    for sender in (first, second):
        sender.send(RECEIVING, Flush(5))
        sender.send(RECEIVING, Flush(6))
    take(receiver, 4)
    assert receiver.reply(first.origin, Flushed(6, 60)) is True
    assert receiver.reply(second.origin, Flushed(5, 50)) is True
    assert receiver.reply(first.origin, Flushed(5, 70)) is True
    assert [first.receive_flushed(WAIT_SECONDS_MAX) for _ in range(2)] == [
        (RECEIVING, Flushed(6, 60)),
        (RECEIVING, Flushed(5, 70)),
    ]
    assert second.receive_flushed(WAIT_SECONDS_MAX) == (RECEIVING, Flushed(5, 50))
    assert second.receive_flushed(0) is None
    for cycle in (5, 7):  # answered already, and never asked
        assert receiver.reply(first.origin, Flushed(cycle, 1)) is False
    assert first.receive_flushed(0.01) is None
    first.close()
    take(receiver)
    assert receiver.reply(first.origin, Flushed(5, 1)) is False
    assert receiver.reply(Origin(99), Flushed(5, 1)) is False


def test_a_flush_of_the_last_connection_cannot_be_answered(fabric: Fabric) -> None:
    """Its sender came back before it was durable. Nobody did wrong, so nobody is blamed."""
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, Flush(5))
    (flush,) = take(receiver)
    sender.close()
    again = fabric.sender()
    again.send(RECEIVING, numbered(1))
    assert len(take(receiver, 2)) == 2
    assert receiver.reply(flush.origin, Flushed(5, 1)) is False
    assert again.receive_flushed(0) is None


@pytest.mark.parametrize("early", [True, False])
def test_a_late_answer_is_not_taken_for_that_of_the_next_connection(
    fabric: Fabric, early: bool
) -> None:
    """A sender that restarts counts its cycles anew. What the old one asked, taken before or after
    the restart, says nothing of what the new one sent."""
    receiver, old = fabric.receiver(), fabric.sender()
    old.send(RECEIVING, Flush(5))
    taken = take(receiver) if early else []
    old.close()
    new = fabric.sender()
    new.send(RECEIVING, numbered(1))
    new.send(RECEIVING, Flush(5))
    arrived(receiver, 3 if early else 4)
    (asked,) = taken or take(receiver)
    assert receiver.reply(asked.origin, Flushed(5, 1)) is False
    assert new.receive_flushed(0.05) is None
    assert take(receiver, 3)[-1].frame == Flush(5)
    assert receiver.reply(asked.origin, Flushed(5, 2)) is True
    assert new.receive_flushed(WAIT_SECONDS_MAX) == (RECEIVING, Flushed(5, 2))


def test_a_new_connection_supersedes_the_old_one(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    old = raw_sender(fabric)
    old.greet(hello_of(fabric))
    old.say(numbered(1))
    assert numbers(take(receiver)) == [1]
    new = raw_sender(fabric)
    new.greet(hello_of(fabric))
    (last,) = take(receiver)
    assert isinstance(last.frame, Close)
    assert last.frame.fault
    assert "new connection" in last.frame.reason
    for number in range(2, 20):  # the old one does not know yet
        old.say(numbered(number))
    new.say(numbered(20))
    (after,) = take(receiver)
    assert number_of(after.frame) == 20
    assert after.connection > last.connection
    never(receiver.drain, "a frame of the superseded connection came after its Close")


def test_a_receiver_says_when_it_has_streams_enough(fabric: Fabric) -> None:
    receiver = fabric.receiver(streams_max=2)
    first, second, third = (fabric.sender(lane=lane) for lane in range(3))
    first.send(RECEIVING, numbered(1))
    second.send(RECEIVING, numbered(2))
    with pytest.raises(Exception, match="raise streams_max"):
        third.send(RECEIVING, numbered(3))
    first.send(RECEIVING, numbered(4))
    assert sorted(numbers(take(receiver, 3))) == [1, 2, 4]


def test_empty_batches_arrive_too(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    empty = pa.record_batch({"number": pa.array([], pa.int64())})
    for _ in range(3):
        sender.send(RECEIVING, VnodeData("a", 3, empty))
    for received in take(receiver, 3):
        assert isinstance(received.frame, VnodeData)
        assert received.frame.vnode == 3
        assert received.frame.batch.equals(empty)
        assert received.frame.batch.schema.equals(empty.schema)
