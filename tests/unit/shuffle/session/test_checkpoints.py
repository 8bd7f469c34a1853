"""Checkpoints hold every transaction whole: random worlds, and stories with names."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings

from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    clear_discharged_hints,
    project_commits_to_hints,
    reduce,
)
from penstock.shuffle.session.checkpoints import Checkpoints
from tests.unit.shuffle.session.world import (
    PRODUCERS,
    Session,
    World,
    busy_schedule,
    busy_world,
    check_complete,
    check_reported,
    check_resumable,
    check_whole,
    commit_of,
    facts_of,
    schedules,
    worlds,
)

Schedule = list[tuple[int, list[int]]]


class Run:
    """A session of a world, with everything checked that must hold after each step."""

    def __init__(self, world: World, resume: Frontier) -> None:
        self.world = world
        self.checkpoints = Checkpoints(world.cohorts, resume, 0.0)
        self.session = Session(world, resume, recovery=self.checkpoints.recovery)
        self.frontier = resume
        self.taken: list[Frontier] = []
        self.now = 0.0

    def report(self, delta: Frontier) -> None:
        self.now += 1
        self.checkpoints.on_progressed(delta, self.now)

    def take(self) -> None:
        expected = self.checkpoints.has_ready
        taken = self.checkpoints.take()
        assert (taken is not None) == expected
        if taken is None:
            return
        assert taken.unresolved_hints == 0
        before = self.taken[-1].flushed_lsn.tolist() if self.taken else [0, 0]
        assert all(new >= old for new, old in zip(taken.flushed_lsn.tolist(), before, strict=True))
        self.taken.append(taken)
        self.frontier = clear_discharged_hints(reduce(self.frontier, taken))
        facts = facts_of(self.frontier)
        check_whole(self.world, facts)
        check_reported(self.session, facts)
        check_resumable(self.world, facts)

    def follow(self, schedule: Schedule) -> None:
        for number, (reader, counts) in enumerate(schedule):
            self.report(self.session.report(reader, counts))
            if number % 3 != 1:
                self.take()

    def finish(self) -> None:
        for reader in range(3):
            self.report(self.session.report(reader, [1000]))
        assert self.session.done
        self.take()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_busy_worlds(start: int) -> None:
    """The next two tests, with more to do than chance would give them."""
    for seed in range(start, start + 20):
        random = Random(seed)
        world = busy_world(random)
        try:
            check_all_comes(world, busy_schedule(random))
            schedules = [busy_schedule(random) for _ in range(3)]
            check_recovery(world, schedules[0][:8], schedules[1][:12], schedules[2])
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@settings(max_examples=40)
@given(worlds(), schedules)
def test_transactions_are_whole_and_everything_comes(world: World, schedule: Schedule) -> None:
    check_all_comes(world, schedule)


def check_all_comes(world: World, schedule: Schedule) -> None:
    run = Run(world, Frontier.of())
    run.follow(schedule)
    run.finish()
    assert run.checkpoints.waiting == ()
    check_complete(world, facts_of(run.frontier))
    read = sum(int(taken.bytes_read_delta.sum()) for taken in run.taken)
    behind = sum(int(taken.bytes_behind_delta.sum()) for taken in run.taken)
    assert (read, behind) == (run.session.counted, -run.session.counted)


@settings(max_examples=30)
@given(worlds(), schedules, schedules, schedules)
def test_a_recovery_gives_exactly_what_was_hinted(
    world: World, first: Schedule, second: Schedule, third: Schedule
) -> None:
    check_recovery(world, first, second, third)


def check_recovery(world: World, first: Schedule, second: Schedule, third: Schedule) -> None:
    run = Run(world, Frontier.of())
    run.follow(first)
    done = run.frontier
    run.follow(second)
    committed = run.frontier
    resume = reduce(done, project_commits_to_hints(committed))
    resume = Frontier.of(resume.journals())  # LSNs do not outlive a session
    again = Run(world, resume)
    if again.checkpoints.recovery:
        again.follow(third)
        again.finish()
        again.report(again.session.report(0, [5]))
        again.take()
        assert len(again.taken) == 1
        found, lost = facts_of(again.frontier), facts_of(committed)
        for read in world.readers:
            for producer in PRODUCERS:
                commit = commit_of(found, read, producer)
                assert max(commit, 1) == max(commit_of(lost, read, producer), 1)
    last = Run(world, Frontier.of(again.frontier.journals()))
    assert not last.checkpoints.recovery
    last.follow(third)
    last.finish()
    check_complete(world, facts_of(last.frontier))


@given(worlds(), schedules)
def test_a_cohort_alone_gives_the_same(world: World, schedule: Schedule) -> None:
    """What other cohorts do changes nothing: their reports might as well not be there."""
    together = Run(world, Frontier.of())
    alone = Run(
        World(
            world.cohorts,
            {read: reader for read, reader in world.readers.items() if not world.cohorts[read[1]]},
            world.journals,
        ),
        Frontier.of(),
    )
    for reader, counts in schedule:
        for read, number in world.readers.items():
            if number == reader:
                together.report(together.session.report_reads({read: counts[0]}))
                if read in alone.world.readers:
                    alone.report(alone.session.report_reads({read: counts[0]}))
        together.take()
        alone.take()
        for read in alone.world.readers:
            assert together.frontier.journal(*read) == alone.frontier.journal(*read)


def one_commit(journal: str, binding: int, clock: int, *hints: str, lsn: int) -> Frontier:
    entries = {journal: ProducerFrontier(PRODUCERS[0], clock, 0, -clock)}
    entries |= {hint: ProducerFrontier(PRODUCERS[0], 0, clock) for hint in hints}
    return Frontier.of(
        [JournalFrontier(name, binding, (entries[name],)) for name in sorted(entries)],
        flushed_lsn=[lsn],
    )


def journals_of(frontier: Frontier | None) -> list[tuple[str, int]]:
    journals = frontier.journals() if frontier else ()
    return [(journal.journal, journal.binding) for journal in journals]


def test_one_open_transaction_delays_only_its_own_cohort() -> None:
    checkpoints = Checkpoints((0, 1, 0), Frontier.of(), 0.0)
    checkpoints.on_progressed(one_commit("a", 0, 50, "b", lsn=9), 1.0)
    checkpoints.on_progressed(one_commit("a", 1, 50, lsn=5), 2.0)
    checkpoints.on_progressed(one_commit("c", 2, 60, lsn=7), 3.0)
    taken = checkpoints.take()
    assert journals_of(taken) == [("a", 1)]
    assert taken is not None
    assert taken.flushed_lsn.tolist() == [5]
    (waiting,) = checkpoints.waiting
    assert (waiting.cohort, waiting.since) == (0, 1.0)
    assert [awaited.journal for awaited in waiting.awaited] == ["b"]
    checkpoints.on_progressed(one_commit("b", 0, 50, lsn=4), 4.0)
    taken = checkpoints.take()
    assert journals_of(taken) == [("a", 0), ("b", 0), ("c", 2)]
    assert taken is not None
    assert taken.flushed_lsn.tolist() == [9]
    checkpoints.on_progressed(one_commit("a", 1, 70, lsn=6), 5.0)
    taken = checkpoints.take()
    assert taken is not None
    assert taken.flushed_lsn.tolist() == [9]  # what was told before is not taken back
    assert checkpoints.take() is None


def test_a_recovery_waits_for_all_cohorts_and_comes_once() -> None:
    resume = reduce(one_commit("a", 0, 30, "b", lsn=0), one_commit("c", 1, 30, "d", lsn=0))
    checkpoints = Checkpoints((0, 1, 2), resume, 0.0)
    assert checkpoints.recovery
    checkpoints.on_progressed(one_commit("b", 0, 30, lsn=1), 1.0)
    checkpoints.on_progressed(one_commit("e", 2, 30, lsn=1), 1.0)
    assert checkpoints.take() is None
    assert [waiting.cohort for waiting in checkpoints.waiting] == [1]
    checkpoints.on_progressed(one_commit("d", 1, 30, lsn=1), 2.0)
    assert journals_of(checkpoints.take()) == [("b", 0), ("d", 1)]
    checkpoints.on_progressed(one_commit("d", 1, 40, lsn=1), 3.0)
    checkpoints.on_progressed(one_commit("e", 2, 40, lsn=1), 3.0)
    assert not checkpoints.has_ready
    assert checkpoints.take() is None


def test_clocks_of_bindings_go_to_their_cohorts() -> None:
    checkpoints = Checkpoints((0, 1), Frontier.of(), 0.0)
    checkpoints.on_progressed(one_commit("a", 0, 50, "b", lsn=1), 1.0)
    checkpoints.on_progressed(one_commit("a", 1, 50, "b", lsn=1), 1.0)
    checkpoints.on_progressed(Frontier.of(gap_floor={1: 60}, backfill_begin={0: 7}), 2.0)
    taken = checkpoints.take()
    assert journals_of(taken) == [("a", 1)]
    checkpoints.on_progressed(one_commit("b", 0, 50, lsn=1), 3.0)
    checkpoints.on_progressed(one_commit("c", 0, 55, lsn=1), 4.0)
    taken = checkpoints.take()
    assert taken is not None
    assert taken.backfill_begin == {0: 7}


def test_the_worlds_tried_are_worth_trying() -> None:
    """They make boundaries wait, hold progress back, and lose what a recovery fetches."""
    held, recoveries = 0, 0

    @settings(max_examples=60, database=None, derandomize=True)
    @given(worlds(), schedules)
    def collect(world: World, schedule: Schedule) -> None:
        nonlocal held, recoveries
        run = Run(world, Frontier.of())
        half = len(schedule) // 2
        run.follow(schedule[:half])
        done = run.frontier
        held += len(run.checkpoints.waiting)
        run.follow(schedule[half:])
        resume = reduce(done, project_commits_to_hints(run.frontier))
        recoveries += resume.unresolved_hints > 0

    collect()
    assert held > 10
    assert recoveries > 10
