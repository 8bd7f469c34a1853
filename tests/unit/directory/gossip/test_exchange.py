"""Members that bring each other up to date, over a network in memory and without any clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.directory.gossip.exchange import (
    DATAGRAM_ROUNDS_BYTES_MAX,
    KEYS_MAX,
    PUSHES_MAX,
)
from penstock.directory.gossip.messages import KEY_BYTES_MAX, U64_MAX, VALUE_BYTES_MAX, decode
from penstock.directory.gossip.timing import GossipTiming
from penstock.errors import ConfigurationError, FencedError, LocalProtocolError
from tests.unit.directory.gossip.made_messages import KEY
from tests.unit.directory.gossip.made_network import Network, address_of


def network_of(count: int, seed: int = 0, timing: GossipTiming | None = None) -> Network:
    """Members that know each other, after a few ticks."""
    network = Network(seed, timing or GossipTiming())
    for member in range(count):
        network.start(member)
    network.run(5 + 2 * math.ceil(math.log2(count + 1)))
    for observer in range(count):
        assert {network.status(observer, member) for member in range(count)} == {"alive"}
    return network


def test_members_find_each_other_through_one_seed() -> None:
    network = network_of(5)
    for observer, exchange in network.members.items():
        states = exchange.members()
        assert {states[member].address for member in range(5)} == set(map(address_of, range(5)))
        assert sorted(network.events(observer)) == [
            ("joined", member) for member in range(5) if member != observer
        ]


def test_a_write_is_pushed_to_everybody_without_a_tick() -> None:
    network = network_of(5)
    network.write(2, "a", "1")
    assert network.deliver_all() == 4, "one datagram each, and nobody answers"
    assert [network.values(observer, 2) for observer in range(5)] == [{"a": "1"}] * 5


def test_who_missed_a_push_gets_it_with_the_next_one() -> None:
    network = network_of(2)
    network.write(0, "a", "1")
    network.datagrams.clear()
    network.write(0, "b", "2")
    network.deliver_all()
    assert network.values(1, 0) == {"a": "1", "b": "2"}


def test_pushes_that_overtake_each_other_do_no_harm() -> None:
    network = network_of(2)
    for number in range(5):
        network.write(0, "a", str(number))
    while network.datagrams:
        network.deliver(len(network.datagrams) - 1)
    assert network.values(1, 0) == {"a": "4"}


def test_two_that_wait_for_each_others_large_values_do_not_ask_without_end() -> None:
    network = network_of(2)
    for member in (0, 1):
        network.write(member, "large", str(member) * 5000)
    for _ in range(20):
        if network.datagrams:
            network.deliver()
    assert not network.datagrams, "they have asked, and wait for what goes over TCP"
    network.deliver_all()
    assert network.values(0, 1) == {"large": "1" * 5000}
    assert network.values(1, 0) == {"large": "0" * 5000}


def test_what_was_lost_comes_with_a_tick() -> None:
    network = network_of(3)
    network.write(0, "a", "1")
    network.datagrams.clear()
    network.run(1)
    assert [network.values(observer, 0) for observer in range(3)] == [{"a": "1"}] * 3


def test_a_large_value_goes_over_tcp_and_at_once() -> None:
    network = network_of(3)
    value = "€" * (VALUE_BYTES_MAX // 3)
    network.write(0, "large", value)
    network.deliver_all()
    assert network.large_count == 2
    assert [network.values(observer, 0) for observer in range(3)] == [{"large": value}] * 3


def test_small_values_around_a_large_one_arrive_too() -> None:
    network = network_of(2)
    for key, value in (("a", "1"), ("b", "x" * 5000), ("c", "3")):
        network.write(0, key, value)
        network.datagrams.clear()
    network.run(1)
    assert network.values(1, 0) == {"a": "1", "b": "x" * 5000, "c": "3"}


def test_much_that_is_small_goes_in_datagrams_and_very_much_over_tcp() -> None:
    network = network_of(1)
    for key in range(10):
        network.write(0, f"k{key}", "x" * 1000)
    network.start(1)
    network.run(1)
    assert network.large_count == 0
    assert len(network.values(1, 0)) == 10
    for key in range(10, 10 + DATAGRAM_ROUNDS_BYTES_MAX // 1000):
        network.write(0, f"k{key}", "x" * 1000)
    network.start(2)
    network.run(1)
    assert network.large_count > 0
    assert network.values(2, 0) == network.values(0, 0)


def test_more_than_a_message_holds_comes_in_several() -> None:
    network = network_of(1)
    for key in range(6):
        network.write(0, f"k{key}", str(key) * VALUE_BYTES_MAX)
    network.start(1)
    network.run(1)
    assert network.large_count >= 2
    assert network.values(1, 0) == network.values(0, 0)


def test_several_members_with_entries_near_a_datagram_arrive() -> None:
    """None of them fits beside the digest of what else is owed."""
    network = network_of(12)
    network.cut.add(address_of(11))
    for member in range(11):
        network.write(member, "k", str(member % 10) * 1100)
    network.deliver_all()
    network.cut.clear()
    network.run(2)
    assert all(network.values(11, member) == network.values(member, member) for member in range(11))


def test_a_cluster_larger_than_a_digest_converges() -> None:
    network = network_of(36)
    network.write(3, "a", "1")
    network.deliver_all()
    reached = sum(network.values(member, 3) == {"a": "1"} for member in range(36))
    assert reached == PUSHES_MAX + 1
    network.run(6)
    assert all(network.values(member, 3) == {"a": "1"} for member in range(36))
    network.run(12)
    assert all(len(network.events(member)) == 35 for member in range(36)), "nobody seems dead"


class Turmoil:
    """Anything that can happen, in any order."""

    def __init__(self, seed: int, count: int) -> None:
        self.network = Network(seed)
        self.chance = self.network.chance
        self.count = count
        self.written: list[dict[str, str]] = [{} for _ in range(count)]
        """The oracle: what each process wrote last."""
        self.generations = [1] * count
        self.furthest: dict[tuple[int, int], tuple[int, int]] = {}
        for member in range(count):
            self.network.start(member)

    def step(self) -> None:
        network, member = self.network, self.chance.randrange(self.count)
        match self.chance.choice(["write", "tick", "datagram", "datagram", "large", "restart"]):
            case "write":
                self.write(member)
            case "tick":
                network.tick()
            case "datagram" if network.datagrams:
                self.handle(self.chance.randrange(len(network.datagrams)))
            case "large" if network.large:
                network.deliver_large(self.chance.randrange(len(network.large)))
            case "restart" if self.chance.random() < 0.3:
                self.restart(member)

    def write(self, member: int) -> None:
        key, size = self.chance.choice("abc"), self.chance.choice([0, 10, 300, 1200, 3000])
        value = f"{self.chance.randrange(1000)}" + "x" * size
        self.network.write(member, key, value)
        self.written[member][key] = value

    def handle(self, index: int) -> None:
        if self.chance.random() < 0.3:
            self.network.datagrams.pop(index)
        else:
            self.network.deliver(index, again=self.chance.random() < 0.3)

    def restart(self, member: int) -> None:
        self.network.stop(member)
        self.generations[member] += 1
        self.written[member] = {}
        self.network.start(member, self.generations[member])
        for observed in range(self.count):
            self.furthest.pop((member, observed), None)

    def check(self) -> None:
        for observer, exchange in self.network.members.items():
            for slot in exchange.slots:
                position = (slot.generation, slot.version)
                assert position >= self.furthest.get((observer, slot.member), (0, 0))
                self.furthest[observer, slot.member] = position


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(0, 120))
def test_nothing_goes_back_and_all_converges_whatever_the_network_does(
    seed: int, count: int, steps: int
) -> None:
    turmoil = Turmoil(seed, count)
    for _ in range(steps):
        turmoil.step()
        turmoil.check()
    turmoil.network.run(12)
    for observer in range(count):
        for member in range(count):
            assert turmoil.network.values(observer, member) == turmoil.written[member]
            assert turmoil.network.status(observer, member) == "alive"


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_recorded_messages_sent_again_change_nothing(seed: int) -> None:
    """All that was ever sent, in any order: states are as before."""
    network = Network(seed)
    for member in range(3):
        network.start(member)
    recorded: list[tuple[str, bytes]] = []
    for number in range(8):
        network.write(number % 3, "ab"[number % 2], str(number))
        network.tick()
        recorded += network.datagrams
        network.deliver_all()
    network.run(8)
    before = [exchange.members() for exchange in network.members.values()]
    marks = [[slot.mark for slot in exchange.slots] for exchange in network.members.values()]
    events = [network.events(member) for member in range(3)]
    network.chance.shuffle(recorded)
    for address, data in recorded:
        for member in range(3):
            anybody = network.members[member]
            if anybody.slots.own.address == address or network.chance.random() < 0.3:
                network.perform(anybody, anybody.receive(decode(data, KEY), network.now))
    network.datagrams.clear()
    assert [exchange.members() for exchange in network.members.values()] == before
    assert [[slot.mark for slot in each.slots] for each in network.members.values()] == marks
    assert [network.events(member) for member in range(3)] == events


def test_a_killed_member_dies_everywhere_within_three_seconds() -> None:
    network = network_of(5)
    killed_at = network.now
    network.stop(4)
    network.run(15)
    for observer in range(4):
        assert network.events(observer)[-1] == ("died", 4)
        assert network.members[observer].members()[4].since_seconds - killed_at <= 3


def test_a_partition_makes_both_sides_dead_and_heals() -> None:
    network = network_of(6)
    sides = ({0, 1, 2}, {3, 4, 5})
    for _ in range(20):
        network.tick()
        network.datagrams = [
            (address, data)
            for address, data in network.datagrams
            if any({decode(data, KEY).address, address} <= {*map(address_of, s)} for s in sides)
        ]
        network.deliver_all()
    for observer in range(6):
        other = sides[observer < 3]
        assert {network.status(observer, member) for member in other} == {"dead"}
    network.write(1, "a", "while cut")
    network.datagrams.clear()
    network.run(8)
    for observer in range(6):
        changes = [change for change, _ in network.events(observer)]
        assert changes == ["joined"] * 5 + ["died"] * 3 + ["returned"] * 3
        assert network.values(observer, 1) == {"a": "while cut"}


def test_a_seed_that_starts_last_is_found() -> None:
    network = Network(0)
    for member in (1, 2):
        network.start(member)
    network.run(20)
    assert set(network.members[1].members()) == {1}
    network.start(0)
    network.run(6)
    assert {network.status(1, member) for member in range(3)} == {"alive"}


def test_farewell_is_known_at_once_and_spreads_to_who_missed_it() -> None:
    network = network_of(4)
    network.cut.add(address_of(3))
    leaving = network.members[1]
    network.perform(leaving, leaving.farewell())
    network.stop(1)
    network.deliver_all()
    assert [network.status(observer, 1) for observer in (0, 2, 3)] == ["left", "left", "alive"]
    network.cut.clear()
    network.run(2)
    assert network.status(3, 1) == "left"
    network.run(30)
    assert [change for change, member in network.events(0) if member == 1] == ["joined", "left"]


def test_a_restart_is_told_by_its_generation_and_begins_with_an_empty_slot() -> None:
    network = network_of(3)
    network.write(1, "a", "first life")
    network.deliver_all()
    network.stop(1)
    network.start(1, 2, address="10.9.9.9:1")
    network.write(1, "b", "second life")
    network.changed.clear()
    network.run(3)
    for observer in (0, 2):
        assert network.values(observer, 1) == {"b": "second life"}
        assert network.events(observer)[-1] == ("restarted", 1)
        assert network.members[observer].members()[1].address == "10.9.9.9:1"
        assert set(network.changed[observer]) == {"a", "b"}, "whoever watches a hears of its end"


def test_the_older_of_two_processes_is_fenced() -> None:
    network = network_of(3)
    older = network.members[1]
    network.start(1, 2, address="10.9.9.9:1")
    network.run(3)
    assert older.fenced_by == 2
    with pytest.raises(FencedError, match="member 1 was started again elsewhere"):
        older.write("a", "1")
    assert older.slots.own.entries == {}
    assert not older.tick(network.now).sends
    assert not older.farewell().sends, "it must not speak for its successor"
    assert older.large_message(()) is None
    assert network.members[1].fenced_by is None
    assert network.status(0, 1) == "alive"


def test_the_older_is_fenced_in_a_cluster_larger_than_a_digest() -> None:
    network = network_of(30)
    older = network.members[1]
    network.start(1, 2, address="10.9.9.9:1")
    network.run(10)
    assert older.fenced_by == 2


def test_a_process_whose_clock_is_behind_rises_above_its_earlier_life() -> None:
    network = network_of(3)
    network.stop(1)
    network.start(1, 9)
    network.run(3)
    network.stop(1)
    late = network.start(1, 5, may_rise=True)
    network.write(1, "a", "1")
    network.run(4)
    assert (late.fenced_by, late.slots.own.generation) == (None, 10)
    assert network.values(0, 1) == network.values(2, 1) == {"a": "1"}
    assert network.events(0)[-1] == ("restarted", 1)


def test_a_generation_that_was_chosen_does_not_rise() -> None:
    network = network_of(3)
    network.stop(1)
    network.start(1, 9)
    network.run(3)
    network.stop(1)
    late = network.start(1, 5)
    network.run(3)
    assert late.fenced_by == 9


def test_nobody_rises_after_the_start() -> None:
    network = Network(0)
    network.start(0)
    late = network.start(1, 5, may_rise=True)
    network.run(60)
    network.start(1, 9, address="10.9.9.9:1")
    network.run(3)
    assert late.fenced_by == 9


def test_of_two_that_start_together_one_stays() -> None:
    network = network_of(3)
    network.stop(1)
    first = network.start(1, 5, may_rise=True)
    second = network.start(1, 6, may_rise=True, address="10.9.9.9:1")
    network.run(12)
    assert sorted([first.fenced_by is None, second.fenced_by is None]) == [False, True]


def test_a_generation_that_is_used_twice_is_noticed_by_its_writes() -> None:
    network = network_of(3)
    network.write(1, "a", "1")
    network.deliver_all()
    network.stop(1)
    again = network.start(1, 1, address="10.9.9.9:1")
    network.run(3)
    assert again.fenced_by == 1


def test_acknowledged_is_what_somebody_else_has() -> None:
    network = network_of(3)
    exchange = network.members[1]
    assert exchange.acknowledged_version == 1
    network.write(1, "a", "1")
    network.datagrams.clear()
    for expected in (1, 2):  # the first call is how the others come to ask for it
        network.perform(exchange, exchange.call_everybody())
        network.deliver_all()
        assert exchange.acknowledged_version == expected


def test_the_dead_are_forgotten_with_their_values_and_may_come_back() -> None:
    network = network_of(3, timing=GossipTiming(forget_seconds=20))
    network.write(1, "a", "1")
    network.deliver_all()
    network.stop(1)
    network.run(14 * 5)
    network.start(9)
    network.run(5)
    assert 1 not in network.members[9].members(), "nobody told it after half the time"
    assert network.values(0, 1) == {"a": "1"}
    network.changed.clear()
    network.run(12 * 5)
    for observer in (0, 2):
        assert 1 not in network.members[observer].members()
        assert network.changed[observer] == ["a"]
    network.start(1, 1)
    network.run(4)
    assert network.status(0, 1) == "alive"


def test_hearsay_is_no_sign_of_life() -> None:
    network = network_of(3)
    network.stop(2)
    network.run(15)
    network.start(7)
    network.run(5)
    assert network.status(7, 2) == "heard of"
    assert ("joined", 2) not in network.events(7)


def test_what_cannot_be_a_write_is_refused() -> None:
    exchange = network_of(1).members[0]
    for key, value, named in (
        ("", "", "1 to 256 bytes"),
        ("k" * (KEY_BYTES_MAX + 1), "", "1 to 256 bytes"),
        ("k", "v" * (VALUE_BYTES_MAX + 1), "at most 1048576 bytes"),
        ("k", "\ud800", "UTF-8"),
    ):
        with pytest.raises(LocalProtocolError, match=named):
            exchange.write(key, value)
    assert exchange.slots.own.version == 1
    for number in range(KEYS_MAX):
        exchange.write(f"{number}", "")
    with pytest.raises(LocalProtocolError, match="never deleted"):
        exchange.write("one more", "")
    exchange.write("0", "again")


@pytest.mark.parametrize(("member", "generation"), [(-1, 1), (U64_MAX + 1, 1), (1, 0), (1, -5)])
def test_numbers_that_do_not_fit_are_refused(member: int, generation: int) -> None:
    with pytest.raises(ConfigurationError, match="is a number from"):
        Network(0).start(member, generation)
