"""The merge against taking the least row again and again, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.shuffle.marks import BEGINNING, IDLE, Mark, MarkKind
from penstock.shuffle.queue.merge import FEW_PARTS, SAMPLES, Merge

Row = tuple[int, int, int]
"""Stream, part and row."""


def due(key: int) -> Mark:
    return Mark(MarkKind.DUE, key)


def delayed(key: int) -> Mark:
    return Mark(MarkKind.DELAYED, key)


@dataclass
class OneByOne:
    """The rule for one row: the least head of the lane whose turn it is, if no promise of another
    stream is below it."""

    lanes: list[int]
    heads: list[list[list[tuple[int, Row]]]] = field(default_factory=list)
    """By stream, the queues of its bindings."""
    marks: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.heads = [[[], []] for _ in self.lanes]
        self.marks = [BEGINNING for _ in self.lanes]

    def next(self) -> Row | None:
        for lane in sorted(set(self.lanes)):
            streams = [s for s, of in enumerate(self.lanes) if of == lane]
            rows = [queue for s in streams for queue in self.heads[s] if queue]
            if not rows and all(self.marks[s].kind != MarkKind.DUE for s in streams):
                continue
            limits = [self.marks[s].key for s in streams if self.marks[s].kind != MarkKind.IDLE]
            if not rows:
                return None
            least = min(rows, key=lambda queue: (queue[0][0], queue[0][1]))
            if any(limit < least[0][0] for limit in limits):
                return None
            return least.pop(0)[1]
        return None


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int, int, list[int]]]]:
    """What streams say, each true to its promises."""
    lanes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    promised = [0] * len(lanes)
    greatest = [0] * len(lanes)
    said: list[tuple[str, int, int, list[int]]] = []
    for _ in range(draw(st.integers(1, 25))):
        stream = draw(st.integers(0, len(lanes) - 1))
        what = draw(st.sampled_from(["rows", "rows", "due", "delayed", "idle", "take"]))
        if what == "rows":
            steps = draw(st.lists(st.integers(-3, 5), min_size=1, max_size=6))
            keys = (promised[stream] + 3 + np.cumsum(steps)).clip(promised[stream]).tolist()
            said.append((what, stream, draw(st.integers(0, 1)), keys))
            greatest[stream] = max(greatest[stream], *keys)
        elif what in ("due", "delayed"):
            greatest[stream] += draw(st.integers(0, 6))
            promised[stream] = greatest[stream]
            said.append((what, stream, promised[stream], []))
        else:
            said.append((what, stream, draw(st.integers(1, 5)), []))
    return lanes, said


@given(stories())
def test_rows_come_in_the_order_of_one_by_one(
    story: tuple[list[int], list[tuple[str, int, int, list[int]]]],
) -> None:
    lanes, said = story
    merge: Merge[tuple[int, int]] = Merge(lanes)
    model = OneByOne(lanes)
    reached: dict[tuple[int, int], int] = {}
    parts = 0
    taken: list[Row] = []
    expected: list[Row] = []
    for what, stream, number, keys in [*said, ("take", 0, 100, [])]:
        match what:
            case "rows":
                parts += 1
                merge.append(
                    stream, number, (stream, parts), np.array(keys, np.uint64), 10 * len(keys)
                )
                for row, key in enumerate(keys):
                    reached[stream, number] = max(key, reached.get((stream, number), 0))
                    model.heads[stream][number].append(
                        (reached[stream, number], (stream, parts, row))
                    )
            case "take":
                while (merged := merge.take(number, 10**9)) is not None:
                    rows = [
                        (*part.part, row)
                        for part in merged.parts
                        for row in range(part.begin, part.end)
                    ]
                    assert merged.rows == len(rows)
                    order = range(len(rows)) if merged.order is None else merged.order.tolist()
                    assert sorted(order) == list(range(len(rows)))
                    taken += [rows[place] for place in order]
                while (least := model.next()) is not None:
                    expected.append(least)
            case _:
                kind = {"due": MarkKind.DUE, "delayed": MarkKind.DELAYED, "idle": MarkKind.IDLE}
                mark = Mark(kind[what], number) if what != "idle" else IDLE
                merge.mark(stream, mark)
                model.marks[stream] = mark
    assert taken == expected
    waiting = sum(len(queue) for stream in model.heads for queue in stream)
    assert merge.waiting_rows == waiting
    assert sum(part.rows for s in range(len(lanes)) for part in merge.waiting(s)) == waiting


def test_a_lower_lane_waits_for_a_higher_one() -> None:
    merge: Merge[str] = Merge([0, 1])
    merge.append(1, 0, "low", np.array([1], np.uint64), 8)
    merge.mark(1, IDLE)
    assert merge.take(10, 1000) is None, "the higher lane has promised nothing"
    assert merge.held_by() == [0]
    merge.mark(0, due(100))
    assert merge.take(10, 1000) is None, "it may still send"
    merge.mark(0, delayed(100))
    merged = merge.take(10, 1000)
    assert merged is not None, "what it will send is not old enough"
    assert merged.parts[0].part == "low"


def test_a_delayed_row_holds_up_later_ones_of_its_lane() -> None:
    merge: Merge[str] = Merge([0, 0])
    merge.append(1, 0, "later", np.array([7], np.uint64), 8)
    merge.mark(1, IDLE)
    merge.mark(0, delayed(6))
    assert merge.take(10, 1000) is None
    merge.mark(0, delayed(7))
    assert merge.take(10, 1000) is not None, "an equal one is not held up"


def test_a_block_is_cut_at_a_key() -> None:
    merge: Merge[str] = Merge([0, 0])
    merge.append(0, 0, "odd", np.arange(1, 20, 2, dtype=np.uint64), 1000)
    merge.append(1, 0, "even", np.arange(0, 20, 2, dtype=np.uint64), 1000)
    merge.mark(0, IDLE)
    merge.mark(1, IDLE)
    sizes = []
    while (merged := merge.take(1000, 500)) is not None:
        sizes.append(merged.rows)
    assert sizes == [5, 5, 5, 5]


@pytest.mark.parametrize("streams", [1, 2, FEW_PARTS, FEW_PARTS + 1])
def test_blocks_are_nearly_full(streams: int) -> None:
    chance = np.random.default_rng(streams)
    merge: Merge[int] = Merge([0] * streams)
    everything = []
    for stream in range(streams):
        keys = np.sort(chance.integers(0, 2**40, 5_000).astype(np.uint64))
        merge.append(stream, 0, stream, keys, 100 * len(keys))
        merge.mark(stream, IDLE)
        everything.append(keys)
    found, sizes = [], []
    while (merged := merge.take(4_000, 100 * 1_000)) is not None:
        keys = np.concatenate(
            [everything[part.part][part.begin : part.end] for part in merged.parts]
        )
        found.append(keys if merged.order is None else keys[merged.order])
        sizes.append(merged.rows)
    assert max(sizes) <= 1_000
    assert min(sizes[:-1]) > 1_000 * (1 - 2 / SAMPLES)
    assert np.array_equal(np.concatenate(found), np.sort(np.concatenate(everything)))


def test_rows_of_one_key_are_one_block() -> None:
    merge: Merge[str] = Merge([0, 0])
    for stream in range(2):
        merge.append(stream, 0, "part", np.full(100, 7, np.uint64), 100)
        merge.mark(stream, IDLE)
    merged = merge.take(10, 1000)
    assert merged is not None
    assert merged.rows == 200
    assert merge.take(10, 1000) is None


def test_a_broken_promise_is_refused() -> None:
    merge: Merge[str] = Merge([0])
    merge.append(0, 0, "part", np.array([5], np.uint64), 8)
    with pytest.raises(RemoteProtocolError, match="key 4 on, and has sent 5"):
        merge.mark(0, due(4))


def test_an_ended_stream_holds_nobody_up() -> None:
    merge: Merge[str] = Merge([0, 0])
    merge.append(0, 0, "part", np.array([5], np.uint64), 8)
    merge.mark(0, due(9))
    assert merge.take(10, 1000) is None
    merge.end(1)
    assert merge.take(10, 1000) is not None


def test_rows_without_a_clock_stay_in_their_place() -> None:
    merge: Merge[str] = Merge([0, 0])
    merge.append(0, 0, "before", np.array([5, 9], np.uint64), 8)
    merge.append_marking(0, 0, "rollback", 1)
    merge.append(0, 0, "after", np.array([6], np.uint64), 8)
    merge.append(1, 0, "other", np.array([7, 9, 10], np.uint64), 8)
    merge.mark(0, IDLE)
    merge.mark(1, IDLE)
    merged = merge.take(100, 1000)
    assert merged is not None
    assert merged.order is not None
    rows = [part.part for part in merged.parts for _ in range(part.begin, part.end)]
    assert [rows[place] for place in merged.order] == [
        "before", "other", "before", "rollback", "after", "other", "other",
    ]  # fmt: skip
