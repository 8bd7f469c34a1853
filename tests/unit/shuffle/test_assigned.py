"""The assignment on record: the same at every start, and moved as little as can be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import CorruptStorageError
from penstock.routing import VNODES, assign
from penstock.shuffle.assigned import Assigned, settle_assignment
from penstock.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_members_have_the_same_assignment_for_ever(tmp_path: Path) -> None:
    first = settle_assignment(Storage.open(tmp_path), [1, 2], 0)
    assert first.assignment.owners == assign([1, 2]).owners
    again = settle_assignment(Storage.open(tmp_path), [2, 1], 7)
    assert again == first
    assert again.after == 0, "nothing was decided since, so queues are still good"


def test_other_members_take_over_what_they_must_and_no_more(tmp_path: Path) -> None:
    place = Storage.open(tmp_path)
    two = settle_assignment(place, [1, 2], 0).assignment
    three = settle_assignment(place, [1, 2, 3], 5)
    assert three.after == 5
    moved = [one for one in range(VNODES) if two.owners[one] != three.assignment.owners[one]]
    assert len(moved) == VNODES // 3
    assert {three.assignment.owners[one] for one in moved} == {3}
    assert three.before == two, "the queues of epoch 5 were filled under this"
    assert settle_assignment(place, [1, 2, 3], 5) == three, "until there is another epoch"
    assert settle_assignment(place, [1, 2, 3], 6) == replace(three, before=None)
    # Back at two, what was left of three is where it was.
    back = settle_assignment(place, [1, 2], 6)
    assert (back.after, back.assignment.version) == (6, 3)
    assert back.before == three.assignment
    kept = [one for one in range(VNODES) if three.assignment.owners[one] != 3]
    assert all(back.assignment.owners[one] == three.assignment.owners[one] for one in kept)


def test_what_nothing_came_of_moves_nothing(tmp_path: Path) -> None:
    """An assignment is made from that of the newest epoch, whatever was decided since."""
    place = Storage.open(tmp_path)
    two = settle_assignment(place, [1, 2], 0).assignment
    assert settle_assignment(place, [1], 5).before == two
    three = settle_assignment(place, [1, 2, 3], 5)
    assert three.before == two
    assert three.assignment.owners == two.reassign([1, 2, 3]).owners
    back = settle_assignment(place, [1, 2], 5)
    assert back.assignment.owners == two.owners
    assert back.assignment.version == 4
    assert settle_assignment(place, [1, 2], 6) == Assigned(back.assignment, 5)


def test_before_the_first_epoch_nobody_has_anything_to_give(tmp_path: Path) -> None:
    place = Storage.open(tmp_path)
    settle_assignment(place, [1, 2], 0)
    assert settle_assignment(place, [1, 2, 3], 0).before is None
    assert settle_assignment(place, [1, 2, 3], 0).before is None


@pytest.mark.parametrize("data", [b"{}", b"[]", b"not JSON", b'{"format": 2}'])
def test_what_is_no_assignment_is_refused(tmp_path: Path, data: bytes) -> None:
    place = Storage.open(tmp_path)
    place.create("assignments/0000000001", data)
    with pytest.raises(CorruptStorageError):
        settle_assignment(place, [1, 2], 0)
