"""Reading and writing frames through a pipe, without the network: what came together, what came in
bits, and what it keeps of memory."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.transport.carriers.framing import read_frames, write_frames
from penstock.transport.frames import Barrier, Close, Flush, Frame, VnodeData
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
        self.sent_bytes = 0

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


def no_limit(_costs: list[Cost]) -> bool:
    return True


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


@pytest.mark.parametrize("rows", [3, 1_000, 9_000, 16_000, 30_000, 100_000])
def test_a_batch_keeps_no_more_than_its_own_memory(rows: int) -> None:
    """One that is held for long would hold what was read with it, which its credit does not count:
    every batch's buffers lie apart from those of all others."""
    batch = pa.record_batch([pa.array(range(rows))], ["n"])
    frames = list(read_frames(Memory(written([VnodeData("s", 1, batch)] * 6))))
    gc.collect()
    kept = [f.batch for group in frames for f, _ in group if isinstance(f, VnodeData)]
    assert len(kept) == 6
    ends = sorted((b.columns[0].buffers()[1].address, _memory_of(b)) for b in kept)  # type: ignore[union-attr]
    assert len({memory for _, memory in ends}) == 6, "each has memory of its own"


def _memory_of(batch: pa.RecordBatch) -> int:
    """Tells the block of memory that a batch keeps, however it is a part of it."""
    buffer = batch.columns[0].buffers()[1]
    while buffer is not None and buffer.parent is not None:
        buffer = buffer.parent
    assert buffer is not None
    assert buffer.size <= 2 * batch.nbytes + 4_096
    return buffer.address


def test_a_connection_that_is_gone_ends_the_writer() -> None:
    pipe, outbox = Memory(), Outbox(WAIT_SECONDS_MAX)
    for frame in (Flush(1), VnodeData("s", 0, SMALL), Flush(2), Close("done")):
        outbox.put(frame)
    write_frames(pipe, outbox, lambda _: False)
    assert not pipe.finished
    assert not pipe.data, "there is nobody to read it"
