"""Byte credits: the receiver grants, the sender keeps to it, and control frames need none."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from penstock.errors import PeerUnavailableError
from penstock.routing import VNODE_FIELD
from penstock.transport import Barrier, Received, VnodeData
from penstock.transport.connection import SendTimeoutError
from penstock.transport.credit import CONTROL_FRAMES_MAX
from penstock.transport.frames import FRAME_COST_BYTES, Credit
from penstock.transport.stream import Desk
from tests.conformance.batches import number_of, numbered, numbers
from tests.conformance.fabric import OTHER, RECEIVING, SMALL_WINDOW_BYTES, over_bytes
from tests.conformance.raw import hello_of, raw_listener, raw_sender
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    arrived,
    eventually,
    never,
    take,
    waiting_frames,
)
from tests.conformance.windows import charged_bytes, fill

if TYPE_CHECKING:
    from penstock.transport import Sender
    from penstock.transport.frames import Hello
    from tests.conformance.fabric import Fabric


def charge(cost_bytes: int, window_bytes: int) -> int:
    """The rule, written once more: a frame takes its bytes, and at most three quarters."""
    return min(cost_bytes, window_bytes - window_bytes // 4)


@pytest.mark.parametrize("seed", range(3))
def test_a_sender_never_exceeds_what_was_granted(fabric: Fabric, seed: int) -> None:
    """The oracle adds up what it granted, and what the frames that it hears are charged."""
    choose = random.Random(seed)
    window_bytes = 40_000
    sender = fabric.sender()
    peer = raw_listener(fabric).serve(
        lambda: sender.send(RECEIVING, Barrier(0, 0)),
        window_bytes=window_bytes,
        credit=Credit(window_bytes, CONTROL_FRAMES_MAX),
    )
    assert peer.hear() == (Barrier(0, 0), 0)
    sizes = [choose.choice((0, 10, 900, 5000, 25_000, 60_000)) for _ in range(120)]

    def send_all() -> None:
        for number, size in enumerate(sizes):
            message = numbered(number, stage=f"stage-{number % 4}", pad_bytes=size)
            sender.send(RECEIVING, message, WAIT_SECONDS_MAX)

    sending = Background(send_all, "sending under a raw receiver's credits")
    free_bytes, held_bytes = window_bytes, 0
    heard: list[int] = []
    while len(heard) < len(sizes):
        frame, cost_bytes = peer.hear() or pytest.fail("the stream ended")
        if isinstance(frame, Credit):
            continue
        heard.append(number_of(frame))
        charged = charge(cost_bytes, window_bytes)
        assert cost_bytes >= sizes[heard[-1]]
        assert charged <= free_bytes, f"frame {heard[-1]} took {charged} of {free_bytes}"
        free_bytes -= charged
        held_bytes += charged
        # As a consumer would: now and then something is taken, and now and then it is granted.
        if choose.random() < 0.6 or free_bytes < window_bytes * 3 // 4:
            granted = held_bytes if choose.random() < 0.7 else choose.randint(0, held_bytes)
            if free_bytes + granted < window_bytes * 3 // 4:
                granted = held_bytes  # else it might wait for ever, and rightly
            held_bytes -= granted
            free_bytes += granted
            peer.say(Credit(granted, 0))
    sending.result()
    assert heard == list(range(len(sizes)))


def test_a_receiver_never_promises_more_than_its_window(fabric: Fabric) -> None:
    """The oracle is a sender that uses every credit at once."""
    choose = random.Random(1)
    receiver = fabric.small_receiver()
    peer = raw_sender(fabric)
    hello, credit = peer.greet(hello_of(fabric))
    assert hello.window_bytes == SMALL_WINDOW_BYTES
    assert credit == Credit(SMALL_WINDOW_BYTES, CONTROL_FRAMES_MAX)
    granted, sent_bytes, taken_bytes, number, waiting = credit.data_bytes, 0, 0, 0, 0
    for _ in range(60):
        while granted - sent_bytes > 8000:
            message = numbered(number, stage=f"stage-{choose.randrange(3)}", pad_bytes=6000)
            peer.say(message)
            number += 1
            waiting += 1
            arrived(receiver, waiting)
            sent_bytes = taken_bytes + charged_bytes(receiver)
        assert sent_bytes <= granted
        assert charged_bytes(receiver) <= SMALL_WINDOW_BYTES
        stage = f"stage-{choose.randrange(3)}"
        taken = receiver.drain_stage(stage) if choose.random() < 0.8 else receiver.drain()
        waiting -= len(taken)
        taken_bytes += sum(each.charged_bytes for each in taken)
        while taken_bytes + SMALL_WINDOW_BYTES - granted >= SMALL_WINDOW_BYTES // 4:
            heard = peer.hear()  # this much room is worth a frame
            assert heard is not None
            assert isinstance(heard[0], Credit)
            granted += heard[0].data_bytes
            assert granted <= taken_bytes + SMALL_WINDOW_BYTES
    assert number > 50


def test_a_slow_consumer_stops_the_sender_and_memory_stays_flat(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    sender = fabric.sender()
    count = 400

    def send_all() -> None:
        for number in range(count):
            sender.send(RECEIVING, numbered(number, pad_bytes=3000), WAIT_SECONDS_MAX)

    sending = Background(send_all, "sending to a slow consumer")
    taken: list[Received] = []
    while len(taken) < count:
        eventually(lambda: waiting_frames(receiver), "that more arrives")
        if len(taken) % 100 == 0:  # asleep: as much arrives as there is room for, and no more
            never(lambda: charged_bytes(receiver) > SMALL_WINDOW_BYTES, "the window was exceeded")
            assert sending.running
        assert waiting_frames(receiver) * 3000 < SMALL_WINDOW_BYTES
        taken += receiver.drain() if len(taken) % 2 else take(receiver)
    sending.result()
    assert numbers(taken) == list(range(count))


def test_a_send_that_times_out_sent_nothing(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    count = fill(sender)
    assert count > 8
    for _ in range(3):
        with pytest.raises(SendTimeoutError, match=r"no credit in 0\.01 s"):
            sender.send(RECEIVING, numbered(99, pad_bytes=4000), 0.01)
    assert numbers(take(receiver, count)) == list(range(count))
    sender.send(RECEIVING, numbered(count, pad_bytes=4000), WAIT_SECONDS_MAX)
    assert numbers(take(receiver)) == [count]
    assert receiver.drain() == []


def test_frames_larger_than_the_window_take_turns_with_small_ones(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    sizes = [10, 200_000, 50_000, 0, 300_000, 300_000, 10] * 5

    def send_all() -> None:
        for number, size in enumerate(sizes):
            sender.send(RECEIVING, numbered(number, pad_bytes=size), WAIT_SECONDS_MAX)

    sending = Background(send_all, "sending frames larger than the window")
    assert numbers(take(receiver, len(sizes))) == list(range(len(sizes)))
    sending.result()


def test_what_is_put_back_counts_again(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    count = fill(sender)
    first = take(receiver, count)
    credit_returns(sender)
    more = fill(sender)
    for received in first:
        receiver.stage(received)
    arrived(receiver, count + more)  # the window is overdrawn
    assert numbers(take(receiver, count)) == list(range(count))
    never(
        lambda: charged_bytes(receiver) + sender.credit_bytes(RECEIVING) > SMALL_WINDOW_BYTES,
        "credit was granted for room that was taken again",
    )
    assert numbers(take(receiver, more)) == list(range(more))
    credit_returns(sender)


def credit_returns(sender: Sender) -> None:
    """When all was taken, all but a quarter of the window is granted again at once."""
    eventually(
        lambda: sender.credit_bytes(RECEIVING) > SMALL_WINDOW_BYTES * 3 // 4,
        "that credit comes back",
    )


def test_a_frame_staged_twice_counts_once(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    sender.send(RECEIVING, numbered(0, pad_bytes=20_000))
    (taken,) = take(receiver)
    receiver.stage(taken)
    for _ in range(10):
        with pytest.raises(Exception, match="staged already"):
            receiver.stage(taken)
    assert receiver.drain() == [taken]
    for number in range(20):
        sender.send(RECEIVING, numbered(number, pad_bytes=20_000), WAIT_SECONDS_MAX)
        assert numbers(take(receiver)) == [number]


def test_a_stage_that_nobody_takes_stops_its_sender_alone(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    stopped, free = fabric.sender(), fabric.sender(OTHER)
    count = fill(stopped, stage="left")
    for number in range(100):
        free.send(RECEIVING, numbered(number, stage="taken", pad_bytes=4000), WAIT_SECONDS_MAX)
        arrived(receiver, count + 1)
        assert numbers(receiver.drain_stage("taken")) == [number]
    with pytest.raises(SendTimeoutError):
        stopped.send(RECEIVING, numbered(count, stage="taken", pad_bytes=4000), 0.01)
    assert numbers(receiver.drain_stage("left")) == list(range(count))


def test_a_new_connection_gets_the_room_that_is_left(fabric: Fabric) -> None:
    receiver = fabric.small_receiver()
    old = fabric.sender()
    count = fill(old)
    old.close()
    arrived(receiver, count + 1)
    new = fabric.sender()
    new.send(RECEIVING, Barrier(1, 1), WAIT_SECONDS_MAX)
    assert fill(new) <= 1  # what the old one sent is still here
    assert numbers(take(receiver, count)) == list(range(count))
    eventually(lambda: fill(new) + waiting_frames(receiver) > count - 1, "room as it is taken")


def test_credit_never_comes_before_the_answer_to_hello(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer takes the last connection's frames just when the next one is let in."""
    receiver = fabric.small_receiver()
    old = fabric.sender()
    count = fill(old)
    old.close()
    arrived(receiver, count + 1)
    hello: Any = Desk.hello
    taken: list[Received] = []

    def taking(desk: Desk) -> Hello:
        taken.extend(receiver.drain())
        return cast("Hello", hello.fget(desk))

    monkeypatch.setattr(Desk, "hello", property(taking))
    new = fabric.sender()
    new.send(RECEIVING, Barrier(1, 1), WAIT_SECONDS_MAX)
    assert numbers(taken) == list(range(count))
    assert [each.frame for each in take(receiver)] == [Barrier(1, 1)]
    assert fill(new) == count


