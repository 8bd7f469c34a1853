"""The simulated key-value store: every process has a view, and news travels at its own pace.

Messages are late, lost and sent again, doubled, and overtake each other. A newer value is never
replaced by an older one. Writes of a process whose member was started again count for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import FencedError
from tests.simulation.choices import Menu, evenly, seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import Process, World

DELAYS: Final = Menu((55, 0.005), (20, 0.02), (12, 0.1), (6, 0.4), (4, 1.2), (2, 3.0), (1, 7.0))
"""In seconds, of a message."""
FATES: Final = Menu((90, "arrives"), (6, "is lost"), (4, "arrives twice"))
AGAIN: Final = evenly(0.5, 1.0, 2.0)
"""After so many seconds a lost message is sent again, with what is newest by then."""
_BIRTH: Final = "(birth)"
"""The key that tells of a member's new process."""


class Stamped(NamedTuple):
    """Greater is newer."""

    generation: int
    version: int
    value: str


class View:
    """What one process knows of everybody's slots."""

    def __init__(self, process: Process, changed: Callable[[], None]) -> None:
        self.process = process
        self.slots: dict[tuple[int, str], Stamped] = {}
        self.generations: dict[int, int] = {}
        self.changed = changed

    def scan(self, key: str) -> dict[int, str]:
        return {
            member: stamped.value
            for (member, name), stamped in sorted(self.slots.items())
            if name == key
        }


class Slots:
    """The store as a whole."""

    def __init__(self, world: World, *, old_slots_vanish: bool, fenced_are_told: bool) -> None:
        self._world = world
        self._vanish = old_slots_vanish
        self._fenced_are_told = fenced_are_told
        self._newest: dict[tuple[int, str], Stamped] = {}
        self._views: list[View] = []
        self._cuts: list[tuple[frozenset[int], float]] = []

    def attach(self, process: Process, changed: Callable[[], None]) -> View:
        """The view of a process that begins: empty at first, or whole at once."""
        world = self._world
        self._views = [view for view in self._views if not view.process.dead]
        view = View(process, changed)
        if self._vanish:
            for slot in [slot for slot in self._newest if slot[0] == process.member]:
                del self._newest[slot]
        whole = world.choices.choose(f"{process} view", evenly(True, False))
        for slot, stamped in self._newest.items():
            if whole:
                view.slots[slot] = stamped
                view.generations[slot[0]] = stamped.generation
                continue
            known = [other.slots[slot] for other in self._views if slot in other.slots]
            if known:
                stale = world.choices.choose(f"{process} stale", seldom(300))
                if stale:
                    self._post(slot, min(known), view)
            self._send(slot, stamped, view)
        self._views.append(view)
        self.write(view, _BIRTH, "")
        return view

    def write(self, view: View, key: str, value: str) -> None:
        process = view.process
        if process.replaced:
            if self._fenced_are_told:
                raise FencedError(f"{process} was replaced")
            return
        slot = process.member, key
        before = self._newest.get(slot)
        stamped = Stamped(process.life, before.version + 1 if before else 1, value)
        self._newest[slot] = stamped
        view.slots[slot] = stamped
        for other in self._views:
            if other is not view and not other.process.dead:
                self._send(slot, stamped, other)
        view.changed()

    def cut(self, group: frozenset[int], seconds: float) -> None:
        """Nothing passes between this group of members and the others for a while."""
        self._cuts.append((group, self._world.now + seconds))
        self._world.tell("network", f"is cut around {sorted(group)} for {seconds:g} s")

    def heal(self) -> None:
        self._cuts.clear()

    def _send(self, slot: tuple[int, str], stamped: Stamped, view: View) -> None:
        choices, stream = self._world.choices, f"{slot[0]}>{view.process}"
        fate = choices.choose(stream, FATES)
        if fate == "is lost":
            again = choices.choose(stream, AGAIN)
            self._world.post(again, lambda: self._send_newest(slot, view))
            return
        self._post(slot, stamped, view)
        if fate == "arrives twice":
            self._post(slot, stamped, view)

    def _send_newest(self, slot: tuple[int, str], view: View) -> None:
        if slot in self._newest and not view.process.dead:
            self._send(slot, self._newest[slot], view)

    def _post(self, slot: tuple[int, str], stamped: Stamped, view: View) -> None:
        delay = self._world.choices.choose(f"{slot[0]}>{view.process}", DELAYS)
        self._world.post(delay, lambda: self._arrive(slot, stamped, view))

    def _arrive(self, slot: tuple[int, str], stamped: Stamped, view: View) -> None:
        if view.process.dead:
            return
        healed_at = self._cut_until(slot[0], view.process.member)
        if healed_at > self._world.now:
            seconds = healed_at - self._world.now
            self._world.post(seconds, lambda: self._send_newest(slot, view))
            return
        self._world.post(
            0.0, lambda: self._learn(slot, stamped, view), view.process, "a message arrives"
        )

    def _learn(self, slot: tuple[int, str], stamped: Stamped, view: View) -> None:
        member, _ = slot
        if self._vanish:
            known = view.generations.get(member, 0)
            if stamped.generation < known:
                return
            if stamped.generation > known:
                for old in [old for old in view.slots if old[0] == member]:
                    del view.slots[old]
        view.generations[member] = stamped.generation
        if slot not in view.slots or stamped > view.slots[slot]:
            view.slots[slot] = stamped
            view.changed()

    def _cut_until(self, one: int, other: int) -> float:
        return max(
            (until for group, until in self._cuts if (one in group) != (other in group)),
            default=0.0,
        )
