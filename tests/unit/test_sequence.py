"""Sequencing: the rule against its table, and whole batches against the rule."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.ids import CLOCK_MAX, Producer
from penstock.sequence import (
    UNSEEN,
    AckPartialCommitError,
    Fault,
    Outcome,
    OutsideWithPrecedingContinueError,
    ProducerState,
    Sequenced,
    SequenceFaultError,
    grouped,
    sequence,
    sequence_batch,
    sequence_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

O, C, A = 0, 1, 2  # noqa: E741 - the columns of a table
P: Final = Producer.from_hex("010000000001").int64
Q: Final = Producer.from_hex("ff0000000002").int64
Row: TypeAlias = tuple[int, int, int]
"""Producer, flags, clock."""

KEPT: Final = {Outcome.OUTSIDE_COMMIT, Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND}
ROLLBACKS: Final = {Outcome.ACK_CLEAN_ROLLBACK, Outcome.ACK_DEEP_ROLLBACK}
CLOSES: Final = {Outcome.OUTSIDE_COMMIT, Outcome.ACK_COMMIT, Outcome.ACK_EMPTY, *ROLLBACKS}


# The rule

VECTORS: Final = [
    ((O, 10, 5, 0), (Outcome.OUTSIDE_COMMIT, 10, 0)),
    ((O, 10, 10, 0), (Outcome.OUTSIDE_DUPLICATE, 10, 0)),
    ((O, 5, 10, 0), (Outcome.OUTSIDE_DUPLICATE, 10, 0)),
    ((C, 10, 5, 0), (Outcome.CONTINUE_BEGIN, 5, 10)),
    ((C, 20, 5, 10), (Outcome.CONTINUE_EXTEND, 5, 20)),
    ((C, 10, 5, 10), (Outcome.CONTINUE_DUPLICATE, 5, 10)),
    ((C, 8, 5, 10), (Outcome.CONTINUE_DUPLICATE, 5, 10)),
    ((C, 5, 10, 0), (Outcome.CONTINUE_DUPLICATE, 10, 0)),
    ((C, 10, 10, 0), (Outcome.CONTINUE_DUPLICATE, 10, 0)),
    ((A, 20, 5, 20), (Outcome.ACK_COMMIT, 20, 0)),
    ((A, 30, 5, 20), (Outcome.ACK_COMMIT, 30, 0)),
    ((A, 20, 10, 0), (Outcome.ACK_EMPTY, 20, 0)),
    ((A, 10, 10, 0), (Outcome.ACK_DUPLICATE, 10, 0)),
    ((A, 10, 10, 20), (Outcome.ACK_CLEAN_ROLLBACK, 10, 0)),
    ((A, 3, 10, 0), (Outcome.ACK_DUPLICATE, 10, 0)),
    ((A, 3, 10, 20), (Outcome.ACK_DEEP_ROLLBACK, 10, 0)),
    # A gapped producer: its span is open, its documents are not known.
    ((C, 10, 10, 10), (Outcome.CONTINUE_DUPLICATE, 10, 10)),
    ((C, 11, 10, 10), (Outcome.CONTINUE_EXTEND, 10, 11)),
    ((A, 11, 10, 10), (Outcome.ACK_COMMIT, 11, 0)),
    ((A, 10, 10, 10), (Outcome.ACK_CLEAN_ROLLBACK, 10, 0)),
    ((A, 9, 10, 10), (Outcome.ACK_DEEP_ROLLBACK, 10, 0)),
]
FAULT_VECTORS: Final[list[tuple[tuple[int, int, int, int], type[SequenceFaultError]]]] = [
    ((O, 20, 5, 15), OutsideWithPrecedingContinueError),
    ((O, 3, 5, 15), OutsideWithPrecedingContinueError),
    ((O, 11, 10, 10), OutsideWithPrecedingContinueError),
    ((A, 15, 5, 20), AckPartialCommitError),
]


@pytest.mark.parametrize(("given_", "expected"), VECTORS)
def test_vectors(given_: tuple[int, int, int, int], expected: tuple[Outcome, int, int]) -> None:
    flags, clock, last_commit, max_continue = given_
    assert sequence(flags, clock, last_commit, max_continue) == expected
    states = {P: ProducerState(last_commit, max_continue, 7)}
    result = batch([(P, flags, clock)], states, first=100)
    outcome, new_commit, new_continue = expected
    assert result.outcomes.tolist() == [outcome]
    offset = -101 if outcome in CLOSES else 100 if outcome is Outcome.CONTINUE_BEGIN else 7
    assert result.states == {P: ProducerState(new_commit, new_continue, offset)}
    assert result.fault is None


@pytest.mark.parametrize(("given_", "error"), FAULT_VECTORS)
def test_fault_vectors(given_: tuple[int, int, int, int], error: type[SequenceFaultError]) -> None:
    flags, clock, last_commit, max_continue = given_
    with pytest.raises(error) as caught:
        sequence(flags, clock, last_commit, max_continue)
    assert caught.value.args == (clock, last_commit, max_continue, None)
    states = {P: ProducerState(last_commit, max_continue, 7)}
    result = batch([(P, flags, clock)], states, first=100)
    assert result.count == 0
    assert result.states == states
    assert result.fault == Fault(0, 100, P, clock, last_commit, max_continue, error)


Condition: TypeAlias = Callable[[int, int, int], bool]
Result: TypeAlias = Callable[[int, int, int], tuple[int, int]]
# c is the document's clock, p its producer's last commit, x its max continue. First match.
TABLE: Final[list[tuple[int, Condition, Outcome | type[SequenceFaultError], Result]]] = [
    (O, lambda _c, _p, x: x != 0, OutsideWithPrecedingContinueError, lambda _c, p, x: (p, x)),
    (O, lambda c, p, _x: c <= p, Outcome.OUTSIDE_DUPLICATE, lambda _c, p, x: (p, x)),
    (O, lambda _c, _p, _x: True, Outcome.OUTSIDE_COMMIT, lambda c, _p, _x: (c, 0)),
    (C, lambda c, p, x: c <= p or c <= x, Outcome.CONTINUE_DUPLICATE, lambda _c, p, x: (p, x)),
    (C, lambda _c, _p, x: x == 0, Outcome.CONTINUE_BEGIN, lambda c, p, _x: (p, c)),
    (C, lambda _c, _p, _x: True, Outcome.CONTINUE_EXTEND, lambda c, p, _x: (p, c)),
    (A, lambda c, p, x: c == p and x == 0, Outcome.ACK_DUPLICATE, lambda _c, p, _x: (p, 0)),
    (A, lambda c, p, x: c == p and x != 0, Outcome.ACK_CLEAN_ROLLBACK, lambda _c, p, _x: (p, 0)),
    (A, lambda c, p, x: c < p and x == 0, Outcome.ACK_DUPLICATE, lambda _c, p, _x: (p, 0)),
    (A, lambda c, p, x: c < p and x != 0, Outcome.ACK_DEEP_ROLLBACK, lambda _c, p, _x: (p, 0)),
    (A, lambda c, p, x: c > p and x == 0, Outcome.ACK_EMPTY, lambda c, _p, _x: (c, 0)),
    (A, lambda c, p, x: c > p and x <= c, Outcome.ACK_COMMIT, lambda c, _p, _x: (c, 0)),
    (A, lambda c, p, x: p < c < x, AckPartialCommitError, lambda _c, p, x: (p, x)),
]


@pytest.mark.parametrize("extra_bits", [0, 4, 0x8000])
def test_every_transition_of_the_table(extra_bits: int) -> None:
    used = set()
    for kind_bits in range(4):
        kind = C if kind_bits == 3 else kind_bits
        for clock in range(6):
            for last_commit in range(6):
                for max_continue in (0, *range(max(last_commit, 1), 7)):
                    index, expected, after = next(
                        (index, expected, result(clock, last_commit, max_continue))
                        for index, (row_kind, condition, expected, result) in enumerate(TABLE)
                        if row_kind == kind and condition(clock, last_commit, max_continue)
                    )
                    used.add(index)
                    given_ = (kind_bits | extra_bits, clock, last_commit, max_continue)
                    if isinstance(expected, Outcome):
                        assert sequence(*given_) == (expected, *after), given_
                    else:
                        with pytest.raises(expected):
                            sequence(*given_)
    assert used == set(range(len(TABLE)))


# Batches, told as stories


def batch(
    rows: list[Row], states: Mapping[int, ProducerState] | None = None, first: int = 0
) -> Sequenced:
    """Sequences a batch both ways, and returns the one result."""
    columns = Columns.of(rows, np.arange(first, first + len(rows), dtype=np.int64))
    result = columns.sequence(sequence_batch, states or {})
    assert_same(result, columns.sequence(sequence_rows, states or {}))
    return result


def test_empty_batch_carries_states_over() -> None:
    states = {P: ProducerState(5, 9, 3)}
    result = batch([], states)
    assert result.count == 0
    assert result.states == states
    assert result.states is not states


def test_transactions_of_two_producers_interleave() -> None:
    rows = [(P, C, 10), (Q, O, 7), (P, C, 11), (Q, C, 8), (P, A, 11), (Q, A, 7), (P, C, 11)]
    result = batch(rows, {9 << 16: UNSEEN}, first=50)
    assert [Outcome(outcome).name for outcome in result.outcomes] == [
        "CONTINUE_BEGIN",
        "OUTSIDE_COMMIT",
        "CONTINUE_EXTEND",
        "CONTINUE_BEGIN",
        "ACK_COMMIT",
        "ACK_CLEAN_ROLLBACK",
        "CONTINUE_DUPLICATE",
    ]
    assert result.keep.tolist() == [True, True, True, True, False, False, False]
    assert result.closes.tolist() == [1, 4, 5]
    assert result.discards.rows.tolist() == [5]
    assert result.discards.producers.tolist() == [Q]
    assert result.discards.after.tolist() == [7]
    assert result.discards.through.tolist() == [8]
    assert result.states == {
        9 << 16: UNSEEN,
        P: ProducerState(11, 0, -55),
        Q: ProducerState(7, 0, -56),
    }


def test_rollback_reaches_into_earlier_batches() -> None:
    before = batch([(P, O, 5), (P, C, 10), (P, C, 20)])
    result = batch([(P, C, 15), (P, C, 30), (P, A, 4)], before.states, first=3)
    assert result.discards.after.tolist() == [5]
    assert result.discards.through.tolist() == [30]
    assert result.states == {P: ProducerState(5, 0, -6)}


def test_rollback_of_a_span_that_is_only_known_from_its_state() -> None:
    result = batch([(P, A, 5)], {P: ProducerState(5, 20, 1)}, first=3)
    assert result.discards.after.tolist() == [5]
    assert result.discards.through.tolist() == [20]


def test_gapped_producer_stays_open_on_duplicates() -> None:
    states = {P: ProducerState(10, 10, 4)}
    result = batch([(P, C, 9), (P, C, 10)], states)
    assert result.states == states
    fault = batch([(P, C, 9), (P, O, 11)], states).fault
    assert fault is not None
    assert fault.error is OutsideWithPrecedingContinueError


def test_duplicates_make_no_producer_known() -> None:
    result = batch([(P, O, 0), (P, O, 1), (Q, A, 1), (Q, C, 0)])
    assert result.states == {}
    assert not result.keep.any()


def test_batch_stops_at_the_first_fault_of_any_producer() -> None:
    rows = [(Q, C, 10), (P, C, 5), (P, O, 6), (Q, A, 9), (P, A, 5)]
    result = batch(rows, first=10)
    assert result.count == 2
    assert result.fault == Fault(2, 12, P, 6, 1, 5, OutsideWithPrecedingContinueError)
    assert result.states == {Q: ProducerState(1, 10, 10), P: ProducerState(1, 5, 11)}
    with pytest.raises(OutsideWithPrecedingContinueError) as caught:
        result.raise_fault("orders/eu")
    assert "journal orders/eu at offset 12: producer 010000000001" in str(caught.value)
    batch(rows[:2]).raise_fault("orders/eu")


@pytest.mark.parametrize("rows", [[(P, C, 5), (P, O, 6)], [(P, C, 5), (P, A, 4)]])
def test_faults_pickle_and_tell_what_to_do(rows: list[Row]) -> None:
    with pytest.raises(SequenceFaultError) as caught:
        batch(rows).raise_fault("orders/eu")
    assert isinstance(caught.value, RemoteProtocolError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert copy.args == caught.value.args
    assert str(copy) == str(caught.value)
    assert "journal orders/eu at offset 1" in str(copy)
    assert "Its writer must ACK" in str(copy)
    assert (copy.clock, copy.last_commit, copy.max_continue) == (rows[1][2], 1, 5)
    with pytest.raises(SequenceFaultError, match=r"^a producer "):
        sequence(rows[1][1], rows[1][2], 1, 5)


def test_results_pickle() -> None:
    result = batch([(P, C, 5), (P, O, 6)])
    assert_same(pickle.loads(pickle.dumps(result)), result)


@pytest.mark.parametrize(
    ("last_commit", "max_continue"), [(5, 4), (-1, 0), (CLOCK_MAX + 1, 0), (1, CLOCK_MAX + 1)]
)
def test_impossible_states_are_refused(last_commit: int, max_continue: int) -> None:
    with pytest.raises(LocalProtocolError, match="no producer can be in this state"):
        ProducerState(last_commit, max_continue, 0)


def test_columns_of_other_types_are_refused() -> None:
    signed = np.zeros(1, np.int64)
    with pytest.raises(LocalProtocolError, match="the columns must be"):
        sequence_batch(signed, signed, signed, signed, signed, {})  # type: ignore[arg-type]


# Batches against the rule


def ends_of(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row ends where the next one begins: with steps between them, not at its offset + 1."""
    return np.append(offsets[1:], offsets[-1:] + 1)


