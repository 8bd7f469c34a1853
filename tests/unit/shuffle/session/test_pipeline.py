"""A cohort's pipeline, story by story."""

from __future__ import annotations

import pytest

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    reduce,
    resolve_checkpoint,
)
from penstock.ids import CLOCK_FLOOR, Producer, clock_duration, clock_from_unix
from penstock.shuffle.session.pipeline import Awaited, CheckpointPipeline, Waiting
from tests.unit.shuffle.session.world import PRODUCERS

P, Q, R = PRODUCERS
DAY = clock_duration(86_400)
NOON = clock_from_unix(1_700_000_000)
NOTHING = Frontier.of()


def delta(
    *rows: tuple[str, Producer, int, int, int], lsn: int = 0, gap_floor: int = 0, count: int = 0
) -> Frontier:
    """Rows of journal, producer, last commit, hinted commit and offset; all of binding 0."""
    return Frontier.of(
        [
            JournalFrontier(
                journal,
                0,
                tuple(
                    ProducerFrontier(*row[1:])
                    for row in sorted(rows, key=lambda row: row[1])
                    if row[0] == journal
                ),
                bytes_read_delta=count,
            )
            for journal in sorted({row[0] for row in rows})
        ],
        flushed_lsn=[lsn] if lsn else [],
        gap_floor={0: gap_floor} if gap_floor else {},
    )


def pipeline(resume: Frontier = NOTHING) -> CheckpointPipeline:
    return CheckpointPipeline(0, resume, 0.0, recovery=resume.unresolved_hints > 0)


def commits(frontier: Frontier | None) -> dict[tuple[str, Producer], int] | None:
    """What was taken, without entries that are no commits."""
    if frontier is None:
        return None
    assert frontier.unresolved_hints == 0
    return {
        (journal.journal, entry.producer): entry.last_commit
        for journal in frontier.journals()
        for entry in journal.producers
        if entry.last_commit > CLOCK_FLOOR
    }


def awaited(line: CheckpointPipeline) -> list[tuple[str, int, int]]:
    waiting = line.waiting
    each = waiting.awaited if waiting else ()
    return [(one.journal, one.last_commit, one.hinted_commit) for one in each]


def since(line: CheckpointPipeline) -> float | None:
    return line.waiting.since if line.waiting else None


def test_a_commit_of_one_journal_is_ready_at_once_and_taken_once() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9)), 1.0)
    assert commits(line.take()) == {("a", P): 50}
    assert line.take() is None


def test_a_producer_that_has_only_begun_is_told_with_its_span() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("a", Q, CLOCK_FLOOR, 0, 4)), 1.0)
    taken = line.take()
    assert taken is not None
    assert taken.entry("a", 0, Q) == ProducerFrontier(Q, CLOCK_FLOOR, 0, 4)
    entries = [entry for journal in taken.journals() for entry in journal.producers]
    assert resolve_checkpoint(entries).gapped == {Q: 4}


def test_half_a_transaction_waits_and_says_for_what_and_since_when() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0), ("c", P, 0, 50, 0)), 1.0)
    assert line.take() is None
    assert since(line) == 1.0
    assert line.waiting == Waiting(0, 1.0, (Awaited("b", 0, P, 0, 50), Awaited("c", 0, P, 0, 50)))
    assert line.hinted_by(Awaited("b", 0, P, 0, 50)) == "a"
    assert line.hinted_by(Awaited("b", 0, Q, 0, 50)) is None, "of another producer"
    line.on_progressed(delta(("d", Q, 70, 0, -1)), 2.0)
    assert since(line) == 1.0
    line.on_progressed(delta(("b", P, 50, 0, -4)), 3.0)
    assert since(line) == 3.0
    assert awaited(line) == [("c", 0, 50)]
    line.on_progressed(delta(("c", P, 50, 0, -4)), 4.0)
    assert line.waiting is None
    assert commits(line.take()) == {("a", P): 50, ("b", P): 50, ("c", P): 50, ("d", Q): 70}


