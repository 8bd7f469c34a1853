"""Who reads the epochs, at its own pace, and remembers where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.frontier import Frontier
from penstock.shuffle.resume import Epoch
from tests.simulation.choices import Menu
from tests.simulation_shuffle.oracle import commits_of

if TYPE_CHECKING:
    from tests.simulation_shuffle.cluster import Cluster

_PAUSES: Final = Menu((5, 0.2), (2, 0.02), (2, 0.8), (1, 2.0))
_TELLS: Final = Menu((3, 0.01), (1, 0.3))
_NEWEST: Final = Menu((3, -1), (1, 0))
"""Of the epochs that are new to it, the last or the first."""


class Consumer:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.at = Epoch(0, Frontier.of())
        """Up to where it has everything. It outlives all crashes."""
        self.documents = 0

    def start(self) -> None:
        """In a new life of the cluster."""
        pause = self._world.choices.choose("consumer pauses", _PAUSES)
        self._cluster.process.after(pause, self._look, "consumes")

    def _look(self) -> None:
        cluster = self._cluster
        offered = [epoch for epoch in cluster.leader.epochs if epoch.number > self.at.number]
        if offered and not cluster.leader.is_recovering:
            self._consume(offered[self._world.choices.choose("which epoch", _NEWEST)])
        else:
            self.start()

    def _consume(self, epoch: Epoch) -> None:
        cluster = self._cluster
        committed = next(one for one in cluster.committed if one.number == epoch.number)
        delivered = {
            member: disk.read(self.at.frontier, epoch.frontier, committed.queues[member].lsn)
            for member, disk in cluster.disks.items()
        }
        count = sum(map(len, delivered.values()))
        self._world.tell("consumer", f"gets {count} documents up to epoch {epoch.number}")
        cluster.oracle.check_delivered(
            commits_of(self.at.frontier),
            commits_of(epoch.frontier),
            delivered,
            is_whole_order=not cluster.disks_were_lost,
        )
        self.at = epoch
        self.documents += count
        self._world.counts["documents delivered"] += count
        cluster.step("consumed")
        delay = self._world.choices.choose("consumer tells", _TELLS)
        cluster.process.after(delay, lambda: self._tell(epoch), "told")

    def _tell(self, epoch: Epoch) -> None:
        self._cluster.consumed(epoch)
        self.start()
