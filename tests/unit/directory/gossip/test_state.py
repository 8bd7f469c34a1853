"""Copies of slots only move forward, and end up equal, whatever happens to deltas on the way.

The oracle is the plain list of everything that each process ever wrote.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.directory.gossip.state import (
    ENTRY_OVERHEAD_BYTES,
    MEMBERS_MAX,
    NOTHING,
    Delta,
    Entry,
    Mark,
    Slots,
)

MEMBERS = 3
KEYS = "abcd"


def slots(member: int, generation: int = 1) -> Slots:
    return Slots(member, generation, f"10.0.0.{member}:4100")


def marks_of(copy: Slots) -> list[Mark]:
    return [slot.mark for slot in copy]


def content(copy: Slots, member: int) -> dict[str, str]:
    slot = copy.get(member)
    return {key: entry.value for key, entry in slot.entries.items()} if slot is not None else {}


@dataclass
class Packet:
    """A digest and deltas on the way to somebody."""

    to: int
    digest: list[Mark]
    deltas: list[Delta]


@dataclass
class World:
    """Members, what they wrote in each generation, and what is on the way between them."""

    copies: list[Slots] = field(default_factory=lambda: [slots(each) for each in range(MEMBERS)])
    history: dict[tuple[int, int], list[tuple[int, str, str]]] = field(default_factory=dict)
    packets: list[Packet] = field(default_factory=list)
    furthest: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    def write(self, member: int, key: str, value: str) -> None:
        self.copies[member].write(key, value)
        generation = self.copies[member].own.generation
        written = self.history.setdefault((member, generation), [])
        written.append((len(written) + 2, key, value))  # version 1 is that of the empty slot

    def restart(self, member: int) -> None:
        self.copies[member] = slots(member, self.copies[member].own.generation + 1)
        for observed in range(MEMBERS):
            self.furthest.pop((member, observed), None)

    def send(self, source: int, to: int, bytes_max: int | None) -> None:
        """What `to` lacks, as far as `source` can tell from its digest."""
        sender, known = (
            self.copies[source],
            {mark.member: mark for mark in marks_of(self.copies[to])},
        )
        marks = [known.get(slot.member, Mark(slot.member, slot.generation)) for slot in sender]
        deltas = [delta for mark in marks if (delta := sender.delta(mark, bytes_max)) is not None]
        if bytes_max is not None:
            assert all(delta.message_bytes <= bytes_max for delta in deltas)
        self.packets.append(Packet(to, marks_of(sender), deltas))

    def deliver(self, index: int, again: bool) -> None:
        if not self.packets:
            return
        packet = self.packets[index % len(self.packets)]
        if not again:
            self.packets.remove(packet)
        copy = self.copies[packet.to]
        for mark in packet.digest:
            copy.learn(mark)
        for delta in packet.deltas:
            copy.apply(delta)
        self.check(packet.to)

    def check(self, observer: int) -> None:
        copy = self.copies[observer]
        for slot in copy:
            mark = slot.mark
            position = (mark.generation, mark.version, mark.heartbeat)
            before = self.furthest.get((observer, mark.member), (0, 0, 0))
            assert position >= before, "a copy went back"
            self.furthest[observer, mark.member] = position
            written = self.history.get((mark.member, mark.generation), [])
            newest = {key: (version, value) for version, key, value in written}
            for key, entry in slot.entries.items():
                assert (entry.version, key, entry.value) in written
                assert entry.version <= mark.version
            for key, (version, value) in newest.items():
                if version <= mark.version:
                    assert slot.entries[key].value == value, "a copy is known beyond what it holds"

    def settle(self) -> None:
        """Nothing is lost from now on. All copies must become equal."""
        for _ in range(200):
            before = [marks_of(copy) for copy in self.copies]
            for source in range(MEMBERS):
                for to in range(MEMBERS):
                    if source != to:
                        self.packets.clear()
                        self.send(source, to, 120)
                        self.deliver(0, again=False)
            if before == [marks_of(copy) for copy in self.copies]:
                return
        raise AssertionError("copies do not settle")


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int, int, int]:
    kind = draw(
        st.sampled_from(["write"] * 6 + ["send"] * 6 + ["deliver"] * 6 + ["repeat", "restart"])
    )
    member = draw(st.integers(0, MEMBERS - 1))
    return kind, member, draw(st.integers(0, 11)), draw(st.integers(0, 200))


@settings(max_examples=300)
@given(st.lists(steps(), max_size=60))
def test_copies_go_forward_and_become_equal(story: list[tuple[str, int, int, int]]) -> None:
    world = World()
    for kind, member, which, amount in story:
        match kind:
            case "write":
                world.write(member, KEYS[which % len(KEYS)], f"{amount:03}")
            case "send":
                to = (member + 1 + which % (MEMBERS - 1)) % MEMBERS
                world.send(member, to, None if amount > 180 else amount)
            case "deliver" | "repeat":
                world.deliver(which, again=kind == "repeat")
            case "restart":
                world.restart(member)
    world.settle()
    for observed in range(MEMBERS):
        generation = world.copies[observed].own.generation
        written = world.history.get((observed, generation), [])
        expected = {key: value for _, key, value in written}
        for copy in world.copies:
            assert content(copy, observed) == expected
            slot = copy.get(observed)
            assert slot is not None
            assert slot.address == f"10.0.0.{observed}:4100"


def met(member: int = 2, generation: int = 1) -> Slots:
    """Member 1, which knows another by name."""
    copy = slots(1)
    assert copy.learn(Mark(member, generation, heartbeat=3)).met
    return copy


def delta(after: int, *keys: str, generation: int = 1, upto: int | None = None) -> Delta:
    entries = tuple(
        Entry.of(key, f"{key}!", after + number) for number, key in enumerate(keys, start=1)
    )
    last = upto if upto is not None else after + len(keys)
    return Delta(2, generation, "10.0.0.2:4100", after, last, entries)


def test_a_delta_with_a_gap_before_it_is_left_alone() -> None:
    copy = met()
    assert copy.apply(delta(3, "a")) == []
    assert content(copy, 2) == {}
    assert copy.apply(delta(0, "a", "b", "c")) == ["a", "b", "c"]
    assert copy.apply(delta(3, "a")) == ["a"]


def test_of_an_overlapping_delta_only_the_new_part_changes_something() -> None:
    copy = met()
    copy.apply(delta(0, "a", "b"))
    assert copy.apply(delta(0, "a", "b", "c")) == ["c"]
    assert copy.apply(delta(0, "a", "b", "c")) == []
    assert copy.apply(delta(0, "a")) == []


def test_a_delta_of_an_older_generation_is_ignored_and_a_newer_one_empties_the_copy() -> None:
    copy = met(generation=5)
    copy.apply(delta(0, "a", generation=5))
    assert copy.apply(delta(1, "b", generation=4)) == []
    assert copy.learn(Mark(2, 4, heartbeat=99, version=9, left=True)) == NOTHING
    learned = copy.learn(Mark(2, 6))
    assert (learned.met, learned.vanished) == (True, ("a",))
    assert content(copy, 2) == {}
    assert copy.apply(delta(0, "c", generation=5)) == [], "of a life that is over"
    assert copy.apply(delta(0, "c", generation=6)) == ["c"]


def test_a_delta_of_somebody_unknown_is_ignored() -> None:
    assert slots(1).apply(delta(0, "a")) == []


def test_nobody_else_writes_the_own_slot() -> None:
    copy = slots(2)
    assert copy.learn(Mark(2, 9, heartbeat=9, version=9, left=True)) == NOTHING
    assert copy.apply(delta(1, "a")) == []
    assert copy.own.mark == Mark(2, 1, heartbeat=1, version=1)
    assert not copy.lacks(Mark(2, 9, version=9))


def test_heartbeats_and_farewells_are_news_once() -> None:
    copy = met()
    later = Mark(2, 1, heartbeat=4)
    assert [copy.learn(later).heartbeat for _ in range(2)] == [True, False]
    assert not copy.learn(Mark(2, 1, heartbeat=2)).heartbeat
    farewell = dataclasses.replace(later, left=True)
    assert [copy.learn(farewell).left for _ in range(2)] == [True, False]
    copy.learn(later)
    slot = copy.get(2)
    assert slot is not None
    assert slot.mark == farewell, "a farewell is not taken back"


def test_an_empty_slot_still_tells_its_address() -> None:
    told = slots(2).delta(Mark(2, 1), 100)
    assert told == Delta(2, 1, "10.0.0.2:4100", 0, 1, ())


def test_nothing_is_owed_to_who_knows_as_much_or_more() -> None:
    copy = slots(2)
    copy.write("a", "1")
    assert copy.delta(Mark(2, 1, version=2), None) is None
    assert copy.delta(Mark(2, 1, version=3), None) is None
    assert copy.delta(Mark(2, 2, version=0), None) is None
    assert copy.delta(Mark(3, 1), None) is None
    assert copy.owed(Mark(2, 1, version=2)) == 0
    assert copy.owed(Mark(2, 1, version=1)) > 0


def test_who_is_known_by_name_only_is_owed_to_nobody() -> None:
    copy = met(generation=7)
    assert copy.delta(Mark(2, 6, version=4), None) is None
    assert copy.owed(Mark(2, 6, version=4)) == 0


def test_a_cut_delta_ends_where_its_last_entry_does() -> None:
    copy = slots(2)
    for key in ("a", "b", "a", "c"):
        copy.write(key, "x" * 50)
    whole = copy.delta(Mark(2, 1), None)
    assert whole is not None
    assert [(entry.key, entry.version) for entry in whole.entries] == [("b", 3), ("a", 4), ("c", 5)]
    for bytes_max in range(whole.message_bytes + 1):
        cut = copy.delta(Mark(2, 1), bytes_max)
        if cut is None:
            assert bytes_max < whole.message_bytes - 2 * whole.entries[0].message_bytes
        else:
            assert cut.message_bytes <= bytes_max
            assert cut.entries == whole.entries[: len(cut.entries)]
            assert cut.upto == cut.entries[-1].version
    assert cut == whole


def test_the_size_of_an_entry_counts_bytes_and_not_characters() -> None:
    assert Entry.of("ä", "€", 1).message_bytes == ENTRY_OVERHEAD_BYTES + 2 + 3


def test_no_more_members_are_taken_in_than_the_limit() -> None:
    copy = slots(0)
    for member in range(1, 2 * MEMBERS_MAX):
        assert copy.learn(Mark(member, 1)).met == (member < MEMBERS_MAX)
    assert len(list(copy)) == MEMBERS_MAX
    assert copy.learn(Mark(5, 2)).met, "those who are known may still start again"


def test_what_is_forgotten_is_gone() -> None:
    copy = met()
    copy.apply(delta(0, "a"))
    assert copy.forget(2) == ["a"]
    assert copy.get(2) is None
    with pytest.raises(KeyError):
        copy.forget(2)


def test_a_slot_that_rose_is_owed_whole() -> None:
    copy = slots(2)
    copy.write("a", "1")
    copy.rise(9)
    risen = copy.delta(Mark(2, 1, version=2), None)
    assert risen is not None
    assert (risen.generation, risen.after, risen.upto) == (9, 0, 2)