def test_what_came_meanwhile_waits_for_its_own_hints() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0)), 1.0)
    line.on_progressed(delta(("c", Q, 60, 0, -9), ("d", Q, 0, 60, 0)), 2.0)
    line.on_progressed(delta(("b", P, 50, 0, -4)), 3.0)
    assert commits(line.take()) == {("a", P): 50, ("b", P): 50}
    line.on_progressed(delta(("d", Q, 60, 0, -4)), 4.0)
    # With it, once more, what counted before it could be told with its offset.
    assert commits(line.take()) == {("b", P): 50, ("c", Q): 60, ("d", Q): 60}


def test_the_other_half_names_the_first_which_is_long_taken() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0)), 1.0)
    line.on_progressed(delta(("c", Q, 60, 0, -9)), 2.0)
    line.on_progressed(delta(("b", P, 50, 0, -4), ("a", P, 0, 50, 0)), 3.0)
    assert commits(line.take()) == {("a", P): 50, ("b", P): 50, ("c", Q): 60}
    assert line.waiting is None


def test_a_later_commit_does_not_stand_for_an_earlier_one() -> None:
    """One Slice is ahead: it has the later transaction, and another half of the earlier."""
    line = pipeline()
    line.on_progressed(delta(("a", P, 90, 0, -9)), 1.0)
    assert commits(line.take()) == {("a", P): 90}
    line.on_progressed(delta(("b", P, 50, 0, -3), ("c", P, 0, 50, 0)), 2.0)
    assert line.take() is None
    line.on_progressed(delta(("c", P, 50, 0, -3)), 3.0)
    assert commits(line.take()) == {("b", P): 50, ("c", P): 50}


def test_with_a_hinted_commit_come_the_transactions_before_it() -> None:
    """b has both 50 (with c) and 90 (with a). Whoever waits for b at 90 has to have c at 50."""
    line = pipeline()
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("d", Q, 70, 0, -1)), 2.0)
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0), ("c", P, 0, 50, 0)), 3.0)
    assert line.take() is None
    line.on_progressed(delta(("c", P, 50, 0, -2), ("b", P, 0, 50, 0)), 4.0)
    assert commits(line.take()) == {("a", P): 90, ("b", P): 90, ("c", P): 50, ("d", Q): 70}


def test_a_hint_beyond_the_reach_is_waited_for_as_far_as_it_reaches() -> None:
    """c is named at 95, which may hide an earlier commit there: so c is needed up to 90."""
    line = pipeline()
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("b", P, 95, 0, -6), ("a", P, 0, 90, 0), ("c", P, 0, 95, 0)), 2.0)
    assert line.take() is None
    line.on_progressed(delta(("c", P, 95, 0, -2), ("b", P, 0, 95, 0)), 3.0)
    # Then what was held back is complete as well.
    assert commits(line.take()) == {("a", P): 90, ("b", P): 95, ("c", P): 95}


@pytest.mark.parametrize(
    "before",
    [
        [delta(("c", P, 30, 0, 3), ("c", Q, 40, 0, -8))],
        [delta(("c", P, 30, 0, -2)), delta(("c", P, 30, 0, 3), ("c", Q, 40, 0, -8))],
        [delta(("c", P, CLOCK_FLOOR, 0, 0), ("c", Q, 40, 0, -8))],
    ],
)
def test_a_span_that_looks_closed_by_a_cut_off_clock_is_not_lost(before: list[Frontier]) -> None:
    """c has an open span where reading would resume, at 8, and it belongs to 95. Cut off at 90, it
    would look closed. So the boundary reaches on to 95, where it is."""
    line = pipeline()
    for each in before:
        line.on_progressed(each, 0.0)
    assert line.take() is not None
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("c", P, 95, 0, -9), ("c", Q, 96, 0, -10), ("e", Q, 0, 96, 0)), 2.0)
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0)), 3.0)
    taken = line.take()
    assert commits(taken) == {("a", P): 90, ("b", P): 90, ("c", P): 95}
    assert taken is not None
    assert taken.entry("c", 0, P) == ProducerFrontier(P, 95, 0, 0)


