"""Single cases of a Slice: what is told, what is copied, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.checkpoint import Barrier
from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import ProducerFrontier
from penstock.ids import Producer
from penstock.routing import assign
from penstock.sequence import (
    AckPartialCommitError,
    OutsideWithPrecedingContinueError,
    SequenceFaultError,
)
from penstock.shuffle.marks import IDLE, Mark, MarkKind
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    BarrierClaimed,
    Fetch,
    Fetched,
    Flushed,
    Probe,
    Probed,
    ProgressAsked,
    ReadStarted,
    Replay,
    ReplayFetched,
    Report,
    SendBarrier,
    SendFlush,
    SendMark,
    SendParcel,
    SendReads,
    SendRollbacks,
    Sleep,
    TellEnded,
    TellSpansLeft,
    Vanished,
)
from penstock.shuffle.slice.reads import GAP_SLACK
from penstock.shuffle.slice.replay import ReplayedCommitError
from penstock.shuffle.slice.snapshots import CorruptSliceError, SavedReplay, SliceSnapshot
from penstock.shuffle.slice.state import FETCH_BYTES, SliceState
from penstock.transport import VnodeData
from penstock.transport.stages import StageEncoders
from penstock.transport.wire import encode
from tests.unit.shuffle.slice.harness import Index
from tests.unit.shuffle.slice.model import Row, batch_of, binding, producer

ONE, TWO = producer(1), producer(2)
NOW = 10**6
PLENTY = {1: 10**9}


def documents(
    *clocks: int, who: int = ONE, flags: int = 0, hints: tuple[str, ...] = ()
) -> list[Row]:
    return [Row(who, clock, flags, clock, clock % 5, hints) for clock in clocks]


def slice_of(*bindings: Any, members: tuple[int, ...] = (1,), **options: Any) -> SliceState:
    chosen = bindings or (binding(),)
    options.setdefault("read_ahead_bytes", 10 * FETCH_BYTES)
    return SliceState(chosen, assign(members), Index(chosen), **options)


def fed(state: SliceState, rows: list[Row], *, head: int | None = None) -> SliceState:
    """One read, number 7, with all its rows buffered."""
    state.handle(ReadStarted(7, 0, "j"))
    state.handle(AllReadsStarted())
    end = len(rows) if head is None else head
    state.handle(Probed(7, 0, end))
    state.handle(Fetched(7, (batch_of("j", rows, 0, len(rows)),), end))
    return state


def of(effects: list[Any], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def entry(who: int, last_commit: int, offset: int) -> ProducerFrontier:
    return ProducerFrontier(Producer.from_int64(who), last_commit, 0, offset)


def told(state: SliceState, effects: list[Any]) -> Any:
    """What is reported when the flush among the effects is answered."""
    (flush,) = of(effects, SendFlush)
    state.handle(ProgressAsked())
    (report,) = of(state.handle(Flushed(1, flush.cycle, 5)), Report)
    return report.delta


def test_a_round_announces_sends_marks_and_flushes_in_this_order() -> None:
    state = fed(slice_of(members=(1, 2)), documents(*range(10, 40)))
    effects = state.round(NOW, {1: 10**9, 2: 10**9})
    kinds = [type(effect) for effect in effects]
    assert kinds == [SendReads, SendParcel, SendParcel, SendMark, SendMark, SendFlush]
    assert of(effects, SendMark) == [SendMark(1, IDLE), SendMark(2, IDLE)]
    assert state.round(NOW, {1: 10**9, 2: 10**9}) == []


def test_rows_that_all_go_to_one_member_are_not_copied() -> None:
    rows = documents(*range(10, 40))
    state = slice_of()
    batch = batch_of("j", rows, 0, len(rows))
    state.handle(ReadStarted(7, 0, "j"))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, 0, len(rows)))
    state.handle(Fetched(7, (batch,), len(rows)))
    (parcel,) = of(state.round(NOW, PLENTY), SendParcel)
    column = parcel.batch.column("text")
    texts = [each.buffers()[2] for each in (column, batch.documents.column("text"))]
    assert texts[0] is not None
    assert texts[1] is not None
    assert texts[0].address == texts[1].address
    assert parcel.batch.column("_clock").to_pylist() == list(range(10, 40))


def test_without_credit_nothing_goes_and_marks_do() -> None:
    state = fed(slice_of(), documents(10, 20))
    assert state.round(NOW, {1: 0}) == [SendMark(1, Mark(MarkKind.DUE, 10))]
    assert state.is_due(NOW)
    assert state.lacks_credit
    with pytest.raises(LocalProtocolError, match=r"members \[1\]"):
        state.round(NOW, {2: 5})


def test_a_row_larger_than_any_credit_goes_alone_when_most_is_free() -> None:
    state = fed(slice_of(), documents(10, 20))
    effects = state.round(NOW, {1: 1000})
    assert [parcel.batch.num_rows for parcel in of(effects, SendParcel)] == []
    effects = state.round(NOW, {1: 740})
    assert of(effects, SendParcel) == []
    assert state.lacks_credit
    effects = state.round(NOW, {1: 750})
    assert [parcel.batch.num_rows for parcel in of(effects, SendParcel)] == [1]
    assert of(effects, SendMark) == [SendMark(1, Mark(MarkKind.DUE, 20))]


def test_a_round_of_many_frames_fits_its_credit() -> None:
    """As the transport counts it: a lane of many bindings, with a few rows of each."""
    bindings = [binding(place) for place in range(60)]
    state = slice_of(*bindings, members=(1, 2))
    state.handle(AllReadsStarted())
    for place in range(60):
        state.handle(ReadStarted(place, place, f"j{place}"))
        state.handle(Probed(place, 0, 3))
        rows = documents(*range(10, 13), who=ONE + (place << 16))
        state.handle(Fetched(place, (batch_of(f"j{place}", rows, 0, 3),), 3))
    window = 100_000
    sent, rounds = 0, 0
    while state.is_due(NOW):
        effects = state.round(NOW, {1: window, 2: window})
        encoders = {1: StageEncoders(), 2: StageEncoders()}
        costs = {1: 0, 2: 0}
        for effect in effects:
            if isinstance(effect, SendReads | SendRollbacks | SendParcel):
                members = [effect.member] if isinstance(effect, SendParcel) else [1, 2]
                stage = "reads" if isinstance(effect, SendReads) else str(effect.stage)
                for member in members:
                    frame = VnodeData(stage, 0, effect.batch)
                    costs[member] += encode(frame, encoders[member]).cost_bytes
        assert max(costs.values()) <= window
        sent += sum(parcel.batch.num_rows for parcel in of(effects, SendParcel))
        rounds += 1
    assert sent == 180
    assert 2 < rounds < 30


def test_a_read_of_what_was_lost_ends_with_the_last_commit_of_it() -> None:
    state = slice_of()
    lost = (
        ProducerFrontier(Producer.from_int64(ONE), 0, 12),
        ProducerFrontier(Producer.from_int64(TWO), 0, 31),
    )
    state.handle(ReadStarted(7, 0, "j", tuple(sorted(lost, key=lambda entry: entry.producer))))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, 0, 40))
    rows = [
        *documents(10, 11, 12, 13),
        *documents(30, who=TWO, flags=1),
        *documents(32, who=TWO, flags=1),
        *documents(14),
        *documents(33, who=TWO, flags=2),
        *documents(15, 16),
    ]
    first = state.handle(Fetched(7, (batch_of("j", rows, 0, 4),), 40))
    assert [(one.offset, one.read) for one in of(first, Fetch)] == [(4, 7)], "one is not there yet"
    second = state.handle(Fetched(7, (batch_of("j", rows, 4, 10),), 40))
    assert of(second, Fetch) == []
    effects = state.round(NOW, PLENTY)
    (parcel,) = of(effects, SendParcel)
    assert parcel.batch.column("_offset").to_pylist() == list(range(7))
    assert of(effects, SendMark) == [SendMark(1, IDLE)]
    assert of(effects, Fetch) == []
    (read,) = state.snapshot().reads
    assert read.offset == 8, "from here the next session goes on"


def test_a_row_that_is_not_old_enough_waits() -> None:
    state = fed(slice_of(binding(delay=100)), documents(10, 20))
    effects = state.round(115, PLENTY)
    assert of(effects, SendParcel)[0].batch.column("_clock").to_pylist() == [10]
    assert of(effects, SendMark) == [SendMark(1, Mark(MarkKind.DELAYED, 120))]
    assert of(effects, Sleep) == [Sleep(120)]
    assert not state.is_due(119)
    assert of(state.round(120, PLENTY), SendParcel)[0].batch.column("_clock").to_pylist() == [20]


def test_a_late_row_does_not_break_a_promise() -> None:
    state = fed(slice_of(), documents(50, 60))
    state.handle(ReadStarted(8, 0, "k"))
    state.handle(Probed(8, 0, 0))
    state.round(NOW, {1: 0})
    state.handle(Fetched(8, (batch_of("k", documents(3), 0, 1),), 1))
    assert state._numbers[8].buffer[0].keys.tolist() == [50]
    effects = state.round(NOW, {1: 1})
    assert of(effects, SendMark) == []
    effects += state.round(NOW, PLENTY)
    assert sorted(
        clock for parcel in of(effects, SendParcel) for clock in parcel.batch["_clock"].to_pylist()
    ) == [3, 50, 60]


def test_rollbacks_go_before_the_rows_and_take_those_of_the_round_along() -> None:
    rows = documents(10, 11, flags=1)
    state = fed(slice_of(), rows, head=2)
    assert of(state.round(NOW, PLENTY), SendFlush) == []
    later = [*rows, *documents(12, flags=1), *documents(1, flags=2), *documents(12, flags=1)]
    state.handle(Fetched(7, (batch_of("j", later, 2, 5),), 5))
    effects: list[Any] = state.round(NOW, PLENTY)
    assert [type(effect) for effect in effects[:2]] == [SendRollbacks, SendParcel]
    assert effects[0].batch.to_pylist() == [
        {"_read": 7, "_producer": ONE, "after": 1, "through": 12}
    ]
    assert effects[1].batch.column("_offset").to_pylist() == [4]
    assert of(effects, SendFlush) == [SendFlush(1)]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([*documents(10, flags=1), *documents(11)], OutsideWithPrecedingContinueError),
        ([*documents(10, 20, flags=1), *documents(15, flags=2)], AckPartialCommitError),
    ],
)
def test_a_fault_names_journal_offset_and_producer(
    rows: list[Row], error: type[SequenceFaultError]
) -> None:
    state = fed(slice_of(), documents(5))
    state.handle(ReadStarted(8, 0, "faulty"))
    state.handle(Probed(8, 0, len(rows)))
    state.handle(Fetched(8, (batch_of("faulty", rows, 0, len(rows)),), len(rows)))
    problem = f"journal faulty at offset {len(rows) - 1}: producer {Producer.from_int64(ONE)}"
    with pytest.raises(error, match=problem):
        state.round(NOW, PLENTY)


def test_hints_name_journals_for_the_bindings_that_read_them() -> None:
    bindings = (binding(0), binding(1), binding(2, delay=5, cohort=1))
    rows = [*documents(10, flags=1), *documents(11, flags=2, hints=("other", "x/unread", "j"))]
    state = fed(slice_of(*bindings), rows)
    delta = told(state, state.round(NOW, PLENTY))
    found = [
        (
            journal.journal,
            journal.binding,
            [(e.last_commit, e.hinted_commit) for e in journal.producers],
        )
        for journal in delta.journals()
    ]
    assert found == [
        ("j", 0, [(11, 0)]),
        ("j", 1, [(0, 11)]),
        ("other", 0, [(0, 11)]),
        ("other", 1, [(0, 11)]),
    ]


def test_a_rollback_gives_no_hints() -> None:
    rows = [*documents(10), *documents(11, flags=1), *documents(10, flags=2, hints=("other",))]
    state = fed(slice_of(), rows)
    delta = told(state, state.round(NOW, PLENTY))
    assert delta.journal_names.to_pylist() == ["j"]
    assert delta.offsets.tolist() == [-3]


def test_documents_outside_of_the_times_are_told_and_not_sent() -> None:
    state = fed(slice_of(binding(not_before=20, not_after=30)), documents(19, 20, 29, 30))
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendParcel)[0].batch.column("_clock").to_pylist() == [20, 29]
    assert told(state, effects).last_commits.tolist() == [30]


def test_missing_bytes_raise_the_gap_floor_of_the_binding() -> None:
    state = slice_of()
    state.handle(ReadStarted(7, 0, "j", (entry(ONE, 5, -2),)))
    state.handle(AllReadsStarted())
    rows = documents(1, 2, 3, 4, 5, 60, 70)
    assert state.handle(Probed(7, 5, 7)) == [Fetch(7, "j", 5, FETCH_BYTES)]
    state.handle(Fetched(7, (batch_of("j", rows, 5, 7),), 7))
    delta = told(state, state.round(NOW, PLENTY))
    assert delta.gap_floor == {0: 60 + GAP_SLACK}
    assert delta.bytes_read_delta.tolist() == [2]
    assert delta.bytes_behind_delta.tolist() == [0]


def test_rows_that_are_dropped_while_reading_are_a_gap_too_also_over_a_restart() -> None:
    rows = documents(*range(10, 20))
    state = fed(slice_of(), rows[:4], head=10)
    assert state.handle(Probed(7, 8, 10)) == [], "what is buffered goes first"
    assert of(state.round(NOW, PLENTY), Fetch) == []
    assert of(state.round(NOW, PLENTY), Fetch) == [Fetch(7, "j", 8, FETCH_BYTES)]
    restored = slice_of(restored=SliceSnapshot.decode(state.snapshot().encode()))
    restored.handle(ReadStarted(3, 0, "j"))
    restored.handle(AllReadsStarted())
    assert restored.handle(Probed(3, 8, 10)) == [Fetch(3, "j", 8, FETCH_BYTES)]
    for each, number in ((state, 7), (restored, 3)):
        each.handle(Fetched(number, (batch_of("j", rows, 8, 10),), 10))
        each.handle(ProgressAsked())
        total, floor = 0, 0
        for _ in range(3):
            each.round(NOW, PLENTY)
            if each._flushes._delta is None:
                break
            for report in of(each.handle(Flushed(1, each._flushes.cycle, 1)), Report):
                total += int(report.delta.bytes_read_delta.sum())
                floor = report.delta.gap_floor.get(0, 0)
                each.handle(ProgressAsked())
        assert total == 6
        assert floor == 18 + GAP_SLACK


def test_a_journal_that_vanishes_holds_nobody_up_and_is_told() -> None:
    state = fed(slice_of(), documents(10, 20), head=9)
    state.handle(ReadStarted(8, 0, "k"))
    assert of(state.round(NOW, PLENTY), SendParcel) == []
    assert state.handle(Vanished(8)) == [TellEnded(8)], "nothing was read of it"
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendParcel)[0].batch.num_rows == 2
    (flush,) = of(effects, SendFlush)
    assert state.handle(Vanished(7)) == []
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendMark) == [SendMark(1, IDLE)]
    assert of(effects, Fetch) == []
    assert state.handle(Flushed(1, flush.cycle, 5)) == []
    first, second = state.handle(ProgressAsked())
    assert isinstance(first, Report), "what was read of it is told first"
    assert second == TellEnded(7)


def test_a_journal_that_vanishes_within_a_span_is_told_with_a_flush_of_its_own() -> None:
    state = fed(slice_of(), documents(10, 20, flags=1))
    assert of(state.round(NOW, PLENTY), SendFlush) == []
    assert state.handle(Vanished(7)) == []
    (flush,) = of([*state.round(NOW, PLENTY), *state.round(NOW, PLENTY)], SendFlush)
    state.handle(ProgressAsked())
    first, second = state.handle(Flushed(1, flush.cycle, 5))
    assert isinstance(first, Report)
    assert first.delta.offsets.tolist() == [0]
    assert second == TellEnded(7)


@pytest.mark.parametrize("committed", [False, True])
def test_spans_that_were_open_in_a_journal_that_no_listing_has_are_let_go(committed: bool) -> None:
    before = documents(5) if committed else []
    state = fed(slice_of(), [*before, *documents(10, 20, flags=1), *documents(15, who=TWO)])
    state.round(NOW, PLENTY)
    restored = slice_of(restored=SliceSnapshot.decode(state.snapshot().encode()))
    assert restored.handle(AllReadsStarted()) == [TellSpansLeft(0, "j")]
    assert restored.handle(ReadStarted(8, 0, "j")) == [Probe(8, "j", len(before) + 3)]
    restored.handle(Vanished(8))
    effects = restored.round(NOW, PLENTY)
    (rollbacks,) = of(effects, SendRollbacks)
    assert [tuple(row.values()) for row in rollbacks.batch.to_pylist()] == [
        (8, ONE, 5 if committed else 1, 20)
    ]
    again = slice_of(restored=SliceSnapshot.decode(restored.snapshot().encode()))
    assert again.handle(AllReadsStarted()) == [], "they are let go once"


def test_spans_of_journals_that_are_read_are_not_told_of() -> None:
    state = fed(slice_of(), documents(10, 20, flags=1))
    state.round(NOW, PLENTY)
    restored = slice_of(restored=SliceSnapshot.decode(state.snapshot().encode()))
    restored.handle(ReadStarted(8, 0, "j"))
    assert restored.handle(AllReadsStarted()) == []


def test_the_read_ahead_is_shared_but_every_read_gets_its_next_rows() -> None:
    state = slice_of(read_ahead_bytes=4 * FETCH_BYTES)
    effects: list[Any] = []
    for number in range(4):
        state.handle(ReadStarted(number, 0, f"j{number}"))
    for number in range(4):
        effects += state.handle(Probed(number, 0, 100))
    assert [effect.read for effect in effects] == [0, 1, 2, 3]
    little = FETCH_BYTES // 4
    assert [one.bytes_max for one in effects] == [FETCH_BYTES, FETCH_BYTES, little, little]
    assert state.handle(Fetched(0, (batch_of("j0", documents(90), 0, 1),), 100)) == []
    (fetch,) = state.handle(Fetched(1, (batch_of("j1", documents(10), 0, 1),), 100))
    assert fetch == Fetch(1, "j1", 1, FETCH_BYTES)  # it holds up the horizon


SPAN = [
    *documents(10, 11, flags=1),
    *documents(12, who=TWO),
    *documents(13, flags=1),
    *documents(14, flags=2),
]


def resumed(rows: list[Row] = SPAN) -> SliceState:
    """It starts behind TWO's document; the span of ONE is open there."""
    state = slice_of()
    state.handle(ReadStarted(7, 0, "j", (entry(ONE, 1, 0), entry(TWO, 12, -3))))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, 0, len(rows)))
    state.handle(Fetched(7, (batch_of("j", rows, 3, len(rows)),), len(rows)))
    return state


