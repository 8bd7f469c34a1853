"""Frontiers against scalar models of their rules, written from the prose and not from the code."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import reduce as fold
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, PenstockError
from penstock.frontier import (
    DifferentProducersError,
    Frontier,
    FrontierColumnError,
    JournalFrontier,
    JournalOrderError,
    JournalRepeatedError,
    ProducerFrontier,
    ProducerOrderError,
    ProducerRepeatedError,
    clear_discharged_hints,
    describe_unresolved,
    project_commits_to_hints,
    project_unresolved_hints,
    reduce,
    reduce_all,
    reduce_entries,
    resolve_checkpoint,
    resolve_hints,
    retain_bindings,
    without_byte_deltas,
)
from penstock.ids import Producer, clock_duration
from penstock.sequence import ProducerState

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping

DAY = clock_duration(86_400)
LOW, MIDDLE, HIGH = (Producer(bytes([first, 0, 0, 0, 0, 7])) for first in (0x01, 0x7F, 0x81))
BINDINGS = 3

Entry: TypeAlias = tuple[int, int, int]
"""Last commit, hinted commit, offset."""
Key: TypeAlias = tuple[str, int]
Model: TypeAlias = dict[Key, dict[Producer, Entry]]

# Few values, so that two frontiers often meet in one; days apart, so that some are stale.
clocks = st.sampled_from([0, 1, 2, 3, DAY, DAY + 1, DAY + 2, DAY + 3, 2 * DAY + 2, 2**64 - 1])
offsets = st.integers(-4, 4)
entries = st.tuples(clocks, clocks, offsets)
binding_numbers = st.integers(0, BINDINGS - 1)
binding_clocks = st.dictionaries(binding_numbers, clocks)
keys = st.tuples(st.sampled_from(["a", "a/b", "aé", "b", "é"]), binding_numbers)
rows = st.dictionaries(st.sampled_from([LOW, MIDDLE, HIGH]), entries, max_size=3)
models = st.dictionaries(keys, rows, max_size=6)


def entry_of(producer: Producer, values: Entry) -> ProducerFrontier:
    return ProducerFrontier(producer, *values)


def built(model: Model, deltas: Iterable[tuple[int, int]] = (), **marks: Any) -> Frontier:
    counted = list(deltas) + [(0, 0)] * len(model)
    return Frontier.of(
        [
            JournalFrontier(
                journal,
                binding,
                tuple(entry_of(*item) for item in sorted(model[journal, binding].items())),
                *counted[index],
            )
            for index, (journal, binding) in enumerate(sorted(model))
        ],
        **marks,
    )


def modelled(frontier: Frontier) -> Model:
    return {
        (journal.journal, journal.binding): {
            entry.producer: (entry.last_commit, entry.hinted_commit, entry.offset)
            for entry in journal.producers
        }
        for journal in frontier.journals()
    }


frontiers = st.builds(
    built,
    models,
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), max_size=6),
    flushed_lsn=st.lists(st.integers(0, 3), max_size=3),
    backfill_begin=binding_clocks,
    backfill_complete=binding_clocks,
    gap_floor=binding_clocks,
)


@st.composite
def alike(draw: st.DrawFn) -> tuple[Frontier, Frontier]:
    """Two frontiers with the same journals, and perhaps with the same producers."""
    model = draw(models)
    other = {
        key: {producer: draw(entries) for producer in row}
        if draw(st.integers(0, 3))
        else draw(rows)
        for key, row in model.items()
    }
    return built(model, [(1, 2)]), built(other, [(3, -4)])


pairs = st.one_of(st.tuples(frontiers, frontiers), alike())


def recounted(frontier: Frontier) -> int:
    return sum(
        entry.hinted_commit > entry.last_commit
        for journal in frontier.journals()
        for entry in journal.producers
    )


# --- the table ---


def test_scalars_go_in_and_come_out() -> None:
    journals = [
        JournalFrontier(
            "a", 1, (ProducerFrontier(LOW, 5, 9, -7), ProducerFrontier(HIGH, 1)), 3, -4
        ),
        JournalFrontier("a", 2, ()),
        JournalFrontier("é", 0, (ProducerFrontier(HIGH, 2**64 - 1, 0, 2**63 - 1),)),
    ]
    frontier = Frontier.of(journals, flushed_lsn=[4, 5], gap_floor={1: 6})
    assert list(frontier.journals()) == journals
    assert frontier.journal("a", 2) == journals[1]
    assert frontier.journal("b", 2) is None
    assert frontier.entry("a", 1, HIGH) == ProducerFrontier(HIGH, 1)
    assert frontier.entry("a", 1, MIDDLE) is None
    assert frontier.entry("a", 3, LOW) is None
    assert frontier.unresolved_hints == 1
    assert frontier.cut_floors().tolist() == [7, 0, 2**63 - 1]
    assert repr(frontier) == "Frontier(journals=3, entries=3, unresolved_hints=1)"


@given(frontiers)
def test_entries_are_found_where_they_are(frontier: Frontier) -> None:
    model = modelled(frontier)
    for name, binding in [*model, ("nowhere", 0), ("a", 9)]:
        for producer in (LOW, MIDDLE, HIGH):
            values = model.get((name, binding), {}).get(producer)
            expected = None if values is None else entry_of(producer, values)
            assert frontier.entry(name, binding, producer) == expected


def test_a_frontier_cannot_be_changed() -> None:
    frontier = Frontier.of([JournalFrontier("a", 0, (ProducerFrontier(LOW, 1),))], gap_floor={0: 1})
    copy: Any = pickle.loads(pickle.dumps(frontier))
    for again in (cast(Any, frontier), copy):
        assert again == frontier
        with pytest.raises(ValueError, match="read-only"):
            again.last_commits[0] = 2
        with pytest.raises(TypeError):
            again.gap_floor[0] = 2
        with pytest.raises(AttributeError):
            again.unresolved_hints = 2


@given(frontiers, frontiers)
def test_equality_is_of_content(left: Frontier, right: Frontier) -> None:
    def content(frontier: Frontier) -> tuple[object, ...]:
        maps = (frontier.backfill_begin, frontier.backfill_complete, frontier.gap_floor)
        return (
            list(frontier.journals()),
            frontier.flushed_lsn.tolist(),
            [dict(clocks) for clocks in maps],
        )

    assert (left == right) == (content(left) == content(right))
    assert left == pickle.loads(pickle.dumps(left))
    assert left != "a frontier"


def of_keys(*journals: Key) -> Frontier:
    return Frontier.of([JournalFrontier(name, binding) for name, binding in journals])


def of_producers(*producers: Producer) -> Frontier:
    return Frontier.of(
        [
            JournalFrontier("a", 0, (ProducerFrontier(HIGH, 1),)),
            JournalFrontier("b", 4, tuple(ProducerFrontier(one, 1) for one in producers)),
        ]
    )


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: of_keys(("a", 0), ("b", 1), ("b", 1)),
            JournalRepeatedError(2, "b", 1),
            "frontier journal 2 ('b', binding 1) is not unique",
        ),
        (
            lambda: of_keys(("a", 1), ("a", 0)),
            JournalOrderError(1, "a", 0),
            "frontier journal 1 ('a', binding 0) is not ordered",
        ),
        (
            lambda: of_keys(("a", 0), ("c", 0), ("b", 9)),
            JournalOrderError(2, "b", 9),
            "frontier journal 2 ('b', binding 9) is not ordered",
        ),
        (
            lambda: of_producers(LOW, MIDDLE, MIDDLE),
            ProducerRepeatedError(2, "b", 4, str(MIDDLE)),
            f"frontier producer 2 ({MIDDLE}) of journal 'b', binding 4 is not unique",
        ),
        (
            # As signed numbers these two are in order; as bytes they are not.
            lambda: of_producers(HIGH, LOW),
            ProducerOrderError(1, "b", 4, str(LOW)),
            f"frontier producer 1 ({LOW}) of journal 'b', binding 4 is not ordered",
        ),
    ],
)
def test_rows_out_of_order_are_refused(
    build: Callable[[], Frontier], error: LocalProtocolError, message: str
) -> None:
    with pytest.raises(type(error)) as raised:
        build()
    again = pickle.loads(pickle.dumps(raised.value))
    for one in (raised.value, again):
        assert type(one) is type(error)
        assert one.args == error.args
        assert str(one) == message
        assert isinstance(one, PenstockError)


def test_producers_of_different_journals_need_no_order() -> None:
    assert of_producers(LOW).entry_count == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("journal_names", pa.array([b"a"], pa.binary())),
        ("journal_names", pa.array([None], pa.string())),
        ("bindings", np.zeros(2, np.uint16)),
        ("bindings", np.zeros(1, np.int64)),
        ("bytes_read_delta", np.zeros((1, 1), np.int64)),
        ("bytes_behind_delta", np.zeros(0, np.int64)),
        ("producer_starts", np.array([0, 2], np.int64)),
        ("producer_starts", np.array([1, 1], np.int64)),
        ("producer_starts", np.array([0, 1, 1], np.int64)),
        ("producers", np.array([LOW.int64 + 1], np.int64)),
        ("last_commits", np.zeros(2, np.uint64)),
        ("offsets", np.array([-(2**63)], np.int64)),
        ("gap_floor", {2**16: 1}),
        ("gap_floor", {0: 2**64}),
        ("backfill_begin", {0: -1}),
    ],
)
def test_columns_of_another_form_are_refused(column: str, value: Any) -> None:
    frontier = Frontier.of([JournalFrontier("a", 0, (ProducerFrontier(LOW, 1),))])
    with pytest.raises(FrontierColumnError) as raised:
        replace(frontier, **{column: value})
    assert raised.value.column == column
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    "journal",
    [
        JournalFrontier("a", 2**16),
        JournalFrontier("\ud800", 0),
        JournalFrontier("a", 0, (), 2**63),
        JournalFrontier("a", 0, (ProducerFrontier(LOW, -1),)),
        JournalFrontier("a", 0, (ProducerFrontier(LOW, 1, 2**64),)),
        JournalFrontier("a", 0, (ProducerFrontier(LOW, 1, 0, 2**63),)),
    ],
)
def test_numbers_that_do_not_fit_are_refused(journal: JournalFrontier) -> None:
    with pytest.raises(FrontierColumnError):
        Frontier.of([journal])


# --- reduce ---


def pairwise(left: Entry, right: Entry) -> Entry:
    last_commit = max(left[0], right[0])
    left_offset, right_offset = left[2], right[2]
    if abs(left_offset) != abs(right_offset):
        offset = left_offset if abs(left_offset) > abs(right_offset) else right_offset
    else:
        offset = max(left_offset, right_offset)
    if offset > 0:
        vouched = (left[0], left[2]) == (last_commit, offset)
        vouched = vouched or (right[0], right[2]) == (last_commit, offset)
        if not vouched:
            offset = -offset
    return last_commit, max(left[1], right[1]), offset


@given(st.lists(entries, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_closed_form_is_any_tree_of_pairs(values: list[Entry], source: random.Random) -> None:
    whole = reduce_entries(*(entry_of(LOW, value) for value in values))
    forest = list(values)
    while len(forest) > 1:
        source.shuffle(forest)
        forest.append(pairwise(forest.pop(), forest.pop()))
    assert whole == entry_of(LOW, forest[0])


@given(entries, entries, entries)
def test_the_producer_rule_is_commutative_associative_and_idempotent(
    a: Entry, b: Entry, c: Entry
) -> None:
    x, y, z = (entry_of(LOW, value) for value in (a, b, c))
    assert reduce_entries(x, y) == reduce_entries(y, x)
    assert reduce_entries(reduce_entries(x, y), z) == reduce_entries(x, reduce_entries(y, z))
    assert reduce_entries(x, x) == x
    assert reduce_entries(x, reduce_entries(x, y)) == reduce_entries(x, y)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((5, 0, 10), (5, 0, -10), (5, 0, 10)),  # the open side wins a tie
        ((5, 0, 10), (6, 0, -10), (6, 0, -10)),  # unless the closed side knows a later commit
        ((5, 0, 10), (6, 0, -4), (6, 0, -10)),  # which may have been seen from farther back
        ((5, 0, 10), (5, 0, -11), (5, 0, -11)),
        ((5, 8, 10), (0, 9, 0), (5, 9, 10)),  # a hint closes nothing
        ((1, 0, 0), (5, 0, 0), (5, 0, 0)),  # no sign to flip
    ],
)
def test_reduce_of_two_entries(left: Entry, right: Entry, expected: Entry) -> None:
    assert pairwise(left, right) == expected
    assert reduce_entries(entry_of(LOW, left), entry_of(LOW, right)) == entry_of(LOW, expected)


def test_entries_of_two_producers_are_not_reduced() -> None:
    with pytest.raises(DifferentProducersError, match=f"{LOW} and {HIGH}"):
        reduce_entries(ProducerFrontier(LOW, 1), ProducerFrontier(HIGH, 1))


def reduced_model(left: Model, right: Model) -> Model:
    merged = {key: dict(row) for key, row in left.items()}
    for key, row in right.items():
        mine = merged.setdefault(key, {})
        for producer, values in row.items():
            mine[producer] = pairwise(mine[producer], values) if producer in mine else values
    return merged


def greatest(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    return {key: max(left.get(key, 0), right.get(key, 0)) for key in {**left, **right}}


@given(pairs)
def test_reduce_is_the_model(pair: tuple[Frontier, Frontier]) -> None:
    left, right = pair
    reduced = reduce(left, right)
    assert modelled(reduced) == reduced_model(modelled(left), modelled(right))
    assert reduced.unresolved_hints == recounted(reduced)
    for name in ("bytes_read_delta", "bytes_behind_delta"):
        for journal in reduced.journals():
            parts = [f.journal(journal.journal, journal.binding) for f in pair]
            assert getattr(journal, name) == sum(getattr(part, name) for part in parts if part)
    for name in ("backfill_begin", "backfill_complete", "gap_floor"):
        assert getattr(reduced, name) == greatest(getattr(left, name), getattr(right, name))
    lsns = [dict(enumerate(frontier.flushed_lsn.tolist())) for frontier in (*pair, reduced)]
    assert lsns[2] == greatest(lsns[0], lsns[1])


@given(pairs)
def test_reduce_is_commutative(pair: tuple[Frontier, Frontier]) -> None:
    assert reduce(pair[0], pair[1]) == reduce(pair[1], pair[0])


@given(pairs, frontiers)
def test_reduce_is_associative(pair: tuple[Frontier, Frontier], third: Frontier) -> None:
    first, second = pair
    assert reduce(reduce(first, second), third) == reduce(first, reduce(second, third))


@given(frontiers)
def test_reduce_without_bytes_is_idempotent(frontier: Frontier) -> None:
    still = without_byte_deltas(frontier)
    assert reduce(still, still) == still
    assert reduce(frontier, Frontier.of()) == frontier
    assert reduce(Frontier.of(), frontier) == frontier


def test_reduce_with_bytes_is_not_idempotent() -> None:
    frontier = Frontier.of([JournalFrontier("a", 0, (), bytes_read_delta=5)])
    assert reduce(frontier, frontier) != frontier
    assert reduce(frontier, frontier).journal_at(0).bytes_read_delta == 10


@given(st.lists(frontiers, max_size=5))
def test_reducing_many_is_reducing_two_by_two(parts: list[Frontier]) -> None:
    assert reduce_all(parts) == fold(reduce, parts, Frontier.of())


@given(alike(), alike())
def test_reducing_many_alike_is_reducing_two_by_two(
    two: tuple[Frontier, Frontier], more: tuple[Frontier, Frontier]
) -> None:
    assert reduce_all([*two, *more, *two]) == fold(reduce, [*two, *more, *two])


# --- hints ---


@given(pairs)
def test_resolve_hints_is_the_model(pair: tuple[Frontier, Frontier]) -> None:
    frontier, other = pair
    expected, other_model = modelled(frontier), modelled(other)
    advanced = resolved = 0
    for key, row in expected.items():
        floor = max((abs(offset) for _, _, offset in row.values()), default=0)
        for producer, (last, hint, _) in list(row.items()):
            read = other_model.get(key, {}).get(producer, (0, 0, 0))[0]
            if hint > last and read > last:
                row[producer] = (min(read, hint), hint, -floor)
                advanced += 1
                resolved += read >= hint
    found = resolve_hints(frontier, other)
    assert found.frontier == replace(built(expected), **everything_but_entries(frontier))
    assert (found.advanced, found.resolved) == (advanced, resolved)
    assert found.frontier.unresolved_hints == frontier.unresolved_hints - resolved
    assert found.frontier.unresolved_hints == recounted(found.frontier)


def everything_but_entries(frontier: Frontier) -> dict[str, Any]:
    names = ("bytes_read_delta", "bytes_behind_delta", "flushed_lsn")
    maps = ("backfill_begin", "backfill_complete", "gap_floor")
    return {name: getattr(frontier, name) for name in names + maps}


def test_a_partly_read_hint_is_advanced_and_not_resolved() -> None:
    waiting = built({("a", 0): {LOW: (2, 9, 4), HIGH: (1, 0, -30)}})
    found = resolve_hints(waiting, built({("a", 0): {LOW: (5, 0, -99)}}))
    assert (found.advanced, found.resolved) == (1, 0)
    assert found.frontier.entry("a", 0, LOW) == ProducerFrontier(LOW, 5, 9, -30)
    found = resolve_hints(found.frontier, built({("a", 0): {LOW: (50, 0, -99)}}))
    assert (found.advanced, found.resolved) == (1, 1)
    assert found.frontier.entry("a", 0, LOW) == ProducerFrontier(LOW, 9, 9, -30)


def test_a_hint_of_another_binding_is_not_resolved() -> None:
    waiting = built({("a", 0): {LOW: (0, 9, 0)}})
    assert resolve_hints(waiting, built({("a", 1): {LOW: (9, 0, -5)}})).advanced == 0


@given(frontiers)
def test_projection_keeps_unresolved_entries(frontier: Frontier) -> None:
    projected = project_unresolved_hints(frontier)
    expected = {
        key: {producer: values for producer, values in row.items() if values[1] > values[0]}
        for key, row in modelled(frontier).items()
    }
    assert modelled(projected) == {key: row for key, row in expected.items() if row}
    assert projected.unresolved_hints == frontier.unresolved_hints == recounted(projected)
    assert not projected.bytes_read_delta.any()
    assert not projected.bytes_behind_delta.any()
    assert not len(projected.flushed_lsn)
    assert projected.gap_floor == frontier.gap_floor
    assert projected.backfill_begin == frontier.backfill_begin
    assert projected.backfill_complete == frontier.backfill_complete


@given(frontiers, st.sets(binding_numbers))
def test_retained_bindings_are_untouched(frontier: Frontier, kept: set[int]) -> None:
    retained = retain_bindings(frontier, kept.__contains__)
    expected = [journal for journal in frontier.journals() if journal.binding in kept]
    assert list(retained.journals()) == expected
    assert retained.unresolved_hints == recounted(retained)
    assert retained.flushed_lsn.tolist() == frontier.flushed_lsn.tolist()
    for name in ("backfill_begin", "backfill_complete", "gap_floor"):
        whole = getattr(frontier, name)
        assert getattr(retained, name) == {b: c for b, c in whole.items() if b in kept}


@given(frontiers)
def test_discharged_hints_are_cleared(frontier: Frontier) -> None:
    cleared = clear_discharged_hints(frontier)
    assert cleared.unresolved_hints == recounted(cleared) == 0
    expected = modelled(frontier)
    for row in expected.values():
        for producer, (last, hint, offset) in row.items():
            row[producer] = (last, 0 if hint > last else hint, offset)
    assert modelled(cleared) == expected


@given(frontiers)
def test_commits_become_hints(checkpoint: Frontier) -> None:
    hints = project_commits_to_hints(checkpoint)
    expected = {
        key: {producer: (0, last, 0) for producer, (last, _, _) in row.items() if last > 1}
        for key, row in modelled(checkpoint).items()
    }
    assert hints == built({key: row for key, row in expected.items() if row})
    # What the client reduces in after processing discharges all of them.
    done = reduce(hints, clear_discharged_hints(checkpoint))
    assert done.unresolved_hints == 0
    assert done.bytes_read_delta.sum() == checkpoint.bytes_read_delta.sum()


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 1), (20, 20), (21, 21), (500, 21)])
def test_many_unresolved_hints_are_elided(count: int, lines: int) -> None:
    frontier = built({(f"{index:03}", 2): {HIGH: (1, 0x1F, 0)} for index in range(count)})
    shown = describe_unresolved(frontier).splitlines()
    assert len(shown) == lines
    if count:
        assert shown[0] == (
            f"journal '000' binding 2 producer {HIGH}: "
            "committed 0000000000000001, hinted 000000000000001f"
        )
    if count > 20:
        assert shown[-1] == f"... and {count - 20} more"


# --- resuming ---


def test_a_resume_point_tells_spans_across_the_cut() -> None:
    a, b, c, d, e, f, g = (Producer(bytes([index, 0, 0, 0, 0, 1])) for index in range(1, 8))
    resume = resolve_checkpoint(
        [
            ProducerFrontier(a, 50, 0, -100),  # closed at the cut floor
            ProducerFrontier(b, 40, 45, 30),  # open since 30, and hinted
            ProducerFrontier(c, 0, 0, 20),  # open, from a writer that recorded no floor
            ProducerFrontier(d, 1, 0, 0),  # open since the very beginning
            ProducerFrontier(e, 60, 0, 0),  # committed by a hint, with no offset of its own
            ProducerFrontier(f, 0, 70, 0),  # nothing but a hint
            ProducerFrontier(g, 80, 80, 100),  # open since the cut floor: read whole anyway
        ]
    )
    assert resume.offset == 100
    assert resume.gapped == {b: 30, c: 20, d: 0}
    assert resume.hinted == {b: 45, f: 70}
    assert resume.states == {
        a.int64: ProducerState(50, 0, -100),
        b.int64: ProducerState(40, 40, 30),
        c.int64: ProducerState(1, 1, 20),
        d.int64: ProducerState(1, 1, 0),
        e.int64: ProducerState(60, 0, 0),
        g.int64: ProducerState(80, 0, 100),
    }


def test_a_span_from_the_beginning_is_not_gapped_when_reading_starts_there() -> None:
    resume = resolve_checkpoint([ProducerFrontier(LOW, 1, 0, 0)])
    assert (resume.offset, resume.gapped) == (0, {})
    assert resume.states == {LOW.int64: ProducerState(1, 0, 0)}
    empty = resolve_checkpoint([])
    assert (empty.offset, empty.states, empty.hinted) == (0, {}, {})
