"""What journals lose: rows that nobody needs any more, rows that somebody does, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.choices import Menu
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from penstock.frontier import JournalFrontier
    from penstock.shuffle.session.lost import RowsLostError
    from tests.simulation_shuffle.cluster import Cluster

RETENTION_SECONDS: Final = 0.4
_RETENTION: Final = Menu((2, "none"), (4, "consumed"), (1, "any"))
_DROPPED: Final = Menu((8, 0.0), (2, 0.5), (1, 1.0))
"""How much of what a journal has is dropped, whoever needs it."""
_SUSPENDED: Final = Menu((20, False), (1, True))
_DELETES: Final = Menu((3, False), (1, True))
_DELETED: Final = Menu((5, None), (1, 0.5), (1, 1.0), (1, 1.6))


class Losses:
    """`plan` says what will be; `stop` that no more is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kind = "none"

    def plan(self) -> None:
        world, setting = self._cluster.world, self._cluster.setting
        self._kind = world.choices.choose("retention", _RETENTION)
        world.post(RETENTION_SECONDS, self._retain)
        for name in setting.places if world.choices.choose("deletes", _DELETES) else ():
            at = world.choices.choose(f"{name} is deleted", _DELETED)
            if at is not None:
                world.post(at, lambda name=name: self._delete(name))  # type: ignore[misc]

    def stop(self) -> None:
        self._kind = "none"

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
                self._read_again_from(journal.name, binding.place)
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

    def _delete(self, name: str) -> None:
        journal = self._cluster.setting.journals.by_name.get(name)
        if journal is not None and not self._cluster.world.choices.quiet:
            journal.is_gone = True
            self._cluster.world.counts["journals deleted"] += 1
            self._cluster.world.tell("world", f"{name} is deleted")

    def check_lost(self, error: RowsLostError) -> None:
        """That what is said to be lost is."""
        journal = self._cluster.setting.journals.by_name[error.journal]
        needed = [
            self._read_again_from(journal.name, binding.place)
            for binding in self._cluster.setting.plan.bindings
            if binding.collection == journal.collection
        ]
        if not journal.is_gone and journal.first_kept <= min(needed):
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