def test_a_span_that_was_open_is_read_again_before_its_next_row() -> None:
    state = resumed()
    effects = state.round(NOW, PLENTY)
    assert of(effects, Replay) == [Replay(7, "j", 0, 3)]
    assert of(effects, SendParcel) == []
    assert of(state.round(NOW, PLENTY), SendParcel) == []
    assert state.handle(ReplayFetched(7, (batch_of("j", SPAN, 0, 1),), 1)) == []
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendParcel)[0].batch.column("_offset").to_pylist() == [0]
    assert of(effects, Replay) == [Replay(7, "j", 1, 3)]
    state.handle(ReplayFetched(7, (batch_of("j", SPAN, 1, 3),), 3))
    sent = [
        offset
        for _ in range(2)
        for parcel in of(state.round(NOW, PLENTY), SendParcel)
        for offset in parcel.batch.column("_offset").to_pylist()
    ]
    assert sent == [1, 3]


def test_an_empty_replay_is_fine() -> None:
    state = resumed()
    state.round(NOW, PLENTY)
    assert state.handle(ReplayFetched(7, (), 3)) == []
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendParcel)[0].batch.column("_offset").to_pylist() == [3]
    assert told(state, effects).offsets.tolist() == [-5]


def test_a_rollback_closes_the_span_without_reading_it_again() -> None:
    rows = [*SPAN[:3], *documents(1, flags=2), *documents(20)]
    state = resumed(rows)
    effects = state.round(NOW, PLENTY)
    assert of(effects, Replay) == []
    assert of(effects, SendRollbacks) == []
    assert of(effects, SendParcel)[0].batch.column("_offset").to_pylist() == [4]


