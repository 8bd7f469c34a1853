"""What ends the loops, and what they put up with: a fenced process stops and says why."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from penstock.directory.gossip import GossipKeyValue
from penstock.directory.keyvalue import MemoryKeyValue
from penstock.epoch.announcements import ACKNOWLEDGEMENT_KEY, ANNOUNCEMENT_KEY, Acknowledgement
from penstock.epoch.coordinator import Coordinator, LeadershipLostError
from penstock.epoch.decisions import Decision, DecisionLog, Verdict
from penstock.epoch.member import EpochMember
from penstock.epoch.temporary import is_temporary
from penstock.errors import (
    ConfigurationError,
    CorruptStorageError,
    FencedError,
    LocalProtocolError,
    PeerUnavailableError,
    PenstockError,
    RemoteProtocolError,
)
from penstock.storage import Storage
from penstock.storage.arrow import ArrowFiles
from penstock.storage.errors import (
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
)
from tests.conformance.waiting import WAIT_SECONDS_MAX, eventually
from tests.unit.epoch.parts import Diary, FencedKeyValue, MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = WAIT_SECONDS_MAX
KEY = b"the key of the tests' own cluster"


class Cluster:
    """One member, number 1, and a leader in slot 0; each slot can be fenced."""

    def __init__(self) -> None:
        self.slots = MemoryKeyValue(0)
        self.records = MemoryRecords()
        self.stack = contextlib.ExitStack()

    def join(self, diary: Diary | None = None) -> tuple[EpochMember, FencedKeyValue]:
        keyvalue = FencedKeyValue(self.slots.view(1))
        member = EpochMember(keyvalue, DecisionLog(self.records), [diary or Diary()])
        return self.stack.enter_context(member), keyvalue

    def lead(self, slot: int = 0) -> tuple[Coordinator, FencedKeyValue]:
        keyvalue = FencedKeyValue(self.slots.view(slot))
        leader = Coordinator(keyvalue, self.records, [1], lease_seconds=LONG)
        return self.stack.enter_context(leader), keyvalue


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    with made.stack:
        yield made


def failure_of(loop: EpochMember | Coordinator) -> Exception:
    def failure() -> Exception | None:
        try:
            loop.check()
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return error
        return None

    found = eventually(failure, "the loop goes on")
    assert found is not None
    return found


def test_a_fenced_member_stops_acknowledging_and_says_why(cluster: Cluster) -> None:
    older, fence = cluster.join()
    leader, _ = cluster.lead()
    assert leader.begin().result(LONG).decision.is_commit
    fence.fenced = True
    under_way = leader.begin()
    failure = failure_of(older)
    assert isinstance(failure, FencedError)
    assert "member 1 was started again elsewhere" in str(failure)
    assert fence.refused == 1, "it tried once"
    cluster.join()
    assert not under_way.result(LONG).decision.is_commit, "its next life refuses what is under way"
    assert leader.begin().result(LONG).decision.is_commit


def test_a_member_that_gossip_fences_stops_and_says_why() -> None:
    """The newer process is started while the older one draws its line."""
    with contextlib.ExitStack() as stack:

        def started(member: int, seeds: list[str], generation: int) -> GossipKeyValue:
            keyvalue = GossipKeyValue(member, KEY, seeds, generation=generation)
            return stack.enter_context(keyvalue)

        leading = started(0, [], 1)
        older = started(1, [leading.address], 1)
        records, diary = MemoryRecords(), Diary()

        def wait(call: str, _epoch: int) -> None:
            if call == "capture":
                started(1, [leading.address], 2)
                eventually(lambda: older.fenced, "nobody told the older one")

        diary.before = wait
        member = stack.enter_context(EpochMember(older, DecisionLog(records), [diary]))
        leader = stack.enter_context(
            Coordinator(leading, records, [1], prepare_seconds_max=LONG, lease_seconds=LONG)
        )
        leader.begin()
        failure = failure_of(member)
        assert isinstance(failure, FencedError)
        assert "this process is fenced" in str(failure)
        assert leading.read(1, ACKNOWLEDGEMENT_KEY) is None


def test_a_fenced_coordinator_ends_and_lets_another_lead(cluster: Cluster) -> None:
    cluster.join()
    leader, fence = cluster.lead()
    assert leader.begin().result(LONG).decision.is_commit
    fence.fenced = True
    with pytest.raises(LeadershipLostError, match="member 0 was started again elsewhere"):
        leader.begin().result(LONG)
    assert isinstance(failure_of(leader), FencedError)
    assert not leader.wait_until_leading(), "it never will"
    with pytest.raises(LeadershipLostError, match="started again elsewhere"):
        leader.begin().result(LONG)
    assert fence.refused == 1
    successor, _ = cluster.lead(slot=2)
    assert successor.begin().result(LONG).decision.is_commit, "the lease was given back"


def test_a_participant_that_is_fenced_ends_its_member(cluster: Cluster) -> None:
    def fence(call: str, _epoch: int) -> None:
        if call == "commit":
            raise FencedError("participant 'diary' of member 1 was started again elsewhere")

    diary = Diary()
    diary.before = fence
    member, _ = cluster.join(diary)
    leader, _ = cluster.lead()
    assert leader.begin().result(LONG).decision.is_commit
    assert isinstance(failure_of(member), FencedError)
    assert diary.in_doubt() == [2], "the next life finishes it"


def test_a_member_of_the_past_ends_and_decides_nothing(cluster: Cluster) -> None:
    """Its epoch was finished by all, and the record is gone."""
    DecisionLog(cluster.records).decide(Decision(9, Verdict.COMMIT, 1, 0, (1,)))
    diary = Diary()
    diary.prepared.add(4)
    member = EpochMember(
        cluster.slots.view(1), DecisionLog(cluster.records), [diary], patience_seconds=0
    )
    with member:
        failure = failure_of(member)
    assert isinstance(failure, FencedError)
    assert "Stop it" in str(failure)
    assert DecisionLog(cluster.records).epochs() == [9]
    assert (diary.committed, diary.aborted) == ({}, {})


def stopping(error: Exception, call: str, part: str = "") -> Callable[[str, str], None]:
    def stop(made: str, name: str) -> None:
        if made == call and name.startswith(part):
            raise error

    return stop


@pytest.mark.parametrize(
    ("call", "part"), [("create", "lease/"), ("create", "decisions/"), ("names", "decisions/")]
)
@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("this user may not"),
        StorageRefusedError("write", "a file", "a place", "permission denied"),
    ],
    ids=type,
)
def test_what_no_waiting_mends_ends_the_coordinator(
    cluster: Cluster, error: Exception, call: str, part: str
) -> None:
    cluster.records.before = stopping(error, call, part)
    leader, _ = cluster.lead()
    with pytest.raises(LeadershipLostError, match="this coordinator stopped"):
        leader.begin().result(LONG)
    assert failure_of(leader) is error


def test_a_record_that_cannot_be_read_ends_the_member(cluster: Cluster) -> None:
    diary = Diary()
    diary.prepared.add(1)
    DecisionLog(cluster.records).decide(Decision(2, Verdict.ABORT, 1, 0, (1,)))
    cluster.records.values[f"decisions/{1:020}"] = b"{}"
    member, _ = cluster.join(diary)
    assert isinstance(failure_of(member), CorruptStorageError)
    assert diary.in_doubt() == [1], "nothing is guessed"


def test_a_member_waits_for_the_records_when_it_starts(cluster: Cluster) -> None:
    log = DecisionLog(cluster.records)
    for epoch in range(1, 6):
        log.decide(Decision(epoch, Verdict.ABORT, 1, 0, (1,)))
    failures = iter([True, True])

    def fail_twice(_call: str, _name: str) -> None:
        if next(failures, False):
            raise StorageError("list", "decisions", "a place", "time is out")

    cluster.records.before = fail_twice
    member, _ = cluster.join()
    assert next(failures, None) is None
    assert member.finished == 5, "what is on record and not in doubt"


def test_a_member_that_cannot_know_what_was_decided_does_not_start(cluster: Cluster) -> None:
    cluster.records.before = stopping(ConfigurationError("this user may not"), "names")
    member = EpochMember(cluster.slots.view(1), DecisionLog(cluster.records), [Diary()])
    with pytest.raises(ConfigurationError):
        member.start()
    member.close()


def test_a_member_refuses_the_epoch_that_was_under_way(cluster: Cluster) -> None:
    """Its streams have no barriers of it. The next one is another matter."""
    leader, _ = cluster.lead()
    under_way = leader.begin()
    with cluster.slots.watch(ANNOUNCEMENT_KEY) as watch:
        while '"prepare"' not in (cluster.slots.read(0, ANNOUNCEMENT_KEY) or ""):
            assert watch.wait(LONG)
    cluster.join()
    refused = under_way.result(LONG).decision
    assert not refused.is_commit
    assert "member 1: it was started while the epoch was under way" in refused.reason
    assert leader.begin().result(LONG).decision.is_commit
    text = cluster.slots.read(1, ACKNOWLEDGEMENT_KEY)
    assert text is not None
    assert Acknowledgement.from_json(text).epoch == refused.epoch + 1


def test_a_request_that_is_cancelled_is_passed_over(cluster: Cluster) -> None:
    leader, _ = cluster.lead()
    first, second, third = leader.begin(), leader.begin(), leader.begin()
    with cluster.slots.watch(ANNOUNCEMENT_KEY) as watch:
        while '"prepare"' not in (cluster.slots.read(0, ANNOUNCEMENT_KEY) or ""):
            assert watch.wait(LONG)
    assert not first.cancel(), "it is under way"
    assert second.cancel()
    cluster.join()
    numbers = [first.result(LONG).decision.epoch, third.result(LONG).decision.epoch]
    assert numbers == [2, 3]
    leader.check()


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (PeerUnavailableError("away"), True),
        (StorageError("write", "a", "b", "time is out"), True),
        (StorageFullError("write", "a", "b", "no room"), True),
        (StorageRefusedError("write", "a", "b", "no right"), False),
        (StorageDamagedError("read", "a", "b", "input/output error"), False),
        (FencedError("replaced"), False),
        (LocalProtocolError("order"), False),
        (RemoteProtocolError("nonsense"), False),
        (CorruptStorageError("damaged"), False),
        (ConfigurationError("wrong"), False),
        (PenstockError("anything"), False),
        (OSError(5, "not translated"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_passes(error: Exception, temporary: bool) -> None:
    assert is_temporary(error) is temporary


def test_a_place_without_an_atomic_create_is_refused(cluster: Cluster) -> None:
    somewhere = Storage(ArrowFiles(fs._MockFileSystem(), "folder"), "a bucket")
    with pytest.raises(ConfigurationError, match=r"Storage\.open with a path") as told:
        DecisionLog(somewhere)
    assert "PostgresRecords" in str(told.value)
    with pytest.raises(ConfigurationError, match="told that theirs holds"):
        Coordinator(cluster.slots, somewhere, [1])
    assert somewhere.names() == []
