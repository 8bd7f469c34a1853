"""Rows that are missing: what a Slice makes of what lies before and behind them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sequence import ProducerState
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetch,
    Fetched,
    Flushed,
    Probed,
    ProgressAsked,
    ReadStarted,
    Replay,
    ReplayFetched,
    SendParcel,
    SendRollbacks,
    TellMissing,
)
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.shuffle.slice.state import FETCH_BYTES, SliceState
from tests.unit.shuffle.slice.model import Row, batch_of
from tests.unit.shuffle.slice.test_stories import (
    NOW,
    ONE,
    PLENTY,
    TWO,
    documents,
    entry,
    fed,
    of,
    slice_of,
    told,
)

SPAN = documents(10, 11, flags=1)
AGAIN = Fetch(7, "j", 8, FETCH_BYTES)


def gapped(states: dict[int, ProducerState], rows: list[Row] = SPAN) -> SliceState:
    """It has drained the rows, and those from there up to 8 are dropped."""
    state = fed(slice_of(), rows, head=10)
    assert of(state.round(NOW, PLENTY), SendParcel)
    state.handle(Probed(7, 8, 10, states))
    return state


def forgotten(effects: list[Any]) -> list[tuple[int, int, int, int]]:
    return [
        tuple(row.values()) for each in of(effects, SendRollbacks) for row in each.batch.to_pylist()
    ]


@pytest.mark.parametrize(
    "there",
    [
        ProducerState(1, 0, -6),  # it was rolled back
        ProducerState(12, 0, -5),  # it was committed, or another one after it was rolled back
        ProducerState(12, 14, 6),  # and the next one is open
    ],
)
def test_a_span_that_ended_among_missing_rows_is_forgotten(there: ProducerState) -> None:
    state = gapped({ONE: there})
    effects = state.round(NOW, PLENTY)
    assert forgotten(effects) == [(7, ONE, 1, 11)]
    assert of(effects, Fetch) == [AGAIN]
    delta = told(state, effects)
    assert delta.last_commits.tolist() == [there.last_commit]
    assert delta.offsets.tolist() == [there.offset if there.max_continue else -8]
    assert delta.bytes_read_delta.sum() == 2, "nothing that is missing was read"


def test_it_is_forgotten_when_there_is_credit_and_a_snapshot_before_that_is_of_before_it() -> None:
    state = gapped({ONE: ProducerState(12, 0, -5)})
    assert forgotten(state.round(NOW, {1: 0})) == []
    snapshot = SliceSnapshot.decode(state.snapshot().encode())
    assert [(read.offset, read.missing) for read in snapshot.reads] == [(2, 0)]
    restored = slice_of(restored=snapshot)
    restored.handle(ReadStarted(3, 0, "j"))
    restored.handle(AllReadsStarted())
    restored.handle(Probed(3, 8, 10, {ONE: ProducerState(12, 0, -5)}))
    for each, number in ((state, 7), (restored, 3)):
        assert forgotten(each.round(NOW, PLENTY)) == [(number, ONE, 1, 11)]


def test_a_span_that_is_open_on_both_sides_goes_on() -> None:
    state = gapped({ONE: ProducerState(1, 14, 0)})
    rows = [*documents(*range(20, 28), who=TWO), *documents(14, 15, flags=1)]
    state.handle(Fetched(7, (batch_of("j", rows, 8, 10),), 10))
    effects = [*state.round(NOW, PLENTY), *state.round(NOW, PLENTY)]
    assert forgotten(effects) == []
    clocks = [each.batch.column("_clock").to_pylist() for each in of(effects, SendParcel)]
    assert clocks == [[15]], "what is missing counts as seen, also if it is repeated"


def test_what_was_committed_among_missing_rows_is_told_without_another_row() -> None:
    """So nobody waits for it, and a journal that was suspended holds nobody up."""
    state = gapped({ONE: ProducerState(50, 0, -6), TWO: ProducerState(60, 0, -8)}, documents(10))
    state.handle(ProgressAsked())  # what was read before
    delta = told(state, state.handle(Flushed(1, 1, 5)))
    assert dict(zip(delta.producers.tolist(), delta.last_commits.tolist(), strict=True)) == {
        ONE: 50,
        TWO: 60,
    }


def test_rows_behind_a_gap_are_no_fault_of_their_producer() -> None:
    state = gapped({ONE: ProducerState(12, 0, -5)})
    state.round(NOW, PLENTY)
    rows = [*documents(*range(20, 28), who=TWO), *documents(11, flags=1), *documents(30)]
    state.handle(Fetched(7, (batch_of("j", rows, 8, 10),), 10))
    (parcel,) = of(state.round(NOW, PLENTY), SendParcel)
    assert parcel.batch.column("_clock").to_pylist() == [30]


def test_a_span_to_be_read_again_is_read_as_far_as_it_is_there() -> None:
    for there, replayed in ((ProducerState(1, 13, 0), True), (ProducerState(14, 0, -5), False)):
        state = slice_of()
        state.handle(ReadStarted(7, 0, "j", (entry(ONE, 1, 0), entry(TWO, 12, -3))))
        state.handle(AllReadsStarted())
        assert state.handle(Probed(7, 8, 10, {ONE: there})) == [AGAIN]
        rows = [*documents(*range(20, 28), who=TWO), *documents(30, 31, flags=1)]
        state.handle(Fetched(7, (batch_of("j", rows, 8, 10),), 10))
        effects = state.round(NOW, PLENTY)
        assert of(effects, Replay) == ([Replay(7, "j", 0, 8)] if replayed else [])


# What was promised


def recovering(*entries: Any) -> SliceState:
    state = slice_of()
    state.handle(ReadStarted(7, 0, "j", entries))
    state.handle(AllReadsStarted())
    return state


def hinted(who: int, last_commit: int, offset: int, hint: int) -> Any:
    found = entry(who, last_commit, offset)
    return type(found)(found.producer, last_commit, hint, offset)


def test_rows_that_were_promised_and_are_dropped_are_told() -> None:
    state = recovering(hinted(ONE, 5, -2, 30))
    assert state.handle(Probed(7, 3, 9)) == [TellMissing(7, 2, 3)]
    state = recovering(hinted(ONE, 5, -2, 30))
    assert len(state.handle(Probed(7, 2, 9))) == 1, "they are there"
    state.handle(Fetched(7, (batch_of("j", documents(1, 2, 10, 11), 2, 4),), 9))
    assert state.handle(Probed(7, 5, 9)) == [TellMissing(7, 4, 5)], "and then they are not"


def test_a_span_that_was_promised_is_needed_from_its_begin() -> None:
    entries = hinted(ONE, 1, 1, 14), entry(TWO, 12, -3)
    assert recovering(*entries).handle(Probed(7, 2, 9)) == [TellMissing(7, 1, 2)]
    state = recovering(*entries)
    assert len(state.handle(Probed(7, 1, 5))) == 1
    rows = [*documents(9), *SPAN, *documents(13, flags=1), *documents(14, flags=2)]
    state.handle(Fetched(7, (batch_of("j", rows, 3, 5),), 5))
    assert of(state.round(NOW, PLENTY), Replay) == [Replay(7, "j", 1, 3)]
    assert state.handle(ReplayFetched(7, (), 3, 3)) == [TellMissing(7, 1, 3)]


def test_a_journal_that_ends_before_what_was_promised_is_another_one() -> None:
    assert recovering(hinted(ONE, 5, -2, 30)).handle(Probed(7, 0, 2)) == [TellMissing(7, 2, 2)]
    state = recovering(hinted(ONE, 5, -2, 30))
    state.handle(Probed(7, 0, 4))
    rows = documents(1, 2, 10, 11)
    assert state.handle(Fetched(7, (batch_of("j", rows, 2, 4),), 4)) == [TellMissing(7, 4, 4)]
