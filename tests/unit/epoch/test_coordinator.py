"""Coordinator and members as they run: threads, a store of slots, records. What the rules do is
tested apart; this is about the loops around them."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.checkpoint.barrier import Flags
from penstock.directory.keyvalue import DirectoryEndedError, MemoryKeyValue
from penstock.epoch.announcements import ACKNOWLEDGEMENT_KEY, ANNOUNCEMENT_KEY
from penstock.epoch.coordinator import PRUNED_AT, Coordinator, LeadershipLostError
from penstock.epoch.decisions import Decision, DecisionLog, Verdict
from penstock.epoch.member import EpochMember
from penstock.epoch.quorum import Failed, Reached, TimedOut
from penstock.errors import ConfigurationError, LocalProtocolError, PeerUnavailableError
from penstock.threads import ThreadEndedError
from tests.conformance.waiting import eventually
from tests.unit.epoch.parts import Diary, MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.checkpoint.barrier import Barrier
    from penstock.directory.keyvalue import Watch

LONG = 20.0
"""Seconds after which a test gives up: nothing here takes so long unless it is broken."""


class Cluster:
    """Members 1 and 2, and leaders on slots of their own."""

    def __init__(self) -> None:
        self.keyvalue = MemoryKeyValue(0)
        self.records = MemoryRecords()
        self.diaries = {1: Diary(watermark=30), 2: Diary(watermark=20)}
        self.members: dict[int, EpochMember] = {}
        self.stack = contextlib.ExitStack()

    def lead(
        self, slot: int = 0, seconds_max: float = LONG, lease_seconds: float = LONG
    ) -> Coordinator:
        coordinator = Coordinator(
            self.keyvalue.view(slot),
            self.records,
            [1, 2],
            prepare_seconds_max=seconds_max,
            lease_seconds=lease_seconds,
        )
        return self.stack.enter_context(coordinator)

    def join(self, member: int, patience_seconds: float = LONG) -> EpochMember:
        self.members[member] = EpochMember(
            self.keyvalue.view(member),
            DecisionLog(self.records),
            [self.diaries[member]],
            patience_seconds=patience_seconds,
        ).start()
        return self.members[member]

    def close(self) -> None:
        self.stack.close()
        for member in self.members.values():
            member.close()
            member.check()

    def decisions(self) -> dict[int, Decision]:
        log = DecisionLog(self.records)
        found = {epoch: log.read(epoch) for epoch in log.epochs()}
        return {epoch: decision for epoch, decision in found.items() if decision is not None}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def test_an_epoch_is_committed_once_at_every_member(cluster: Cluster) -> None:
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead()
    concluded = [leader.begin().result(LONG) for _ in range(20)]
    assert all(each.decision.is_commit for each in concluded)
    epochs = [each.decision.epoch for each in concluded]
    assert epochs == list(range(2, 22)), "the first one is that of the leader's beginning"
    assert {each.outcome for each in concluded} == {Reached(20)}, "the least watermark counts"
    for diary in cluster.diaries.values():
        assert diary.wait_for(lambda each: len(each.committed) == len(epochs))
        assert diary.committed == dict.fromkeys(epochs, 1)
        assert not diary.aborted


def test_requests_are_served_in_their_order(cluster: Cluster) -> None:
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead()
    futures = [leader.begin() for _ in range(10)]
    assert [future.result(LONG).decision.epoch for future in futures] == list(range(2, 12))


def test_flags_reach_the_barrier_of_every_member(cluster: Cluster) -> None:
    seen: list[Barrier] = []

    class Seeing(Diary):
        def capture(self, barrier: Barrier) -> int | None:
            seen.append(barrier)
            return super().capture(barrier)

    cluster.diaries = {1: Seeing(), 2: Seeing()}
    cluster.join(1)
    cluster.join(2)
    cluster.lead().begin(Flags.DRAIN | Flags.UNALIGNED).result(LONG)
    assert [barrier.flags for barrier in seen] == [Flags.DRAIN | Flags.UNALIGNED] * 2


def test_a_member_that_fails_aborts_the_epoch_for_all(cluster: Cluster) -> None:
    def fail(call: str, epoch: int) -> None:
        if (call, epoch) == ("prepare", 3):
            raise OSError(28, "No space left on device")

    cluster.diaries[2].before = fail
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead()
    first, second, third = (leader.begin().result(LONG) for _ in range(3))
    assert (first.decision.is_commit, third.decision.is_commit) == (True, True)
    assert second.decision.verdict is Verdict.ABORT
    assert isinstance(second.outcome, Failed)
    assert [member for member, _ in second.outcome.errors] == [2]
    assert "No space left" in second.decision.reason
    for diary in cluster.diaries.values():
        # Member 1 may hear of epoch 3 only when it is over: then it has nothing to abort.
        assert diary.wait_for(lambda each: set(each.committed) == {2, 4} and not each.in_doubt())
    assert cluster.diaries[2].aborted[3] == 1


def test_a_silent_member_is_named(cluster: Cluster) -> None:
    cluster.join(1)
    concluded = cluster.lead(seconds_max=0.2).begin().result(LONG)
    assert concluded.outcome == TimedOut(answered=(1,), missing=(2,))
    assert "member 2" in concluded.decision.reason
    assert cluster.diaries[1].wait_for(lambda each: 2 in each.aborted)


def test_a_capture_that_waits_is_told_to_give_up(cluster: Cluster) -> None:
    given_up = threading.Event()

    class Waiting(Diary):
        def capture(self, barrier: Barrier) -> int | None:
            if not given_up.wait(LONG):
                raise AssertionError("nobody said so")
            raise TimeoutError(f"no barrier of epoch {barrier.epoch} came")

        def give_up(self, epoch: int) -> None:
            super().give_up(epoch)
            given_up.set()

    cluster.diaries[2] = Waiting()
    cluster.join(1)
    cluster.join(2)
    concluded = cluster.lead(seconds_max=0.2).begin().result(LONG)
    assert concluded.outcome == TimedOut(answered=(1,), missing=(2,))
    assert cluster.diaries[2].wait_for(lambda each: 2 in each.aborted)
    assert cluster.diaries[2].given_up == [2]


def test_members_resume_when_all_have_captured(cluster: Cluster) -> None:
    resumed = threading.Event()
    told: list[tuple[int, int | None]] = []

    def on_resume(epoch: int, watermark: int | None) -> None:
        told.append((epoch, watermark))
        resumed.set()

    def wait(call: str, _epoch: int) -> None:
        if call == "prepare":
            assert resumed.wait(LONG), "preparing must not hold up who has captured"

    cluster.diaries[2].before = wait
    cluster.join(1)
    cluster.members[2] = EpochMember(
        cluster.keyvalue.view(2),
        DecisionLog(cluster.records),
        [cluster.diaries[2]],
        on_resume=on_resume,
    ).start()
    assert cluster.lead().begin().result(LONG).decision.is_commit
    assert told == [(2, 20)]


def test_a_member_finishes_what_its_earlier_life_prepared(cluster: Cluster) -> None:
    log = DecisionLog(cluster.records)
    log.decide(Decision(1, Verdict.COMMIT, 1, 0, (1, 2)))
    log.decide(Decision(2, Verdict.ABORT, 1, 0, (1, 2)))
    diary = cluster.diaries[1]
    diary.prepared |= {1, 2}
    cluster.join(1)
    assert diary.wait_for(lambda each: not each.in_doubt())
    assert (dict(diary.committed), dict(diary.aborted)) == ({1: 1}, {2: 1})


def test_a_member_in_doubt_ends_an_epoch_that_nobody_decided(cluster: Cluster) -> None:
    diary = cluster.diaries[1]
    diary.prepared.add(1)
    cluster.join(1, patience_seconds=0.1)
    assert diary.wait_for(lambda each: not each.in_doubt())
    decision = cluster.decisions()[1]
    assert (decision.verdict, decision.decider) == (Verdict.ABORT, 1)
    assert cluster.lead().wait_until_leading(LONG)
    assert cluster.decisions()[2].decider == 0, "the leader comes after it"


def test_a_new_leader_ends_the_epoch_of_the_one_before(cluster: Cluster) -> None:
    released = threading.Event()

    def wait(_call: str, _epoch: int) -> None:
        assert released.wait(LONG)

    cluster.diaries[2].before = wait
    cluster.join(1)
    cluster.join(2)
    first = cluster.lead(slot=10)
    assert first.wait_until_leading(LONG)
    lost = first.begin()
    watch = cluster.keyvalue.watch(ACKNOWLEDGEMENT_KEY)
    while cluster.keyvalue.read(1, ACKNOWLEDGEMENT_KEY) is None:
        assert watch.wait(LONG)
    first.close()
    with pytest.raises(LeadershipLostError):
        lost.result(LONG)
    second = cluster.lead(slot=11)
    assert second.wait_until_leading(LONG)
    assert cluster.decisions()[2].decider == 11
    released.set()
    assert second.begin().result(LONG).decision.is_commit
    for diary in cluster.diaries.values():
        assert diary.wait_for(lambda each: 3 in each.committed)
        assert set(diary.committed) == {3}


def test_only_one_of_two_leads(cluster: Cluster) -> None:
    cluster.join(1)
    cluster.join(2)
    first = cluster.lead(slot=10, lease_seconds=LONG)
    assert first.wait_until_leading(LONG)
    second = cluster.lead(slot=11, lease_seconds=LONG)
    assert first.begin().result(LONG).decision.is_commit
    assert not second.wait_until_leading(0)
    waiting = second.begin()
    first.close()
    assert waiting.result(LONG).decision.is_commit, "the lease was given back"
    terms = [decision.term for decision in cluster.decisions().values()]
    assert terms == sorted(terms)
    assert set(terms) == {1, 2}


def test_a_leader_that_slept_through_its_lease_decides_nothing(cluster: Cluster) -> None:
    """It is stopped between its last look at the clock and the record of a commit."""
    cluster.join(1)
    cluster.join(2)
    stopped, go_on = threading.Event(), threading.Event()
    sleeper: list[int] = []

    def stop(call: str, name: str) -> None:
        deciding = call == "create" and name == f"decisions/{2:020}"
        if deciding and not stopped.is_set():
            sleeper.append(threading.get_ident())
            stopped.set()
            assert go_on.wait(LONG)

    cluster.records.before = stop
    first = cluster.lead(slot=10, lease_seconds=0.3)
    late = first.begin()
    assert stopped.wait(LONG)
    second = cluster.lead(slot=11, lease_seconds=1.0)
    assert second.wait_until_leading(LONG)
    go_on.set()
    with pytest.raises(LeadershipLostError):
        late.result(LONG)
    assert cluster.decisions()[2].verdict is Verdict.ABORT
    assert cluster.decisions()[2].decider == 11
    assert second.begin().result(LONG).decision.is_commit
    for diary in cluster.diaries.values():
        assert diary.wait_for(lambda each: 3 in each.committed)
        assert set(diary.committed) == {3}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_for_a_while_delays_and_loses_nothing(
    cluster: Cluster, when: str
) -> None:
    calls = iter(range(10**9))
    now_and_then = lambda _call, _name: _fail() if next(calls) % 4 == 0 else None  # noqa: E731
    setattr(cluster.records, when, now_and_then)
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead()
    concluded = [leader.begin().result(LONG) for _ in range(3)]
    assert all(each.decision.is_commit for each in concluded)
    for diary in cluster.diaries.values():
        assert diary.wait_for(lambda each: len(each.committed) == 3)


def test_a_commit_that_fails_is_tried_until_it_is_done(cluster: Cluster) -> None:
    attempts = iter(range(10**9))

    def fail_twice(call: str, _epoch: int) -> None:
        if call == "commit" and next(attempts) < 2:
            _fail()

    cluster.diaries[1].before = fail_twice
    cluster.join(1)
    cluster.join(2)
    assert cluster.lead().begin().result(LONG).decision.is_commit
    assert cluster.diaries[1].wait_for(lambda each: each.committed[2] == 1)


def test_slots_that_cannot_be_written_for_a_while(cluster: Cluster) -> None:
    class Failing(MemoryKeyValue):
        """Every other write fails."""

        def __init__(self, inner: MemoryKeyValue) -> None:
            super().__init__(inner.member)
            self._inner = inner
            self._writes = 0

        def write(self, key: str, value: str) -> None:
            self._writes += 1
            if self._writes % 2:
                raise PeerUnavailableError("the server is away")
            self._inner.write(key, value)

        def read(self, member: int, key: str) -> str | None:
            return self._inner.read(member, key)

        def scan(self, key: str) -> dict[int, str]:
            return self._inner.scan(key)

        def watch(self, prefix: str = "") -> Watch:
            return self._inner.watch(prefix)

        def check(self) -> None:
            self._inner.check()

    cluster.join(1)
    cluster.join(2)
    coordinator = Coordinator(
        Failing(cluster.keyvalue.view(10)), cluster.records, [1, 2], prepare_seconds_max=LONG
    )
    cluster.stack.enter_context(coordinator)
    assert [coordinator.begin().result(LONG).decision.is_commit for _ in range(2)] == [True, True]


def test_a_look_that_fails_is_made_again(cluster: Cluster) -> None:
    """By members and by the leader, however often it fails in a row and at whatever look: nothing
    else may happen that would wake them. The epoch is not lost by it."""

    class Away(MemoryKeyValue):
        failing = 0

        def scan(self, key: str) -> dict[int, str]:
            found = super().scan(key)
            if self.failing:
                self.failing -= 1
                raise PeerUnavailableError("the server closed the connection")
            return found

    views = []

    def view(member: int) -> Away:
        made = Away(member)
        made._shared = cluster.keyvalue._shared
        views.append(made)
        return made

    for number, diary in cluster.diaries.items():
        member = EpochMember(view(number), DecisionLog(cluster.records), [diary])
        cluster.stack.enter_context(member)
    coordinator = Coordinator(view(10), cluster.records, [1, 2], prepare_seconds_max=LONG)
    cluster.stack.enter_context(coordinator)
    for times in (0, 1, 2, 3):
        for each in views:
            each.failing = times
        assert coordinator.begin().result(LONG).decision.is_commit


@pytest.mark.parametrize("fault", ["slow", "failing"])
def test_a_lease_that_is_renewed_too_late_without_a_rival_costs_no_epoch(
    cluster: Cluster, fault: str
) -> None:
    """The leader decides nothing while its lease is over, and leads on under the same term."""
    late, preparing = threading.Event(), threading.Event()
    renewals = 0

    def renew(call: str, name: str) -> None:
        nonlocal renewals
        if call == "create" and name.startswith("lease/") and preparing.is_set():
            renewals += 1
            if renewals == 1 and fault == "slow":
                late.wait(LONG)
            elif renewals <= 3 and fault == "failing":
                late.wait(0.3)
                _fail()

    def prepare(call: str, _: int) -> None:
        if call == "prepare":
            preparing.set()
            late.wait(0.6)
            late.set()

    cluster.records.before = renew
    cluster.diaries[1].before = prepare
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead(lease_seconds=0.2)
    decision = leader.begin().result(LONG).decision
    assert decision.is_commit
    assert leader.begin().result(LONG).decision.term == decision.term


def test_the_end_of_the_directory_ends_the_loops_and_check_says_so(cluster: Cluster) -> None:
    """Whoever is only woken by it would wait for ever, and say nothing."""

    class Ending(MemoryKeyValue):
        def check(self) -> None:
            if ended.is_set():
                raise DirectoryEndedError("the gossip of member 1 ended: a defect")

    ended = threading.Event()
    slots = Ending(1)
    member = EpochMember(slots, DecisionLog(cluster.records), [Diary()])
    cluster.stack.enter_context(member)
    leader = Coordinator(slots, cluster.records, [1, 2])
    cluster.stack.enter_context(leader)
    assert leader.wait_until_leading(LONG)
    under_way = leader.begin()
    ended.set()
    slots._shared.watches.close()
    with pytest.raises(LeadershipLostError, match="a defect"):
        under_way.result(LONG)
    for loop in (member, leader):
        eventually(lambda loop=loop: _fails(loop), "that check says so")  # type: ignore[misc]
    member.close()


def _fails(loop: EpochMember | Coordinator) -> bool:
    try:
        loop.check()
    except DirectoryEndedError:
        return True
    return False


def test_a_thread_that_ends_is_seen_by_check(cluster: Cluster) -> None:
    """Whichever it is, and whatever ends it: SystemExit is no Exception."""

    class Exiting(Diary):
        def capture(self, barrier: Barrier) -> int | None:
            raise SystemExit(f"at {barrier.epoch}")

    cluster.diaries[1] = Exiting()
    member = cluster.join(1)
    cluster.join(2)
    cluster.lead().begin()

    def seen() -> bool:
        try:
            member.check()
        except ThreadEndedError as error:
            return "SystemExit" in str(error)
        return False

    eventually(seen, "that check says so")
    del cluster.members[1]
    member.close()


def test_nonsense_in_a_slot_is_passed_over(cluster: Cluster) -> None:
    for member, key in ((7, ANNOUNCEMENT_KEY), (7, ACKNOWLEDGEMENT_KEY), (1, ACKNOWLEDGEMENT_KEY)):
        cluster.keyvalue.view(member).write(key, "{nonsense")
    cluster.join(1)
    cluster.join(2)
    assert cluster.lead().begin().result(LONG).decision.is_commit


def test_old_decisions_are_deleted_when_all_have_finished_them(cluster: Cluster) -> None:
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead()
    for _ in range(2 * PRUNED_AT):
        last = leader.begin().result(LONG).decision.epoch
    epochs = sorted(cluster.decisions())
    assert len(epochs) <= PRUNED_AT + 1
    assert (epochs[0], epochs[-1]) == (1, last), "the first of a leader stays, and the newest"


def test_nothing_is_deleted_while_a_member_is_in_doubt(cluster: Cluster) -> None:
    closed = threading.Event()

    def stuck(call: str, _epoch: int) -> None:
        if call == "commit" and not closed.is_set():
            _fail()

    cluster.diaries[1].before = stuck
    cluster.join(1)
    cluster.join(2)
    leader = cluster.lead(seconds_max=0.05)
    for _ in range(PRUNED_AT + 5):
        last = leader.begin().result(LONG).decision.epoch
    assert sorted(cluster.decisions()) == list(range(1, last + 1))
    closed.set()


def test_a_closed_coordinator_says_so(cluster: Cluster) -> None:
    leader = cluster.lead()
    leader.close()
    with pytest.raises(LeadershipLostError):
        leader.begin().result(LONG)


def test_an_epoch_needs_members(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError):
        Coordinator(cluster.keyvalue, cluster.records, [])


def test_participants_of_a_member_have_names_of_their_own(cluster: Cluster) -> None:
    with pytest.raises(LocalProtocolError, match="names of their own"):
        EpochMember(cluster.keyvalue, DecisionLog(cluster.records), [Diary("a"), Diary("a")])


def _fail() -> None:
    raise PeerUnavailableError("the store is away")
