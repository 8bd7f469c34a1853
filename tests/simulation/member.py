"""A process of a member: what it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.epoch.decisions import DecisionLog
from penstock.epoch.follower import Follower
from penstock.epoch.leader import Leader
from penstock.errors import FencedError
from tests.simulation.follower_actor import FollowerActor
from tests.simulation.leader_actor import LeaderActor
from tests.simulation.records import RemoteRecords, Store
from tests.simulation.rules import COMMITTED

if TYPE_CHECKING:
    from tests.simulation.keyvalue import Slots
    from tests.simulation.rules import Disk, Rules
    from tests.simulation.world import Process, World


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of. The real machines, unless a rule is to be broken."""

    follower: type[Follower] = Follower
    leader: type[Leader] = Leader
    leader_actor: type[LeaderActor] = LeaderActor
    store: type[Store] = Store


class Member:
    """One process, with its follower and perhaps a candidate for leader."""

    def __init__(
        self,
        process: Process,
        members: tuple[int, ...],
        slots: Slots,
        store: Store,
        *,
        disks: list[Disk],
        rules: Rules,
        parts: Parts,
        candidate: bool,
        has_clock: bool,
    ) -> None:
        self.process = process
        self.world: World = process.world
        self.members = members
        self.disks = disks
        self.rules = rules
        self.parts = parts
        self.records = RemoteRecords(process, store)
        self.log = DecisionLog(self.records)
        self._slots = slots
        self._has_clock = has_clock
        self._waking = False
        committed = [
            (epoch, part.watermark)
            for disk in disks
            for epoch, part in disk.parts.items()
            if part.status == COMMITTED
        ]
        self._watermark_at_birth = max(committed)[1] if committed and has_clock else None
        self.view = slots.attach(process, self._changed)
        self.follower = FollowerActor(self)
        self.candidate = parts.leader_actor(self) if candidate else None

    def write(self, key: str, value: str) -> bool:
        """Into this member's slot. False: the process was replaced, and takes it for its end."""
        try:
            self._slots.write(self.view, key, value)
        except FencedError:
            self.process.kill()
            return False
        return not self.process.replaced

    def is_fenced(self) -> bool:
        """Whether the disks are another process's by now. Then this one ends."""
        if self.process.replaced:
            self.process.kill()
        return self.process.replaced

    def watermark(self) -> int | None:
        """Of this member's streams. After a restart it begins with the last committed one."""
        if not self._has_clock:
            return None
        lived_seconds = self.world.now - self.process.born_at
        return (self._watermark_at_birth or 0) + int(10 * lived_seconds) + self.process.member

    def _changed(self) -> None:
        if not self._waking:
            self._waking = True
            self.process.after(0.0, self._wake, "watch")

    def _wake(self) -> None:
        self._waking = False
        self.follower.slots_changed()
        if self.candidate is not None:
            self.candidate.slots_changed()
