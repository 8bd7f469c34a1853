"""What a Slice tells of itself: figures, journals, and what holds it up."""

from __future__ import annotations

from penstock.ids import clock_duration, clock_from_unix
from penstock.shuffle.slice.events import AllReadsStarted, Fetched, Flushed, Probed, ReadStarted
from penstock.watch.causes import Credit, JournalLags, Probing, ReadDelay
from penstock.watch.standing import Seen
from tests.unit.shuffle.slice.model import Row, batch_of, binding
from tests.unit.shuffle.slice.test_stories import ONE, TWO, fed, slice_of

NOON = clock_from_unix(1_700_000_000)
SECOND = clock_duration(1)
PLENTY = {1: 10**9}


def rows(*seconds: int, who: int = ONE, flags: int = 0) -> list[Row]:
    return [Row(who, NOON + at * SECOND, flags, at, at % 5) for at in seconds]


def test_a_journal_that_does_not_answer_is_named() -> None:
    state = slice_of()
    state.handle(ReadStarted(7, 0, "j"))
    state.handle(ReadStarted(8, 0, "k"))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, 0, 0))
    assert state.waits(NOON, 2, 1) == [Seen(Probing(2, 1, "k", 1), 1)]
    assert not state.status().settled
    state.handle(Probed(8, 0, 0))
    assert state.waits(NOON, 2, 1) == []
    assert state.status().settled


def test_a_journal_that_is_behind_and_gives_nothing_is_named() -> None:
    state = slice_of()
    fed(state, rows(1, 2))
    state.handle(ReadStarted(8, 0, "k"))
    state.handle(Probed(8, 0, 5))
    assert state.waits(NOON + 9 * SECOND, 2, 0) == [Seen(JournalLags(2, 0, "k", 0, 0, 5, 1))]
    status = state.status()
    assert (status.reads, status.rows_behind, status.rows_read, status.settled) == (2, 7, 0, False)
    details = state.details()
    assert [(each.journal, each.head) for each in details.journals] == [("k", 5), ("j", 2)]
    assert details.held_by == "k"


def test_rows_that_are_too_young_say_when_they_are_due() -> None:
    state = fed(slice_of(binding(delay=60 * SECOND)), rows(1, 2))
    (seen,) = state.waits(NOON, 2, 0)
    assert seen.cause == ReadDelay(2, 0, 0, "things", 60.0, 1_700_000_061.0, 2)
    assert state.waits(NOON + 62 * SECOND, 2, 0) == []


def test_who_has_no_credit_is_named() -> None:
    state = fed(slice_of(members=(1, 2)), rows(1, 2))
    state.round(NOON, {1: 1000, 2: 1000})
    state.round(NOON + 9 * SECOND, {1: 1000, 2: 0})
    assert state.waits(NOON + 9 * SECOND, 1, 0) == [Seen(Credit(1, 0, 2, 0.0))]
    assert [(each.member, each.credit_free) for each in state.status().sent] == [(1, 1.0), (2, 0.0)]


def test_an_open_span_is_told_with_its_begin_and_size() -> None:
    state = fed(slice_of(), [*rows(1), *rows(2, 3, who=TWO, flags=1), *rows(4)])
    state.round(NOON + 9 * SECOND, PLENTY)
    details = state.details()
    (span,) = details.spans
    assert (span.journal, span.begun, span.rows) == ("j", 1_700_000_002.0, 2)
    assert span.bytes is not None
    assert span.bytes > 2
    assert details.held_by == "j", "which gave the last row"
    status = state.status()
    assert (status.rows_read, status.promised) == (4, 1_700_000_004.0)
    assert status.sent[0].rows == 4
    state.handle(Flushed(1, 1, 65536))
    commit = Row(TWO, NOON + 5 * SECOND, 2, 0, 0)
    state.handle(Fetched(7, (batch_of("j", [*rows(1, 2, 3, 4), commit], 4, 5),), 5))
    state.round(NOON + 9 * SECOND, PLENTY)
    assert state.details().spans == ()
