"""The sender: opens lazily, keeps order, encodes elsewhere, and notices what dies."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigurationError, LocalProtocolError, PeerUnavailableError
from penstock.transport import Barrier, Close, Flush, Flushed, Origin, VnodeData
from penstock.transport.connection import Connection
from penstock.transport.discovery import Address, PeerUnknownError
from penstock.transport.stages import SchemaChangedError, StageEncoders
from tests.conformance.batches import number_of, numbered, numbers, same
from tests.conformance.fabric import OTHER, RECEIVING, SENDING, THIRD, over_bytes
from tests.conformance.raw import raw_listener
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    arrived,
    eventually,
    never,
    open_sockets,
    take,
    transport_threads,
)

if TYPE_CHECKING:
    from penstock.transport.frames import Message
    from tests.conformance.fabric import Fabric

SMALL = pa.record_batch({"number": pa.array([1, 2, 3])})


def test_connections_open_with_the_first_frame_and_are_reused(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, other = fabric.receiver(), fabric.receiver(OTHER)
    dialled = fabric.count_dials(monkeypatch)
    sender = fabric.sender()
    assert dialled == []
    assert sender.credit_bytes(RECEIVING) == 0
    for number in range(20):
        sender.send(RECEIVING, numbered(number))
    sender.send(RECEIVING, Barrier(1, 1))
    taken = take(receiver, 21)
    assert dialled == [receiver.address]
    assert {each.connection for each in taken} == {1}
    assert sender.credit_bytes(RECEIVING) > 0
    assert other.drain() == []  # nobody asked for it
    sender.send(OTHER, numbered(0))
    assert dialled == [receiver.address, other.address]


def test_threads_that_send_at_once_share_one_connection(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = fabric.receiver()
    dialled = fabric.count_dials(monkeypatch)
    sender = fabric.sender()
    together = threading.Barrier(8)

    def send(number: int) -> None:
        together.wait(WAIT_SECONDS_MAX)
        sender.send(RECEIVING, numbered(number))

    for each in [Background(partial(send, number)) for number in range(8)]:
        each.result()
    assert sorted(numbers(take(receiver, 8))) == list(range(8))
    assert len(dialled) == 1


def test_order_is_kept_over_all_stages_and_kinds(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    messages: list[Message] = []
    for number in range(300):
        messages.append(numbered(number, stage=f"stage-{number * 7 % 5}", pad_bytes=number * 13))
        if number % 10 == 3:
            messages.append(Barrier(number, 1, flags=number))
        if number % 25 == 4:
            messages.append(Flush(number))
    for message in messages:
        sender.send(RECEIVING, message, WAIT_SECONDS_MAX)
    arrived(receiver, len(messages))
    taken = take(receiver, len(messages))
    assert all(same(each.frame, sent) for each, sent in zip(taken, messages, strict=True))
    assert {each.origin for each in taken} == {Origin(SENDING, 0)}
    arrival = [each.number for each in taken]
    assert arrival == sorted(set(arrival))


def test_batches_are_encoded_off_the_callers_thread(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = StageEncoders.encode
    threads: list[int] = []

    def observed(self: StageEncoders, stage: str, batch: pa.RecordBatch) -> Any:
        threads.append(threading.get_ident())
        return encode(self, stage, batch)

    monkeypatch.setattr(StageEncoders, "encode", observed)
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(10):
        sender.send(RECEIVING, numbered(number))
    assert numbers(take(receiver, 10)) == list(range(10))
    assert threading.get_ident() not in threads
    # Within a process nothing is encoded at all.
    assert len(threads) == (0 if fabric.kind.carrier == "local" else 10)


@over_bytes
def test_the_schema_of_a_stage_travels_once(fabric: Fabric) -> None:
    batch = SMALL.replace_schema_metadata({"weight": "x" * 5000})
    sender = fabric.sender()
    peer = raw_listener(fabric).serve(lambda: sender.send(RECEIVING, Barrier(1, 1)))
    for stage in ("a", "a", "b", "a", "b", "b"):
        sender.send(RECEIVING, VnodeData(stage, 0, batch))
    assert peer.hear() == (Barrier(1, 1), 0)
    costs: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(6):
        heard = peer.hear()
        assert heard is not None
        frame, cost_bytes = heard
        assert isinstance(frame, VnodeData)
        assert frame.batch.schema.equals(batch.schema, check_metadata=True)
        costs[frame.stage].append(cost_bytes)
    for first, *later in costs.values():
        assert first > 5000
        assert len(later) == 2
        assert max(later) < 3000


def test_another_schema_ends_the_stream_and_only_that(fabric: Fabric) -> None:
    receiver, other, sender = fabric.receiver(), fabric.receiver(OTHER), fabric.sender()
    for number in range(50):
        sender.send(RECEIVING, numbered(number, pad_bytes=1000), WAIT_SECONDS_MAX)
        sender.send(OTHER, numbered(number), WAIT_SECONDS_MAX)
    changed = VnodeData("orders", 0, pa.record_batch({"number": pa.array(["fifty"])}))
    with pytest.raises(SchemaChangedError, match=r"'orders' changed its schema"):
        sender.send(RECEIVING, changed)
    sender.send(OTHER, numbered(50))
    *before, last = take(receiver, 51)
    assert numbers(before) == list(range(50))
    assert isinstance(last.frame, Close)
    assert last.frame.fault
    assert "'orders' changed its schema" in last.frame.reason
    assert [each.member for each in sender.losses()] == [RECEIVING]
    # The next one opens a connection of its own, on which the stage begins anew.
    sender.send(RECEIVING, changed)
    (after,) = take(receiver)
    assert same(after.frame, changed)
    assert after.connection != last.connection
    assert numbers(take(other, 51)) == list(range(51))
    assert sender.losses() == []


def test_a_new_connection_waits_for_what_the_old_one_had_queued(fabric: Fabric) -> None:
    """It would supersede the old one, and cut off what is still on its way there."""
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(5):
        for place in range(60):
            sender.send(RECEIVING, numbered(place, pad_bytes=9000), WAIT_SECONDS_MAX)
        with pytest.raises(SchemaChangedError):
            sender.send(RECEIVING, VnodeData("orders", 0, SMALL))
        sender.send(RECEIVING, Barrier(number, 1), WAIT_SECONDS_MAX)
        *before, close, barrier = take(receiver, 62)
        assert numbers(before) == list(range(60))
        assert isinstance(close.frame, Close)
        assert barrier.frame == Barrier(number, 1)


@pytest.mark.parametrize(
    "changed",
    [
        pa.record_batch({"number": pa.array([1], pa.int32())}),
        pa.record_batch({"count": pa.array([1])}),
        pa.record_batch({"number": pa.array([1]), "more": pa.array([1])}),
        pa.record_batch([pa.array([1])], schema=pa.schema([pa.field("number", pa.int64(), False)])),
        SMALL.replace_schema_metadata({"about": "another"}),
    ],
    ids=["type", "name", "column", "nullable", "metadata"],
)
def test_every_change_of_a_schema_is_refused(fabric: Fabric, changed: pa.RecordBatch) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, VnodeData("a", 0, SMALL))
    # An equal schema is none that changed, and another stage may have another one.
    again = pa.RecordBatch.from_arrays(SMALL.columns, schema=pa.schema(list(SMALL.schema)))
    sender.send(RECEIVING, VnodeData("a", 0, again))
    sender.send(RECEIVING, VnodeData("b", 0, changed))
    with pytest.raises(SchemaChangedError):
        sender.send(RECEIVING, VnodeData("a", 0, changed))
    assert [type(each.frame) for each in take(receiver, 4)] == [VnodeData] * 3 + [Close]


def test_an_unknown_member_is_an_error_at_once(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    dialled = fabric.count_dials(monkeypatch)
    with pytest.raises(PeerUnknownError, match=f"member {THIRD}"):
        sender.send(THIRD, numbered(1))
    assert dialled == []
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(receiver)) == [2]
    assert sender.losses() == []


def test_a_member_that_does_not_listen_is_tried_again_by_the_next_send(fabric: Fabric) -> None:
    gone = fabric.receiver()
    address = gone.address
    gone.close()
    sender = fabric.sender()
    for _ in range(2):
        with pytest.raises(PeerUnavailableError, match=f"member {RECEIVING}"):
            sender.send(RECEIVING, numbered(1))
    back = fabric.receiver(port=address.port)
    assert back.address == address
    sender.send(RECEIVING, numbered(2))
    assert numbers(take(back)) == [2]


def test_a_barrier_goes_to_members_in_their_order(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connection.send
    peers: list[int] = []

    def observed(self: Connection, message: Message, *arguments: Any) -> None:
        peers.append(self.peer)
        send(self, message, *arguments)

    monkeypatch.setattr(Connection, "send", observed)
    receivers = {member: fabric.receiver(member) for member in (RECEIVING, OTHER, THIRD)}
    sender = fabric.sender()
    for member in receivers:
        sender.send(member, numbered(1))
    peers.clear()
    sender.fan_out([OTHER, THIRD, RECEIVING], Barrier(7, 1))
    assert peers == [OTHER, THIRD, RECEIVING]
    for member, receiver in receivers.items():
        sender.send(member, numbered(2))
        before, barrier, after = take(receiver, 3)
        assert (number_of(before.frame), barrier.frame, number_of(after.frame)) == (
            1,
            Barrier(7, 1),
            2,
        )


def test_a_barrier_stops_at_the_first_member_that_fails(fabric: Fabric) -> None:
    first, third = fabric.receiver(), fabric.receiver(THIRD)
    sender = fabric.sender()
    with pytest.raises(PeerUnknownError, match=f"member {OTHER}"):
        sender.fan_out([RECEIVING, OTHER, THIRD], Barrier(7, 1))
    assert [each.frame for each in take(first)] == [Barrier(7, 1)]
    never(third.drain, "a barrier arrived behind the failure")


def test_closing_sends_what_is_queued_and_says_so(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    for number in range(200):
        sender.send(RECEIVING, numbered(number, pad_bytes=5000), WAIT_SECONDS_MAX)
    sender.close()
    *taken, last = take(receiver, 201)
    assert numbers(taken) == list(range(200))
    assert last.frame == Close("done", fault=False)
    assert sender.losses() == []
    sender.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        sender.send(RECEIVING, numbered(1))


def test_a_sender_that_is_dropped_ends_its_streams(fabric: Fabric) -> None:
    receiver, other, sender = fabric.receiver(), fabric.receiver(OTHER), fabric.sender()
    sender.send(RECEIVING, numbered(1))
    sender.send(OTHER, numbered(1))
    fabric.let_go(sender)
    del sender
    gc.collect()
    for each in (receiver, other):
        assert [type(received.frame) for received in take(each, 2)] == [VnodeData, Close]


def test_a_sender_in_a_circle_may_be_collected_by_any_thread(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport's own threads too, since it is they who make most objects."""
    receiver, other, sender = fabric.receiver(), fabric.receiver(OTHER), fabric.sender()
    sender.send(RECEIVING, Flush(1))
    sender.send(OTHER, numbered(1))
    take(receiver)
    take(other)
    origin = sender.origin
    on_frame = Connection.on_frame

    def collecting(self: Connection, *arguments: Any) -> None:
        gc.collect()
        on_frame(self, *arguments)

    gc.disable()
    try:
        circle: list[Any] = [sender]
        circle.append(circle)
        fabric.let_go(sender)
        del sender, circle
        monkeypatch.setattr(Connection, "on_frame", collecting)
        receiver.reply(origin, Flushed(1, 1))  # read by a thread of the sender's, which collects
        for each in (receiver, other):
            (last,) = take(each)
            assert isinstance(last.frame, Close)
    finally:
        gc.enable()


@over_bytes
def test_a_send_that_fails_leaves_nothing_open(fabric: Fabric) -> None:
    gone = fabric.receiver()
    gone.close()
    sender = fabric.sender()
    sockets, threads = open_sockets(), transport_threads()
    for _ in range(3):
        with pytest.raises(PeerUnavailableError):
            sender.send(RECEIVING, numbered(1))
    eventually(lambda: open_sockets() <= sockets, "that failed connections are closed")
    eventually(lambda: transport_threads() <= threads, "that failed connections have no threads")


def test_an_address_of_no_carrier_is_refused(fabric: Fabric) -> None:
    fabric.publish(RECEIVING, Address("pigeon", "127.0.0.1", 1))
    with pytest.raises(ConfigurationError, match="no carrier 'pigeon'"):
        fabric.sender().send(RECEIVING, numbered(1))
