"""Sessions that go on in the transaction log where an epoch left it, and rows that are lost."""

from __future__ import annotations

import pytest

from penstock.errors import LocalProtocolError
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import CLOCK_FLOOR, Producer
from penstock.journal.collection import Collection
from penstock.journal.markers import MarkersSought
from penstock.journal.offset_identity import READER, clock_of, transactional
from penstock.journal.transaction_log import Decided, Idle, Look, Marker
from penstock.routing import assign
from penstock.shuffle.session.log_matching import FindMarkers, LogRead, MarkersFound, ReadLog
from penstock.shuffle.session.remembered import Remembered, decoded
from penstock.shuffle.session.state import (
    AskProgress,
    CheckpointReady,
    Progressed,
    SessionState,
    SliceOpened,
)
from penstock.shuffle.session.topology import Topology
from tests.unit.shuffle.session.plans import binding, plan_of

ORDERS = Collection.define("orders", "id BIGINT NOT NULL, region STRING", "id", "region")
PLAN = plan_of(binding(0, "orders"))
EU, US = "orders/region=eu/000", "orders/region=us/000"
WRITER = transactional(7)
ASKED = AskProgress(4, 0)


def begun(remembered: Remembered | None, resume: Frontier | None = None) -> SessionState:
    state = SessionState(
        PLAN,
        Topology(PLAN, {"orders": ORDERS}, assign([4])),
        resume or Frontier.of(),
        0.0,
        has_log=True,
        restored=remembered is not None,
        remembered=remembered and decoded(remembered.encoded()),
    )
    state.on_event(SliceOpened(4, 0), 0.0)
    return state


def progress(
    journal: str,
    to: int,
    commit: int | None = None,
    markers: tuple[Marker, ...] = (),
    opened: int | None = None,
) -> Progressed:
    clock = CLOCK_FLOOR if commit is None else clock_of(commit)
    entries = [
        ProducerFrontier(READER, clock_of(to), offset=-to),
        ProducerFrontier(Producer.from_int64(WRITER), clock, offset=opened or -to),
    ]
    ordered = tuple(sorted(entries, key=lambda entry: entry.producer))
    return Progressed(4, 0, Frontier.of([JournalFrontier(journal, 0, ordered)]), markers)


def marker(journal: str, offset: int) -> Marker:
    return Marker(journal, 0, WRITER, offset, 0, is_commit=True)


def decided(place: int, *journals: str) -> Decided:
    return Decided(WRITER, place, 0, True, journals)


def committed(state: SessionState) -> dict[str, int]:
    """The clocks of the writer's newest commits that are complete."""
    state.take()
    writer = Producer.from_int64(WRITER)
    found = {name: state.frontier.entry(name, 0, writer) for name in (EU, US)}
    return {
        name: entry.last_commit
        for name, entry in found.items()
        if entry is not None and entry.last_commit > CLOCK_FLOOR
    }


REMEMBERED = Remembered(
    log={0: (40, 40)},
    reads={(EU, 0): 5, (US, 0): 5},
    opened=frozenset({(EU, 0, WRITER)}),
    journals=frozenset({EU, US}),
)


def test_markers_that_were_told_to_an_earlier_session_are_read_again() -> None:
    state = begun(REMEMBERED)
    sought = MarkersSought(5, 5, 9, frozenset({WRITER}))
    told = progress(EU, 9, commit=7)
    assert state.on_event(told, 0.0) == [FindMarkers({(EU, 0): sought})]
    assert state.on_log(LogRead((decided(40, EU),)), 0.0) == []  # it was asked for
    found = state.on_markers(MarkersFound((marker(EU, 7),)), 0.0)
    assert found == [ASKED, CheckpointReady()]
    assert committed(state) == {EU: clock_of(7)}
    again = progress(EU, 12, 11, (marker(EU, 11),))
    assert state.on_event(again, 0.0) == [ReadLog(looks=False)]


def test_what_a_session_matched_it_does_not_match_again() -> None:
    state = begun(None)
    look = Look((Idle(WRITER, 39),), {(EU, ""): 5, (US, ""): 0}, (), ())
    state.on_log(LogRead((), look), 0.0)
    state.on_event(progress(EU, 5), 0.0)
    state.on_log(LogRead((decided(40, EU, US), Idle(WRITER, 41), decided(42, EU)), None), 0.0)
    assert state.on_event(progress(EU, 8, 7, (marker(EU, 7),)), 0.0) == [ASKED]
    assert committed(state) == {}  # its other half is missing
    kept = state.remembered()
    assert kept is not None
    assert kept.log == {0: (40, 43)}
    assert kept.pending == {(EU, 0, WRITER): (7, 40)}
    assert kept.expected == {(EU, 0, WRITER): 42, (US, 0, WRITER): 40}
    after = begun(kept)
    after.on_log(LogRead((decided(40, EU, US), Idle(WRITER, 41), decided(42, EU))), 0.0)
    (wanted,) = after.on_event(progress(EU, 8, 7), 0.0)
    assert wanted == FindMarkers({(EU, 0): MarkersSought(7, 8, 8, frozenset())})
    assert after.on_markers(MarkersFound((marker(EU, 7),)), 0.0) == [ASKED]
    assert committed(after) == {}
    after.on_event(progress(EU, 10, 9, (marker(EU, 9),)), 0.0)
    assert committed(after) == {}
    (wanted,) = after.on_event(progress(US, 3, 2), 0.0)
    assert wanted == FindMarkers({(US, 0): MarkersSought(0, 0, 3, frozenset())})
    after.on_markers(MarkersFound((marker(US, 2),)), 0.0)
    assert committed(after) == {EU: clock_of(9), US: clock_of(2)}