def test_a_document_outside_of_the_open_span_is_a_fault() -> None:
    state = resumed([*SPAN[:3], *documents(20)])
    with pytest.raises(OutsideWithPrecedingContinueError, match="journal j at offset 3"):
        state.round(NOW, PLENTY)


def test_a_commit_within_the_span_is_an_error() -> None:
    state = resumed()
    state.round(NOW, PLENTY)
    rows = [*documents(10, flags=1), *documents(11, flags=2)]
    state.handle(ReplayFetched(7, (batch_of("j", rows, 0, 2),), 2))
    with pytest.raises(ReplayedCommitError, match="journal j at offset 1: producer 01"):
        state.round(NOW, PLENTY)


@pytest.mark.parametrize("rows_sent", [0, 1])
def test_a_replay_is_begun_anew_when_its_journal_is_back(rows_sent: int) -> None:
    state = resumed()
    state.round(NOW, PLENTY)
    if rows_sent:
        state.handle(ReplayFetched(7, (batch_of("j", SPAN, 0, 1),), 1))
        state.round(NOW, PLENTY)
    effects = state.handle(Vanished(7))
    assert state.handle(ReplayFetched(7, (batch_of("j", SPAN, 1, 3),), 3)) == [], "too late"
    assert state.handle(Fetched(7, (batch_of("j", SPAN, 3, 4),), 4)) == []
    assert state.handle(Vanished(7)) == []
    effects += state.round(NOW, PLENTY)
    assert of(effects, SendParcel) == [], "nor what was buffered behind it"
    assert len(of(effects, SendRollbacks)) == rows_sent, "what was sent is forgotten"
    (flush,) = of(effects, SendFlush) or [None]
    if flush is not None:
        state.handle(ProgressAsked())
        effects += state.handle(Flushed(1, flush.cycle, 5))
    assert of(effects, TellEnded) == [TellEnded(7)]
    assert state.snapshot().replays == ()
    assert state.handle(ReadStarted(8, 0, "j")) == [Probe(8, "j", 3)]
    state.handle(Probed(8, 0, 4))
    state.handle(Fetched(8, (batch_of("j", SPAN, 3, 4),), 4))
    assert of(state.round(NOW, PLENTY), Replay) == [Replay(8, "j", 0, 3)]


