"""A Queue's state comes back from its bytes as it was."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from penstock.checkpoint import Barrier
from penstock.errors import CorruptStorageError
from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.queue.events import (
    Arrived,
    BarrierCame,
    FlushAsked,
    Part,
    QueueState,
    ReadNames,
    TimeIs,
)
from penstock.shuffle.queue.snapshot import decode_state, encode_state
from tests.unit.shuffle.queue.test_machine import driven, parcel


def a_state() -> QueueState:
    """With rows that wait, half of a part among them, and every kind of item in flight."""
    queue = driven([0, 0, 1], aligned_seconds_max=0.0)
    queue.handle(Arrived(0, ReadNames({0: (0, "orders/000"), 7: (1, "zahlungen/ß=1/000")})))
    queue.handle(Arrived(0, parcel([3, 9, 11], 0)))
    queue.handle(Arrived(0, Mark(MarkKind.DUE, 2**64 - 1)))
    queue.handle(Arrived(1, Mark(MarkKind.DUE, 5)))
    queue.handle(Arrived(2, parcel([1], 50)))
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    queue.handle(Arrived(1, ReadNames({8: (0, "orders/001")})))
    queue.handle(Arrived(1, parcel([6], 60)))
    queue.handle(Arrived(1, FlushAsked(4)))
    queue.handle(Arrived(1, Mark(MarkKind.DELAYED, 99)))
    queue.handle(BarrierCame(1, Barrier(1, 1)))
    queue.handle(BarrierCame(2, Barrier(1, 1)))
    return queue.captured[1]


def whole(state: QueueState) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(piece) for piece in encode_state(state)))


def test_a_state_comes_back() -> None:
    state = a_state()
    again = decode_state(whole(state))
    assert again.lsn == state.lsn == 1
    assert again.names == state.names
    assert len(again.streams) == 3
    for one, other in zip(state.streams, again.streams, strict=True):
        assert (one.mark, one.greatest, one.reached) == (other.mark, other.greatest, other.reached)
        assert len(one.waiting) == len(other.waiting)
        for waiting, found in zip(one.waiting, other.waiting, strict=True):
            assert waiting.stage == found.stage
            assert waiting.batch.equals(found.batch, check_metadata=True)
            np.testing.assert_array_equal(waiting.keys, found.keys)
        for item, came in zip(one.in_flight, other.in_flight, strict=True):
            if isinstance(item, Part):
                assert isinstance(came, Part)
                assert (item.stage, item.batch) == (came.stage, came.batch)
            else:
                assert item == came
    assert [len(stream.waiting) for stream in again.streams] == [1, 0, 1]
    assert [len(stream.in_flight) for stream in again.streams] == [0, 4, 0]


def test_what_comes_back_goes_on() -> None:
    resumed = driven([0, 0, 1], restored=decode_state(whole(a_state())), epoch=1)
    resumed.handle(TimeIs())
    for stream in (0, 1, 2):
        resumed.handle(Arrived(stream, IDLE))
    assert resumed.written == [60, 1, 2, 50]
    assert resumed.answers == [], "whoever asked for a flush is gone"


def test_an_unknown_version_is_refused() -> None:
    data = bytes(whole(driven_empty())).replace(b'"version":1', b'"version":9')
    with pytest.raises(CorruptStorageError, match="version 9; this release reads 1"):
        decode_state(pa.py_buffer(data))


def driven_empty() -> QueueState:
    queue = driven([0], aligned_seconds_max=math.inf)
    queue.handle(BarrierCame(0, Barrier(1, 1)))
    return queue.captured[1]
