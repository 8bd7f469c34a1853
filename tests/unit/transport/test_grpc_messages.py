"""What is in the outbox, as messages: small frames together, large ones in parts, and nothing is
held back by what waits for credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.transport.carriers import grpc_wire
from penstock.transport.carriers.grpc_messages import (
    GATHERED_BYTES,
    PART_BYTES,
    WHOLE_BYTES_MAX,
    messages,
)
from penstock.transport.carriers.grpc_wire import (
    FRAMES_MAX,
    MESSAGE_BYTES_MAX,
    Unfinished,
    frames_of,
)
from penstock.transport.frames import (
    ALIVE,
    Barrier,
    Close,
    Flush,
    Frame,
    VnodeData,
)
from penstock.transport.outbox import Outbox
from penstock.transport.stages import StageDecoders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.transport.connection import Cost

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
NO_LIMIT = 2**40
"""Reserved for a frame, so that it never costs more."""


def bytes_batch(size: int) -> pa.RecordBatch:
    """So many bytes, of which each tells its place."""
    numbers = pa.array(range(size // 16), pa.int64())
    return pa.record_batch({"first": numbers, "second": numbers})


def filled(frames: Sequence[Frame]) -> Outbox:
    outbox = Outbox(WAIT_SECONDS_MAX)
    for frame in frames:
        outbox.put(frame, NO_LIMIT)
    outbox.put(Close("done"))
    return outbox


def always(_costs: list[Cost]) -> bool:
    return True


def written(frames: Sequence[Frame]) -> list[bytes]:
    return list(messages(filled(frames), always))


def read(written_messages: Sequence[bytes]) -> list[list[Frame]]:
    """The frames that each message completes."""
    decoders, unfinished = StageDecoders(), Unfinished()
    return [
        [frame for frame, _ in frames_of(message, decoders, unfinished)]
        for message in written_messages
    ]


def flat(groups: Sequence[Sequence[Frame]]) -> list[Frame]:
    return [frame for group in groups for frame in group]


SMALL, MIDDLE, LARGE = bytes_batch(1_000), bytes_batch(300_000), bytes_batch(5_000_000)
FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(VnodeData, st.sampled_from("ab"), st.integers(0, 9), st.just(SMALL)),
    st.builds(VnodeData, st.sampled_from("ab"), st.integers(0, 9), st.just(MIDDLE)),
    st.builds(VnodeData, st.sampled_from("ab"), st.integers(0, 9), st.just(LARGE)),
    st.builds(Barrier, st.integers(0, 9), st.integers(0, 9)),
    st.builds(Flush, st.integers(0, 9)),
)


@settings(max_examples=40)
@given(st.lists(FRAMES, max_size=10))
def test_what_is_put_in_is_read_in_order(frames: list[Frame]) -> None:
    made = written(frames)
    assert flat(read(made)) == [*frames, Close("done")]
    assert all(len(message) <= MESSAGE_BYTES_MAX for message in made)


def test_small_frames_go_together() -> None:
    made = written([VnodeData("s", 0, SMALL)] * 3_000)
    assert len(made) < 8
    assert all(GATHERED_BYTES // 2 < len(message) < 2 * GATHERED_BYTES for message in made[:-1])


def test_a_message_has_at_most_so_many_frames() -> None:
    groups = read(written([Flush(cycle) for cycle in range(2 * FRAMES_MAX + 5)]))
    assert [len(group) for group in groups] == [FRAMES_MAX, FRAMES_MAX, 6]


def test_a_batch_that_fits_a_message_is_whole() -> None:
    frame = VnodeData("s", 5, bytes_batch(WHOLE_BYTES_MAX - 10_000))
    assert read(written([frame])) == [[frame], [Close("done")]]


def test_a_batch_that_does_not_is_in_parts() -> None:
    frame = VnodeData("s", 5, bytes_batch(WHOLE_BYTES_MAX + 10_000))
    made = written([frame])
    assert read(made) == [[], [], [frame], [Close("done")]]
    assert all(abs(len(part) - PART_BYTES) < 1_000 for part in made[:2])


def test_each_round_is_sent_without_waiting_for_more() -> None:
    outbox = Outbox(WAIT_SECONDS_MAX)
    made = messages(outbox, always)
    for number in range(3):
        outbox.put(Flush(number))
        assert flat(read([next(made)])) == [Flush(number)]


def test_an_end_with_nothing_to_say_says_so() -> None:
    made = messages(Outbox(heartbeat_seconds=0.001), always)
    assert flat(read([next(made), next(made)])) == [ALIVE, ALIVE]


def test_nothing_is_sent_once_the_connection_is_gone() -> None:
    gone = messages(filled([Flush(1), VnodeData("s", 0, SMALL), Flush(2)]), lambda *_: False)
    assert flat(read(list(gone))) in ([], [Flush(1)])


def test_a_batch_that_is_too_large_comes_after_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_wire, "BODY_BYTES_MAX", 1_000_000)
    made = messages(filled([Flush(1), VnodeData("s", 0, LARGE)]), always)
    assert flat(read([next(made)])) == [Flush(1)]
    with pytest.raises(LocalProtocolError, match="its schema or its dictionaries are too large"):
        next(made)
