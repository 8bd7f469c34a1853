"""The lease: who leads, by each one's own clock, and under a term that rises with each holder."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.epoch.lease import RECORDS_KEPT, RENEWALS, Lease, LeaseRecord
from penstock.errors import ConfigurationError, CorruptStorageError, PeerUnavailableError
from tests.unit.epoch.parts import MemoryRecords

SECONDS = 6.0
RECORD = LeaseRecord(5, 3, 1, "a", SECONDS)


def lease(records: MemoryRecords, member: int = 1, instance: str = "a") -> Lease:
    return Lease(records, member, instance, SECONDS)


def written(records: MemoryRecords) -> list[LeaseRecord]:
    return [LeaseRecord.from_bytes(records.values[name]) for name in records.names("lease/")]


def test_the_first_who_comes_leads_under_term_one() -> None:
    records = MemoryRecords()
    first, second = lease(records), lease(records, 2)
    assert (first.term(0.0), first.hold(0.0), first.term(0.0)) == (None, 1, 1)
    assert (second.hold(0.0), second.term(0.0)) == (None, None)
    assert written(records) == [LeaseRecord(1, 1, 1, "a", SECONDS)]


def test_it_ends_by_itself_and_its_holder_knows_first() -> None:
    """The holder counts from before it wrote, an observer from when it first saw the record."""
    records = MemoryRecords()
    holder, observer = lease(records), lease(records, 2)
    holder.hold(100.0)
    assert observer.hold(7.0) is None, "whose clock is another one"
    assert holder.term(100.0 + SECONDS - 0.001) == 1
    assert holder.term(100.0 + SECONDS) is None
    assert observer.hold(7.0 + SECONDS - 0.001) is None
    assert observer.hold(7.0 + SECONDS) == 2


def test_an_observer_counts_anew_with_each_record() -> None:
    records = MemoryRecords()
    holder, observer = lease(records), lease(records, 2)
    now = 0.0
    holder.hold(now)
    for _ in range(20):
        assert observer.hold(now) is None
        now += SECONDS / 2
        assert holder.hold(now) == 1
    assert observer.hold(now + SECONDS - 0.001) is None, "it sees the last one only now"
    assert observer.hold(now + 2 * SECONDS - 0.001) == 2


def test_an_observer_goes_by_the_time_in_the_record() -> None:
    records = MemoryRecords()
    Lease(records, 1, "a", 100.0).hold(0.0)
    observer = Lease(records, 2, "b", 1.0)
    assert [observer.hold(now) for now in (0.0, 1.0, 99.0, 100.0)] == [None, None, None, 2]


def test_it_is_renewed_when_a_part_of_it_is_over() -> None:
    records = MemoryRecords()
    holder = lease(records)
    part = SECONDS / RENEWALS
    assert holder.hold(0.0) == 1
    assert holder.hold(part - 0.001) == 1
    assert len(written(records)) == 1, "not each time"
    assert holder.hold(part) == 1
    assert [record.number for record in written(records)] == [1, 2]
    assert {record.term for record in written(records)} == {1}
    assert holder.term(part + SECONDS - 0.001) == 1


def test_whoever_takes_it_over_has_a_greater_term() -> None:
    records = MemoryRecords()
    first, second = lease(records), lease(records, 2)
    first.hold(0.0)
    second.hold(0.0)
    assert second.hold(SECONDS) == 2
    assert first.hold(SECONDS) is None, "the one before sees that it has another holder"
    assert first.hold(2 * SECONDS) == 3


def test_a_holder_that_was_slow_without_a_rival_keeps_its_term() -> None:
    """Nobody else took it: every holder writes the next record, and the newest is still ours. As
    long as it is over, it is not held."""
    records = MemoryRecords()
    holder = lease(records)
    assert holder.hold(0.0) == 1
    for now in (SECONDS, 3 * SECONDS, 1000 * SECONDS):
        assert holder.term(now) is None
        assert holder.hold(now) == 1
        assert holder.term(now) == 1
    assert [record.number for record in written(records)] == [1, 2, 3, 4]


def test_a_holder_that_was_slow_finds_its_rival() -> None:
    records = MemoryRecords()
    holder, rival = lease(records), lease(records, 2)
    holder.hold(0.0)
    rival.hold(0.0)
    assert rival.hold(SECONDS) == 2
    assert holder.hold(SECONDS + 0.1) is None
    assert holder.hold(2 * SECONDS + 0.2) == 3, "the rival has gone: this is another term"


def test_a_holder_that_met_a_newer_leader_takes_a_new_term() -> None:
    """Whatever the records say: what it led is over."""
    holder = lease(MemoryRecords())
    assert holder.hold(0.0) == 1
    holder.drop()
    assert holder.term(0.1) is None
    assert holder.hold(0.1) == 2
    assert holder.hold(SECONDS * 2) == 2


def test_a_member_that_is_started_again_is_another_holder() -> None:
    records = MemoryRecords()
    lease(records, instance="a").hold(0.0)
    next_life = lease(records, instance="b")
    assert next_life.hold(0.1) is None
    assert next_life.hold(0.1 + SECONDS) == 2


def test_what_is_given_back_is_free_at_once() -> None:
    records = MemoryRecords()
    first, second = lease(records), lease(records, 2)
    first.hold(0.0)
    second.hold(0.0)
    first.release(0.5)
    assert first.term(0.5) is None
    assert second.hold(0.5) == 2


def test_who_knows_that_the_last_holder_is_gone_does_not_wait_for_it_once() -> None:
    records = MemoryRecords()
    dead, heir = lease(records), Lease(records, 1, "b", SECONDS, takes_over=True)
    dead.hold(0.0)
    assert heir.hold(0.1) == 2
    another = Lease(records, 1, "c", SECONDS, takes_over=True)
    assert another.hold(0.2) == 3
    assert heir.hold(0.2 + SECONDS) is None, "this one came later, and is not gone"
    assert heir.hold(0.3 + 2 * SECONDS) == 4


def test_only_who_holds_it_gives_it_back() -> None:
    records = MemoryRecords()
    holder, observer = lease(records), lease(records, 2)
    lease(records, 3).release(0.0)
    assert written(records) == []
    holder.hold(0.0)
    observer.hold(0.0)
    observer.release(0.5)
    holder.release(SECONDS)
    assert [record.released for record in written(records)] == [False], "it is over by then"


def test_who_gave_it_back_may_take_it_again() -> None:
    holder = lease(MemoryRecords())
    holder.hold(0.0)
    holder.release(0.5)
    assert holder.hold(0.6) == 2


def test_a_holder_that_met_a_newer_leader_holds_it_no_more() -> None:
    records = MemoryRecords()
    holder = lease(records)
    holder.hold(0.0)
    holder.drop()
    assert holder.term(0.0) is None
    assert holder.hold(0.1) == 2, "if there is nobody after all"


def test_of_two_who_reach_for_it_at_once_one_gets_it() -> None:
    records = MemoryRecords()
    first, second = lease(records), lease(records, 2)

    def overtake(call: str, _name: str) -> None:
        if call == "create":
            records.before = lambda _call, _name: None
            assert second.hold(0.0) == 1

    records.before = overtake
    assert first.hold(0.0) is None
    assert first.term(0.0) is None


def test_a_renewal_that_fails_leaves_what_is_left() -> None:
    records = MemoryRecords()
    holder = lease(records)
    holder.hold(0.0)

    def fail(_call: str, _name: str) -> None:
        raise PeerUnavailableError("away")

    records.before = fail
    with pytest.raises(PeerUnavailableError):
        holder.hold(SECONDS / 2)
    assert holder.term(SECONDS - 0.001) == 1
    assert holder.term(SECONDS) is None


def test_a_renewal_whose_answer_was_lost_is_found_as_ones_own() -> None:
    records = MemoryRecords()
    holder = lease(records)
    holder.hold(0.0)

    def lose(call: str, _name: str) -> None:
        if call == "create":
            raise PeerUnavailableError("the answer was lost")

    records.after = lose
    with pytest.raises(PeerUnavailableError):
        holder.hold(SECONDS / 2)
    records.after = lambda _call, _name: None
    assert holder.term(SECONDS - 0.001) == 1
    assert holder.hold(SECONDS - 0.001) == 1
    assert [record.number for record in written(records)] == [1, 2, 3]


def test_a_holder_that_slept_through_many_changes_does_not_take_a_number_of_long_ago() -> None:
    """The numbers it knows of are deleted by then, so that creating one succeeds."""
    records = MemoryRecords()
    sleeper, other = lease(records), lease(records, 2)
    sleeper.hold(0.0)

    def sleep(call: str, _name: str) -> None:
        if call == "create":
            records.before = lambda _call, _name: None
            other.hold(0.0)
            for turn in range(1, 3 * RECORDS_KEPT):
                assert other.hold(turn * SECONDS) is not None

    records.before = sleep
    assert sleeper.hold(SECONDS / 2) is None
    assert sleeper.term(SECONDS / 2) != written(records)[-1].term
    assert written(records)[-1].member == 2


def test_old_records_are_deleted() -> None:
    records = MemoryRecords()
    holder = lease(records)
    for turn in range(50):
        assert holder.hold(turn * SECONDS / 2) == 1
    assert [record.number for record in written(records)] == list(range(51 - RECORDS_KEPT, 51))


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_lease_lasts_a_while(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="a lease lasts longer than"):
        Lease(MemoryRecords(), 1, "a", seconds)


@given(
    st.builds(
        LeaseRecord,
        number=st.integers(0, 2**64),
        term=st.integers(0, 2**64),
        member=st.integers(0, 2**64),
        instance=st.text(),
        seconds=st.floats(0, 1e6),
        released=st.booleans(),
    )
)
def test_a_record_comes_back_as_it_was(record: LeaseRecord) -> None:
    assert LeaseRecord.from_bytes(record.to_bytes()) == record


@pytest.mark.parametrize("field", list(asdict(RECORD)))
def test_a_record_without_a_field_is_corrupt(field: str) -> None:
    fields = json.loads(RECORD.to_bytes())
    del fields[field]
    with pytest.raises(CorruptStorageError, match=f"a lease record cannot be read.*{field}"):
        LeaseRecord.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", "5"), ("number", -1), ("term", None), ("term", True), ("member", 1.0),
        ("instance", 7), ("seconds", "6"), ("seconds", True), ("seconds", float("nan")),
        ("released", 0),
    ],
)  # fmt: skip
def test_a_record_of_other_kinds_is_corrupt(field: str, value: object) -> None:
    fields = json.loads(RECORD.to_bytes()) | {field: value}
    with pytest.raises(CorruptStorageError, match="a lease record cannot be read"):
        LeaseRecord.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"null", b"{}", b"\xff"])
def test_what_is_no_record_is_corrupt_and_shown(data: bytes) -> None:
    with pytest.raises(CorruptStorageError, match="a lease record cannot be read") as told:
        LeaseRecord.from_bytes(data)
    assert repr(data) in str(told.value)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 2),
            st.sampled_from(("hold", "hold", "hold", "release", "drop")),
        ),
        max_size=60,
    ),
    st.tuples(*[st.integers(-1000, 1000)] * 3),
)
def test_one_holds_it_at_a_time_and_terms_rise(
    acts: list[tuple[int, int, str]], offsets: tuple[int, int, int]
) -> None:
    """Three candidates with clocks of their own, which run alike."""
    records = MemoryRecords()
    candidates = [lease(records, member, f"life of {member}") for member in range(3)]
    now, greatest = 0, 0
    holders: dict[int, int] = {}
    for pause, who, act in acts:
        now += pause
        clock = now + offsets[who]
        if act == "hold":
            term = candidates[who].hold(clock)
            assert term == candidates[who].term(clock)
            if term is not None:
                assert holders.setdefault(term, who) == who, "a term has one holder, ever"
                assert term >= greatest
                greatest = term
        elif act == "release":
            candidates[who].release(clock)
        else:
            candidates[who].drop()
        terms = [each.term(now + offset) for each, offset in zip(candidates, offsets, strict=True)]
        assert sum(term is not None for term in terms) <= 1, terms
    numbers = [record.number for record in written(records)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
