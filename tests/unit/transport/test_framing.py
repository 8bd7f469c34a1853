"""Reading and writing frames through a pipe, without the network: what came together, what came in
bits, and that the writer holds nothing back while it waits for credit."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.transport.carriers.framing import CHUNK_BYTES, read_frames, write_frames
from penstock.transport.credit import Allowance
from penstock.transport.frames import Barrier, Close, Credit, Flush, Frame, VnodeData
from penstock.transport.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.transport.connection import Cost
    from penstock.transport.stages import Piece

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
SMALL = pa.record_batch([pa.array(["a", None, "ccc"]), pa.array([1, 2, 3])], ["text", "number"])
SIZED = {rows: pa.record_batch([pa.array(range(rows))], ["n"]) for rows in (9_000, 30_000, 300_000)}
"""About 72 KB, 240 KB and 2.4 MB: below and above what is read at a time, and what has memory of
its own."""


class Memory:
    """A pipe through memory. What is sent can be read back, so many bytes at a time."""

    def __init__(self, data: bytes = b"", step_bytes: int = 1_000_000) -> None:
        self.data = bytearray(data)
        self.position = 0
        self.step_bytes = step_bytes
        self.finished = False

    def send(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.data += piece

    def receive_into(self, view: memoryview) -> int:
        count = min(len(view), len(self.data) - self.position, self.step_bytes)
        view.cast("B")[:count] = self.data[self.position : self.position + count]
        self.position += count
        return count

    def limit(self, seconds: float) -> None:
        pass

    def finish(self) -> None:
        self.finished = True

    def cut(self) -> None:
        pass

    def close(self) -> None:
        pass


def no_limit(costs: list[Cost], wait: bool) -> int:
    return len(costs)


def written(frames: Sequence[Frame]) -> bytes:
    outbox, pipe = Outbox(WAIT_SECONDS_MAX), Memory()
    for frame in frames:
        outbox.put(frame)
    outbox.put(Close("done"))
    write_frames(pipe, outbox, no_limit)
    assert pipe.finished
    return bytes(pipe.data)


def read(data: bytes, step_bytes: int) -> list[Frame]:
    groups = list(read_frames(Memory(data, step_bytes)))
    assert all(groups), "nobody is woken for nothing"
    return [frame for group in groups for frame, _ in group]


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        VnodeData, st.sampled_from(["s", "a longer name"]), st.integers(0, 9), st.just(SMALL)
    ),
    st.builds(
        VnodeData, st.just("sized"), st.integers(0, 9), st.sampled_from(list(SIZED.values()))
    ),
    st.builds(Barrier, st.integers(0, 9), st.integers(0, 9)),
    st.builds(Flush, st.integers(0, 9)),
    st.builds(Close, st.text(st.characters(codec="ascii"), max_size=9)),
)


@settings(max_examples=60)
@given(
    st.lists(FRAMES.filter(lambda frame: not isinstance(frame, Close)), max_size=12),
    st.sampled_from([1_000, 65_536, 200_003, 10_000_000]),
)
def test_what_is_written_is_read(frames: list[Frame], step_bytes: int) -> None:
    assert read(written(frames), step_bytes) == [*frames, Close("done")]


def test_a_stream_in_single_bytes_is_read() -> None:
    frames: list[Frame] = [VnodeData("s", 1, SMALL), Flush(7), VnodeData("s", 2, SMALL)]
    assert read(written(frames), 1) == [*frames, Close("done")]


def test_a_stream_cut_short_anywhere_is_refused() -> None:
    frames: list[Frame] = [VnodeData("s", 1, SMALL), Flush(7), Close("done")]
    data = written(frames[:2])
    lengths = set()
    for size in range(len(data) + 1):
        for step_bytes in (7, 10_000):
            try:
                found = read(data[:size], step_bytes)
            except RemoteProtocolError as error:
                assert "ended within a frame" in str(error)  # noqa: PT017
                continue
            assert found == frames[: len(found)]
            lengths.add((size, len(found)))
    assert [count for _, count in sorted(lengths)] == [0, 1, 2, 3], "whole frames only"


def test_frames_before_a_damaged_one_are_read() -> None:
    data = bytearray(written([Flush(1), VnodeData("s", 1, SMALL), Flush(2)]))
    data[60] ^= 1  # within the batch
    reading = read_frames(Memory(bytes(data)))
    assert next(reading) == [(Flush(1), 0)]
    with pytest.raises(RemoteProtocolError, match="damaged on the way"):
        next(reading)


def test_a_damaged_large_frame_is_refused() -> None:
    data = written([VnodeData("s", 1, SIZED[300_000])])
    for place in (1_000_000, 2_399_999):
        damaged = bytearray(data)
        damaged[place] ^= 1
        for step_bytes in (100_000, 10_000_000):
            with pytest.raises(RemoteProtocolError, match="damaged on the way"):
                read(bytes(damaged), step_bytes)


def test_a_small_batch_does_not_keep_what_was_read_with_it() -> None:
    """A batch that is held for long would hold a chunk of other frames' memory."""
    before = pa.total_allocated_bytes()
    kept = next(read_frames(Memory(written([VnodeData("s", 1, SMALL)] * 50))))[0][0]
    gc.collect()
    assert isinstance(kept, VnodeData)
    assert pa.total_allocated_bytes() - before < CHUNK_BYTES // 8


def test_a_connection_that_is_gone_ends_the_writer() -> None:
    pipe, outbox = Memory(), Outbox(WAIT_SECONDS_MAX)
    for frame in (Flush(1), VnodeData("s", 0, SMALL), Flush(2), Close("done")):
        outbox.put(frame)
    write_frames(pipe, outbox, lambda _costs, _wait: 0)
    assert not pipe.finished
    assert read(bytes(pipe.data), 1_000) == [Flush(1)], "what came before was written"


def test_nothing_is_held_back_while_a_frame_waits_for_credit() -> None:
    """The peer makes room by taking what came before: so that must have been sent."""
    allowance = Allowance(window_bytes=40_000)
    allowance.grant(Credit(40_000, 1))
    pipe, outbox = Memory(), Outbox(WAIT_SECONDS_MAX)
    arrived = (cost_bytes for group in read_frames(pipe) for _, cost_bytes in group)

    def settle(costs: list[Cost], wait: bool) -> int:
        settled = 0
        for cost in costs:
            while not allowance.settle(*cost):
                if settled or not wait:
                    return settled
                taken_bytes = next(arrived, 0)
                assert taken_bytes, "it waits for ever: what would make room was not sent"
                allowance.grant(Credit(taken_bytes, 0))
            settled += 1
            estimates.append(cost[0])
        return settled

    batch = pa.record_batch([pa.array(range(2_500))], ["n"])
    # Far too low: each costs more than half of the window.
    low = [2_000, 2_100, 2_200, 2_300]
    for estimate_bytes in low:
        assert allowance.reserve(estimate_bytes)
        outbox.put(VnodeData("s", 0, batch), estimate_bytes)
    outbox.put(Close("done"))
    estimates: list[int] = []
    write_frames(pipe, outbox, settle)
    assert pipe.finished
    assert estimates == low, "each is settled once, in order"
    assert allowance.reserved_bytes == 0
