"""How members bring each other up to date. No sockets, threads or clocks: events go in, effects
come out, and chance is the caller's.

1. On every tick a member calls a few others: it sends a digest of how far it knows everybody.
2. The called one answers with news: its own digest, and deltas of what the caller lacks.
3. Whoever sees from news that it lacks something asks: it tells how far it is, and gets the rest as
   news. What does not fit a datagram goes over TCP.
4. A write is pushed at once, as news, to all who are alive. Who missed an earlier one sees that
   from the version, and asks as in 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.directory.gossip.detector import AwakeClock
from penstock.directory.gossip.membership import Membership, MemberState, MemberStatus
from penstock.directory.gossip.messages import (
    DATAGRAM_BYTES_MAX,
    KEY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    U64_MAX,
    VALUE_BYTES_MAX,
    Kind,
    Message,
    message_bytes,
)
from penstock.directory.gossip.state import Delta, Mark, Slots
from penstock.errors import ConfigurationError, FencedError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from penstock.directory.gossip.timing import GossipTiming

CALLS_PER_TICK: Final = 3
"""Of those alive. News reach n members in about log(n)/log(4) ticks, at a cost that does not grow
with n."""
PUSHES_MAX: Final = 32
"""A write goes to so many members at once: about a millisecond of work. In larger clusters the rest
hears of it with the next ticks."""
DIGEST_MARKS_MAX: Final = 20
"""A digest is at most half a datagram. In larger clusters each lists others, chosen by chance."""
DATAGRAM_ROUNDS_BYTES_MAX: Final = 16 * 1024
"""What somebody lacks goes in datagrams, one per round trip, up to this size; a dozen round trips
take about as long as to open a connection."""
KEYS_MAX: Final = 1024
"""Of one member's slot. Keys are never deleted, so a key per epoch or per file would only grow."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message as a datagram, to each address."""

    addresses: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class SendLarge:
    """Send what `listed` lacks over TCP: `large_message` makes it when the connection is there."""

    address: str
    listed: tuple[Mark, ...]


@dataclass(slots=True)
class Effects:
    sends: list[Send] = field(default_factory=list)
    large: list[SendLarge] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Keys that changed, in anybody's slot."""


