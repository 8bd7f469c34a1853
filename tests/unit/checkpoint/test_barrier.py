"""Barriers keep their bytes and their flags."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint.barrier import BARRIER_BYTES, Barrier, Event, Flags, Watermark
from penstock.errors import LocalProtocolError, RemoteProtocolError

U64_MAX = 2**64 - 1
u64s = st.integers(0, U64_MAX) | st.sampled_from([0, 1, U64_MAX])


def test_the_bytes_are_three_numbers_lowest_byte_first() -> None:
    assert Barrier(1, 0x0203, 0x80 << 56).to_bytes() == (
        b"\x01\0\0\0\0\0\0\0" + b"\x03\x02\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x80"
    )


@given(u64s, u64s, u64s)
def test_bytes_there_and_back(checkpoint: int, epoch: int, flags: int) -> None:
    barrier = Barrier(checkpoint, epoch, flags)
    data = barrier.to_bytes()
    assert len(data) == BARRIER_BYTES == 24
    assert Barrier.from_bytes(data) == barrier
    assert Barrier.from_bytes(memoryview(bytearray(data))) == barrier
    assert pickle.loads(pickle.dumps(barrier)) == barrier


@pytest.mark.parametrize("size", [0, 8, 23, 25, 48])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a barrier has 24 bytes, not {size}"):
        Barrier.from_bytes(bytes(size))


def test_a_view_is_measured_in_bytes() -> None:
    data = Barrier(1, 2, 3).to_bytes()
    assert Barrier.from_bytes(memoryview(data).cast("Q")) == Barrier(1, 2, 3)
    with pytest.raises(RemoteProtocolError, match="not 192"):
        Barrier.from_bytes(memoryview(bytes(192)).cast("Q"))


@pytest.mark.parametrize("value", [-1, U64_MAX + 1])
def test_numbers_fit_their_bytes(value: int) -> None:
    for place, name in enumerate(("checkpoint", "epoch", "flags")):
        numbers = [0, 0, 0]
        numbers[place] = value
        with pytest.raises(LocalProtocolError, match=f"{name} {value} is outside of 0 to"):
            Barrier(*numbers)


def test_each_flag_has_its_bit() -> None:
    assert {flag.name: flag.value for flag in Flags} == {
        "FULL_SNAPSHOT": 1,
        "DRAIN": 2,
        "CANCEL": 4,
        "UNALIGNED": 8,
    }
    for flag in Flags:
        barrier = Barrier(1, 1, flag)
        asked = {
            Flags.FULL_SNAPSHOT: barrier.is_full_snapshot,
            Flags.DRAIN: barrier.is_drain,
            Flags.CANCEL: barrier.is_cancel,
            Flags.UNALIGNED: barrier.is_unaligned,
        }
        assert [each for each, is_set in asked.items() if is_set] == [flag]


@given(u64s, st.sampled_from(list(Flags)))
def test_a_flag_is_added_and_the_others_stay(flags: int, flag: Flags) -> None:
    barrier = Barrier(1, 2, flags)
    assert barrier.flagged(flag) == Barrier(1, 2, flags | int(flag))
    assert type(barrier.flagged(flag).flags) is int
    assert barrier == Barrier(1, 2, flags)


def test_messages_are_values() -> None:
    assert Event("a") == Event("a") != Event("b")
    assert Watermark(5) == Watermark(5) != Watermark(6)
    with pytest.raises(FrozenInstanceError):
        Watermark(5).clock = 6  # type: ignore[misc]
