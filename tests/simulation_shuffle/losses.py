"""What journals lose: rows that nobody needs any more, rows that somebody does, or all of them. And
journals that go: deleted, out of reach for a while, or made anew under their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.choices import Menu, evenly, seldom
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from penstock.frontier import JournalFrontier
    from penstock.shuffle.session.lost import RowsLostError
    from tests.simulation_shuffle.cluster import Cluster
    from tests.simulation_shuffle.journals import Journal

RETENTION_SECONDS: Final = 0.4
RETENTION: Final = Menu((2, "none"), (4, "consumed"), (1, "any"))
_DROPPED: Final = Menu((8, 0.0), (2, 0.5), (1, 1.0))
"""How much of what a journal has is dropped, whoever needs it."""
_SUSPENDED: Final = Menu((20, False), (1, True))
_GO: Final = Menu((3, False), (2, True))
_GONE_AT: Final = Menu((4, None), (1, 0.5), (1, 1.0), (1, 1.6), (1, 2.0))
_GONE_WHILE_DOWN: Final = seldom(100)
_GOES: Final = evenly("is deleted", "is moved away", "is made anew")
_TWICE: Final = 2
"""So often a journal may go."""
_AWAY_SECONDS: Final = Menu((3, 0.3), (1, 0.02), (1, 0.12), (1, 0.8), (1, 2.5))


class Losses:
    """`plan` says what will be; `stop` that no more is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kind = "none"
        self._go = False

    def plan(self) -> None:
        world, setting = self._cluster.world, self._cluster.setting
        self._kind = world.choices.choose("retention", setting.retention)
        world.post(RETENTION_SECONDS, self._retain)
        self._go = setting.journals_go and world.choices.choose("go", _GO)
        for name in setting.places * _TWICE if self._go else ():
            at = world.choices.choose(f"{name} goes", _GONE_AT)
            if at is not None:
                world.post(at, lambda name=name: self._take_away(name))  # type: ignore[misc]

    def stop(self) -> None:
        self._kind = "none"

    def everything_is_down(self) -> None:
        """Journals go that nobody reads just now, and no listing of the next life has them."""
        world, setting = self._cluster.world, self._cluster.setting
        for name in setting.places if self._go else ():
            if world.choices.choose(f"{name} goes while all is down", _GONE_WHILE_DOWN):
                self._take_away(name)

    @property
    def are_over(self) -> bool:
        """Whether all that were moved away are back."""
        journals = self._cluster.setting.journals.by_name.values()
        return not any(journal.is_away for journal in journals)

    def _retain(self) -> None:
        match self._kind:
            case "consumed":
                self._drop_consumed()
            case "any":
                self._drop_any()
        self._cluster.world.post(RETENTION_SECONDS, self._retain)

    def _drop_consumed(self) -> None:
        """What nobody has to read again."""
        cluster = self._cluster
        if not cluster.committed:
            return
        for journal in cluster.setting.journals.by_name.values():
            ends = [
                self._read_again_from(journal.known_as, binding.place)
                for binding in cluster.setting.plan.bindings
                if binding.collection == journal.collection
            ]
            cluster.world.counts["rows dropped"] += journal.drop(min(ends, default=0))

    def _drop_any(self) -> None:
        world = self._cluster.world
        for journal in self._cluster.setting.journals.by_name.values():
            share = world.choices.choose(f"{journal.name} drops", _DROPPED)
            kept = journal.head - journal.first_kept
            dropped = journal.drop(journal.first_kept + int(share * kept))
            if world.choices.choose(f"{journal.name} is suspended", _SUSPENDED):
                dropped += journal.suspend()
                world.counts["journals suspended"] += 1
            if dropped:
                world.tell("world", f"{journal.name} begins at {journal.first_kept} now")
            world.counts["rows dropped whoever needs them"] += dropped

    def _take_away(self, name: str) -> None:
        world = self._cluster.world
        journal = self._cluster.setting.journals.by_name.get(name)
        if journal is None or journal.is_gone or world.choices.quiet:
            return
        how = world.choices.choose("how they go", _GOES)
        world.counts["journals deleted"] += how == "is deleted"
        world.counts["journals made anew"] += how == "is made anew"
        world.tell("world", f"{journal.known_as} {how}")
        journal.is_gone = True
        journal.is_made_anew = how == "is made anew"
        if how == "is moved away":
            journal.is_away = journal.was_away = True
            world.post(
                world.choices.choose("away", _AWAY_SECONDS), lambda: self._bring_back(journal)
            )

    def _bring_back(self, journal: Journal) -> None:
        self._cluster.world.counts["journals that are back"] += 1
        self._cluster.world.tell("world", f"{journal.known_as} is back")
        journal.is_gone = journal.is_away = False

    def check_lost(self, error: RowsLostError) -> None:
        """That what is said to be lost is."""
        for journal in self._cluster.setting.journals.all.values():
            needed = [
                self._read_again_from(journal.known_as, binding.place)
                for binding in self._cluster.setting.plan.bindings
                if binding.collection == journal.collection
            ]
            is_lost = journal.is_gone or journal.was_away
            is_lost |= journal.first_kept > min(needed, default=0)
            if journal.name == error.journal and is_lost:
                return
        raise Violation(f"all is there, and an error says: {error}")

    def _read_again_from(self, journal: str, binding: int) -> int:
        consumed = self._cluster.committed[-1].record.consumed.frontier
        return _read_again_from(consumed.journal(journal, binding))


def _read_again_from(known: JournalFrontier | None) -> int:
    """Where a read begins that goes on from here, or the first span that is open there."""
    if known is None or not known.producers:
        return 0
    spans = [entry.offset for entry in known.producers if entry.offset >= 0]
    return min([max(abs(entry.offset) for entry in known.producers), *spans])