def test_markers_that_cannot_be_had_make_the_session_look() -> None:
    state = begun(REMEMBERED)
    state.on_event(progress(EU, 9, commit=7), 0.0)
    assert state.on_markers(MarkersFound(None), 0.0) == [ReadLog(looks=True)]
    look = Look((Idle(WRITER, 41),), {(EU, ""): 9, (US, ""): 5}, (), ())
    state.on_log(LogRead((), look), 0.0)
    state.on_event(progress(US, 5), 0.0)
    assert committed(state) == {EU: clock_of(7)}


def test_a_session_that_has_not_read_up_to_its_look_remembers_the_look() -> None:
    state = begun(None)
    state.on_log(LogRead((), Look((Idle(WRITER, 39),), {(EU, ""): 9}, (), ())), 0.0)
    state.on_event(progress(EU, 4), 0.0)
    kept = state.remembered()
    assert kept is not None
    assert kept.is_look
    after = begun(kept)
    assert ASKED in after.on_event(progress(EU, 8), 0.0)  # its Slice is not behind the look
    assert after.on_event(progress(EU, 12, 11, (marker(EU, 11),)), 0.0) == [ReadLog(looks=False)]
    after.on_log(LogRead((decided(40, EU),)), 0.0)
    assert committed(after) == {EU: clock_of(11)}


def test_what_an_earlier_session_delivered_behind_its_look_is_not_waited_for_again() -> None:
    """Its look was not reached in a third journal: so all behind the look is matched once more."""
    state = begun(None)
    ends = {(EU, ""): 5, (US, ""): 5, ("orders/region=far/000", ""): 9}
    state.on_log(LogRead((), Look((Idle(WRITER, 39),), ends, (), ())), 0.0)
    state.on_log(LogRead((decided(40, EU, US),)), 0.0)
    state.on_event(progress(EU, 8, 7, (marker(EU, 7),)), 0.0)
    state.on_event(progress(US, 8, 6, (marker(US, 6),)), 0.0)
    assert committed(state) == {EU: clock_of(7), US: clock_of(6)}
    kept = state.remembered()
    assert kept is not None
    assert kept.is_look
    after = begun(kept, state.frontier)
    after.on_log(LogRead((decided(40, EU, US),)), 0.0)
    for name, commit in ((EU, 7), (US, 6)):
        (wanted,) = after.on_event(progress(name, 8, commit), 0.0)
        assert wanted == FindMarkers({(name, 0): MarkersSought(5, 5, 8, None)})
        after.on_markers(MarkersFound((marker(name, commit),)), 0.0)
    after.on_event(progress("orders/region=far/000", 9), 0.0)
    assert not after.waiting


def test_a_span_that_is_open_stays_open_where_a_look_is_reached() -> None:
    """Else nobody would read its begin again after queues were lost."""
    state = begun(None)
    state.on_log(LogRead((), Look((Idle(WRITER, 39),), {(EU, ""): 9}, (), ())), 0.0)
    told = progress(EU, 10, 4, (marker(EU, 4),), opened=7)
    state.on_event(told, 0.0)
    state.take()
    entry = state.frontier.entry(EU, 0, Producer.from_int64(WRITER))
    assert entry is not None
    assert (entry.last_commit, entry.offset) == (clock_of(4), 7)


def test_only_who_was_asked_tells_markers() -> None:
    with pytest.raises(LocalProtocolError, match="nobody has asked"):
        begun(REMEMBERED).on_markers(MarkersFound(()), 0.0)
    with pytest.raises(LocalProtocolError, match="no transaction log"):
        SessionState(
            PLAN, Topology(PLAN, {"orders": ORDERS}, assign([4])), Frontier.of(), 0.0
        ).on_markers(MarkersFound(()), 0.0)


def test_a_marker_that_is_lost_is_waited_for_until_a_look_is_behind_it() -> None:
    """The transaction has no rows in the second journal any more, and no marker: once that was read
    behind the loss, nobody waits for it."""
    state = begun(REMEMBERED)
    state.on_event(progress(EU, 5), 0.0)
    state.on_event(progress(US, 5), 0.0)
    state.on_log(LogRead((decided(40, EU, US), Idle(WRITER, 41))), 0.0)
    state.on_event(progress(EU, 8, 7, (marker(EU, 7),)), 0.0)
    assert committed(state) == {}
    behind = progress(US, 9, markers=(Marker.lost(US, 0, 8),))
    assert state.on_event(behind, 0.0) == [ReadLog(looks=False)]
    assert state.on_log(LogRead(), 0.0) == [ASKED, ReadLog(looks=True)]
    assert committed(state) == {}
    look = Look((), {(EU, ""): 8, (US, ""): 9}, (), ())
    assert CheckpointReady() in state.on_log(LogRead((), look), 0.0)
    assert committed(state) == {EU: clock_of(7)}


def test_another_release_has_left_nothing_to_go_on_from() -> None:
    assert decoded(b'{"form": 0}') is None
