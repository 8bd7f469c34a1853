"""The Session's machine: who is told what, in which order, and what it does not put up with."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import Producer
from penstock.journal.collection import Collection
from penstock.journal.errors import DataLossError
from penstock.journal.names import Selector
from penstock.journal.offset_identity import clock_of, transactional
from penstock.journal.transaction_log import Decided, Look, Marker
from penstock.routing import assign
from penstock.sequence import ProducerState
from penstock.shuffle.session.log_matching import LogRead
from penstock.shuffle.session.lost import RowsLostError
from penstock.shuffle.session.state import (
    READS_MAX,
    AllReadsStarted,
    AskProgress,
    CheckpointReady,
    ListingAdded,
    ListingDone,
    ListingRemoved,
    Looked,
    Progressed,
    ReadEnded,
    RowsMissing,
    SessionEffect,
    SessionState,
    SliceOpened,
    Sought,
    SpansLeft,
    StartRead,
)
from penstock.shuffle.session.topology import Topology
from tests.unit.shuffle.session.plans import binding, plan_of

P = Producer.from_hex("0100000000aa")
ORDERS = Collection.define("orders", "id BIGINT NOT NULL, region STRING", "id", "region")
PLAN = plan_of(
    binding(0),
    binding(1, selector=Selector.parse("region=eu", ("region",)), cohort=1, lane=1),
    binding(2, cohort=0),
)
TOPOLOGY = Topology(PLAN, {"orders": ORDERS}, assign([4, 7]))
OF_SLICES = (StartRead, AllReadsStarted, AskProgress)
SLICES = [(4, 0), (4, 1), (7, 0), (7, 1)]
LISTERS = {0: (4, 0), 1: (7, 1), 2: (4, 0)}
EU, US = "orders/region=eu/000", "orders/region=us/000"
NOTHING = Frontier.of()


def journal(name: str, place: int, *clocks: int, hint: int = 0) -> JournalFrontier:
    """A journal with a commit and its offset, or with a hint alone."""
    last_commit, offset = clocks or (0, 0)
    return JournalFrontier(name, place, (ProducerFrontier(P, last_commit, hint, offset),))


def opened(resume: Frontier = NOTHING, **options: Any) -> SessionState:
    state = SessionState(PLAN, TOPOLOGY, resume, 0.0, **options)
    for key in SLICES:
        assert state.on_event(SliceOpened(*key), 0.0) == [AskProgress(*key)]
    return state


def listed(state: SessionState, place: int, name: str, identity: str = "") -> list[Any]:
    return state.on_event(ListingAdded(*LISTERS[place], place, name, identity), 0.0)


def looked_for(
    state: SessionState, sought: Sought, found: dict[str, Looked], now: float
) -> list[Any]:
    return [*state.looked_for(sought, found, now)]


def start(state: SessionState, place: int, name: str) -> StartRead:
    (effect,) = listed(state, place, name)
    assert isinstance(effect, StartRead)
    return effect


def test_a_listed_journal_is_read_by_one_slice_of_its_lane() -> None:
    state = opened()
    for number, (place, name) in enumerate([(0, EU), (2, EU), (1, EU), (0, US)]):
        read = start(state, place, name)
        reader = (TOPOLOGY.reader(place, name), PLAN.bindings[place].lane)
        assert read == StartRead(*reader, number, place, name, ())


def test_a_read_goes_on_where_the_frontier_ends_and_only_once() -> None:
    resume = Frontier.of([journal(EU, 0, 50, -9), journal(EU, 1, 60, -8)])
    state = opened(resume)
    read = start(state, 0, EU)
    assert read.entries == (ProducerFrontier(P, 50, 0, -9),)
    assert start(state, 1, EU).entries == (ProducerFrontier(P, 60, 0, -8),)
    assert state.on_event(ReadEnded(read.member, read.lane, read.read), 0.0) == []
    again = start(state, 0, EU)
    assert (again.read, again.entries) == (2, ())
    assert state.frontier == resume


def test_a_journal_that_is_there_again_before_anybody_listed_it_is_read_on() -> None:
    state = opened()
    read = start(state, 0, EU)
    list_all(state)
    assert listed(state, 0, EU) == []  # it is being read
    assert not state.sought(0.0).journals
    state.on_event(ReadEnded(read.member, read.lane, read.read), 0.0)
    for _ in range(3):  # no listing has told that it is gone, so none tells when it is back
        assert state.sought(1.0).ended == {(EU, 0)}
        assert looked_for(state, state.sought(1.0), {EU: Looked(None)}, 1.0) == []
    assert looked_for(state, state.sought(1.0), {EU: Looked("")}, 1.0) == [replace(read, read=1)]
    assert not state.sought(1.0).journals


def test_a_journal_whose_going_was_listed_is_told_when_it_is_back() -> None:
    state = opened()
    read = start(state, 0, EU)
    list_all(state)
    removed = ListingRemoved(*LISTERS[0], 0, EU)
    for told_first in (True, False):
        if told_first:
            assert state.on_event(removed, 0.0) == []
        state.on_event(ReadEnded(read.member, read.lane, read.read), 0.0)
        if not told_first:
            assert state.on_event(removed, 0.0) == []
        assert not state.sought(1.0).journals, "a listing will tell"
        read = start(state, 0, EU)


def test_another_journal_of_the_name_is_known_by_its_identity() -> None:
    state = opened(adopted=None)
    (first,) = listed(state, 0, EU, "a")
    list_all(state)
    assert (first.identity, first.known_as, state.adopted) == ("a", "", {EU: "a"})
    assert listed(state, 0, EU, "b") == []  # its Slice finds out
    state.on_event(ReadEnded(first.member, first.lane, first.read), 0.0)
    (second,) = looked_for(state, state.sought(1.0), {EU: Looked("b")}, 1.0)
    assert (second.identity, second.known_as) == ("b", f"{EU}@b")
    state.on_event(ReadEnded(second.member, second.lane, second.read), 0.0)
    (third,) = looked_for(state, state.sought(1.0), {EU: Looked("a")}, 1.0)
    assert third == replace(first, read=2), "the first is back"
    assert listed(state, 0, US, "c")[0].known_as == f"{US}@c", "this one was never without"


READER = TOPOLOGY.reader(0, EU)


def spans_left(state: SessionState, known: str) -> list[Any]:
    return [*state.on_event(SpansLeft(READER, 0, 0, known), 0.0)]


@pytest.mark.parametrize("known", [EU, f"{EU}@a"])
def test_a_journal_that_no_listing_has_is_read_if_spans_are_open_in_it(known: str) -> None:
    adopted = {EU: "a"} if known == EU else {}
    state = opened(Frontier.of([journal(known, 0, 50, 9)]), adopted=adopted)
    list_all(state)
    (read,) = spans_left(state, known)
    assert read == StartRead(
        READER, 0, 0, 0, EU, (ProducerFrontier(P, 50, 0, 9),), "a", "" if known == EU else known
    )
    assert listed(state, 0, EU, "a") == [], "if it is back, it is being read"
    assert spans_left(state, known) == [], "it is read once"
    state.on_event(ReadEnded(READER, 0, 0), 0.0)
    assert state.sought(1.0).ended == {(EU, 0)}


def test_spans_of_a_journal_are_closed_while_another_has_its_name() -> None:
    state = opened()
    (other,) = listed(state, 0, EU, "b")
    list_all(state)
    (closing,) = spans_left(state, f"{EU}@a")
    assert closing == StartRead(READER, 0, 1, 0, EU, (), "a", f"{EU}@a")
    assert listed(state, 0, EU, "a") == [], "the Slice finds out that the other one is gone"
    state.on_event(ReadEnded(READER, 0, other.read), 0.0)
    for _ in range(2):
        sought = state.sought(1.0)
        assert sought.ended == {(EU, 0)}
        assert looked_for(state, sought, {EU: Looked("a")}, 1.0) == [], "it is read once at a time"
    state.on_event(ReadEnded(READER, 0, closing.read), 0.0)
    (again,) = looked_for(state, state.sought(1.0), {EU: Looked("a")}, 1.0)
    assert again == replace(closing, read=2)


def test_the_end_of_a_read_that_closes_spans_leaves_the_other_running() -> None:
    state = opened()
    (other,) = listed(state, 0, EU, "b")
    list_all(state)
    (closing,) = spans_left(state, f"{EU}@a")
    state.on_event(ReadEnded(READER, 0, closing.read), 0.0)
    assert not state.sought(1.0).journals
    with pytest.raises(RemoteProtocolError, match="which it does not have"):
        state.on_event(ReadEnded(READER, 0, closing.read), 0.0)
    state.on_event(ReadEnded(READER, 0, other.read), 0.0)
    assert state.sought(1.0).ended == {(EU, 0)}


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (SpansLeft(READER, 1, 0, EU), "spans of binding 0, which is not of its lane"),
        (SpansLeft(11 - READER, 0, 0, EU), f"spans of journal '{EU}', which is not its to read"),
    ],
)
def test_spans_of_others_are_refused(left: SpansLeft, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        opened().on_event(left, 0.0)


def test_a_session_that_knows_identities_adopts_no_journal() -> None:
    resume = Frontier.of([journal(EU, 0, 50, -9), journal(f"{EU}@b", 0, 60, -3)])
    for adopted, identity, expected in (
        ({EU: "a"}, "a", (EU, 50)),
        ({EU: "a"}, "b", (f"{EU}@b", 60)),
        ({}, "a", (f"{EU}@a", None)),
        (None, "c", (EU, 50)),
    ):
        (read,) = listed(opened(resume, adopted=adopted), 0, EU, identity)
        commit = read.entries[0].last_commit if read.entries else None
        assert (read.known_as or EU, commit) == expected


def test_numbers_of_reads_go_on_from_session_to_session() -> None:
    state = SessionState(PLAN, TOPOLOGY, NOTHING, 0.0, first_read=7)
    state.on_event(SliceOpened(4, 0), 0.0)
    assert state.next_read == 7
    state.on_event(SliceOpened(7, 0), 0.0)
    reads = [start(state, 0, EU), start(state, 0, US)]
    assert [read.read for read in reads] == [7, 8]
    assert state.next_read == 9
    state.on_event(ReadEnded(reads[0].member, 0, 7), 0.0)
    assert start(state, 0, EU).read == 9


def test_there_are_only_so_many_numbers() -> None:
    state = SessionState(PLAN, TOPOLOGY, NOTHING, 0.0, first_read=READS_MAX - 1)
    for key in SLICES:
        state.on_event(SliceOpened(*key), 0.0)
    assert start(state, 0, EU).read == 2**32 - 1
    with pytest.raises(LocalProtocolError, match="as many as there are: begin with empty queues"):
        listed(state, 0, US)
    assert listed(state, 0, EU) == []


def test_all_slices_hear_when_all_first_reads_were_started() -> None:
    state = opened()
    assert list(state.unlisted) == [0, 1, 2]
    listed(state, 0, EU)
    assert state.on_event(ListingDone(4, 0, 0), 0.0) == []
    assert state.on_event(ListingDone(7, 1, 1), 0.0) == []
    listed(state, 2, EU)
    assert list(state.unlisted) == [2]
    told = state.on_event(ListingDone(4, 0, 2), 0.0)
    assert told == [AllReadsStarted(*key) for key in SLICES]
    assert isinstance(listed(state, 0, US)[0], StartRead)  # later ones are just reads


@given(st.permutations([*SLICES, "listed", "listed", "listed"]))
def test_a_slice_that_opens_late_hears_everything_in_order(
    order: list[tuple[int, int] | str],
) -> None:
    state = SessionState(PLAN, TOPOLOGY, NOTHING, 0.0)
    heard: list[SessionEffect] = []
    unlisted, waiting = [0, 1, 2], 0
    ready: set[object] = set()

    def list_what_can_be() -> None:
        nonlocal waiting
        for place in [each for each in unlisted if LISTERS[each] in ready][:waiting]:
            waiting -= 1
            unlisted.remove(place)
            for name in (EU, US)[: 1 if place == 1 else 2]:
                heard.extend(listed(state, place, name))
            heard.extend(state.on_event(ListingDone(*LISTERS[place], place), 0.0))

    for step in order:
        if isinstance(step, str):
            waiting += 1
        else:
            ready.add(step)
            heard.extend(state.on_event(SliceOpened(*step), 0.0))
        list_what_can_be()
    asks = [effect for effect in heard if isinstance(effect, AskProgress)]
    reads = [effect for effect in heard if isinstance(effect, StartRead)]
    assert sorted((ask.member, ask.lane) for ask in asks) == SLICES
    assert sorted(read.read for read in reads) == list(range(5))
    for key in SLICES:
        own = [effect for effect in heard if isinstance(effect, OF_SLICES)]
        own = [effect for effect in own if (effect.member, effect.lane) == key]
        kinds = [type(effect) for effect in own if not isinstance(effect, AskProgress)]
        assert kinds == [StartRead] * (len(kinds) - 1) + [AllReadsStarted]


def test_progress_is_asked_for_again_at_once() -> None:
    state = opened()
    first = Frontier.of([journal(EU, 0, 50, -9)], flushed_lsn=[3, 0])
    assert state.on_event(Progressed(4, 0, first), 1.0) == [AskProgress(4, 0), CheckpointReady()]
    second = Frontier.of([journal(US, 0, 50, -9)], flushed_lsn=[0, 2])
    assert state.on_event(Progressed(7, 0, second), 2.0) == [AskProgress(7, 0)]
    assert state.has_ready
    taken = state.take()
    assert not state.has_ready
    assert taken == Frontier.of(
        [journal(EU, 0, 50, -9), journal(US, 0, 50, -9)], flushed_lsn=[3, 2]
    )
    assert state.frontier == taken
    assert state.take() is None
    third = Frontier.of([journal(EU, 0, 60, -12)])
    assert state.on_event(Progressed(4, 0, third), 3.0) == [AskProgress(4, 0), CheckpointReady()]
    assert state.take() is not None
    assert state.frontier == Frontier.of(
        [journal(EU, 0, 60, -12), journal(US, 0, 50, -9)], flushed_lsn=[3, 2]
    )


def test_what_is_waited_for_can_be_explained() -> None:
    state = opened()
    half = Frontier.of([journal(EU, 1, 50, -9), journal(US, 1, hint=50)])
    assert state.on_event(Progressed(7, 1, half), 5.0) == [AskProgress(7, 1)]
    (waiting,) = state.waiting
    assert (waiting.cohort, waiting.since, waiting.awaited[0].journal) == (1, 5.0, US)


def test_a_recovery_reads_only_what_is_hinted_at() -> None:
    resume = Frontier.of([journal(EU, 0, 50, -9, hint=80), journal(US, 0, 50, -9)])
    state = opened(resume)
    assert state.recovery
    assert start(state, 0, EU).entries == (ProducerFrontier(P, 50, 80, -9),)
    assert listed(state, 0, US) == []
    assert listed(state, 2, EU) == []
    state.on_event(Progressed(4, 0, Frontier.of([journal(EU, 0, 80, -12)])), 1.0)
    assert state.take() is not None
    assert state.frontier == Frontier.of([journal(EU, 0, 80, -12, hint=80), journal(US, 0, 50, -9)])
    read = 0
    state.on_event(ReadEnded(TOPOLOGY.reader(0, EU), 0, read), 2.0)
    assert listed(state, 0, EU) == []


def test_moot_hints_leave_the_frontier() -> None:
    state = opened()
    state.on_event(
        Progressed(
            4, 0, Frontier.of([journal(EU, 0, 50, -9), journal(US, 0, 20, -3, hint=50)],
            gap_floor={0: 90}),
        ),
        1.0,
    )  # fmt: skip
    assert state.take() is not None
    assert state.frontier.unresolved_hints == 0
    assert state.frontier.entry(US, 0, P) == ProducerFrontier(P, 20, 0, -3)


def list_all(state: SessionState) -> list[SessionEffect]:
    return [
        effect
        for place, lister in LISTERS.items()
        for effect in state.on_event(ListingDone(*lister, place), 0.0)
    ]


def test_a_recovery_fails_at_once_if_a_journal_is_gone() -> None:
    resume = Frontier.of([journal(EU, 0, 50, -9, hint=80), journal(US, 0, 50, -9)])
    with pytest.raises(RowsLostError) as found:
        list_all(opened(resume))
    assert (found.value.feed, found.value.journal) == ("feed", EU)
    assert str(P) in str(found.value)
    assert "the journal is not there any more" in str(found.value)
    assert "new checkpoint" in str(found.value)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_a_recovery_fails_at_once_if_a_journal_goes_or_lost_rows() -> None:
    resume = Frontier.of([journal(EU, 0, 50, -9, hint=80)])
    for event, problem in (
        (ReadEnded(0, 0, 0), "is not there any more"),
        (RowsMissing(0, 0, 0, 9, 12), "rows 9 to 11 were dropped"),
        (RowsMissing(0, 0, 0, 11, 11), "it ends at offset 11; it is not the journal that it was"),
    ):
        state = opened(resume)
        read = start(state, 0, EU)
        assert len(list_all(state)) == len(SLICES)
        with pytest.raises(RowsLostError, match=problem):
            state.on_event(replace(event, member=read.member), 1.0)


def test_a_recovery_fails_at_once_if_another_journal_has_the_name() -> None:
    resume = Frontier.of([journal(f"{EU}@a", 0, 50, -9, hint=80)])
    state = opened(resume)
    assert listed(state, 0, EU, "b") == []
    with pytest.raises(RowsLostError, match="another one was made under its name") as found:
        list_all(state)
    assert found.value.journal == EU


def failing(resume: Frontier = NOTHING) -> SessionState:
    """Of a store whose readers fail if rows are gone."""
    plan = plan_of(*(replace(one, fails_on_loss=one.place == 0) for one in PLAN.bindings))
    state = SessionState(plan, TOPOLOGY, resume, 0.0)
    for key in SLICES:
        state.on_event(SliceOpened(*key), 0.0)
    return state


def test_rows_that_are_gone_end_a_session_that_is_to_fail_then() -> None:
    state = failing()
    read = start(state, 0, EU)
    list_all(state)
    missing = RowsMissing(read.member, 0, 0, 9, 12, "offsets 9 to 11 were dropped")
    with pytest.raises(DataLossError) as found:
        state.on_event(missing, 1.0)
    assert "'feed' lost rows of region eu: offsets 9 to 11 were dropped" in str(found.value)
    assert "failOnDataLoss" in str(found.value)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_a_journal_that_went_while_nobody_read_is_missed_by_bindings_that_are_to_fail() -> None:
    list_all(failing(Frontier.of([journal(EU, 2, 50, -9)])))
    state = failing(Frontier.of([journal(EU, 0, 50, -9)]))
    start(state, 0, EU)
    list_all(state)
    with pytest.raises(DataLossError, match="region eu: the journal is not there any more"):
        list_all(failing(Frontier.of([journal(EU, 0, 50, -9)])))
    state = failing(Frontier.of([journal(f"{EU}@a", 0, 50, -9)]))
    listed(state, 0, EU, "b")
    with pytest.raises(DataLossError, match="another one was made under its name"):
        list_all(state)


def half(clock: int) -> Progressed:
    """A transaction that reaches into US, of which EU has told."""
    delta = Frontier.of([journal(EU, 0, clock, -clock), journal(US, 0, hint=clock)])
    return Progressed(4, 0, delta)


def test_nobody_waits_for_a_journal_that_was_deleted() -> None:
    state = opened()
    read = start(state, 0, US)
    state.on_event(half(50), 1.0)
    assert not state.sought(9.0).journals, "it may still be found"
    list_all(state)
    assert not state.sought(1.0).journals, "it is being read"
    state.on_event(ReadEnded(read.member, read.lane, read.read), 2.0)
    sought = state.sought(2.0)
    assert sought.journals == {(US, 0)}
    assert looked_for(state, sought, {US: Looked(None)}, 2.0) == []
    assert state.take() is None, "it may be back in a moment"
    assert looked_for(state, sought, {US: Looked(None)}, 3.0) == [CheckpointReady()]
    taken = state.take()
    assert taken is not None
    assert [one.journal for one in taken.journals()] == [EU, f"{US}@gone"]
    state.on_event(half(60), 4.0)
    assert state.take() is None, "each is looked at anew"
    assert looked_for(state, state.sought(4.0), {US: Looked(None)}, 4.0) == [CheckpointReady()]
    assert state.take() is not None
    start(state, 0, US)
    state.on_event(half(70), 5.0)
    assert looked_for(state, sought, {US: Looked("")}, 9.0) == []
    assert state.take() is None, "and one that is there again is waited for"


def test_what_is_gone_is_known_after_a_restart() -> None:
    gone = JournalFrontier(f"{US}@gone", 0, (ProducerFrontier(P, 50),))
    resume = Frontier.of([journal(EU, 0, 50, -9), gone])
    state = opened(resume)
    assert not state.recovery
    start(state, 0, EU)
    list_all(state)
    assert state.on_event(half(50), 1.0) == [AskProgress(4, 0), CheckpointReady()]
    assert not state.waiting
    state.on_event(half(51), 1.0)
    assert state.waiting, "a later one is waited for"


def test_a_hint_is_at_whichever_journal_has_the_commit_or_is_read_now() -> None:
    """Of a transaction that was in one journal, nothing is in the other that has its name now."""
    state = opened()
    (first,) = listed(state, 0, US, "a")
    list_all(state)
    state.on_event(half(50), 1.0)
    awaited = {one.journal for one in state.waiting[0].awaited}
    assert awaited == {f"{US}@a"}
    state.on_event(ReadEnded(first.member, first.lane, first.read), 1.0)
    (second,) = looked_for(state, state.sought(1.0), {US: Looked("b")}, 1.0)
    assert {one.journal for one in state.waiting[0].awaited} == {f"{US}@b"}
    assert not state.sought(1.5).stuck
    sought = state.sought(2.0)
    assert sought.stuck == {US}
    open_span = {P.int64: ProducerState(20, 50, 3)}
    assert looked_for(state, sought, {US: Looked("b", open_span)}, 2.0) == []
    assert looked_for(state, sought, {US: Looked("c", {})}, 2.0) == [], "of yet another one"
    other = {P.int64: ProducerState(20, 0, -3)}
    assert looked_for(state, sought, {US: Looked("b", other)}, 2.0) == [CheckpointReady()]
    state.on_event(Progressed(4, 0, Frontier.of([journal(f"{US}@b", 0, 70, -1)])), 3.0)
    state.on_event(half(70), 3.0)
    assert not state.waiting, "the one that is read now has it"
    state.on_event(ReadEnded(second.member, second.lane, second.read), 4.0)
    looked_for(state, state.sought(4.0), {US: Looked("c")}, 4.0)
    state.on_event(half(70), 4.0)
    assert not state.waiting, "and so has the one before"


def test_a_slow_reader_of_a_log_with_transactions_is_waited_for() -> None:
    """What is awaited is the transaction's number in the log there: no clock of a journal's end
    says that it will not come."""
    state = opened(has_log=True)
    for name in (EU, US):
        for place in (0, 2):
            start(state, place, name)
    list_all(state)
    producer = transactional(7)
    ends = {(EU, ""): 0, (US, ""): 0}
    decided = Decided(producer, 40, 0, True, (EU, US))
    state.on_log(LogRead((), Look((), ends, (), (decided,))), 0.0)
    entry = ProducerFrontier(Producer.from_int64(producer), clock_of(3), 0, -4)
    delta = Frontier.of([JournalFrontier(EU, 0, (entry,))])
    told = Progressed(4, 0, delta, (Marker(EU, 0, producer, 3, 0, is_commit=True),))
    for member in (7, 4):
        for lane in (0, 1):
            here = (member, lane) == (4, 0)
            state.on_event(told if here else Progressed(member, lane, NOTHING), 0.0)
    assert state.waiting
    assert not state.sought(5.0).stuck, "it is not looked for, and so not given up"


def test_restored_slices_are_heard_before_a_journal_is_taken_for_deleted() -> None:
    """One of them may have the commit that is awaited, and not have told it yet."""
    state = opened(restored=True)
    list_all(state)
    state.on_event(half(50), 1.0)
    assert not state.sought(9.0).journals
    for key in SLICES[1:]:
        state.on_event(Progressed(*key, NOTHING), 1.0)
    assert state.sought(9.0).journals


COMMIT = Frontier.of([journal(EU, 0, 50, -9)])


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (SliceOpened(5, 0), "member 5 in lane 0 is no part of this session: its members are 4, 7"),
        (SliceOpened(4, 2), "member 4 in lane 2 is no part of this session"),
        (SliceOpened(4, 0), "opened twice"),
        (Progressed(9, 0, COMMIT), "no part of this session"),
        (Progressed(4, 1, COMMIT), "progress of binding 0, which is not of its lane"),
        (Progressed(4, 0, Frontier.of([journal(EU, 3, 5, -1)])), "binding 3 is unknown: feed 'f"),
        (Progressed(4, 0, Frontier.of(gap_floor={1: 7})), "binding 1, which is not of its lane"),
        (ListingAdded(4, 0, 3, EU), "binding 3 is unknown"),
        (ListingAdded(7, 0, 0, EU), "listed binding 0, which is not its to list"),
        (ListingAdded(4, 1, 0, EU), "listed binding 0, which is not its to list"),
        (ListingAdded(7, 1, 1, US), "for binding 1, which does not read it"),
        (ListingAdded(4, 0, 0, "payments/region=eu/000"), "which does not read it"),
        (ListingAdded(4, 0, 0, "orders/eu/000"), "names no journal"),
        (ListingDone(7, 1, 0), "not its to list"),
        (ListingDone(4, 0, 2), "first listing of binding 2 twice"),
        (ReadEnded(4, 0, 0), "ended read 0, which it does not have"),
        (ReadEnded(4, 0, -1), "ended read -1, which it does not have"),
    ],
)
def test_what_the_protocol_forbids(event: SliceOpened, problem: str) -> None:
    state = opened()
    state.on_event(ListingDone(4, 0, 2), 0.0)
    with pytest.raises(RemoteProtocolError, match=problem):
        state.on_event(event, 1.0)


def test_who_has_not_opened_was_asked_for_nothing() -> None:
    state = SessionState(PLAN, TOPOLOGY, NOTHING, 0.0)
    for event in (Progressed(4, 0, COMMIT), ListingAdded(4, 0, 0, EU), ReadEnded(4, 0, 0)):
        with pytest.raises(
            RemoteProtocolError, match=f"has not opened, and sent {type(event).__name__}"
        ):
            state.on_event(event, 1.0)


def test_a_refused_event_changes_nothing() -> None:
    state = opened()
    stranger = Frontier.of([journal(EU, 0, 50, -9), journal(EU, 1, 50, -9)])
    with pytest.raises(RemoteProtocolError):
        state.on_event(Progressed(4, 0, stranger), 1.0)
    assert state.take() is None


def test_a_read_is_ended_by_its_reader_and_once() -> None:
    state = opened()
    read = start(state, 0, EU)
    other = 11 - read.member
    with pytest.raises(RemoteProtocolError, match="which it does not have"):
        state.on_event(ReadEnded(other, 0, read.read), 0.0)
    state.on_event(ReadEnded(read.member, 0, read.read), 0.0)
    again = start(state, 0, EU)
    with pytest.raises(RemoteProtocolError, match="which it does not have"):
        state.on_event(ReadEnded(read.member, 0, read.read), 0.0)
    state.on_event(ReadEnded(again.member, 0, again.read), 0.0)
