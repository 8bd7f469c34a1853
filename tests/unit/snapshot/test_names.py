"""The names of a snapshot's files: they sort by epoch, and are told apart from all others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.snapshot.names import NUMBER_MAX, Attempt, of_epoch, parse_label, parse_part
from penstock.storage import check_name

EPOCHS = st.integers(1, NUMBER_MAX)
NUMBERS = st.integers(0, NUMBER_MAX)


@given(EPOCHS, NUMBERS, st.integers(0, 999_999))
def test_names_are_read_back(epoch: int, number: int, index: int) -> None:
    attempt = Attempt.new(epoch, number)
    assert parse_label(check_name(attempt.manifest)) == attempt
    assert parse_label(check_name(attempt.mark)) == attempt
    assert parse_part(check_name(attempt.part(index))) == attempt
    assert attempt.manifest.startswith(of_epoch("manifests/", epoch))
    assert attempt.part(index).startswith(of_epoch("parts/", epoch))


@given(st.lists(st.tuples(EPOCHS, NUMBERS), max_size=10))
def test_they_sort_as_attempts_do(pairs: list[tuple[int, int]]) -> None:
    attempts = [Attempt.new(*pair) for pair in pairs]
    by_name = sorted(attempts, key=lambda attempt: attempt.manifest)
    assert by_name == sorted(attempts)
    assert [(attempt.epoch, attempt.number) for attempt in by_name] == sorted(pairs)


def test_two_that_believe_to_be_the_same_attempt_write_different_files() -> None:
    assert Attempt.new(5, 1).manifest != Attempt.new(5, 1).manifest


@pytest.mark.parametrize(
    "name",
    [
        "", "manifests/", "manifests/readme", "manifests/1-1-0123456789abcdef",
        f"manifests/{0:020d}-{1:020d}-{'a' * 16}", f"manifests/{'9' * 20}-{1:020d}-{'a' * 16}",
        f"manifests/{1:020d}-{1:020d}-{'A' * 16}", f"manifests/{1:020d}-{1:020d}-{'a' * 17}",
    ],
)  # fmt: skip
def test_other_files_are_none_of_ours(name: str) -> None:
    assert parse_label(name) is None
    assert parse_part(name.replace("manifests/", "parts/")) is None
    assert parse_part(f"{name}-000001".replace("manifests/", "parts/")) is None


def test_a_part_is_in_its_folder() -> None:
    part = Attempt.new(1, 1).part(0)
    assert parse_part(part) is not None
    assert parse_part(part.removeprefix("parts/")) is None
    assert parse_part(f"../{part}") is None


@pytest.mark.parametrize(("epoch", "number"), [(0, 1), (-1, 1), (2**64, 1), (1, -1), (1, 2**64)])
def test_numbers_out_of_range(epoch: int, number: int) -> None:
    with pytest.raises(LocalProtocolError):
        Attempt.new(epoch, number)