def test_a_journal_that_is_back_is_read_on() -> None:
    """Whether in this life or in the next, and a snapshot has it once."""
    state = fed(slice_of(), documents(10, 20))
    delta = told(state, state.round(NOW, PLENTY))
    assert state.handle(Vanished(7)) == [TellEnded(7)]
    saved = state.snapshot()
    assert [(read.journal, read.offset) for read in saved.reads] == [("j", 2)]
    restored = slice_of(restored=SliceSnapshot.decode(saved.encode()))
    for each in (state, restored):
        assert each.handle(ReadStarted(8, 0, "j")) == [Probe(8, "j", 2)]
        each.handle(AllReadsStarted())
        (fetch,) = of(each.handle(Probed(8, 0, 3)), Fetch)
        assert fetch.offset == 2
        each.handle(Fetched(8, (batch_of("j", documents(10, 20, 30), 2, 3),), 3))
        (parcel,) = of(each.round(NOW, PLENTY), SendParcel)
        assert parcel.batch.column("_clock").to_pylist() == [30]
        assert [read.offset for read in each.snapshot().reads] == [3]
    assert delta.bytes_read_delta.tolist() == [2]


def test_another_journal_of_the_name_is_read_from_its_begin() -> None:
    state = fed(slice_of(), documents(10, 20))
    told(state, state.round(NOW, PLENTY))
    state.handle(Vanished(7))
    assert state.handle(ReadStarted(8, 0, "j", (), "b", "j@b")) == [Probe(8, "j", 0, "b")]
    state.handle(Probed(8, 0, 1))
    state.handle(Fetched(8, (batch_of("j", documents(20), 0, 1),), 1))
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendReads)[0].batch.column("journal").to_pylist() == ["j@b"]
    assert len(of(effects, SendParcel)) == 1, "it is no duplicate, though its clock was there"
    assert told(state, effects).journal_names.to_pylist() == ["j@b"]
    snapshot = SliceSnapshot.decode(state.snapshot().encode())
    assert [(read.journal, read.offset) for read in snapshot.reads] == [("j@b", 1), ("j", 2)]
    restored = slice_of(restored=snapshot)
    assert restored.handle(ReadStarted(9, 0, "j")) == [Probe(9, "j", 2)]


