"""Names: what is accepted stays within its folder on any file system."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.storage import NAME_BYTES_MAX, check_name


@pytest.mark.parametrize(
    "name",
    ["a", "a/b", "epoch-0012", "a.b/c=d/~e", "!", "a..b", "x" * 200, "/".join(["x" * 99] * 8)],
)
def test_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.", ".hidden", "a/.tmp",
        "a\\b", "a b", "a\nb", "a\x00", "a\x7f", "ä", "a/\u202e", "a\n", "x" * 201,
        "/".join(["x" * 9] * 81),
    ],
)  # fmt: skip
def test_not_a_name(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        check_name(name)


@given(st.text(st.sampled_from("ab./\\ -~\n\x00é"), max_size=8) | st.text(max_size=4))
@example("a/..")
def test_what_is_accepted_is_its_own_normal_form(name: str) -> None:
    try:
        check_name(name)
    except LocalProtocolError:
        return
    assert posixpath.normpath(name) == name
    assert not posixpath.isabs(name)
    assert not any(part.startswith(".") for part in name.split("/"))
    assert len(name.encode()) == len(name) <= NAME_BYTES_MAX
