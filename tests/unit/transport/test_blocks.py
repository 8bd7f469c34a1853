"""Lent memory: used again, but never while anybody can still see what was read into it."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transport.carriers import blocks as blocks_module
from penstock.transport.carriers.blocks import BLOCK_BYTES_MIN, FREE_BYTES_MAX, Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""


def as_slice(buffer: pa.Buffer) -> Callable[[], int]:
    part = buffer.slice(buffer.size // 2)
    return lambda: part.to_pybytes()[0]


def as_column(buffer: pa.Buffer) -> Callable[[], int]:
    column = pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer]).slice(1, 5)
    batch = pa.record_batch([column], ["n"])
    return lambda: int(batch.column(0)[2].as_py())


def as_numpy(buffer: pa.Buffer) -> Callable[[], int]:
    numbers = np.frombuffer(memoryview(buffer), np.uint8)[3:9]
    return lambda: int(numbers[1])


def as_view(buffer: pa.Buffer) -> Callable[[], int]:
    view = memoryview(buffer)[:4]
    return lambda: bytes(view)[0]


KEPT = [as_slice, as_column, as_numpy, as_view]


@given(
    st.lists(
        st.tuples(st.integers(8, 400), st.none() | st.sampled_from(KEPT), st.integers(0, 5)),
        max_size=40,
    )
)
def test_what_somebody_keeps_does_not_change(
    loans: list[tuple[int, Callable[[pa.Buffer], Callable[[], int]] | None, int]],
) -> None:
    """Each loan is written full of its number; some are kept in some way, some of those dropped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES_MIN", 50)
        patch.setattr(blocks_module, "FREE_BYTES_MAX", 1_000)
        blocks = Blocks()
        kept: list[tuple[int, Callable[[], int]]] = []
        for number, (size, keep, drop) in enumerate(loans):
            view, buffer = blocks.lend(size)
            assert len(view) == buffer.size == size
            view.cast("B")[:] = bytes([number]) * size
            if keep is not None:
                kept.append((number, keep(buffer)))
            del view, buffer, keep
            del kept[:drop]
            for expected, look in kept:
                assert look() == expected


def test_memory_is_used_again_once_nobody_looks() -> None:
    blocks = Blocks()
    _, first = blocks.lend(BLOCK_BYTES_MIN)
    _, second = blocks.lend(BLOCK_BYTES_MIN)
    assert first.address != second.address
    address = first.address
    kept = first.slice(10, 1)
    del first
    gc.collect()
    assert blocks.lend(BLOCK_BYTES_MIN)[1].address != address
    del kept
    gc.collect()
    addresses = set()
    lent = []
    for _ in range(3):
        lent.append(blocks.lend(BLOCK_BYTES_MIN)[1])
        addresses.add(lent[-1].address)
    assert address in addresses
    assert len(addresses) == 3


def test_a_block_that_is_far_too_large_is_not_used() -> None:
    blocks = Blocks()
    for size, fits in ((2 * BLOCK_BYTES_MIN, False), (7 * BLOCK_BYTES_MIN // 2, True)):
        _, buffer = blocks.lend(4 * BLOCK_BYTES_MIN)
        address = buffer.address
        del buffer
        assert (blocks.lend(size)[1].address == address) == fits


def test_little_is_kept_free() -> None:
    blocks = Blocks()
    lent = [blocks.lend(BLOCK_BYTES_MIN) for _ in range(2 * FREE_BYTES_MAX // BLOCK_BYTES_MIN)]
    lent.clear()
    gc.collect()
    assert sum(block.size for block in blocks._free) <= FREE_BYTES_MAX


def test_loans_may_end_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES_MIN", 50)
    blocks = Blocks()

    def look(buffer: pa.Buffer, number: int) -> int:
        chance = random.Random(number)
        parts = [buffer.slice(chance.randrange(1_000), 1) for _ in range(5)]
        del buffer
        return sum(part.to_pybytes() != bytes([number % 251]) for part in parts)

    with ThreadPoolExecutor(3) as pool:
        looking = []
        for number in range(2_000):
            view, buffer = blocks.lend(1_000 + number % 7)
            view.cast("B")[:] = bytes([number % 251]) * len(view)
            looking.append(pool.submit(look, buffer, number))
            del view, buffer
        assert sum(future.result(WAIT_SECONDS_MAX) for future in looking) == 0
