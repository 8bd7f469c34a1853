"""What shows that a run moves, and what its parts wait for when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation_shuffle.journals import clock_at

if TYPE_CHECKING:
    from tests.simulation_shuffle.cluster import Cluster


def state_of(cluster: Cluster) -> object:
    """Changes whenever documents are delivered or written, or an epoch or a life is begun."""
    written = [disk.last_lsn for disk in cluster.disks.values()]
    return cluster.consumer.documents, cluster.epochs_begun, cluster.process.life, written


def waiting_of(cluster: Cluster) -> str:
    clock = clock_at(cluster.world.now)
    awaited = {one.journal for each in cluster.session.waiting for one in each.awaited}
    sought = {key[0] for key in cluster.session.sought(cluster.world.now).journals}
    found = [
        f"delivered are {cluster.consumer.documents} documents",
        f"{cluster.epochs_begun} epochs were begun and {len(cluster.committed)} are on record",
        *(f"commits are awaited in {journal}" for journal in sorted(awaited)),
        *(f"{journal} is looked for" for journal in sorted(sought)),
        *(f"{each.name} has rows to send" for each in cluster.slices.values()
          if each.state.is_due(clock)),
        *(f"no credit for {each.name}" for each in cluster.slices.values()
          if any(stream.unsent for stream in each.streams.values())),
    ]  # fmt: skip
    return "; ".join(found)