def test_a_span_that_is_open_in_the_boundary_itself_is_not_lost_either() -> None:
    line = pipeline()
    line.on_progressed(
        delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0), ("c", P, 30, 0, 3), ("c", Q, 40, 0, -8)), 1.0
    )
    line.on_progressed(delta(("c", P, 95, 0, -9), ("c", Q, 96, 0, -10), ("e", Q, 0, 96, 0)), 2.0)
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0)), 3.0)
    taken = line.take()
    assert taken is not None
    assert taken.entry("c", 0, P) == ProducerFrontier(P, 95, 0, -3)


def test_where_nothing_is_open_the_reach_is_enough() -> None:
    line = pipeline()
    line.on_progressed(delta(("c", P, 30, 0, -3), ("c", Q, 40, 0, -8)), 0.0)
    assert line.take() is not None
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("c", P, 95, 0, -9), ("c", Q, 96, 0, -10), ("e", Q, 0, 96, 0)), 2.0)
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0)), 3.0)
    assert commits(line.take()) == {("a", P): 90, ("b", P): 90, ("c", P): 90}


def test_a_span_that_was_held_back_is_no_commit() -> None:
    """Without its offset it would be one that begins at 0."""
    line = pipeline()
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(
        delta(("c", P, CLOCK_FLOOR, 0, 5), ("c", Q, 96, 0, -10), ("e", Q, 0, 96, 0)), 2.0
    )
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0)), 3.0)
    taken = line.take()
    assert taken is not None
    assert taken.journal("c", 0) is None


def test_where_a_reach_goes_on_what_was_held_back_before_counts() -> None:
    """97 is in c and k, 95 in f and k. f was told when the reach was 90; then c made it 97. k needs
    f at 95, and f has nothing more to tell."""
    line = pipeline()
    line.on_progressed(delta(("c", P, 30, 0, 3), ("c", Q, 40, 0, -8)), 0.0)
    assert line.take() is not None
    line.on_progressed(delta(("a", P, 90, 0, -9), ("b", P, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("f", P, 95, 0, -5), ("k", P, 0, 95, 0)), 2.0)
    line.on_progressed(delta(("c", P, 97, 0, -9), ("k", P, 0, 97, 0)), 3.0)
    line.on_progressed(delta(("k", P, 97, 0, -9), ("f", P, 0, 95, 0), ("c", P, 0, 97, 0)), 4.0)
    assert awaited(line) == [("b", 0, 90)]
    line.on_progressed(delta(("b", P, 90, 0, -6), ("a", P, 0, 90, 0)), 5.0)
    expected = {"a": 90, "b": 90, "c": 97, "f": 95, "k": 97}
    assert commits(line.take()) == {(name, P): clock for name, clock in expected.items()}


@pytest.mark.parametrize("width", [2, 3])
def test_a_busy_producer_holds_nothing_up(width: int) -> None:
    """It commits on and on to ever other journals, each Slice is always ahead in something, and
    no moment comes at which all that was reported is complete. Checkpoints come all the same."""
    journals = ["a", "b", "c", "d", "e"]
    reached = {
        10 * number: [journals[(number + step * step) % 5] for step in range(width)]
        for number in range(1, 200)
    }
    line = pipeline()
    told = dict.fromkeys(journals, 0)
    frontier, newest, lags = NOTHING, 0, []
    for turn in range(20, 190):
        journal = journals[turn % 5]
        clock = turn * 10
        acks = [
            at for at, names in reached.items() if journal in names and told[journal] < at <= clock
        ]
        if not acks:
            continue
        told[journal] = max(acks)
        hints = {name: at for at in acks for name in reached[at] if name != journal}
        line.on_progressed(
            delta(
                (journal, P, max(acks), 0, -max(acks)),
                *((name, P, 0, at, 0) for name, at in hints.items()),
            ),
            float(turn),
        )
        taken = line.take()
        if taken is not None:
            frontier = reduce(frontier, taken)
            for at, names in reached.items():
                found = [frontier.entry(name, 0, P) for name in names]
                known = {entry is not None and entry.last_commit >= at for entry in found}
                assert len(known) == 1, at
        newest = max(newest, int(frontier.last_commits.max(initial=0)))
        lags.append(clock - newest)
    assert max(lags[20:]) <= 200, lags  # twenty transactions: four rounds of all Slices


def test_lost_rows_are_not_waited_for() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0), ("c", Q, 0, 90, 0)), 1.0)
    line.on_progressed(delta(("d", R, 55, 0, -1), gap_floor=50), 2.0)
    assert line.take() is None  # the floor itself may still be found
    line.on_progressed(delta(("d", R, 56, 0, -2), gap_floor=60), 3.0)
    assert awaited(line) == [("c", 0, 90)]
    assert since(line) == 3.0
    line.on_progressed(delta(("e", R, 57, 0, -2), gap_floor=91), 4.0)
    assert commits(line.take()) == {("a", P): 50, ("d", R): 56, ("e", R): 57}
    line.on_progressed(delta(("a", P, 80, 0, -9), ("b", P, 0, 80, 0)), 5.0)
    assert commits(line.take()) == {("a", P): 80}


