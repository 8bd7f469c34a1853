"""A network in memory between exchanges: it loses, repeats and reorders datagrams as it is told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock.directory.gossip.exchange import Effects, Exchange, SendLarge
from penstock.directory.gossip.messages import DATAGRAM_BYTES_MAX, MESSAGE_BYTES_MAX, decode, encode
from penstock.directory.gossip.timing import GossipTiming
from tests.unit.directory.gossip.made_messages import KEY

TIMING = GossipTiming()


def address_of(member: int) -> str:
    return f"10.0.{member // 250}.{member % 250 + 1}:4100"


@dataclass
class Network:
    """Every member has member 0 as its seed."""

    seed: int
    timing: GossipTiming = TIMING
    now: float = 1000.0
    members: dict[int, Exchange] = field(default_factory=dict)
    at: dict[str, Exchange] = field(default_factory=dict)
    datagrams: list[tuple[str, bytes]] = field(default_factory=list)
    large: list[tuple[str, SendLarge]] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Addresses that nothing reaches, or comes from."""
    sent_count: int = 0
    large_count: int = 0
    changed: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def start(
        self, member: int, generation: int = 1, *, address: str = "", may_rise: bool = False
    ) -> Exchange:
        address = address or address_of(member)
        exchange = Exchange(
            member,
            generation,
            address,
            seeds=(address_of(0),),
            timing=self.timing,
            chance=random.Random(self.chance.random()),
            now=self.now,
            may_rise=may_rise,
        )
        self.members[member] = self.at[address] = exchange
        return exchange

    def stop(self, member: int) -> None:
        del self.at[self.members.pop(member).slots.own.address]

    def write(self, member: int, key: str, value: str) -> None:
        self.perform(self.members[member], self.members[member].write(key, value))

    def tick(self) -> None:
        self.now += self.timing.interval_seconds
        for exchange in list(self.at.values()):
            self.perform(exchange, exchange.tick(self.now))

    def perform(self, exchange: Exchange, effects: Effects) -> None:
        own = exchange.slots.own
        self.changed.setdefault(own.member, []).extend(effects.changed)
        for send in effects.sends:
            data = encode(send.message, KEY)
            assert len(data) <= DATAGRAM_BYTES_MAX
            for address in send.addresses:
                assert address != own.address
                self.sent_count += 1
                if not self.cut & {own.address, address}:
                    self.datagrams.append((address, data))
        for large in effects.large:
            self.large.append((own.address, large))

    def deliver(self, index: int = 0, *, again: bool = False) -> None:
        address, data = self.datagrams[index] if again else self.datagrams.pop(index)
        self._take(address, data)

    def deliver_large(self, index: int = 0) -> None:
        source, large = self.large.pop(index)
        exchange = self.at.get(source)
        if exchange is None or self.cut & {source, large.address}:
            return
        message = exchange.large_message(large.listed)
        if message is not None:
            data = encode(message, KEY)
            assert len(data) <= MESSAGE_BYTES_MAX
            self.large_count += 1
            self._take(large.address, data)

    def _take(self, address: str, data: bytes) -> None:
        exchange = self.at.get(address)
        if exchange is not None:
            self.perform(exchange, exchange.receive(decode(data, KEY), self.now))

    def deliver_all(self) -> int:
        """Until everybody has said what there was to say. Tells how many messages that took."""
        count = 0
        while self.datagrams or self.large:
            while self.datagrams:
                self.deliver()
                count += 1
                assert count < 100_000, "they never stop answering each other"
            while self.large:
                self.deliver_large()
                count += 1
        return count

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()
            self.deliver_all()

    def values(self, observer: int, member: int) -> dict[str, str]:
        slot = self.members[observer].slots.get(member)
        return {key: each.value for key, each in slot.entries.items()} if slot is not None else {}

    def status(self, observer: int, member: int) -> str:
        return self.members[observer].members()[member].status.value

    def events(self, observer: int) -> list[tuple[str, int]]:
        events = self.members[observer].membership.events(0)
        return [(event.change.value, event.member) for event in events]
