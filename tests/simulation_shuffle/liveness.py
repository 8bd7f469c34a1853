"""What shows that a run moves, and what its parts wait for when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation_shuffle.disk import visible
from tests.simulation_shuffle.journals import clock_at
from tests.simulation_shuffle.oracle import commits_of

if TYPE_CHECKING:
    from tests.simulation_shuffle.cluster import Cluster
    from tests.simulation_shuffle.oracle import Document


def state_of(cluster: Cluster) -> object:
    """Changes whenever documents are delivered or written, or an epoch or a life is begun."""
    written = [disk.last_lsn for disk in cluster.disks.values()]
    return cluster.consumer.documents, cluster.epochs_begun, cluster.process.life, written


def held_of_gone(cluster: Cluster) -> list[Document]:
    """What queues keep of spans that are open in journals that are gone, where the newest epoch
    is. Nobody will ever commit or roll it back."""
    journals = cluster.setting.journals.all
    commits = commits_of(cluster.committed[-1].record.frontier) if cluster.committed else {}
    names = cluster.setting.journals.by_name
    return [
        document
        for disk in cluster.disks.values()
        for document in visible(disk.blocks, commits, None)
        if journals[document.journal].is_gone
        or names[journals[document.journal].name] is not journals[document.journal]
    ]


def waiting_of(cluster: Cluster) -> str:
    clock = clock_at(cluster.world.now)
    awaited = {one.journal for each in cluster.session.waiting for one in each.awaited}
    sought = {key[0] for key in cluster.session.sought(cluster.world.now).journals}
    found = [
        f"delivered are {cluster.consumer.documents} documents",
        f"{cluster.epochs_begun} epochs were begun and {len(cluster.committed)} are on record",
        *(f"commits are awaited in {journal}" for journal in sorted(awaited)),
        *(f"{one} is held, and its journal is gone" for one in held_of_gone(cluster)[:1]),
        *(f"{journal} is looked for" for journal in sorted(sought)),
        *(f"{each.name} has rows to send" for each in cluster.slices.values()
          if each.state.is_due(clock)),
        *(f"no credit for {each.name}" for each in cluster.slices.values()
          if any(stream.unsent for stream in each.streams.values())),
    ]  # fmt: skip
    return "; ".join(found)
