"""A snapshot takes part in epochs: prepared, then committed or aborted, also over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint.barrier import Barrier, Flags
from penstock.errors import CommitFailedError, LocalProtocolError
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.snapshot.participant import CAPTURED_MAX, DROP_EVERY
from penstock.storage import Storage, StorageError
from penstock.storage.arrow import ArrowFiles
from tests.unit.snapshot.crashing import Crash, CrashingFiles
from tests.unit.storage.places import KINDS, memory_storage, mock_filesystem, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.epoch.participant import Participant
    from penstock.snapshot import Recovery
    from penstock.snapshot.writer import PartData


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with storage_of(request.param) as storage:
        yield storage


class Member:
    """A process with a state: what has come so far, and a part that never changes."""

    def __init__(self, storage: Storage, keep: int = 3, held_bytes_max: int = 0) -> None:
        self.state = b""
        self.needed_from = 1_000
        self.store = SnapshotStore(storage, 1, clock=lambda: 0.0)
        self.participant = SnapshotParticipant(
            self.store,
            self._capture,
            keep=keep,
            needed_from=lambda: self.needed_from,
            held_bytes_max=held_bytes_max,
        )
        self.epochs: Participant = self.participant

    def _capture(self, barrier: Barrier) -> Captured:
        parts: dict[str, PartData] = {"state": [self.state], "fixed": b"f" * 1_000}
        return Captured(parts, {"checkpoint": barrier.checkpoint}, len(self.state))

    def prepare(self, epoch: int, state: bytes, flags: int = 0, checkpoint: int = 0) -> None:
        self.state = state
        barrier = Barrier(checkpoint or epoch, epoch, flags)
        assert self.epochs.capture(barrier) == len(state)
        self.state = b"after the barrier"
        self.epochs.prepare(epoch)

    def advance(self, epoch: int, state: bytes, flags: int = 0) -> None:
        self.prepare(epoch, state, flags)
        self.epochs.commit(epoch)


def state_of(recovery: Recovery) -> tuple[int, bytes] | None:
    if recovery.chosen is None:
        return None
    return recovery.chosen.epoch, recovery.chosen.part("state").to_pybytes()


def test_prepared_committed_recovered(storage: Storage) -> None:
    member = Member(storage)
    assert member.epochs.name == "snapshot"
    assert state_of(member.participant.recover()) is None
    member.prepare(1, b"one")
    assert member.epochs.in_doubt() == [1]
    assert state_of(member.participant.recover()) is None, "not before it is committed"
    member.epochs.commit(1)
    member.epochs.commit(1)
    assert member.epochs.in_doubt() == []
    restarted = Member(storage)
    recovery = restarted.participant.recover()
    assert state_of(recovery) == (1, b"one")
    assert recovery.chosen is not None
    assert recovery.chosen.watermark == 3
    assert recovery.chosen.attributes == {"checkpoint": 1}


def test_what_is_in_doubt_is_settled_after_a_restart(storage: Storage) -> None:
    member = Member(storage)
    member.advance(1, b"one")
    member.prepare(2, b"two")
    member.prepare(3, b"three")
    restarted = Member(storage)
    assert restarted.epochs.in_doubt() == [2, 3]
    restarted.epochs.commit(2)
    restarted.epochs.abort(3)
    restarted.epochs.abort(3)
    assert restarted.epochs.in_doubt() == []
    assert state_of(restarted.participant.recover()) == (2, b"two")


def test_an_aborted_epoch_is_gone(storage: Storage) -> None:
    member = Member(storage)
    member.advance(1, b"one")
    before = storage.names()
    member.prepare(2, b"two")
    member.epochs.abort(2)
    assert storage.names() == before
    assert member.epochs.capture(Barrier(3, 3)) is not None
    member.epochs.abort(3)
    for call in (member.epochs.prepare, member.epochs.commit):
        with pytest.raises(LocalProtocolError):
            call(3)
    member.epochs.abort(99)
    with pytest.raises(LocalProtocolError, match="epoch 1 is committed"):
        member.epochs.abort(1)


def test_parts_that_did_not_change_are_not_written_again(storage: Storage) -> None:
    member = Member(storage, keep=9)
    member.advance(1, b"one")

    def large() -> int:
        return sum(entry.size_bytes == 1_000 for entry in storage.entries("member-1/parts/"))

    member.advance(2, b"two")
    assert large() == 1
    member.advance(3, b"three", Flags.FULL_SNAPSHOT)
    assert large() == 2
    restarted = Member(storage, keep=9)
    restarted.participant.recover()
    restarted.advance(4, b"four")
    assert large() == 2
    Member(storage, keep=9).advance(5, b"five")
    assert large() == 3, "a process that has verified nothing writes everything"


@pytest.mark.parametrize(("held_bytes_max", "files"), [(0, 3), (4, 2), (1_003, 1), (10**6, 1)])
def test_small_parts_are_in_the_manifest(storage: Storage, held_bytes_max: int, files: int) -> None:
    """The state has three bytes, the other part a thousand."""
    member = Member(storage, held_bytes_max=held_bytes_max)
    member.prepare(1, b"one")
    assert len(storage.names()) == files
    member.epochs.commit(1)
    restarted = Member(storage, held_bytes_max=held_bytes_max)
    recovery = restarted.participant.recover()
    assert state_of(recovery) == (1, b"one")
    for epoch, state in ((2, b"two"), (3, b"two")):  # that has not changed, too
        restarted.advance(epoch, state)
        again = Member(storage).participant.recover()
        assert state_of(again) == (epoch, state)
        assert again.chosen is not None
        assert again.chosen.part("fixed").to_pybytes() == b"f" * 1_000


def test_a_part_that_grew_or_shrank_moves_between_manifest_and_file(storage: Storage) -> None:
    member = Member(storage, held_bytes_max=100)
    for epoch, size in enumerate((10, 101, 101, 100, 90), 1):
        member.advance(epoch, b"s" * size)
        newest = member.store.load(epoch)
        assert bool(newest.parts["state"].file) == (size > 100)
        assert newest.part("state").size == size
        newest.verify()


def test_what_somebody_needs_is_kept(storage: Storage) -> None:
    member = Member(storage, keep=2)
    member.needed_from = 3
    for epoch in range(1, DROP_EVERY + 2):
        member.advance(epoch, b"state")
    assert member.store.epochs() == list(range(3, DROP_EVERY + 2))
    member.needed_from = DROP_EVERY + 1
    for epoch in range(DROP_EVERY + 2, 2 * DROP_EVERY + 2):
        member.advance(epoch, b"state")
    assert member.store.epochs() == list(range(DROP_EVERY + 1, 2 * DROP_EVERY + 2))


def test_a_damaged_part_is_not_carried_on(storage: Storage) -> None:
    member = Member(storage, keep=1)
    member.advance(1, b"one", Flags.FULL_SNAPSHOT)
    member.participant._keep = 3
    member.advance(2, b"two", Flags.FULL_SNAPSHOT)
    damaged = member.store.load(2).parts["fixed"].file
    storage.delete(f"member-1/{damaged}")
    restarted = Member(storage, keep=1)
    recovery = restarted.participant.recover()
    assert state_of(recovery) == (1, b"one")
    assert [skipped.epoch for skipped in recovery.skipped] == [2]
    restarted.prepare(3, b"three")
    restarted.store.load(3).verify()
    restarted.epochs.commit(3)
    assert state_of(Member(storage).participant.recover()) == (3, b"three")


def test_what_was_recovered_is_kept_until_something_newer_is_committed(storage: Storage) -> None:
    """The damaged epoch after it is newer, and must not push it out."""
    member = Member(storage)
    member.advance(1, b"one")
    member.advance(2, b"two", Flags.FULL_SNAPSHOT)
    storage.delete(f"member-1/{member.store.load(2).parts['state'].file}")
    restarted = Member(storage, keep=1)
    assert state_of(restarted.participant.recover()) == (1, b"one")
    restarted.epochs.commit(2)
    assert state_of(restarted.participant.recover()) == (1, b"one")


def test_damaged_snapshots_do_not_count_as_kept(storage: Storage) -> None:
    member = Member(storage)
    for epoch in (1, 2, 3):
        member.advance(epoch, str(epoch).encode(), Flags.FULL_SNAPSHOT)
    for epoch in (2, 3):
        storage.delete(f"member-1/{member.store.load(epoch).parts['state'].file}")
    restarted = Member(storage, keep=2)
    restarted.participant.recover()
    restarted.advance(4, b"4", Flags.FULL_SNAPSHOT)
    storage.delete(f"member-1/{restarted.store.load(4).parts['state'].file}")
    assert state_of(Member(storage).participant.recover()) == (1, b"1")


def test_old_snapshots_are_dropped_but_never_one_in_doubt(storage: Storage) -> None:
    member = Member(storage, keep=2)
    member.prepare(1, b"in doubt")
    last = DROP_EVERY + 2
    for epoch in range(2, last + 1):
        member.advance(epoch, str(epoch).encode())
    assert member.store.epochs() == [1, last - 1, last]
    assert member.epochs.in_doubt() == [1]
    member.epochs.commit(3)
    with pytest.raises(LocalProtocolError, match="cannot commit: member 1 has no snapshot"):
        member.epochs.commit(last + 1)
    member.epochs.commit(1)
    assert member.epochs.in_doubt() == []
    assert state_of(member.participant.recover()) == (last, str(last).encode())


def test_a_later_attempt_at_the_same_epoch_counts(storage: Storage) -> None:
    paused, restarted = Member(storage), Member(storage)
    paused.state = b"of the first"
    paused.epochs.capture(Barrier(10, 1))
    restarted.prepare(1, b"of the second", checkpoint=11)
    paused.epochs.prepare(1)
    assert restarted.epochs.in_doubt() == [1]
    paused.epochs.commit(1)
    assert state_of(restarted.participant.recover()) == (1, b"of the second")
    paused.state = b"next"
    paused.epochs.capture(Barrier(12, 2))
    paused.epochs.prepare(2)
    paused.epochs.commit(2)
    paused.store.load(2).verify()


def test_an_epoch_that_is_given_up_is_not_written_to_its_end(storage: Storage) -> None:
    taken: list[int] = []

    def pieces(participant: list[SnapshotParticipant]) -> Iterator[bytes]:
        for number in range(10):
            taken.append(number)
            yield b"piece"
            if number == 3:
                participant[0].give_up(1)

    def capture(barrier: Barrier) -> Captured:
        return Captured({"before": b"written", "state": pieces(participants)})

    participants: list[SnapshotParticipant] = []
    participants.append(SnapshotParticipant(SnapshotStore(storage, 1), capture))
    participant: Participant = participants[0]
    participant.capture(Barrier(1, 1))
    with pytest.raises(CommitFailedError, match="epoch 1 was given up"):
        participant.prepare(1)
    assert taken == [0, 1, 2, 3, 4]
    assert storage.names() == []
    participant.abort(1)
    participant.give_up(2)
    participant.capture(Barrier(3, 2))
    participant.prepare(2)
    assert participant.in_doubt() == [2], "it is captured anew: what was given up came before"


def test_too_many_epochs_captured() -> None:
    member = Member(memory_storage())
    for epoch in range(1, CAPTURED_MAX + 1):
        member.epochs.capture(Barrier(epoch, epoch))
    member.epochs.capture(Barrier(100, 1))
    with pytest.raises(LocalProtocolError, match="prepare or abort them"):
        member.epochs.capture(Barrier(101, 101))
    member.epochs.abort(1)
    member.epochs.capture(Barrier(101, 101))


def test_a_commit_does_not_fail_because_nothing_can_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = memory_storage()
    member = Member(storage, keep=1)
    for epoch in range(1, DROP_EVERY + 1):
        member.advance(epoch, b"at first")

    def fail(*_: object) -> None:
        raise StorageError("delete", "x", "here", "not now")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete_all", fail)
        member.advance(20, b"twenty")
    assert str(member.participant.retention_fault).startswith("cannot delete x in here: not now")
    assert state_of(member.participant.recover()) == (20, b"twenty")
    member.advance(21, b"more")
    assert member.participant.retention_fault is None
    assert member.store.epochs() == [21]


def test_old_snapshots_are_dropped_now_and_then() -> None:
    member = Member(memory_storage(), keep=2)
    there = []
    for epoch in range(1, 3 * DROP_EVERY):
        member.advance(epoch, b"state")
        there.append(len(member.store.epochs()))
    assert max(there) == 2 + DROP_EVERY - 1
    dropped = [1 + DROP_EVERY, 1 + 2 * DROP_EVERY]
    assert [epoch for epoch, count in enumerate(there, 1) if count == 2] == [2, *dropped]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("commit", "commit", "abort")),
            st.none() | st.tuples(st.integers(1, 8), st.booleans()),
        ),
        max_size=8,
    ),
    st.sampled_from((0, 64 * 1024)),
)
@settings(max_examples=300)
def test_a_decision_holds_wherever_the_member_died(
    decisions: list[tuple[str, tuple[int, bool] | None]], held_bytes_max: int
) -> None:
    """A coordinator that remembers what it decided: commit only what was prepared. The member dies
    at any change, starts again, and is told again."""
    files = ArrowFiles(mock_filesystem(), "root/snap")
    decided: dict[int, str] = {}
    states: dict[int, bytes] = {}

    def start(crash: tuple[int, bool] | None = None) -> Member:
        used = CrashingFiles(files, crash[0], done=crash[1]) if crash else files
        member = Member(Storage(used, "memory"), keep=2, held_bytes_max=held_bytes_max)
        member.participant.recover()
        return member

    def settle() -> Member:
        member = start()
        for doubtful in member.epochs.in_doubt():
            getattr(member.epochs, decided.get(doubtful, "abort"))(doubtful)
        assert member.epochs.in_doubt() == []
        return member

    def check() -> None:
        member = settle()
        last = max((epoch for epoch, what in decided.items() if what == "commit"), default=None)
        expected = None if last is None else (last, states[last])
        recovery = member.participant.recover()
        assert state_of(recovery) == expected
        assert recovery.skipped == []
        for epoch in member.store.epochs():
            member.store.load(epoch).verify()

    for epoch, (decision, crash) in enumerate(decisions, 1):
        states[epoch] = b"state %d" % epoch
        member = start(crash)
        try:
            member.prepare(epoch, states[epoch])
            decided[epoch] = decision  # everybody has prepared: the decision is recorded
            getattr(member.epochs, decision)(epoch)
        except Crash:
            pass
        check()