@dataclass(frozen=True, slots=True)
class Columns:
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    producers: NDArray[np.int64]
    clocks: NDArray[np.uint64]
    flags: NDArray[np.uint16]

    @classmethod
    def of(cls, rows: list[Row], offsets: NDArray[np.int64]) -> Columns:
        return cls(
            offsets,
            ends_of(offsets),
            np.array([producer for producer, _, _ in rows], np.int64),
            np.array([clock for _, _, clock in rows], np.uint64),
            np.array([flags for _, flags, _ in rows], np.uint16),
        )

    def part(self, begin: int, end: int) -> Columns:
        return Columns(*(getattr(self, field.name)[begin:end] for field in fields(self)))

    def sequence(
        self, form: Callable[..., Sequenced], states: Mapping[int, ProducerState]
    ) -> Sequenced:
        return form(self.offsets, self.ends, self.producers, self.clocks, self.flags, states)


@dataclass(frozen=True, slots=True)
class Stream:
    columns: Columns
    states: dict[int, ProducerState]


LEVEL_MAX: Final = 12
ROWS_MAX: Final = 48
FLAGS: Final = ((0, 4, 0x8000), (1, 3, 0x8001), (2, 6, 0x8002))
# Order-preserving ways to make a clock of a small level: bare, in a narrow range far from zero, at
# the end of the clocks, and so far apart that only ranks fit beside a segment number.
SCALES: Final[list[Callable[[int], int]]] = [
    lambda level: level,
    lambda level: level + 0x1E9C_C5F8_3FC2_F810,
    lambda level: level + CLOCK_MAX - 2 * (LEVEL_MAX + ROWS_MAX),
    lambda level: level * (CLOCK_MAX // (2 * (LEVEL_MAX + ROWS_MAX))),
]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A few producers interleaved, whose clocks collide a lot, after any states."""
    scale = draw(st.sampled_from(SCALES))
    is_ascending, drift = draw(st.sampled_from([(False, 0), (False, 1), (True, 1)]))
    pool = [
        Producer(bytes([number * 37 % 256, 0, 0, 0, 0, number])).int64
        for number in range(draw(st.sampled_from([1, 2, 4, 40])))
    ]
    level = st.integers(0, LEVEL_MAX)
    states: dict[int, ProducerState] = {}
    for producer in draw(st.sets(st.sampled_from(pool))):
        begin, reach = draw(level), draw(st.integers(0, 4))
        last_commit = draw(st.sampled_from([scale(begin), scale(begin), 0, 1]))
        max_continue = draw(st.sampled_from([0, last_commit, scale(begin + reach)]))
        states[producer] = ProducerState(last_commit, max_continue, draw(st.integers(-99, 99)))
    allow_faults = draw(st.booleans())
    kinds = draw(st.sampled_from([(O,), (C, C, C, A), (O, C, C, A)]))
    row = st.tuples(
        st.sampled_from(pool), st.sampled_from(kinds), st.integers(0, 2), level, st.integers(0, 3)
    )
    rows = list[Row]()
    known = dict(states)
    drawn = draw(st.lists(row, min_size=draw(st.sampled_from([0, 15])), max_size=ROWS_MAX))
    for index, (producer, kind, variant, base, aim) in enumerate(drawn):
        state = known.get(producer, UNSEEN)
        flags = FLAGS[kind][variant]
        clock = scale(drift * index + (0 if is_ascending else base))
        if (
            aim == 0 and not is_ascending
        ):  # where most decisions are: exactly at the last commit or the end of the span
            clock = state.max_continue if base % 2 else state.last_commit
        try:
            _, last_commit, max_continue = sequence(
                flags, clock, state.last_commit, state.max_continue
            )
            known[producer] = ProducerState(last_commit, max_continue, 0)
        except SequenceFaultError:
            if not allow_faults:  # left alone, most streams would end here, after a few rows
                flags, clock = FLAGS[A][variant], max(clock, state.max_continue)
                known[producer] = ProducerState(clock, 0, 0)
        rows.append((producer, flags, clock))
    step = draw(st.sampled_from([1, 3]))
    first = draw(st.integers(0, 1_000))
    return Stream(Columns.of(rows, first + step * np.arange(len(rows), dtype=np.int64)), states)


def assert_same(result: Sequenced, expected: Sequenced) -> None:
    pairs = [
        (part, getattr(a, part), getattr(b, part))
        for a, b, parts in (
            (result, expected, ("outcomes", "keep", "closes")),
            (result.discards, expected.discards, ("rows", "producers", "after", "through")),
        )
        for part in parts
    ]
    for part, found, wanted in pairs:
        assert found.dtype == wanted.dtype, part
        assert found.tolist() == wanted.tolist(), part
    assert result.count == expected.count
    assert result.states == expected.states
    assert result.fault == expected.fault


@settings(max_examples=600)
@given(streams())
def test_batch_is_the_rule_row_by_row(stream: Stream) -> None:
    states = dict(stream.states)
    result = stream.columns.sequence(sequence_batch, states)
    assert states == stream.states
    assert_same(result, stream.columns.sequence(sequence_rows, states))


@pytest.mark.slow
@settings(max_examples=300)
@given(streams(), st.lists(st.integers(0, ROWS_MAX), max_size=4))
def test_batch_boundaries_do_not_matter(stream: Stream, cuts: list[int]) -> None:
    whole = stream.columns.sequence(sequence_batch, stream.states)
    states, count, fault = stream.states, 0, None
    outcomes, closes, discards = list[int](), list[int](), list[tuple[int, int, int, int]]()
    edges = [0, *sorted(cuts), max([ROWS_MAX, *cuts])]
    for begin, end in itertools.pairwise(edges):
        part = stream.columns.part(begin, end).sequence(sequence_batch, states)
        outcomes += part.outcomes.tolist()
        closes += (part.closes + begin).tolist()
        columns = (part.discards.producers, part.discards.after, part.discards.through)
        rows = (part.discards.rows + begin).tolist()
        discards += zip(rows, *(column.tolist() for column in columns), strict=True)
        states, count, fault = part.states, count + part.count, part.fault
        if fault is not None:
            fault = Fault(fault.row + begin, *(getattr(fault, f.name) for f in fields(fault)[1:]))
            break
    assert outcomes == whole.outcomes.tolist()
    assert closes == whole.closes.tolist()
    entries = (whole.discards.producers, whole.discards.after, whole.discards.through)
    assert discards == list(
        zip(whole.discards.rows.tolist(), *(entry.tolist() for entry in entries), strict=True)
    )
    assert (states, count, fault) == (whole.states, whole.count, whole.fault)


@settings(max_examples=300)
@given(streams())
def test_discards_are_exactly_the_documents_of_rolled_back_spans(stream: Stream) -> None:
    """Keeping and discarding as told leaves what a reader that holds spans back would store."""
    result = stream.columns.sequence(sequence_batch, {})
    producers, clocks = stream.columns.producers.tolist(), stream.columns.clocks.tolist()
    spans: dict[int, list[int]] = {}
    wanted: set[int] = set()
    for row, code in enumerate(result.outcomes.tolist()):
        outcome, producer = Outcome(code), producers[row]
        assert result.keep[row] == (outcome in KEPT)
        assert (row in result.closes) == (outcome in CLOSES)
        if outcome in KEPT:
            spans.setdefault(producer, []).append(row)
        if outcome in ROLLBACKS:
            spans.pop(producer)
        elif outcome in CLOSES:
            wanted |= set(spans.pop(producer, []))
    wanted |= {row for span in spans.values() for row in span}

    stored = set(np.flatnonzero(result.keep).tolist())
    discards = result.discards
    columns = (discards.rows, discards.producers, discards.after, discards.through)
    for at, producer, after, through in zip(*(column.tolist() for column in columns), strict=True):
        stored -= {
            row
            for row in stored
            if row < at and producers[row] == producer and after < clocks[row] <= through
        }
    assert stored == wanted


# The streams reach everything


@pytest.mark.slow
def test_streams_are_long_and_reach_every_outcome_and_fault() -> None:
    """Often enough that a thousand examples mean something."""
    seen: Counter[object] = Counter()

    @settings(max_examples=1000, database=None, derandomize=True)
    @given(streams())
    def count(stream: Stream) -> None:
        result = stream.columns.sequence(sequence_rows, stream.states)
        seen.update(Outcome(code) for code in set(result.outcomes.tolist()))
        seen["long"] += result.count >= 15
        seen["interleaved"] += len(set(stream.columns.producers[: result.count].tolist())) > 1
        seen["entering open"] += any(state.max_continue for state in stream.states.values())
        if result.fault is not None and result.fault.row >= 2:
            seen[result.fault.error] += 1

    count()
    wanted = [*Outcome, OutsideWithPrecedingContinueError, AckPartialCommitError]
    rare = {what: seen[what] for what in (*wanted, "entering open") if seen[what] < 10}
    assert not rare
    assert seen["long"] >= 60
    assert seen["interleaved"] >= 60


# The ways that large batches take


BEGIN: Final = 0x1E9C_C5F8_3FC2_F810
LARGE: Final = 8_192


def large_batch(number: int, producers: list[int]) -> Columns:
    """As in life: clocks move on, some rows are repeated, most ACKs commit, some roll back."""
    random = np.random.default_rng(number)
    offsets = np.arange(number * LARGE, (number + 1) * LARGE, dtype=np.int64)
    kinds = random.choice([C, C, C, C, C, A], LARGE)
    clocks = BEGIN + 160 * (10 + offsets + random.integers(-6, 3, LARGE))
    clocks[kinds == A] += 160 * 10
    clocks[(kinds == A) & (random.random(LARGE) < 0.1)] = BEGIN
    return Columns(
        offsets,
        ends_of(offsets),
        np.array(producers, np.int64)[random.integers(0, len(producers), LARGE)],
        clocks.astype(np.uint64),
        kinds.astype(np.uint16),
    )


@pytest.mark.parametrize("count", [1, 4, 60, 5_000])
def test_large_batches_of_many_producers(count: int) -> None:
    random = np.random.default_rng(1)
    producers = (random.integers(-(2**47), 2**47, count) << 16).tolist()
    hashes = (np.array(producers).view(np.uint64) * grouped._HASH_FACTOR >> 48).tolist()
    assert (len(set(hashes)) < count) == (count == 5_000), "only the last must sort all bytes"
    states = {producer: ProducerState(BEGIN, 0, -1) for producer in producers}
    for number in range(3):
        columns = large_batch(number, producers)
        result = columns.sequence(sequence_batch, states)
        assert_same(result, columns.sequence(sequence_rows, states))
        assert result.count == LARGE
        assert {Outcome.ACK_COMMIT, Outcome.CONTINUE_DUPLICATE} <= set(result.outcomes.tolist())
        assert len(result.discards.rows) > 5
        states = result.states


def test_many_outside_documents_with_and_without_duplicates() -> None:
    rows = [((P, Q)[index % 2], O, 100 + index) for index in range(1_000)]
    assert (batch(rows).outcomes == Outcome.OUTSIDE_COMMIT).all()
    rows[600:600] = rows[500:600]
    repeated = batch(rows)
    assert np.flatnonzero(repeated.outcomes == Outcome.OUTSIDE_DUPLICATE).tolist() == [
        *range(600, 700)
    ]


@pytest.mark.parametrize("repeated", [P, Q])
def test_ascending_documents_may_still_repeat_what_earlier_batches_had(repeated: int) -> None:
    rows = [(P, O, 10), (Q, O, 20)] if repeated == Q else [(Q, O, 10), (P, O, 20)]
    result = batch(rows, {repeated: ProducerState(25, 0, -1)})
    assert result.outcomes.tolist() == [Outcome.OUTSIDE_COMMIT, Outcome.OUTSIDE_DUPLICATE]


@pytest.mark.parametrize(("spread", "ranked"), [(1, False), (2**63, True)])
def test_clocks_far_apart_are_ranked(
    monkeypatch: pytest.MonkeyPatch, spread: int, ranked: bool
) -> None:
    calls = 0
    sequence_ranks = grouped._sequence_ranks

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return sequence_ranks(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(grouped, "_sequence_ranks", counted)
    batch([(P, C, 10), (Q, O, 10 + spread), (P, C, 11), (Q, O, 10 + spread), (P, A, 1)])
    assert (calls > 0) == ranked