@pytest.mark.parametrize("behind", [1, DAY - 1, DAY, 25 * DAY // 24, 3000 * DAY])
def test_a_commit_is_awaited_whatever_clocks_say(behind: int) -> None:
    """Of a producer whose clock is behind, in a journal that others with right clocks write to; or
    with right clocks, and another producer of the journal is ahead."""
    line = pipeline()
    line.on_progressed(delta(("b", Q, NOON, 0, -9)), 1.0)
    assert line.take() is not None
    line.on_progressed(delta(("a", P, NOON - behind, 0, -9), ("b", P, 0, NOON - behind, 0)), 2.0)
    line.on_progressed(delta(("b", Q, NOON + DAY, 0, -11)), 3.0)
    assert line.take() is None, "half a transaction"
    line.on_progressed(delta(("b", P, NOON - behind, 0, -12)), 4.0)
    taken = commits(line.take())
    assert taken is not None
    assert taken["a", P] == taken["b", P] == NOON - behind


def test_that_another_journal_is_a_day_ahead_proves_nothing() -> None:
    """As when old journals are read for the first time, by Slices of different speed."""
    line = pipeline()
    line.on_progressed(delta(("c", Q, NOON, 0, -9)), 1.0)
    old = NOON - 300 * DAY
    line.on_progressed(delta(("a", P, old, 0, -9), ("b", P, 0, old, 0)), 2.0)
    assert line.waiting is not None
    line.on_progressed(delta(("b", P, old, 0, -9)), 2.0)
    assert commits(line.take()) == {("a", P): old, ("b", P): old, ("c", Q): NOON}


def test_what_belongs_to_the_boundary_joins_it_with_offset_and_bytes() -> None:
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0), count=3), 1.0)
    line.on_progressed(delta(("b", P, 50, 0, -4), ("a", P, 0, 50, 0), lsn=7, count=4), 2.0)
    taken = line.take()
    assert taken == delta(("a", P, 50, 50, -9), ("b", P, 50, 50, -4), lsn=7, count=7)


