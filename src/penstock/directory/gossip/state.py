"""What a member knows of all members' slots, and how two members come to know the same.

Every member numbers its writes: versions. Somebody else's copy of its slot is known up to one
version, and holds every key whose newest write is not above that. A delta carries the writes after
one version and up to another, so a copy is never known beyond a write that it has not seen, however
deltas are cut, lost, repeated or swapped. A process that starts takes a greater generation than the
one before it, and with that its slot begins anew.

So a copy only ever moves forward in (generation, version). That is also why a recorded message that
somebody sends again does no harm: what it tells is known already, or was replaced since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBERS_MAX: Final = 1024
"""Others beyond are not taken in: a faulty member must not fill everybody's memory."""
ENTRY_OVERHEAD_BYTES: Final = 14
"""Of an entry in a message, beside its key and value: two lengths and a version."""
DELTA_OVERHEAD_BYTES: Final = 37
"""Of a delta in a message, beside its address and entries."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest write of a key."""

    key: str
    value: str
    version: int
    message_bytes: int
    """What it takes in a message: counted once, since every delta asks for it."""

    @classmethod
    def of(cls, key: str, value: str, version: int) -> Entry:
        size = ENTRY_OVERHEAD_BYTES + len(key.encode()) + len(value.encode())
        return cls(key, value, version, size)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far somebody knows a member. A digest is a list of these."""

    member: int
    generation: int
    heartbeat: int = 0
    version: int = 0
    """All writes up to here are known. 0: the member is known by name only."""
    left: bool = False
    """The member said farewell in this generation."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A member's writes with versions above `after` and up to `upto`, oldest first."""

    member: int
    generation: int
    address: str
    after: int
    upto: int
    entries: tuple[Entry, ...]

    @property
    def message_bytes(self) -> int:
        size = DELTA_OVERHEAD_BYTES + len(self.address)
        return size + sum(entry.message_bytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Learned:
    """What a mark told that was not known."""

    met: bool = False
    """The member, or this generation of it, was not known before."""
    heartbeat: bool = False
    left: bool = False
    vanished: tuple[str, ...] = ()
    """Keys of the generation before. The new one has not told whether it has them."""


NOTHING: Final = Learned()


@dataclass(slots=True)
class Slot:
    """A copy of one member's slot, or the member's own."""

    member: int
    generation: int
    heartbeat: int = 0
    version: int = 0
    left: bool = False
    address: str = ""
    """Empty until the member, or somebody who has its slot, told it."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """In the order of their versions: a key that is written again moves to the end."""

    @property
    def mark(self) -> Mark:
        return Mark(self.member, self.generation, self.heartbeat, self.version, self.left)

    def put(self, entry: Entry) -> None:
        self.entries.pop(entry.key, None)
        self.entries[entry.key] = entry

    def after(self, version: int) -> list[Entry]:
        """Entries above a version, oldest first."""
        found = []
        for entry in reversed(self.entries.values()):
            if entry.version <= version:
                break
            found.append(entry)
        found.reverse()
        return found


class Slots:
    """All slots as one member knows them. Its own is among them from the beginning, with version 1
    and no key, so that there is something to tell of it: its address."""

    def __init__(self, member: int, generation: int, address: str) -> None:
        self.own: Final = Slot(member, generation, heartbeat=1, version=1, address=address)
        self._slots = {member: self.own}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def get(self, member: int) -> Slot | None:
        return self._slots.get(member)

    def write(self, key: str, value: str) -> Entry:
        """Sets a key of the member's own slot."""
        entry = Entry.of(key, value, self.own.version + 1)
        self.own.put(entry)
        self.own.version = entry.version
        return entry

    def rise(self, generation: int) -> None:
        """Goes on under a greater generation. Others take the slot for a new one, and get it
        whole."""
        self.own.generation = generation

    def learn(self, mark: Mark) -> Learned:
        """Takes in what a mark tells. A member or generation that is new here is known by name from
        now on: its writes come with a delta. The own slot learns nothing from others."""
        if mark.member == self.own.member:
            return NOTHING
        slot = self._slots.get(mark.member)
        if slot is not None and mark.generation < slot.generation:
            return NOTHING
        if slot is None or mark.generation > slot.generation:
            if slot is None and len(self._slots) >= MEMBERS_MAX:
                return NOTHING
            self._slots[mark.member] = Slot(
                mark.member, mark.generation, heartbeat=mark.heartbeat, left=mark.left
            )
            vanished = tuple(slot.entries) if slot is not None else ()
            return Learned(True, False, mark.left, vanished)
        learned = Learned(
            heartbeat=mark.heartbeat > slot.heartbeat, left=mark.left and not slot.left
        )
        slot.heartbeat = max(slot.heartbeat, mark.heartbeat)
        slot.left |= mark.left
        return learned

    def apply(self, delta: Delta) -> list[str]:
        """Takes in a delta of a member and generation that is known by name, and tells which keys
        changed. One that begins after a version not yet known here is left alone: what is between
        would never come."""
        slot = self._slots.get(delta.member)
        if (
            slot is None
            or slot is self.own
            or delta.generation != slot.generation
            or delta.after > slot.version
            or delta.upto <= slot.version
        ):
            return []
        news = [entry for entry in delta.entries if entry.version > slot.version]
        for entry in news:
            slot.put(entry)
        slot.version = delta.upto
        slot.address = delta.address
        return [entry.key for entry in news]

    def lacks(self, mark: Mark) -> bool:
        """Whether who made the mark has writes that are not known here."""
        slot = self._slots.get(mark.member)
        return (
            slot is not None
            and slot is not self.own
            and (mark.generation, mark.version) > (slot.generation, slot.version)
        )

    def owed(self, mark: Mark) -> int:
        """The bytes of the delta that who made the mark lacks; 0 if it lacks nothing."""
        delta = self.delta(mark, None)
        return delta.message_bytes if delta is not None else 0

    def delta(self, mark: Mark, bytes_max: int | None) -> Delta | None:
        """What who made the mark lacks: as much, oldest first, as fits the bytes. None if that is
        nothing, or if nothing fits."""
        slot = self._slots.get(mark.member)
        if slot is None or (slot.generation, slot.version) <= (mark.generation, mark.version):
            return None
        after = mark.version if mark.generation == slot.generation else 0
        if slot.version == after:
            return None  # known by name only, in a newer generation: the digest tells that
        entries = slot.after(after)
        upto = slot.version
        if bytes_max is not None:
            left_bytes = bytes_max - DELTA_OVERHEAD_BYTES - len(slot.address)
            fitting = 0
            for entry in entries:
                left_bytes -= entry.message_bytes
                if left_bytes < 0:
                    break
                fitting += 1
            if fitting < len(entries):
                entries = entries[:fitting]
                upto = entries[-1].version if entries else after
            if left_bytes < 0 and not entries:
                return None
        return Delta(slot.member, slot.generation, slot.address, after, upto, tuple(entries))

    def forget(self, member: int) -> list[str]:
        """Drops a member that is gone for good, and tells which keys went with it."""
        slot = self._slots.pop(member)
        return list(slot.entries)
