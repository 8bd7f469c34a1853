"""Vnodes change hands, as `penstock.shuffle.handover` has it, on disks that are models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.shuffle.queue.events import QueueState
from penstock.shuffle.queue.handover import settle
from penstock.shuffle.slice.handover import inherit

if TYPE_CHECKING:
    from penstock.shuffle.session.topology import Topology
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from tests.simulation_shuffle.cluster import Cluster
    from tests.simulation_shuffle.leader import Committed


def hand_over(cluster: Cluster, newest: Committed) -> dict[int, QueueState]:
    """Opens all disks. Each may end in a crash."""
    before, after = newest.assignment, cluster.setting.assignment
    plan = cluster.setting.plan
    lanes = [lane for lane in range(len(plan.lanes)) for _ in before.members]
    delays = {binding.place: binding.delay for binding in plan.bindings}
    settled = {member: settle(state, lanes, delays) for member, state in newest.queues.items()}
    states = {}
    for member, disk in cluster.disks.items():
        if member in newest.queues:
            disk.open(newest.queues[member].lsn, newest.generations[member])
            cluster.step("opened")
            for parcels, order in settled[member].blocks:
                disk.append(parcels, order, settled[member].names)
            cluster.step("settled")
            given = {one for one in before.vnodes_of(member) if after.owner_of(one) != member}
            if given:
                disk.give(given)
            cluster.step("gave")
        else:
            disk.open(0, None)
        for giver, state in newest.queues.items():
            vnodes = {one for one in before.vnodes_of(giver) if after.owner_of(one) == member}
            if giver != member and vnodes:
                source = cluster.all_disks[giver]
                source.check(state.lsn, newest.generations[giver])
                disk.take(
                    source, state.lsn, settled[giver], newest.record.consumed.frontier, vnodes
                )
        cluster.step("took")
        disk.sync_to(disk.last_lsn)
        states[member] = QueueState(disk.last_lsn, {}, ())
    cluster.world.counts["handovers"] += 1
    return states


def inherited(newest: Committed, member: int, lane: int, topology: Topology) -> SliceSnapshot:
    snapshots = [one for (_, of_lane), one in sorted(newest.slices.items()) if of_lane == lane]
    return inherit(
        snapshots,
        newest.record.frontier,
        lambda journal, binding: topology.reader(binding, journal) == member,
    )