def test_once_something_is_held_back_offsets_stay_before_it() -> None:
    """b has 60 of Q at offset 3, which is held back; the commit of P behind it counts, but reading
    must not resume behind it."""
    line = pipeline()
    line.on_progressed(delta(("a", P, 50, 0, -9), ("b", P, 0, 50, 0), ("c", P, 0, 50, 0)), 1.0)
    line.on_progressed(delta(("b", Q, 60, 0, -3), ("d", Q, 0, 60, 0), count=5), 2.0)
    line.on_progressed(delta(("b", P, 50, 0, -4), lsn=3, count=5), 3.0)
    line.on_progressed(delta(("c", P, 50, 0, -4), lsn=2, count=5), 4.0)
    taken = line.take()
    assert commits(taken) == {("a", P): 50, ("b", P): 50, ("c", P): 50}
    assert taken is not None
    assert taken.entry("b", 0, P) == ProducerFrontier(P, 50, 50, 0)
    assert taken.flushed_lsn.tolist() == [3]
    assert taken.bytes_read_delta.sum() == 0
    line.on_progressed(delta(("d", Q, 60, 0, -7)), 5.0)
    rest = line.take()
    assert rest is not None
    assert rest.entry("b", 0, Q) == ProducerFrontier(Q, 60, 0, -3)
    assert rest.bytes_read_delta.sum() == 5 + 5 + 5 + 5  # both journals of the second delta


# Recovery


def lost(*rows: tuple[str, Producer, int, int, int]) -> CheckpointPipeline:
    return pipeline(delta(*rows))


def test_a_recovery_reads_on_to_the_hints_and_the_next_session_from_there() -> None:
    line = lost(("a", P, 40, 90, -5), ("b", P, 0, 90, 0), ("c", Q, 30, 0, -7))
    assert line.waiting is not None
    line.on_progressed(delta(("a", P, 90, 0, -8), ("b", P, 0, 90, 0)), 1.0)
    assert line.take() is None
    line.on_progressed(delta(("b", P, 90, 0, -2), ("b", Q, CLOCK_FLOOR, 0, 1)), 2.0)
    taken = line.take()
    assert taken == delta(("a", P, 90, 90, -8), ("b", P, 90, 90, -2), ("b", Q, CLOCK_FLOOR, 0, 1))
    line.on_progressed(delta(("a", P, 95, 0, -9)), 3.0)
    assert line.take() is None


def test_a_recovery_gives_no_more_than_the_hints() -> None:
    """Q's 60 in b was not delivered when its documents were lost: it is left for later, and P's 90
    is found again behind it."""
    line = lost(("a", P, 40, 90, 5), ("b", P, 0, 90, 0))
    line.on_progressed(delta(("b", Q, 60, 0, -1), ("b", P, 95, 0, -2), lsn=4), 1.0)
    line.on_progressed(delta(("a", P, 90, 0, -8), ("c", P, 0, 80, 0), lsn=3), 2.0)
    taken = line.take()
    assert taken == delta(("a", P, 90, 90, -5), ("b", P, 90, 90, 0), lsn=4)
    entries = [entry for journal in taken.journals() for entry in journal.producers]
    assert resolve_checkpoint(entries).gapped == {}


def test_a_recovery_leaves_earlier_commits_that_were_not_delivered() -> None:
    """P's 60 in b was read after its 90 was delivered: it is not of what was lost."""
    line = lost(("a", P, 40, 90, -5), ("b", Q, 0, 70, 0))
    line.on_progressed(delta(("b", P, 60, 0, -1), ("b", Q, 70, 0, -2)), 1.0)
    line.on_progressed(delta(("a", P, 90, 0, -8)), 2.0)
    assert commits(line.take()) == {("a", P): 90, ("b", Q): 70}


def test_a_recovery_gives_nothing_up() -> None:
    line = lost(("a", P, 40, 90, -5), ("b", Q, NOON, 0, -1), ("b", P, 0, 50, 0))
    line.on_progressed(delta(("a", P, 90, 0, -8), gap_floor=1000), 1.0)
    assert awaited(line) == [("b", 0, 50)]
