"""Assignments: balanced, moving as little as can be, and the same in every process."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing import VNODES, Assignment, AssignmentTextError, assign

if TYPE_CHECKING:
    import random

U64 = st.integers(1, 2**64 - 1)
MEMBERS = st.sets(st.integers(1, 12) | U64, min_size=1, max_size=9)


def check_balanced(assignment: Assignment, members: set[int]) -> None:
    counts = Counter(assignment.owners)
    assert set(counts) == members
    assert set(counts.values()) <= {VNODES // len(members), -(-VNODES // len(members))}


def moved(before: Assignment, after: Assignment) -> int:
    return sum(old != new for old, new in zip(before.owners, after.owners, strict=True))


def fewest_moves(before: Assignment, members: set[int]) -> int:
    """Tries every choice of the members whose share is one larger."""
    share, larger = divmod(VNODES, len(members))
    counts = Counter(before.owners)
    return min(
        VNODES - sum(min(counts[one], share + (one in chosen)) for one in members)
        for chosen in itertools.combinations(sorted(members), larger)
    )


@given(MEMBERS)
def test_a_first_assignment(members: set[int]) -> None:
    assignment = assign(members)
    assert assignment.version == 1
    check_balanced(assignment, members)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 85, 128, 129, 255, 256])
def test_balance_for_many_members(count: int) -> None:
    members = set(range(1, count + 1))
    assignment = assign(members)
    check_balanced(assignment, members)
    less = assignment.reassign(members - {1} or {2})
    check_balanced(less, members - {1} or {2})


@settings(max_examples=60)
@given(st.lists(MEMBERS, min_size=2, max_size=5))
def test_as_few_vnodes_move_as_balance_allows(steps: list[set[int]]) -> None:
    assignment = assign(steps[0])
    for members in steps[1:]:
        following = assignment.reassign(members)
        check_balanced(following, members)
        assert moved(assignment, following) == fewest_moves(assignment, members)
        assert following.version == assignment.version + 1
        assignment = following


@settings(max_examples=60)
@given(st.lists(st.integers(1, 4), min_size=VNODES, max_size=VNODES), MEMBERS)
def test_also_from_an_assignment_out_of_balance(owners: list[int], members: set[int]) -> None:
    lopsided = Assignment(7, tuple(owners))
    following = lopsided.reassign(members)
    check_balanced(following, members)
    assert moved(lopsided, following) == fewest_moves(lopsided, members)


@given(MEMBERS, U64)
def test_a_member_that_joins_only_takes(members: set[int], joining: int) -> None:
    members = members - {joining} or {joining % 7 + 1} - {joining} or {9}
    before = assign(members)
    after = before.reassign(members | {joining})
    for old, new in zip(before.owners, after.owners, strict=True):
        assert new in (old, joining)


@given(st.sets(U64, min_size=2, max_size=9))
def test_a_member_that_leaves_only_gives(members: set[int]) -> None:
    before = assign(members)
    for leaving in members:
        after = before.reassign(members - {leaving})
        for old, new in zip(before.owners, after.owners, strict=True):
            assert old in (new, leaving)


@given(MEMBERS)
def test_the_same_members_keep_everything_under_a_new_version(members: set[int]) -> None:
    before = assign(members)
    after = before.reassign(members)
    assert after.owners == before.owners
    assert after.version == 2


@given(st.lists(U64, min_size=1, max_size=9, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(members: list[int], turn: random.Random) -> None:
    expected = assign(members)
    turned = list(members)
    turn.shuffle(turned)
    assert assign(turned) == expected
    assert assign(iter(turned)) == expected
    assert expected.reassign(turned[:1]) == expected.reassign([turned[0]])


def test_processes_agree() -> None:
    program = (
        "from penstock.routing import assign;"
        "print(assign([5, 3, 2**64 - 1]).reassign([3, 8, 9, 10]).to_json())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    expected = assign([3, 5, 2**64 - 1]).reassign([10, 9, 8, 3]).to_json()
    assert found == {expected.encode() + b"\n"}


def test_other_versions_of_penstock_choose_alike() -> None:
    first = assign([1, 2, 3])
    assert first.owners[:16] == (3, 3, 1, 2, 1, 2, 2, 1, 2, 3, 3, 1, 3, 1, 1, 2)
    following = first.reassign([1, 3, 4])
    assert following.owners[:16] == (3, 3, 1, 4, 1, 4, 4, 1, 4, 3, 3, 1, 3, 1, 1, 4)


def test_what_a_leaving_member_had_goes_to_all_others() -> None:
    before = assign(range(1, 9))
    after = before.reassign(range(2, 9))
    heirs = Counter(after.owners[vnode] for vnode in before.vnodes_of(1))
    assert set(heirs) == set(range(2, 9))
    # And neighbours do not stay together.
    runs = sum(left != right for left, right in itertools.pairwise(before.owners))
    assert runs > 200


# --- asking ---


@given(MEMBERS)
def test_lookups_agree(members: set[int]) -> None:
    assignment = assign(members)
    assert assignment.members == tuple(sorted(members))
    for member in members:
        owned = assignment.vnodes_of(member)
        assert owned == tuple(sorted(owned))
        assert all(assignment.owner_of(vnode) == member for vnode in owned)
    assert sum(len(assignment.vnodes_of(member)) for member in members) == VNODES
    assert assignment.owners_array.tolist() == list(assignment.owners)
    assert assignment.owners_array.dtype == np.uint64
    indexed = [assignment.members[index] for index in assignment.member_indexes]
    assert indexed == list(assignment.owners)
    assert assignment.vnodes_of(max(members) - 1 or 13) == () or max(members) - 1 in members


def test_arrays_cannot_be_changed() -> None:
    assignment = assign([1, 2])
    for array in (assignment.owners_array, assignment.member_indexes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2


def test_equality_hash_and_pickle() -> None:
    assignment = assign([4, 5])
    copy = pickle.loads(pickle.dumps(assignment))
    assert copy == assignment
    assert hash(copy) == hash(assignment)
    assert copy != assignment.reassign([4, 5])
    assert copy.owners_array.tolist() == assignment.owners_array.tolist()
    assert repr(assignment).startswith("Assignment(version=1, owners=(")


@pytest.mark.parametrize("vnode", [-1, 256])
def test_there_are_256_vnodes(vnode: int) -> None:
    with pytest.raises(LocalProtocolError, match="from 0 to 255"):
        assign([1]).owner_of(vnode)


# --- what is refused ---


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([], "to no members: name at least one"),
        ([3, 1, 3], "member 3 is named twice"),
        ([0, 1], "from 1 to 18446744073709551615, not 0"),
        ([-1], "not -1"),
        ([2**64], "not 18446744073709551616"),
        (range(1, 258), "257 members are too many: there are 256 vnodes"),
    ],
)
def test_members_that_are_refused(members: list[int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        assign(members)
    with pytest.raises(ConfigurationError, match=words):
        assign([1]).reassign(members)


@pytest.mark.parametrize(
    ("version", "owners", "words"),
    [
        (0, (1,) * VNODES, "versions go from 1"),
        (2**64, (1,) * VNODES, "versions go from 1"),
        (1, (1,) * 255, "256 vnodes have an owner each, not 255"),
        (1, (1,) * 255 + (0,), "vnode 255 cannot be of member 0"),
        (1, (2**64,) * VNODES, "vnode 0 cannot be of member"),
    ],
)
def test_what_is_no_assignment(version: int, owners: tuple[int, ...], words: str) -> None:
    with pytest.raises(LocalProtocolError, match=words):
        Assignment(version, owners)


# --- as text ---


@given(st.lists(MEMBERS, min_size=1, max_size=3))
def test_text_and_back(steps: list[set[int]]) -> None:
    assignment = assign(steps[0])
    for members in steps[1:]:
        assignment = assignment.reassign(members)
    text = assignment.to_json()
    assert Assignment.from_json(text) == assignment
    assert Assignment.from_json(text.encode()) == assignment
    assert "\n" not in text


def test_the_form_of_the_text() -> None:
    fields = json.loads(assign([1, 2**64 - 1]).to_json())
    assert list(fields) == ["format", "version", "members"]
    assert fields["format"] == fields["version"] == 1
    assert list(fields["members"]) == ["1", "18446744073709551615"]
    assert sorted(itertools.chain(*fields["members"].values())) == list(range(VNODES))


ALL = list(range(VNODES))
BIG = 2**64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is not JSON"),
        (b"\xff\xfe\xff", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("7", "it must be an object, not 7"),
        ("{}", "its format is None, and this reader knows 1"),
        ('{"format": 2}', "its format is 2, and this reader knows 1"),
        ('{"format": true}', "its format is True"),
        ('{"format": 1, "format": 1}', "two fields 'format'"),
        ('{"format": 1, "version": 1}', "must be format, version and members, not format, version"),
        ({"x": 1}, "must be format, version and members, not format, members, version, x"),
        ({"version": 0}, f"its version must be a whole number from 1 to {BIG - 1}, not 0"),
        ({"version": BIG}, "its version must be"),
        ({"version": 1.0}, "its version must be"),
        ({"version": "1"}, "its version must be"),
        ({"version": True}, "its version must be"),
        ({"members": [1]}, r"its members must be an object, not \[1\]"),
        ({"members": {}}, "nobody has vnode 0"),
        ({"members": {"1": ALL[:-1]}}, "nobody has vnode 255"),
        ({"members": {"0": ALL}}, "a member is a number from 1 to"),
        ({"members": {"01": ALL}}, "a member is a number from 1 to .*, not '01'"),
        ({"members": {"1\n": ALL}}, "a member is a number from 1 to"),
        ({"members": {str(BIG): ALL}}, "a member is a number from 1 to"),
        ({"members": {"1": ALL, "2": []}}, r"member 2 must have a list of vnodes, not \[\]"),
        ({"members": {"1": 7}}, "member 1 must have a list of vnodes, not 7"),
        ({"members": {"1": [*ALL, 256]}}, "member 1 has 256, and vnodes go from 0 to 255"),
        ({"members": {"1": [-1]}}, "member 1 has -1"),
        ({"members": {"1": [True]}}, "member 1 has True"),
        ({"members": {"1": ["x" * 100]}}, "member 1 has 'xxxx.*[.]{3}, and"),
        ({"members": {"1": ALL, "2": [7]}}, "vnode 7 is there twice"),
    ],
)
def test_text_that_is_refused(text: str | bytes | dict[str, object], words: str) -> None:
    if isinstance(text, dict):
        text = json.dumps({"format": 1, "version": 1, "members": {"1": ALL}} | text)
    with pytest.raises(AssignmentTextError, match=words) as caught:
        Assignment.from_json(text)
    assert isinstance(caught.value, RemoteProtocolError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(caught.value).startswith("this is not an assignment of vnodes: ")
