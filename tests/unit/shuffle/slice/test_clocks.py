"""Keys of rows whose clocks lie: nobody waits for a time that is far away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import clock_duration, clock_from_unix
from penstock.routing import assign
from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.slice.clocks import AHEAD_MAX, AHEAD_SHOWN, LyingClocks, keys_of
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetched,
    Probed,
    ReadStarted,
    SendMark,
    SendParcel,
    SendRollbacks,
    TellEnded,
    Vanished,
)
from penstock.shuffle.slice.state import SliceState
from penstock.watch.causes import ClockAhead
from tests.unit.shuffle.slice.harness import Index
from tests.unit.shuffle.slice.model import Row, batch_of, binding, producer

NOW = clock_from_unix(1_763_350_100)
SECOND = clock_duration(1)
FAR = [clock_duration(6), clock_duration(3600), clock_duration(3650 * 86_400)]
PLENTY = {1: 10**6}


def test_a_row_ahead_of_now_counts_as_those_beside_it() -> None:
    clocks = np.array([5, NOW + FAR[2], 7, NOW + FAR[0], 9], np.uint64)
    assert keys_of(clocks, 0, 0, NOW).tolist() == [5, 5, 7, 7, 9]
    assert keys_of(clocks, 10, 0, NOW).tolist() == [15, 15, 17, 17, 19]
    assert keys_of(clocks[1:2], 0, 0, NOW).tolist() == [NOW], "or as of now"
    near = np.array([NOW + AHEAD_MAX], np.uint64)
    assert keys_of(near, 0, 0, NOW).tolist() == [NOW + AHEAD_MAX], "within reason it is waited for"


@given(st.lists(st.sampled_from([3, 50, NOW, *(NOW + far for far in FAR), 2**64 - 1])))
def test_keys_rise_and_are_never_far_ahead(clocks: list[int]) -> None:
    keys = keys_of(np.array(clocks, np.uint64), 0, 40, NOW).tolist()
    assert keys == sorted(keys)
    assert all(40 <= key <= NOW + AHEAD_MAX for key in keys)


def slice_with(**journals: list[Row]) -> SliceState:
    bindings = [binding()]
    state = SliceState(bindings, assign([1]), Index(bindings), read_ahead_bytes=10**6)
    for number, (name, rows) in enumerate(journals.items()):
        state.handle(ReadStarted(number, 0, name))
        state.handle(Probed(number, 0, len(rows)))
    state.handle(AllReadsStarted())
    state.round(NOW, PLENTY)
    for number, (name, rows) in enumerate(journals.items()):
        state.handle(Fetched(number, (batch_of(name, rows, 0, len(rows)),), len(rows)), NOW)
    return state


def outside(*clocks: int) -> list[Row]:
    return [Row(producer(number % 4), clock, 0, number, 1) for number, clock in enumerate(clocks)]


@pytest.mark.parametrize("ahead", FAR)
def test_a_lie_delays_neither_its_journal_nor_another(ahead: int) -> None:
    state = slice_with(j=outside(NOW - 9, NOW + ahead, NOW - 5), k=outside(NOW - 7))
    effects = state.round(NOW, PLENTY)
    assert sum(each.batch.num_rows for each in effects if isinstance(each, SendParcel)) == 4
    said = [each for each in effects if isinstance(each, SendMark | SendParcel)]
    assert said[0] == SendMark(1, Mark(MarkKind.CAPPED, NOW - 5)), "before the rows"
    assert said[-1] == SendMark(1, IDLE), "which lifts it"
    [seen] = state.waits(NOW, 1, 0)
    assert isinstance(seen.cause, ClockAhead)
    assert seen.cause.journal == "j"
    assert seen.cause.ahead_seconds == pytest.approx(ahead / SECOND)
    assert state.waits(NOW + AHEAD_SHOWN + SECOND, 1, 0) == [], "a while later it is forgotten"


def test_rows_without_a_lie_have_no_cap() -> None:
    effects = slice_with(j=outside(NOW - 9, NOW - 5)).round(NOW, PLENTY)
    kinds = {each.mark.kind for each in effects if isinstance(each, SendMark)}
    assert kinds == {MarkKind.IDLE}


def test_a_slice_whose_own_clock_goes_back_goes_on() -> None:
    state = slice_with(j=outside(NOW - 5))
    state.round(NOW, PLENTY)
    earlier = NOW - clock_duration(3600)
    state.handle(Fetched(0, (batch_of("j", outside(NOW - 5, NOW - 4), 1, 2),), 2), earlier)
    effects = state.round(earlier, PLENTY)
    assert [each.batch.num_rows for each in effects if isinstance(each, SendParcel)] == [1]


def test_the_farthest_of_each_journal_is_named() -> None:
    lying = LyingClocks()
    lying.look("a", np.array([1, NOW + FAR[1]], np.uint64), np.array([4, 5]), NOW)
    lying.look("b", np.array([NOW + FAR[2]], np.uint64), np.array([6]), NOW)
    lying.look("c", np.array([NOW], np.uint64), np.array([7]), NOW)
    assert [(row.journal, row.producer) for row in lying.shown(NOW)] == [("b", 6), ("a", 5)]


def test_open_spans_of_a_journal_that_is_gone_are_let_go() -> None:
    one, two = producer(1), producer(2)
    rows = [Row(one, 5, 1, 0, 1), Row(two, 6, 0, 1, 1), Row(one, 8, 1, 2, 1)]
    state = slice_with(j=rows)
    state.handle(Vanished(0))
    first = state.round(NOW, PLENTY)
    assert sum(each.batch.num_rows for each in first if isinstance(each, SendParcel)) == 3
    effects = [*first, *state.round(NOW, PLENTY), *state.round(NOW, PLENTY)]
    rollbacks = [
        tuple(row.values())
        for each in effects
        if isinstance(each, SendRollbacks)
        for row in each.batch.to_pylist()
    ]
    assert rollbacks == [(0, one, 1, 8)], "once, behind all rows"
    assert state.details().span_count == 0
    assert not any(isinstance(each, TellEnded) for each in effects), "it is told first"
    [saved] = state.snapshot().reads
    assert saved.states[one].max_continue == saved.states[one].last_commit == 1, (
        "to be read again, if the journal comes back"
    )