def test_a_replay_is_in_the_snapshot() -> None:
    state = resumed()
    state.round(NOW, PLENTY)
    state.handle(ReplayFetched(7, (batch_of("j", SPAN, 0, 1),), 1))
    state.round(NOW, PLENTY)
    snapshot = SliceSnapshot.decode(state.snapshot().encode())
    assert snapshot.replays == (SavedReplay("j", 0, ONE, 1, 3, 13),)
    restored = slice_of(restored=snapshot)
    assert restored.snapshot() == snapshot
    effects = restored.handle(ReadStarted(2, 0, "j"))
    assert effects == [Probe(2, "j", 3), Replay(2, "j", 1, 3)]


def test_a_restored_slice_tells_everything_once_more_and_marks_again() -> None:
    state = fed(slice_of(), documents(10, 20))
    delta = told(state, state.round(NOW, PLENTY))
    assert state.handle(BarrierClaimed(Barrier(3, 3))) == [SendBarrier(Barrier(3, 3))]
    restored = slice_of(restored=SliceSnapshot.decode(state.snapshot().encode()))
    effects = restored.round(NOW, PLENTY)
    assert effects == [SendMark(1, Mark(MarkKind.DUE, 20)), SendFlush(2)]
    again = told(restored, effects)
    assert again.last_commits.tolist() == delta.last_commits.tolist() == [20]
    assert again.bytes_read_delta.tolist() == [0]
    assert restored.handle(ReadStarted(1, 0, "j")) == [Probe(1, "j", 2)]
    assert restored.handle(Probed(1, 0, 5)) == [Fetch(1, "j", 2, FETCH_BYTES)]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Fetched(9, (), 3), "read 9 was not started"),
        (Probed(9, 0, 3), "read 9 was not started"),
        (ReplayFetched(7, (), 3), "read 7 is not being replayed"),
        (ReadStarted(7, 0, "k"), "read 7 was started twice"),
        (ReadStarted(9, 4, "k"), "binding 4, which is of another lane"),
        (
            Fetched(7, (batch_of("j", documents(1, 2, 3), 1, 3),), 3),
            "from offset 1 up to 3, and those from 2",
        ),
    ],
)
def test_what_cannot_be_is_refused(event: Any, problem: str) -> None:
    state = fed(slice_of(), documents(10, 20))
    with pytest.raises((LocalProtocolError, RemoteProtocolError), match=problem):
        state.handle(event)


