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
_PLANS: Final = Menu((4, 0.0), (1, 0.3), (1, 1.2))
"""How long after it has fixed which epoch is the next, it reads."""


class Consumer:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.at = Epoch(0, Frontier.of())
        """Up to where it has everything. It outlives all crashes."""
        self._planned: Epoch | None = None
        """Up to where it will have everything next. Once that is fixed it does not change, although
        the queues of that epoch may be lost before it is read."""
        self.documents = 0

    def start(self) -> None:
        """In a new life of the cluster."""
        pause = self._world.choices.choose("consumer pauses", _PAUSES)
        self._cluster.process.after(pause, self._look, "consumes")

    def _look(self) -> None:
        leader = self._cluster.leader
        offered = [epoch for epoch in leader.epochs if epoch.number > self.at.number]
        if not offered or leader.is_recovering:
            self.start()
            return
        pause = 0.0
        if self._planned is None:
            self._planned = offered[self._world.choices.choose("which epoch", _NEWEST)]
            pause = self._world.choices.choose("consumer plans", _PLANS)
        else:
            self._world.counts["epochs read as planned in an earlier life"] += 1
        self._cluster.process.after(pause, self._consume, "consumes")

    def _consume(self) -> None:
        cluster, epoch = self._cluster, self._planned
        assert epoch is not None
        newest = cluster.committed[-1]
        delivered = {
            member: disk.read(self.at.frontier, epoch.frontier, newest.queues[member].lsn)
            for member, disk in cluster.disks.items()
        }
        count = sum(map(len, delivered.values()))
        self._world.tell("consumer", f"gets {count} documents up to epoch {epoch.number}")
        cluster.oracle.check_delivered(
            commits_of(self.at.frontier),
            commits_of(epoch.frontier),
            delivered,
            is_whole_order=not cluster.disks_were_lost,
            was_moved=cluster.was_moved,
        )
        self.at, self._planned = epoch, None
        self.documents += count
        self._world.counts["documents delivered"] += count
        cluster.step("consumed")
        delay = self._world.choices.choose("consumer tells", _TELLS)
        cluster.process.after(delay, lambda: self._tell(epoch), "told")

    def _tell(self, epoch: Epoch) -> None:
        self._cluster.consumed(epoch)
        self.start()
