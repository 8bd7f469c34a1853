"""The decision log: one record for each epoch, created once; and which records nobody needs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.epoch.decisions import LISTINGS_MAX, Decision, DecisionLog, Verdict, prunable
from penstock.errors import CorruptStorageError, FencedError, PeerUnavailableError
from penstock.sealed import sealed_json
from tests.unit.epoch.parts import MemoryRecords

COMMIT = Decision(7, Verdict.COMMIT, 2, 10, (1, 2), 90)
ABORT = Decision(7, Verdict.ABORT, 2, 1, reason="member 1 heard of no decision")

numbers = st.integers(0, 2**64)
decisions = st.builds(
    Decision,
    epoch=numbers,
    verdict=st.sampled_from(Verdict),
    term=numbers,
    decider=numbers,
    members=st.lists(numbers, max_size=4).map(tuple),
    watermark=st.none() | st.integers(-(2**63), 2**63),
    reason=st.text(),
)


def members_of(decision: Decision) -> dict[str, object]:
    fields: dict[str, object] = json.loads(decision.to_bytes())
    del fields["checksum"]
    return fields


@given(decisions)
def test_a_decision_comes_back_as_it_was(decision: Decision) -> None:
    assert Decision.from_bytes(decision.to_bytes()) == decision


def test_the_fields_are_those_of_the_format() -> None:
    assert members_of(COMMIT) == {
        "epoch": 7, "verdict": "commit", "term": 2, "decider": 10, "members": [1, 2],
        "watermark": 90, "reason": "",
    }  # fmt: skip


@pytest.mark.parametrize("field", list(asdict(COMMIT)))
def test_a_record_without_a_field_is_corrupt(field: str) -> None:
    fields = members_of(COMMIT)
    del fields[field]
    for data in (sealed_json(fields), json.dumps(fields).encode()):
        with pytest.raises(CorruptStorageError, match=f"its/name is damaged.*{field}"):
            Decision.from_bytes(data, "its/name")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "7"), ("epoch", -1), ("verdict", "maybe"), ("verdict", None), ("term", None),
        ("term", 1.5), ("decider", True), ("members", "12"), ("members", [None]),
        ("watermark", "90"), ("reason", None),
    ],
)  # fmt: skip
def test_a_record_of_other_kinds_is_corrupt(field: str, value: object) -> None:
    with pytest.raises(CorruptStorageError, match="a decision record is damaged"):
        Decision.from_bytes(sealed_json(members_of(COMMIT) | {field: value}))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"7", b"null", b"{}", b"\xff", COMMIT.to_bytes()[:-1]]
)
def test_what_is_no_decision_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptStorageError, match="its/name is damaged"):
        Decision.from_bytes(data, "its/name")


def test_the_first_decision_holds() -> None:
    log = DecisionLog(MemoryRecords())
    assert log.read(7) is None
    assert log.decide(COMMIT) == COMMIT
    assert log.decide(ABORT) == COMMIT
    assert log.abort_unless_decided(ABORT) == COMMIT
    assert log.read(7) == COMMIT


def test_an_abort_holds_too() -> None:
    log = DecisionLog(MemoryRecords())
    assert log.abort_unless_decided(ABORT) == ABORT
    assert log.decide(COMMIT) == ABORT


def test_a_decision_whose_outcome_is_unknown_is_asked_for_again() -> None:
    records = MemoryRecords()
    log = DecisionLog(records)

    def lose_the_answer(call: str, _name: str) -> None:
        if call == "create":
            raise PeerUnavailableError("the answer was lost")

    records.after = lose_the_answer
    with pytest.raises(PeerUnavailableError):
        log.decide(COMMIT)
    records.after = lambda _call, _name: None
    assert log.decide(ABORT) == COMMIT, "it was written after all"


def test_a_record_that_vanishes_under_ones_eyes_is_told() -> None:
    class Vanishing(MemoryRecords):
        def create(self, name: str, value: bytes) -> bool:  # noqa: ARG002
            return False

    with pytest.raises(CorruptStorageError, match="epoch 7 was there and is gone"):
        DecisionLog(Vanishing()).decide(COMMIT)


def test_epochs_are_listed_as_numbers_are() -> None:
    log = DecisionLog(MemoryRecords())
    for epoch in (10, 9, 100, 2**64 - 1, 1):
        log.decide(replace(COMMIT, epoch=epoch))
    assert log.epochs() == [1, 9, 10, 100, 2**64 - 1]
    assert [decision.epoch for decision in log.decisions()] == log.epochs()
    newest = log.newest()
    assert newest is not None
    assert newest.epoch == 2**64 - 1


def test_an_empty_log() -> None:
    log = DecisionLog(MemoryRecords())
    assert (log.newest(), log.epochs(), log.decisions()) == (None, [], [])


def test_a_log_that_is_pruned_while_it_is_read_is_read_again() -> None:
    """Otherwise a new leader would take an old epoch for the newest, and decide it again."""
    for read in (DecisionLog.newest, lambda log: log.decisions()[-1]):
        records = MemoryRecords()
        log = DecisionLog(records)
        for epoch in range(1, 6):
            log.decide(replace(COMMIT, epoch=epoch))

        def prune(call: str, _name: str, records: MemoryRecords = records) -> None:
            if call == "read" and f"decisions/{5:020}" in records.values:
                other = DecisionLog(records)
                other.decide(replace(COMMIT, epoch=6))
                other.delete([3, 4, 5])

        records.before = prune
        found = read(log)
        assert found is not None
        assert found.epoch == 6
    assert [decision.epoch for decision in log.decisions()] == [1, 2, 6]


def test_a_store_that_lists_what_is_not_there_is_told() -> None:
    class Listing(MemoryRecords):
        def names(self, prefix: str = "") -> list[str]:
            return [f"{prefix}{7:020}"]

    log = DecisionLog(Listing())
    for read in (log.newest, log.decisions):
        with pytest.raises(CorruptStorageError, match=f"could not be read, {LISTINGS_MAX} times"):
            read()


def test_a_member_of_the_past_decides_nothing() -> None:
    log = DecisionLog(MemoryRecords())
    log.decide(replace(COMMIT, epoch=9))
    with pytest.raises(FencedError, match="epoch 7 was finished by every member"):
        log.abort_unless_decided(ABORT)
    assert log.epochs() == [9]
    assert log.abort_unless_decided(replace(ABORT, epoch=10)).decider == ABORT.decider


def decided(term: int, epoch: int, verdict: Verdict = Verdict.ABORT) -> Decision:
    return Decision(epoch, verdict, term, 0)


def test_what_every_member_has_finished_is_prunable() -> None:
    commits = [decided(1, epoch, Verdict.COMMIT) for epoch in range(1, 9)]
    assert prunable(commits, finished=8) == [2, 3, 4, 5, 6, 7], "not the first, nor the last"
    assert prunable(commits, finished=4) == [2, 3, 4]
    assert prunable(commits, finished=1) == []
    assert prunable([], finished=5) == []
    assert prunable(commits[::-1], finished=4) == [2, 3, 4], "in whatever order they come"


def test_the_newest_commit_stays() -> None:
    log = [decided(1, epoch) for epoch in range(1, 9)]
    log[1] = decided(1, 2, Verdict.COMMIT)
    log[3] = decided(1, 4, Verdict.COMMIT)
    assert prunable(log, finished=8) == [2, 3, 5, 6, 7]


def test_the_first_and_the_last_of_each_leader_stay() -> None:
    terms = [1, 1, 1, 2, 4, 4, 4, 4, 5, 5]
    log = [decided(term, epoch) for epoch, term in enumerate(terms, start=1)]
    assert prunable(log, finished=10) == [2, 6, 7]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(Verdict)), min_size=1, max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_a_leader_that_slept_finds_the_only_epoch_it_can_decide_taken(
    steps: list[tuple[int, Verdict]], finished: list[int]
) -> None:
    """However often, and up to wherever, the log was pruned since it last looked."""
    log: dict[int, Decision] = {}
    term = 1
    sleepers: dict[int, int] = {}
    """By term: what a leader of it would decide next."""
    for epoch, (rise, verdict) in enumerate(steps, start=1):
        term += rise
        log[epoch] = decided(term, epoch, verdict)
        sleepers[term] = epoch + 1
    commits = [epoch for epoch, decision in log.items() if decision.is_commit]
    for until in finished:
        for epoch in prunable(log.values(), until):
            assert epoch <= until
            del log[epoch]
    del sleepers[term]
    assert set(sleepers.values()) <= set(log), "each is stopped by the first record of the next"
    assert max(log) == len(steps)
    assert set(commits[-1:]) <= set(log)


def test_a_damaged_decision_below_the_newest_commit_is_passed_over() -> None:
    records = MemoryRecords()
    log = DecisionLog(records)
    for epoch in (1, 2, 3):
        log.decide(replace(COMMIT, epoch=epoch))
    names = records.names()
    for name in names[:2]:
        records.values[name] = records.values[name].replace(b"commit", b"abortt")
    assert [decision.epoch for decision in log.decisions()] == [3]
    with pytest.raises(CorruptStorageError, match=f"{names[0]} is damaged"):
        log.read(1)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_damaged_decision_above_the_newest_commit_is_told(verdict: Verdict) -> None:
    """It may be a newer commit."""
    records = MemoryRecords()
    log = DecisionLog(records)
    log.decide(replace(COMMIT, epoch=1))
    log.decide(replace(COMMIT, epoch=2, verdict=verdict))
    log.decide(replace(COMMIT, epoch=3, verdict=Verdict.ABORT))
    damaged = records.names()[1]
    records.values[damaged] = records.values[damaged][:-2] + b" }"
    with pytest.raises(CorruptStorageError, match=f"{damaged} is damaged"):
        log.decisions()
    assert log.newest() == replace(COMMIT, epoch=3, verdict=Verdict.ABORT)


def test_a_decision_under_the_name_of_another_epoch_is_damaged() -> None:
    records = MemoryRecords()
    log = DecisionLog(records)
    for epoch in (1, 2):
        log.decide(replace(COMMIT, epoch=epoch))
    first, second = records.names()
    records.values[second] = records.values[first]
    with pytest.raises(CorruptStorageError, match=f"{second} is damaged: it is of epoch 1"):
        log.read(2)