def test_an_answer_that_nobody_waits_for_is_refused() -> None:
    state = slice_of()
    state.handle(ReadStarted(7, 0, "j"))
    with pytest.raises(LocalProtocolError, match="no fetch is under way"):
        state.handle(Fetched(7, (), 0))
    replayed = resumed()
    replayed.round(NOW, PLENTY)
    with pytest.raises(LocalProtocolError, match="cannot have reached 9"):
        replayed.handle(ReplayFetched(7, (), 9))


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    data = fed(slice_of(), documents(10)).snapshot().encode()
    for bad in (b"", b"PSL2" + data[4:], data[:-1], data + b"x", data[:40] + b"?" * 8 + data[48:]):
        with pytest.raises(CorruptSliceError, match="no Slice's state"):
            SliceSnapshot.decode(bad)


def test_only_news_are_told() -> None:
    rows = [*documents(10), *documents(11, who=TWO), *documents(12)]
    state = fed(slice_of(), rows[:2])
    assert told(state, state.round(NOW, PLENTY)).entry_count == 2
    state.handle(Fetched(7, (batch_of("j", rows, 2, 3),), 3))
    delta = told(state, state.round(NOW, PLENTY))
    assert delta.last_commits.tolist() == [12]
    assert delta.bytes_read_delta.tolist() == [1]


def test_what_was_learned_stays_in_every_later_snapshot() -> None:
    rows = [*documents(10, flags=1), *documents(11, flags=2, hints=("other",))]
    state = fed(slice_of(), rows)
    for _ in range(3):
        told(state, state.round(NOW, PLENTY))
        snapshot = state.snapshot()
        assert [hint for hint in snapshot.frontier.hinted_commits.tolist() if hint] == [11]
        state = slice_of(restored=SliceSnapshot.decode(snapshot.encode()))
