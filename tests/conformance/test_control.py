"""Barriers, flushes and ends are never stuck behind data, however full the window is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.transport import Barrier, Close, Flush, Flushed, Mark, MarkKind, VnodeData
from penstock.transport.connection import SendTimeoutError
from penstock.transport.credit import CONTROL_FRAMES_MAX
from tests.conformance.batches import numbered, numbers
from tests.conformance.fabric import RECEIVING, SMALL_WINDOW_BYTES
from tests.conformance.waiting import (
    WAIT_SECONDS_MAX,
    Background,
    arrived,
    eventually,
    never,
    take,
)
from tests.conformance.windows import fill

if TYPE_CHECKING:
    from penstock.transport import Sender
    from penstock.transport.frames import Message
    from tests.conformance.fabric import Fabric


def test_control_frames_pass_where_data_waits(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    count = fill(sender)
    late = Background(
        lambda: sender.send(RECEIVING, numbered(count, pad_bytes=4000), WAIT_SECONDS_MAX),
        "sending without credit",
    )
    never(lambda: not late.running, "data went without credit")
    for number in range(20):
        control: list[Message] = [
            Mark(MarkKind.DUE, number),
            Barrier(number, 1),
            Flush(number),
        ]
        for frame in control:
            sender.send(RECEIVING, frame, WAIT_SECONDS_MAX)
        arrived(receiver, count + 3)
        assert [each.frame for each in receiver.drain_control()] == control
        assert receiver.reply(sender.origin, Flushed(number, number)) is True
        assert sender.receive_flushed(WAIT_SECONDS_MAX) == (RECEIVING, Flushed(number, number))
    assert late.running
    assert numbers(take(receiver, count + 1)) == list(range(count + 1))
    late.result()


def test_who_waits_for_an_answer_can_be_interrupted(fabric: Fabric) -> None:
    receiver, sender = fabric.receiver(), fabric.sender()
    sender.send(RECEIVING, Flush(1), WAIT_SECONDS_MAX)
    take(receiver)
    waiting = Background(sender.receive_flushed, "waiting for an answer, without a limit")
    sender.interrupt()
    assert waiting.result() is None
    receiver.reply(sender.origin, Flushed(1, 9))
    assert sender.receive_flushed(WAIT_SECONDS_MAX) == (RECEIVING, Flushed(1, 9))


def test_a_close_passes_where_data_waits(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    count = fill(sender)
    Background(sender.close, "closing without credit").result()
    arrived(receiver, count + 1)
    assert [each.frame for each in receiver.drain_control()] == [Close("done")]
    assert numbers(receiver.drain()) == list(range(count))


def test_control_frames_pass_the_first_frames_of_many_stages(fabric: Fabric) -> None:
    """A first frame has a schema, which the sender must count before it queues the frame: else
    the encoder finds too little room, and waits, with the barrier behind it."""
    receiver, sender = fabric.small_receiver(), fabric.sender()
    fields = [pa.field(f"column {place}", pa.int64()) for place in range(40)]
    batch = pa.RecordBatch.from_arrays([pa.array([1])] * 40, schema=pa.schema(fields))
    _send_until_full(sender, batch, stages=True)
    sender.send(RECEIVING, Barrier(1, 1), WAIT_SECONDS_MAX)
    control = eventually(receiver.drain_control, "that a barrier arrives, though nobody takes data")
    assert [each.frame for each in control] == [Barrier(1, 1)]


def test_control_frames_pass_dictionaries(fabric: Fabric) -> None:
    """As above, with what is hard to count: dictionaries that change, within lists."""
    receiver, sender = fabric.small_receiver(), fabric.sender()
    batches = []
    for number in range(2):
        words = pa.array([f"word {number} {place}" for place in range(300)])
        plain = pa.DictionaryArray.from_arrays(pa.array([0, 1, 299], pa.int16()), words)
        nested = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), plain)
        batches.append(pa.RecordBatch.from_arrays([nested], ["words"]))
    _send_until_full(sender, *batches)
    sender.send(RECEIVING, Barrier(1, 1), WAIT_SECONDS_MAX)
    control = eventually(receiver.drain_control, "that a barrier arrives, though nobody takes data")
    assert [each.frame for each in control] == [Barrier(1, 1)]


@pytest.mark.parametrize("small_bytes", [0, 100])
def test_control_frames_pass_batches_that_grow(fabric: Fabric, small_bytes: int) -> None:
    """As above, where no batch tells how large the next one is."""
    receiver, sender = fabric.small_receiver(), fabric.sender()
    batches = [numbered(0, pad_bytes=small_bytes).batch] * 5
    batches += [numbered(0, pad_bytes=6000).batch] * 30
    _send_until_full(sender, *batches)
    sender.send(RECEIVING, Barrier(1, 1), WAIT_SECONDS_MAX)
    control = eventually(receiver.drain_control, "that a barrier arrives, though nobody takes data")
    assert [each.frame for each in control] == [Barrier(1, 1)]
    # And what is held is what it is, not what it was taken for.
    held_bytes = 0
    for received in receiver.drain():
        assert isinstance(received.frame, VnodeData)
        held_bytes += pa.ipc.get_record_batch_size(received.frame.batch)
    assert held_bytes <= SMALL_WINDOW_BYTES


def _send_until_full(sender: Sender, *batches: pa.RecordBatch, stages: bool = False) -> None:
    for number in range(1000):
        stage = f"stage {number}" if stages else "stage"
        try:
            sender.send(RECEIVING, VnodeData(stage, 0, batches[number % len(batches)]), 0.05)
        except SendTimeoutError:
            return
    pytest.fail("there is no end to the credit")


def test_control_frames_have_a_limit_of_their_own(fabric: Fabric) -> None:
    receiver, sender = fabric.small_receiver(), fabric.sender()
    for number in range(CONTROL_FRAMES_MAX):
        sender.send(RECEIVING, Barrier(number, 1), WAIT_SECONDS_MAX)
    with pytest.raises(SendTimeoutError):
        sender.send(RECEIVING, Barrier(CONTROL_FRAMES_MAX, 1), 0.05)
    sender.send(RECEIVING, numbered(1), WAIT_SECONDS_MAX)  # data has room still
    arrived(receiver, CONTROL_FRAMES_MAX + 1)
    assert len(receiver.drain_control()) == CONTROL_FRAMES_MAX
    sender.send(RECEIVING, Barrier(CONTROL_FRAMES_MAX, 1), WAIT_SECONDS_MAX)
    assert [type(each.frame) for each in take(receiver, 2)] == [VnodeData, Barrier]