def test_empty_batches_with_vnodes_give_their_credit_back(fabric: Fabric) -> None:
    """There is nothing of them to take, so nobody could."""
    receiver, sender = fabric.small_receiver(), fabric.sender()
    schema = pa.schema([pa.field("number", pa.int64()), VNODE_FIELD])
    empty = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
    for _ in range(3 * SMALL_WINDOW_BYTES // FRAME_COST_BYTES):
        sender.send(RECEIVING, VnodeData("a", 0, empty), WAIT_SECONDS_MAX)
    sender.send(RECEIVING, Barrier(1, 1))
    assert [each.frame for each in take(receiver)] == [Barrier(1, 1)]


def test_threads_share_the_credit(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    together = threading.Barrier(6)

    def send_all(thread: int) -> None:
        together.wait(WAIT_SECONDS_MAX)
        for number in range(40):
            message = numbered(number, stage=f"stage-{thread}", pad_bytes=2000 * thread)
            sender.send(RECEIVING, message, WAIT_SECONDS_MAX)

    sending = [Background(partial(send_all, thread)) for thread in range(6)]
    taken = take(receiver, 240)
    for each in sending:
        each.result()
    for thread in range(6):
        of_thread = [each for each in taken if each.stage == f"stage-{thread}"]
        assert numbers(of_thread) == list(range(40))


@over_bytes  # within a process, who breaks the rules is this process
def test_a_receiver_that_grants_too_much_is_left(fabric: Fabric) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    peer = listener.serve(lambda: sender.send(RECEIVING, Barrier(1, 1)), window_bytes=20_000)
    peer.say(Credit(1, 0))
    (loss,) = eventually(sender.losses, "that the sender leaves")
    assert "granted more than its window" in loss.reason
    frames, close = peer.hear_until_close()
    assert frames == [Barrier(1, 1)]
    assert "granted more than its window" in close.reason


@over_bytes
def test_credit_before_hello_is_refused(fabric: Fabric) -> None:
    sender = fabric.sender()
    listener = raw_listener(fabric)
    opening = Background(lambda: sender.send(RECEIVING, Barrier(1, 1)))
    peer = listener.accept()
    peer.say(Credit(1000, 1))
    with pytest.raises(PeerUnavailableError, match="credit before its Hello"):
        opening.result()


def test_held_batches_count_until_they_are_released(fabric: Fabric) -> None:
    """Taking them is not enough: whoever merges may have to keep them for long."""
    receiver, sender = fabric.small_receiver(held="kept/"), fabric.sender()
    count = fill(sender, stage="kept/one")
    taken = take(receiver, count)
    late = Background(
        lambda: sender.send(RECEIVING, numbered(count, stage="kept/one", pad_bytes=4000)),
        "sending without credit",
    )
    never(lambda: not late.running, "data went without credit, though its receiver still holds it")
    receiver.release(taken[: count // 2])
    receiver.release(taken[count // 2 :])
    late.result()
    assert numbers(take(receiver, 1)) == [count]


def test_only_held_stages_are_held(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(held="kept/"), fabric.sender()
    count = fill(sender)
    taken = take(receiver, count)
    for number in range(count):
        sender.send(RECEIVING, numbered(number, pad_bytes=4000), WAIT_SECONDS_MAX)
        taken += take(receiver, 1)
    assert numbers(taken) == [*range(count), *range(count)]


def test_a_held_batch_that_is_put_back_is_not_charged_twice(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(held="kept/"), fabric.sender()
    count = fill(sender, stage="kept/one")
    for _ in range(3):
        taken = take(receiver, count)
        for received in taken:
            receiver.stage(received)
    receiver.release(take(receiver, count))
    eventually(
        lambda: sender.credit_bytes(RECEIVING) >= SMALL_WINDOW_BYTES * 3 // 4, "that credit is back"
    )


def test_a_sender_hears_of_room(fabric: Fabric) -> None:
    roomy: list[int] = []
    receiver = fabric.small_receiver()
    sender = fabric.sender(on_room=roomy.append)
    count = fill(sender)
    before = len(roomy)
    take(receiver, count)
    eventually(lambda: len(roomy) > before, "that the sender hears of room")
    assert set(roomy) == {RECEIVING}
