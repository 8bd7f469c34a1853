"""One run: a cluster is put together, lives through its faults, and has to come round after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from tests.simulation import faults
from tests.simulation.choices import Choices, evenly
from tests.simulation.keyvalue import Slots
from tests.simulation.member import Member, Parts
from tests.simulation.rules import Disk, Rules
from tests.simulation.stillness import Stillness
from tests.simulation.world import Process, Violation, World

if TYPE_CHECKING:
    from collections import Counter

    from tests.simulation.choices import Script

QUIET_SECONDS_MAX: Final = 60.0
"""In which everything in doubt is resolved and another epoch commits, once nothing befalls anybody:
a few leases, a few epochs that run out of time."""

_SIZES: Final = evenly(2, 3, 4, 5)
_CANDIDATES: Final = evenly(2, 3, 5)
_RATES: Final = evenly(1.0, 0.999, 1.001, 0.9, 1.1)
_OFFSETS: Final = evenly(0.0, 1000.0, 37.5)
_EITHER: Final = evenly(False, True)
_PARTICIPANTS: Final = evenly("ab", "a")


class Cluster:
    """All members, and what they share."""

    def __init__(self, world: World, parts: Parts) -> None:
        choose = world.choices.choose
        self.world = world
        self.members = tuple(range(choose("size", _SIZES)))
        self.disks = {
            member: [Disk(member, name) for name in choose("participants", _PARTICIPANTS)]
            for member in self.members
        }
        self.rules = Rules(world, self.disks)
        self.slots = Slots(
            world,
            old_slots_vanish=choose("old slots vanish", _EITHER),
            fenced_are_told=choose("fenced are told", _EITHER),
        )
        self._candidates = choose("candidates", _CANDIDATES)
        self._parts = parts
        self._store = parts.store(self.rules.records_changed)
        self._lives = 0
        self._running: dict[int, Member] = {}
        self._old: list[Member] = []
        for member in self.members:
            self._start(member)

    def process(self, who: int) -> Process:
        """Of a member, or of who leads now (-1)."""
        for member in self._running.values():
            candidate = member.candidate
            if who < 0 and candidate is not None and candidate.leader is not None:
                return member.process
        return self._running[max(who, 0) % len(self.members)].process

    def restart(self, process: Process) -> None:
        """Starts another process of a member, unless that was done. The old one may still live."""
        needless = self.world.choices.quiet and not process.dead
        if not process.replaced and not needless:
            process.replaced = True
            self._old.append(self._running[process.member])
            self._start(process.member)
            faults.plan_early(self, self._running[process.member].process)

    def calm(self) -> None:
        """From now on nothing befalls anybody. What is paused goes on, what is dead is started
        again, and of old processes there are none."""
        world = self.world
        world.tell("world", "nothing befalls anybody any more")
        world.choices.quiet = True
        self.slots.heal()
        for member in self._old:
            if not member.process.dead:
                member.process.kill()
        for member in list(self._running.values()):
            member.process.ambush = None
            member.process.resume(clock_stood_still=False)
            if member.process.dead:
                self.restart(member.process)

    def has_come_round(self, since: int) -> bool:
        """Whether an epoch after this one has committed, and all members are done with those up to
        the first such."""
        return bool(self._next_commits(since)) and not self._behind(since)

    def doubts(self, since: int) -> str:
        if not self._next_commits(since):
            return f"no epoch after {since} has committed"
        return f"not done are {', '.join(map(str, self._behind(since)))}"

    def _next_commits(self, since: int) -> list[int]:
        decided = self.rules.decided
        return [epoch for epoch in decided if epoch > since and decided[epoch].is_commit]

    def _behind(self, since: int) -> list[Disk]:
        until = min(self._next_commits(since))
        return [
            disk
            for disks in self.disks.values()
            for disk in disks
            if not self.rules.resolved(disk, until)
        ]

    def _start(self, number: int) -> None:
        choose = self.world.choices.choose
        self._lives += 1
        process = Process(
            self.world,
            number,
            self._lives,
            choose("rates", _RATES),
            choose("offsets", _OFFSETS),
        )
        self.world.tell(process, f"is started as member {number}")
        self._running[number] = Member(
            process,
            self.members,
            self.slots,
            self._store,
            disks=self.disks[number],
            rules=self.rules,
            parts=self._parts,
            candidate=number < self._candidates,
            has_clock=number != 1,
        )


@dataclass(slots=True)
class Result:
    """Of a run."""

    violation: str | None
    script: Script
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


def run(
    seed: int = 0,
    script: Script | None = None,
    parts: Parts | None = None,
    *,
    tracing: bool = False,
) -> Result:
    """One run, by its seed, or by a script that another run has left."""
    choices = Choices(seed, script)
    world = World(choices, tracing=tracing)
    violation = None
    try:
        _live(world, parts or Parts())
    except Violation as found:
        violation = str(found)
    except PenstockError as error:
        violation = f"{type(error).__name__}: {error}"
    if violation is not None:
        world.tell("world", f"VIOLATION: {violation}")
    return Result(violation, choices.made, world.counts, world.trace or [])


def _live(world: World, parts: Parts) -> None:
    cluster = Cluster(world, parts)
    faults.plan(cluster)
    world.run(faults.FAULT_SECONDS)
    cluster.calm()
    since = cluster.rules.newest
    stillness = Stillness(world.now)
    while not cluster.has_come_round(since):
        still_since = stillness.look(world.now, (cluster.rules.newest, cluster.doubts(since)))
        if still_since is not None:
            raise Violation(
                f"nothing moves any more since {still_since:.1f} s: {cluster.doubts(since)}"
            )
        if world.now > faults.FAULT_SECONDS + QUIET_SECONDS_MAX:
            raise Violation(f"the cluster does not come round: {cluster.doubts(since)}")
        world.run(world.now + 1.0)
