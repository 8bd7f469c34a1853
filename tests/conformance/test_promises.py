"""What a sender promises: that it waits no longer than it is told to, that what is queued goes out,
that it says what it could not deliver, and that a process that was replaced speaks no more."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import PeerUnavailableError
from penstock.transport import (
    Barrier,
    Close,
    Mark,
    MarkKind,
    Sender,
    SendTimeoutError,
    Timing,
    VnodeData,
)
from penstock.transport.discovery import Address
from penstock.transport.stages import BatchRefusedError
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import HASTY, PATIENT, RECEIVING, SENDING, over_bytes
from tests.conformance.proxy import TO_RECEIVER, Proxy
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    arrived,
    eventually,
    take,
    waiting_frames,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport import Received
    from tests.conformance.fabric import Fabric

pytestmark = pytest.mark.slow


# Barriers and heartbeats, whatever waits


def sharing(rows: int, columns: int = 40) -> pa.RecordBatch:
    """All columns show the same memory, which is sent as often as there are columns."""
    column = pa.array(range(rows), pa.int64())
    return pa.record_batch([column] * columns, [f"c{number}" for number in range(columns)])


def sharing_a_dictionary(rows: int) -> pa.RecordBatch:
    words = pa.array([f"word {number}" for number in range(rows)])
    columns = [pa.DictionaryArray.from_arrays(pa.array([n], pa.int16()), words) for n in range(40)]
    return pa.record_batch(columns, [f"c{number}" for number in range(40)])


@pytest.mark.parametrize("make", [sharing, sharing_a_dictionary])
def test_a_full_window_holds_up_neither_barriers_nor_heartbeats(
    fabric: Fabric, make: Callable[[int], pa.RecordBatch]
) -> None:
    """The batches are larger than the memory they refer to: what goes by that has no room."""
    receiver = fabric.small_receiver(timing=HASTY)
    sender = fabric.sender(timing=HASTY)
    sender.send(RECEIVING, VnodeData("s", 0, make(100).slice(0, 1)))
    count = 1
    with suppress(SendTimeoutError):
        while count < 1_000:
            sender.send(RECEIVING, VnodeData("s", 0, make(100)), 0.2)
            count += 1
    assert count < 1_000
    for number in range(8):  # longer than a peer may be silent
        sender.send(RECEIVING, Barrier(number, 1), WAIT_SECONDS_MAX)
        taken = eventually(receiver.drain_control, "that a barrier passes")
        assert [each.frame for each in taken] == [Barrier(number, 1)]
        threading.Event().wait(HASTY.silence_seconds_max / 4)
    assert waiting_frames(receiver) == count, "all that was accepted has arrived"
    assert sender.losses() == []


# Closing


def slow_link(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written waits in the proxy for much longer than a second in all."""
    proxy = Proxy(fabric, RECEIVING)
    pass_on: Any = proxy._pass_on

    def slowly(source: socket.socket, passing: dict[Any, Any]) -> None:
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        passing[source][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        if passing[source][1] == TO_RECEIVER:
            threading.Event().wait(0.02)
        pass_on(source, passing)

    monkeypatch.setattr(proxy, "_pass_on", slowly)


@over_bytes
def test_closing_waits_for_a_peer_that_reads_slowly(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it takes something now and then: more than a second, and all of it arrives."""
    monkeypatch.setattr("penstock.transport.carriers.tcp.CLOSE_SECONDS_MAX", 0.001)
    monkeypatch.setattr("penstock.transport.carriers.grpc.CLOSE_SECONDS_MAX", 0.001)
    receiver = fabric.receiver()
    slow_link(fabric, monkeypatch)
    sender = fabric.sender()
    for number in range(40):
        sender.send(RECEIVING, numbered(number, pad_bytes=50_000))
    sender.close()
    arrived(receiver, 41)
    taken = receiver.drain()
    assert numbers(taken) == list(range(40))
    assert taken[-1].frame == Close("done")
    assert sender.losses() == []


@over_bytes
@pytest.mark.parametrize("how", ["swallowed", "cut"])
def test_closing_tells_what_may_not_have_arrived(fabric: Fabric, how: str) -> None:
    fabric.receiver()
    proxy = Proxy(fabric, RECEIVING)
    sender = fabric.sender(timing=HASTY)
    sender.send(RECEIVING, numbered(1))
    assert sender.losses() == []
    proxy.swallow(TO_RECEIVER)
    sender.send(RECEIVING, numbered(2))
    if how == "cut":
        proxy.cut()
    sender.close()
    (loss,) = sender.losses()
    assert loss.member == RECEIVING
    assert loss.reason


# Timeouts


@over_bytes
def test_a_timeout_covers_the_opening_of_the_connection(fabric: Fabric) -> None:
    """A stopped process: its system accepts, and nobody answers. Nobody waits for longer than it
    said, and nobody for an attempt of another."""
    silent = socket.create_server(("127.0.0.1", 0))
    fabric.at_end(silent.close)
    port = silent.getsockname()[1]
    fabric.publish(RECEIVING, Address(fabric.kind.carrier, "127.0.0.1", port))
    timing = Timing(2 * WAIT_SECONDS_MAX, 10, 60)  # so that a test that waits for it fails
    sender = fabric.sender(timing=timing)

    def send_at_once() -> None:
        with pytest.raises(SendTimeoutError, match="not open after 0 s"):
            sender.send(RECEIVING, Barrier(1, 1), 0)

    for call in [Background(send_at_once, "sending without waiting") for _ in range(4)]:
        call.result(WAIT_SECONDS_MAX / 2)
    silent.settimeout(WAIT_SECONDS_MAX)
    silent.accept()[0].close()  # which ends the attempt


@over_bytes
def test_all_who_wait_for_one_attempt_learn_how_it_ended(fabric: Fabric) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    address = Address(fabric.kind.carrier, "127.0.0.1", closed.getsockname()[1])
    closed.close()
    fabric.publish(RECEIVING, address)
    sender = fabric.sender()

    def refused() -> None:
        with pytest.raises(PeerUnavailableError):
            sender.send(RECEIVING, Barrier(1, 1))

    for call in [Background(refused, "sending to nobody") for _ in range(4)]:
        call.result()
    receiver = fabric.receiver()
    sender.send(RECEIVING, Barrier(2, 1))  # the next attempt is another one
    assert [each.frame for each in take(receiver)] == [Barrier(2, 1)]


def test_who_does_not_wait_is_told_when_the_connection_is_open(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    told = threading.Event()
    sender = fabric.sender(on_room=lambda _: told.set())

    def sent() -> bool:
        told.wait(WAIT_SECONDS_MAX)
        told.clear()
        try:
            sender.send(RECEIVING, numbered(1), 0)
        except SendTimeoutError:
            return False
        return True

    told.set()
    eventually(sent, "that a frame is sent by one who never waits")
    assert numbers(take(receiver)) == [1]


# Batches that cannot be sent


def test_a_batch_that_cannot_be_encoded_ends_nothing(fabric: Fabric) -> None:
    values: pa.Array[Any] = pa.array([1, 2])
    for _ in range(70):
        values = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, numbered(1))
    for number, column in enumerate(
        (values, pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values))
    ):
        with pytest.raises(BatchRefusedError, match="cannot be encoded"):
            sender.send(RECEIVING, VnodeData(f"deep {number}", 0, pa.record_batch([column], ["x"])))
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(receiver, 2)) == [1, 2]
    assert sender.losses() == []


@over_bytes
@pytest.mark.parametrize("error", [ValueError, MemoryError, pa.ArrowInvalid])
def test_a_writer_that_fails_ends_its_connection_and_says_why(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A defect of ours, or no memory: nothing more is accepted as if it would be sent."""
    fabric.receiver()
    sender = fabric.sender()
    sender.send(RECEIVING, Barrier(1, 1))

    def fail(*_: object) -> None:
        raise error("on purpose")

    monkeypatch.setattr("penstock.transport.stages.StageEncoders.encode", fail)
    sender.send(RECEIVING, numbered(1))
    (loss,) = eventually(sender.losses, "that the loss is told")
    assert "on purpose" in loss.reason


# Processes that were replaced


def process(fabric: Fabric, generation: int, lane: int = 0) -> Sender:
    keyvalue = fabric.keyvalue.view(SENDING, generation)
    sender = Sender(fabric.security(SENDING), keyvalue, lane=lane, timing=PATIENT)
    fabric.at_end(sender.close)
    return sender


def marks(taken: list[Received]) -> list[int]:
    return [each.frame.key for each in taken if isinstance(each.frame, Mark)]


@pytest.mark.parametrize("old_generation", [0, 100])
def test_a_process_that_was_replaced_speaks_no_more(fabric: Fabric, old_generation: int) -> None:
    """On none of its lanes, however often it dials. Zero: one of a release without generations."""
    receiver = fabric.receiver()
    old = [process(fabric, old_generation, lane) for lane in range(2)]
    for sender in old:
        sender.send(RECEIVING, Mark(MarkKind.DUE, 1))
    assert marks(take(receiver, 2)) == [1, 1]
    new = process(fabric, 200)
    new.send(RECEIVING, Mark(MarkKind.DUE, 2))
    for sender in old:
        eventually(sender.losses, "that the old process notices")
        for _ in range(3):
            with pytest.raises(PeerUnavailableError, match="a newer process of member 1"):
                sender.send(RECEIVING, Mark(MarkKind.DUE, 666))
    new.send(RECEIVING, Mark(MarkKind.DUE, 3))
    assert marks(take(receiver, 4)) == [2, 3], "and two ends of streams"
    assert new.losses() == []


def test_a_process_keeps_its_generation_when_it_dials_again(fabric: Fabric) -> None:
    receiver = fabric.receiver()
    for number in range(3):
        sender = process(fabric, 100)
        sender.send(RECEIVING, Mark(MarkKind.DUE, number))
        sender.close()
    taken: list[Received] = take(receiver, 6)
    assert marks(taken) == [0, 1, 2]
