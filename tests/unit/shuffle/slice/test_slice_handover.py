"""What Slices inherit from those before them: every read once, every open hint, no byte twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import Producer
from penstock.sequence import ProducerState, StateColumns
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetched,
    Probed,
    ReadStarted,
    Replay,
    ReplayFetched,
    SendParcel,
)
from penstock.shuffle.slice.handover import inherit
from penstock.shuffle.slice.progress import hints_in
from penstock.shuffle.slice.snapshots import SavedRead, SavedReplay, SliceSnapshot
from tests.unit.shuffle.slice.model import Row, batch_of
from tests.unit.shuffle.slice.test_stories import NOW, ONE, PLENTY, of, slice_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NOTHING = Frontier.of()


def saved(journal: str, offset: int = 10, key: int = 50) -> SavedRead:
    states = StateColumns.of([(ONE, ProducerState(5, 5, -offset))])
    return SavedRead(journal, 0, offset, key, offset, offset, 0, states)


def of_journal(journal: str, commit: int, *, hint: int = 0, read: int = 0) -> JournalFrontier:
    offset = -10 if commit else 0
    entry = ProducerFrontier(Producer.from_int64(ONE), commit, hint, offset)
    return JournalFrontier(journal, 0, (entry,), read, 0)


def reads_of(journals: Iterable[str]) -> Callable[[str, int], bool]:
    own = set(journals)
    return lambda journal, _: journal in own


def snapshot(
    *reads: SavedRead, journals: list[JournalFrontier] | None = None, promised: int = 0
) -> SliceSnapshot:
    return SliceSnapshot(reads, Frontier.of(journals or []), promised, 3)


def test_every_read_goes_on_at_one_slice() -> None:
    before = [
        snapshot(saved("a"), saved("b"), promised=40),
        snapshot(saved("c"), promised=70),
        snapshot(promised=0),
    ]
    owners = {"a": 1, "b": 2, "c": 2}
    after = {
        member: inherit(before, NOTHING, reads_of(one for one in owners if owners[one] == member))
        for member in (1, 2, 3)
    }
    assert [one.reads for one in after.values()] == [
        (saved("a"),),
        (saved("b"), saved("c")),
        (),
    ]
    # What comes of "b" may have any key from 40 on. A Slice without reads holds nothing up.
    assert [one.promised for one in after.values()] == [40, 40, 0]


def test_bytes_and_commits_are_told_by_who_reads_and_open_hints_by_all() -> None:
    first = snapshot(
        saved("a"), journals=[of_journal("a", 20, read=7), of_journal("b", 0, hint=20)]
    )
    second = snapshot(saved("b"), journals=[of_journal("a", 0, hint=8), of_journal("b", 9, read=3)])
    complete = Frontier.of([of_journal("a", 8), of_journal("b", 9)])
    for member in "ab":
        found = inherit([first, second], complete, reads_of(member))
        told_bytes = dict(
            zip(
                found.frontier.journal_names.to_pylist(),
                found.frontier.bytes_read_delta.tolist(),
                strict=True,
            )
        )
        assert told_bytes.get("a", 0) == (7 if member == "a" else 0)
        assert told_bytes.get("b", 0) == (3 if member == "b" else 0)
        # Whoever tells that "a" is at 20 tells with it that "b" must come to it.
        assert hints_in(found.frontier)["b", 0, ONE] == 20
        assert (hints_in(found.frontier).get(("a", 0, ONE)) is None) == (member == "b"), "answered"
        commits = {
            journal.journal: journal.producers[0].last_commit
            for journal in found.frontier.journals()
        }
        assert commits["b"] == (9 if member == "b" else 0)
        assert commits.get("a", 0) == (20 if member == "a" else 0)


def test_spans_that_several_were_reading_again_are_read_one_after_the_other() -> None:
    span = [Row(who, clock, 1, clock, clock, ()) for clock in (10, 11, 12) for who in (ONE,)]
    commit = Row(ONE, 13, 2, 13, 13, ())
    begun = {ONE: ProducerState(1, 10, 0)}  # the first row of each was sent
    before = [
        SliceSnapshot(
            (SavedRead(journal, 0, 3, 12, 3, 3, 0, StateColumns.of(begun.items())),),
            NOTHING,
            12,
            1,
            (SavedReplay(journal, 0, ONE, 1, 3, 13),),
        )
        for journal in ("j", "k")
    ]
    inherited = inherit(before, NOTHING, lambda _, __: True)
    state = slice_of(restored=SliceSnapshot.decode(inherited.encode()))
    assert state.snapshot().replays == inherited.replays
    effects = state.handle(ReadStarted(1, 0, "k"))
    assert of(effects, Replay) == [Replay(1, "k", 1, 3)]
    assert of(state.handle(ReadStarted(2, 0, "j")), Replay) == []
    told(state, state.round(NOW, PLENTY))  # what it knows from before
    state.handle(AllReadsStarted())
    for number, journal in ((1, "k"), (2, "j")):
        state.handle(Probed(number, 0, 4))
        state.handle(Fetched(number, (batch_of(journal, [*span, commit], 3, 4),), 4))
    sent: list[tuple[int, int]] = []

    def go_on() -> list[Replay]:
        effects = state.round(NOW, PLENTY)
        for parcel in of(effects, SendParcel):
            reads, offsets = (parcel.batch.column(one).to_pylist() for one in ("_read", "_offset"))
            sent.extend(zip(reads, offsets, strict=True))
        return of(effects, Replay)

    assert go_on() == []
    assert sent == [], "nothing else is drained meanwhile"
    state.handle(ReplayFetched(1, (batch_of("k", span, 1, 3),), 3))
    assert go_on() == [Replay(2, "j", 1, 3)]
    assert len(state.snapshot().replays) == 1
    state.handle(ReplayFetched(2, (batch_of("j", span, 1, 3),), 3))
    assert go_on() == []
    assert state.snapshot().replays == ()
    effects = state.round(NOW, PLENTY)
    assert sent == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert told(state, effects).last_commits.tolist() == [13, 13]