class Exchange:
    """One member's part in the gossip."""

    def __init__(
        self,
        member: int,
        generation: int,
        address: str,
        *,
        seeds: tuple[str, ...],
        timing: GossipTiming,
        chance: Random,
        now: float,
        may_rise: bool,
    ) -> None:
        """`may_rise` if the generation was read off a clock, which may be behind."""
        if not 0 <= member <= U64_MAX:
            raise ConfigurationError(f"a member is a number from 0 to {U64_MAX}, not {member}")
        if not 0 < generation <= U64_MAX:
            raise ConfigurationError(
                f"a generation is a number from 1 to {U64_MAX}, not {generation}"
            )
        self.slots: Final = Slots(member, generation, address)
        self.membership: Final = Membership(timing)
        self.seeds = seeds
        """In numbers. More may come to be known while names are looked up."""
        self.fenced_by: int | None = None
        """The generation that took this one's place."""
        self.acknowledged_version = 0
        """Somebody else knows the own slot up to here."""
        self.heard = False
        """Whether any message has come from another member."""
        self._timing = timing
        self._chance = chance
        self._clock = AwakeClock(timing.pause_seconds_max, now)
        self._started = now
        self._may_rise = may_rise

    def write(self, key: str, value: str) -> Effects:
        """Sets a key of the own slot, and pushes it."""
        self._check_fence()
        own = self.slots.own
        _check_entry(key, value)
        if key not in own.entries and len(own.entries) >= KEYS_MAX:
            raise LocalProtocolError(
                f"member {own.member} has {KEYS_MAX} keys already: they are never deleted; write "
                f"again to one of them instead of adding {key!r}"
            )
        entry = self.slots.write(key, value)
        delta = Delta(
            own.member, own.generation, own.address, entry.version - 1, entry.version, (entry,)
        )
        fits = message_bytes(own.address, 0) + delta.message_bytes <= DATAGRAM_BYTES_MAX
        # Without the delta, whoever gets the message sees what it lacks, and asks.
        push = Message(Kind.NEWS, own.mark, own.address, (), (delta,) if fits else ())
        return Effects([Send(self._some(self._living(), PUSHES_MAX), push)], changed=[key])

    def tick(self, now: float) -> Effects:
        """Once per interval: the heart beats, the dead are found, others are called."""
        effects = Effects()
        if self.fenced_by is not None:
            return effects
        awake = self._clock.tick(now)
        own = self.slots.own
        own.heartbeat += 1
        self.membership.check(awake, now)
        for member in self.membership.forgettable(awake):
            self.membership.forget(member)
            effects.changed += self.slots.forget(member)
        living = self._living()
        called = self._some(living, CALLS_PER_TICK)
        # Whoever seems gone is called now and then, so that a network that was cut grows together.
        lost = [*self._lost(), *(seed for seed in self.seeds if seed not in living)]
        called += self._some(lost, 1 if living else CALLS_PER_TICK)
        called = tuple(address for address in dict.fromkeys(called) if address != own.address)
        if called:
            call = Message(Kind.CALL, own.mark, own.address, self._digest((), awake))
            effects.sends.append(Send(called, call))
        return effects

    def receive(self, message: Message, now: float) -> Effects:
        """Takes in what a member sent, and answers."""
        effects = Effects()
        own, sender = self.slots.own, message.sender
        if self.fenced_by is not None or (sender.member, message.address) == (
            own.member,
            own.address,
        ):
            return effects  # the latter is one's own call: a seed may be oneself
        self.heard = True
        awake = self._clock.at(now)
        self._learn(sender, awake, now, effects, direct=True)
        slot = self.slots.get(sender.member)
        if slot is not None and slot is not own and slot.generation == sender.generation:
            slot.address = message.address
        for mark in message.digest:
            self._learn(mark, awake, now, effects, direct=False)
        for delta in message.deltas:
            name = Mark(delta.member, delta.generation)
            self._learn(name, awake, now, effects, direct=False)
            effects.changed += self.slots.apply(delta)
        if self.fenced_by is None:
            self._answer(message, awake, effects)
        return effects

    def large_message(self, listed: tuple[Mark, ...]) -> Message | None:
        """What `listed` lacks by now, as much of it as a message holds."""
        owed = [mark for mark in listed if self.slots.owed(mark)]
        message = self._delta_message(owed, MESSAGE_BYTES_MAX)
        return message if message.deltas and self.fenced_by is None else None

    def call_everybody(self) -> Effects:
        """Asks all who are alive how far they are: the answers set `acknowledged_version`."""
        own = self.slots.own
        call = Message(Kind.CALL, own.mark, own.address)
        return Effects([Send(self._some(self._living(), PUSHES_MAX), call)])

    def farewell(self) -> Effects:
        """Tells all who are alive that this member leaves."""
        if self.fenced_by is not None:
            return Effects()
        own = self.slots.own
        own.left = True
        last = Message(Kind.NEWS, own.mark, own.address)
        return Effects([Send(self._some(self._living(), PUSHES_MAX), last)])

    def members(self) -> dict[int, MemberState]:
        states = {}
        for slot in self.slots:
            if slot is self.slots.own:
                status = MemberStatus.LEFT if slot.left else MemberStatus.ALIVE
                since = self._started
            else:
                status = self.membership.status(slot.member) or MemberStatus.HEARD_OF
                since = self.membership.since(slot.member)
            states[slot.member] = MemberState(
                slot.member, slot.generation, status, slot.address, since
            )
        return states

    def _check_fence(self) -> None:
        if self.fenced_by is not None:
            own = self.slots.own
            raise FencedError(
                f"member {own.member} was started again elsewhere: this process is fenced "
                f"(its generation is {own.generation}, the other's {self.fenced_by})"
            )

    def _learn(
        self, mark: Mark, awake: float, now: float, effects: Effects, *, direct: bool
    ) -> None:
        if mark.member == self.slots.own.member:
            self._look_at_oneself(mark, now)
            return
        learned = self.slots.learn(mark)
        effects.changed += learned.vanished
        membership, member = self.membership, mark.member
        if learned.met:
            membership.meet(member, mark.generation, awake, now)
            # Hearsay is no sign of life: a member may be dead for long. Its own word is.
            if direct and membership.status(member) is MemberStatus.HEARD_OF and not mark.left:
                membership.beat(member, awake, now)
        elif learned.heartbeat:
            membership.beat(member, awake, now)
        if learned.left:
            membership.leave(member, awake, now)

    def _look_at_oneself(self, mark: Mark, now: float) -> None:
        """Somebody tells how far it knows this very member, in this life or another."""
        own = self.slots.own
        if mark.generation < own.generation:
            return
        if mark.generation == own.generation and mark.version <= own.version:
            self.acknowledged_version = max(self.acknowledged_version, mark.version)
            return
        if (
            self._may_rise
            and now - self._started <= self._timing.startup_seconds
            and mark.generation < U64_MAX
        ):
            # Once only: of two processes that start together, the one that rises last stays.
            self._may_rise = False
            self.acknowledged_version = 0
            self.slots.rise(mark.generation + 1)
            return
        self.fenced_by = mark.generation

    def _answer(self, message: Message, awake: float, effects: Effects) -> None:
        own = self.slots.own
        listed = {mark.member: mark for mark in (*message.digest, message.sender)}
        wanted = [
            slot.mark
            for mark in listed.values()
            if self.slots.lacks(mark) and (slot := self.slots.get(mark.member)) is not None
        ]
        here = (message.address,)
        if message.kind is Kind.CALL:
            caller = self.slots.get(message.sender.member)
            if caller is not None and caller is not own:
                # It learns in any case how far it is known itself, and whether it is fenced.
                wanted.insert(0, caller.mark)
            answer = Message(Kind.NEWS, own.mark, own.address, self._digest(wanted, awake))
            effects.sends.append(Send(here, answer))
        elif message.kind is Kind.NEWS and wanted:
            digest = tuple(wanted[:DIGEST_MARKS_MAX])
            question = Message(Kind.QUESTION, own.mark, own.address, digest)
            effects.sends.append(Send(here, question))
        del listed[message.sender.member]  # nobody else knows its slot better
        owed = {mark: size for mark in listed.values() if (size := self.slots.owed(mark))}
        if not owed:
            return
        room = DATAGRAM_BYTES_MAX - message_bytes(own.address, 1)
        deltas = self._delta_message(list(owed)[:DIGEST_MARKS_MAX], DATAGRAM_BYTES_MAX)
        if (
            sum(owed.values()) > DATAGRAM_ROUNDS_BYTES_MAX
            or not deltas.deltas
            or any(self.slots.delta(mark, room) is None for mark in owed)
        ):
            effects.large.append(SendLarge(message.address, tuple(owed)))
        else:
            effects.sends.append(Send(here, deltas))

    def _delta_message(self, owed: list[Mark], bytes_max: int) -> Message:
        """As much of what is owed as fits, and how far one is oneself: if there is more, the other
        asks for it."""
        own = self.slots.own
        digest = tuple(
            slot.mark for mark in owed if (slot := self.slots.get(mark.member)) is not None
        )
        left_bytes = bytes_max - message_bytes(own.address, len(digest))
        deltas = []
        for mark in owed:
            delta = self.slots.delta(mark, left_bytes)
            if delta is not None:
                deltas.append(delta)
                left_bytes -= delta.message_bytes
        return Message(Kind.NEWS, own.mark, own.address, digest, tuple(deltas))

    def _digest(self, wanted: Iterable[Mark], awake: float) -> tuple[Mark, ...]:
        """How far others are known here; what is wanted comes first."""
        first = {mark.member: mark for mark in wanted}
        others = [
            slot.mark
            for slot in self.slots
            if slot is not self.slots.own
            and slot.member not in first
            and self.membership.is_told(slot.member, awake)
        ]
        room = max(DIGEST_MARKS_MAX - len(first), 0)
        if len(others) > room:
            others = self._chance.sample(others, room)
        return (*first.values(), *others)[:DIGEST_MARKS_MAX]

    def _living(self) -> list[str]:
        return self._addresses(MemberStatus.ALIVE)

    def _lost(self) -> list[str]:
        return self._addresses(MemberStatus.DEAD, MemberStatus.HEARD_OF)

    def _addresses(self, *statuses: MemberStatus) -> list[str]:
        return [
            slot.address
            for slot in self.slots
            if slot.address and self.membership.status(slot.member) in statuses
        ]

    def _some(self, addresses: list[str], count: int) -> tuple[str, ...]:
        if len(addresses) > count:
            addresses = self._chance.sample(addresses, count)
        return tuple(addresses)


def _check_entry(key: str, value: str) -> None:
    try:
        key_bytes, value_bytes = len(key.encode()), len(value.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"a key and its value are text that has a UTF-8 form: {error}"
        ) from error
    if not 0 < key_bytes <= KEY_BYTES_MAX:
        raise LocalProtocolError(
            f"a key has 1 to {KEY_BYTES_MAX} bytes, {key[:40]!r} has {key_bytes}"
        )
    if value_bytes > VALUE_BYTES_MAX:
        raise LocalProtocolError(
            f"a value has at most {VALUE_BYTES_MAX} bytes, that of {key!r} has {value_bytes}: "
            "write it to a file or a journal, and its name here"
        )
