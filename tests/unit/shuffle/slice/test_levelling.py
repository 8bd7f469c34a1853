"""How much of each read a round takes."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.slice import levelling
from penstock.shuffle.slice.clocks import keys_of
from penstock.shuffle.slice.levelling import Levels, cut, gather
from penstock.shuffle.slice.reads import Buffered, Piece, Read
from penstock.shuffle.slice.states import ReadStates
from tests.unit.shuffle.slice.model import binding


def buffered(keys: list[int], row_bytes: float = 100.0, columns: int = 1) -> Buffered:
    count = len(keys)
    return Buffered(
        offsets=np.arange(count),
        ends=np.arange(count) + 1,
        next_offset=count,
        producers=np.zeros(count, np.int64),
        clocks=np.array(keys, np.uint64),
        times=np.array(keys, np.uint64),
        flags=np.zeros(count, np.uint16),
        documents=pa.record_batch({f"c{at}": pa.nulls(count) for at in range(columns)}),
        hints={},
        keys=np.array(keys, np.uint64),
        row_bytes=row_bytes,
    )


def read_of(place: int, *batches: Buffered, behind: bool = False) -> Read:
    read = Read(place, binding(), f"j{place}", 0, ReadStates({}))
    read.place = place
    read.buffer.extend(batches)
    read.write_head = read.buffered_offset + behind
    return read


def pieces_of(rng: random.Random) -> list[Piece]:
    pieces = []
    sizes = rng.choice(((1.0, 10.0, 500.0), (9.0, 10.0)))
    for place in range(rng.randint(1, 6)):
        last, batches = 0, []
        for _ in range(rng.randint(1, 3)):
            top = rng.choice((0, 3, 50))
            keys = sorted(last + rng.randint(0, top) for _ in range(rng.randint(1, 60)))
            last = keys[-1]
            batches.append(buffered(keys, rng.choice(sizes)))
        read = read_of(place, *batches)
        pieces += [Piece(read, batch, 0, len(batch.keys)) for batch in batches]
    return pieces


@given(st.integers(0, 2**32), st.integers(1, 120), st.integers(1, 5000))
@settings(max_examples=400)
def test_a_round_is_the_first_rows_by_key_and_fits(
    seed: int, rows_max: int, bytes_max: int
) -> None:
    pieces = pieces_of(random.Random(seed))
    counts = cut(pieces, rows_max, bytes_max)
    rows = sum(counts)
    size = sum(c * p.batch.row_bytes for c, p in zip(counts, pieces, strict=True))
    assert rows >= 1
    assert rows <= rows_max
    assert rows == 1 or size <= bytes_max
    taken = [int(p.keys[c - 1]) for c, p in zip(counts, pieces, strict=True) if c]
    left = [int(p.keys[c]) for c, p in zip(counts, pieces, strict=True) if c < p.rows]
    assert not left or max(taken) <= min(left)
    for before, after, count, following in zip(
        pieces, pieces[1:], counts, counts[1:], strict=False
    ):
        assert before.read is not after.read or not following or count == before.rows
    everything = sum(piece.rows for piece in pieces)
    if everything <= rows_max and sum(p.rows * p.batch.row_bytes for p in pieces) <= bytes_max:
        assert rows == everything


def test_a_full_round_leaves_out_little() -> None:
    rng = random.Random(7)
    pieces = []
    for place in range(50):
        batch = buffered(sorted(rng.randrange(10**6) for _ in range(4000)))
        pieces.append(Piece(read_of(place, batch), batch, 0, 4000))
    assert 49_000 <= sum(cut(pieces, 65_536, 10**9)) <= 65_536
    assert 7_000 <= sum(cut(pieces, 65_536, 1_000_000)) <= 10_000
    for piece in pieces[:25]:
        piece.batch.row_bytes = 300.0
    assert 3_500 <= sum(cut(pieces, 65_536, 1_000_000)) <= 5_000


def test_keys_never_fall_and_stop_at_the_end_of_time() -> None:
    clocks = np.array([5, 3, 9, 2**64 - 2], np.uint64)
    assert keys_of(clocks, 10, 0).tolist() == [15, 15, 19, 2**64 - 1]
    assert keys_of(clocks, 0, 7).tolist() == [7, 7, 9, 2**64 - 2]
    assert clocks.tolist() == [5, 3, 9, 2**64 - 2]


@pytest.mark.parametrize("reads_count", [1, 70])
def test_nothing_goes_beyond_the_horizon(reads_count: int) -> None:
    levels = Levels()
    reads = [read_of(levels.add(), buffered([10, 20 + at])) for at in range(reads_count)]
    behind = read_of(levels.add(), buffered([12, 15]), behind=True)
    for read in [*reads, behind]:
        levels.update(read)
    assert levels.horizon() == 15
    assert not levels.is_deferred
    assert levels.least_head() == 10
    assert levels.due(11) == list(range(reads_count))
    assert levels.due(12) == list(range(reads_count + 1))
    assert levels.mark(10, 0, False) == Mark(MarkKind.DUE, 10)
    assert levels.mark(9, 0, False) == Mark(MarkKind.DELAYED, 10)
    assert levels.mark(10, 4, True) == Mark(MarkKind.DUE, 4)
    behind.buffer.clear()
    levels.update(behind)
    assert levels.is_deferred
    assert levels.mark(10, 8, False) == Mark(MarkKind.DUE, 8)


def test_without_reads_a_slice_is_idle() -> None:
    levels = Levels()
    assert levels.mark(5, 3, False) == IDLE
    assert levels.horizon() == 2**64 - 1


def test_rows_of_a_later_schema_wait_for_the_next_round_and_are_not_overtaken() -> None:
    changing = read_of(0, buffered([1, 5]), buffered([6, 9], columns=2))
    other = read_of(1, buffered([2, 6, 7, 8]))
    pieces = gather([changing, other], 100, {})
    assert [piece.keys.tolist() for piece in pieces] == [[1, 5], [2, 6]]


def test_of_many_reads_none_offers_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levelling, "ROUND_ROWS_MAX", 16)
    dense = read_of(0, buffered([1, 2]), buffered([3, 4]), buffered([5, 6]))
    others = [read_of(place, buffered([1, 4, 9])) for place in range(1, 9)]
    pieces = gather([dense, *others], 100, {})
    assert pieces[0].keys.tolist() == [1, 2]
    assert all(piece.keys.tolist() == [1] for piece in pieces[1:])
    assert [piece.keys.tolist() for piece in gather([dense], 100, {})] == [[1, 2], [3, 4], [5, 6]]
