"""The key-value interface within one process: every view writes its own slot and sees them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.directory.keyvalue import MemoryKeyValue, Watches

if TYPE_CHECKING:
    from penstock.directory.keyvalue import KeyValue


def test_a_member_reads_what_another_wrote() -> None:
    first = MemoryKeyValue(1)
    second: KeyValue = first.view(2)
    first.write("address", "here")
    assert (first.member, second.member) == (1, 2)
    assert second.read(1, "address") == "here"
    assert second.read(2, "address") is None, "a slot is its member's own"
    assert second.read(1, "port") is None
    assert second.read(3, "address") is None


def test_two_families_share_nothing() -> None:
    first, stranger = MemoryKeyValue(1), MemoryKeyValue(1)
    first.write("address", "here")
    assert stranger.read(1, "address") is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.text(max_size=3)), max_size=30)
)
def test_the_last_value_of_each_slot_is_read(
    writes: list[tuple[int, str, str]],
) -> None:
    root = MemoryKeyValue(0)
    views = [root, *(root.view(member) for member in (1, 2))]
    views.append(views[2].view(3))  # a view of a view is of the same family
    expected: dict[tuple[int, str], str] = {}
    for member, key, value in writes:
        views[member].write(key, value)
        expected[member, key] = value
    for view in views:
        for member in range(4):
            for key in "abc":
                assert view.read(member, key) == expected.get((member, key))


def test_who_watches_is_woken_when_the_watch_or_all_of_them_close() -> None:
    watches = Watches()
    woken: list[str] = []
    for name in ("a", "b"):
        watches.open(name).call(lambda name=name: woken.append(name))  # type: ignore[misc]
    one = watches.open("c")
    one.call(lambda: woken.append("c"))
    one.close()
    one.close()
    assert woken == ["c"]
    watches.close()
    assert sorted(woken) == ["a", "b", "c"]
    late = watches.open("d")
    late.call(lambda: woken.append("d"))
    assert woken[-1] == "d", "it was closed when it was opened"
    assert late.wait(60) is False
