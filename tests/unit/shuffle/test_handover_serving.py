"""Vnodes that come from another machine are those that come from the disk, or none do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.errors import PeerUnavailableError
from penstock.frontier import Frontier
from penstock.routing import assign
from penstock.shuffle import handover_serving
from penstock.shuffle.control import SESSION
from penstock.shuffle.handover import Handover, Left, source_of
from penstock.shuffle.handover_serving import FarQueues, HandoverServer
from penstock.shuffle.marks import BEGINNING
from penstock.shuffle.plan import Plan
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.events import QueueState, StreamState
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.segment import list_segments, segment_path
from penstock.shuffle.queue.snapshot import encode_state
from penstock.shuffle.resume import SNAPSHOTS, Epoch, SessionRecord
from penstock.snapshot import Captured, SnapshotStore
from penstock.storage import Storage
from penstock.transport.security import ClusterSecurity
from tests.unit.shuffle.queue.queues import Row, append, frontier, producer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST = (0, "orders/000", producer(1))
OTHER = (1, "payments/000", producer(2))
TOKEN = "a read token of one session"
EPOCH, GIVER, SERVER, TAKER = 4, 1, 2, 3
CONSUMED = frontier({FIRST: 250})
VNODES = list(range(0, 256, 3))


class Cluster:
    """Two machines: a queue on one, and who takes it over on the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "member-1"
        with QueueLog.open(self.folder, 0) as log:
            for first in range(1, 1_000, 100):
                clocks = range(first, first + 99)
                rows = [Row(*FIRST, clock, clock, 1 + clock % 2) for clock in clocks]
                append(log, [*rows, Row(*OTHER, first, 3 * first)])
            state = QueueState(log.sync(), {}, (StreamState(BEGINNING, 0, {}, ()),))
            generation = log.generation
        place = Storage.open(folder / "cluster")
        attributes = {"generation": f"{generation:x}"}
        _save(place, GIVER, Captured({"queue": encode_state(state)}, attributes))
        _save(place, SESSION, SessionRecord(consumed=Epoch(2, CONSUMED)).captured())
        self.left = Left(place, EPOCH, Plan("test", (), (0,)))
        before = assign([GIVER])
        self.handover = Handover(before, {GIVER: str(self.folder)})
        self.security = ClusterSecurity.create("test")
        self.slots = MemoryKeyValue(SERVER)
        self.server = HandoverServer(
            self.left, self.handover, self.security.member_security(SERVER), "127.0.0.1", TOKEN
        )

    def far(self, token: str = TOKEN) -> FarQueues:
        return FarQueues(self.slots.view(TAKER), self.security.member_security(TAKER), token)


def _save(place: Storage, member: int, captured: Captured) -> None:
    store = SnapshotStore(place.within(SNAPSHOTS), member)
    with store.begin(EPOCH, EPOCH) as writer:
        for name, data in captured.parts.items():
            writer.add(name, data)
        writer.finish(captured.attributes)
    store.commit(EPOCH)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.server.close()


def test_the_same_comes_as_from_the_disk(cluster: Cluster) -> None:
    cluster.server.announce(cluster.slots)
    source = source_of(cluster.left, cluster.handover, GIVER)
    near = list(source.alive(CONSUMED, VNODES))
    far = list(cluster.far().source(GIVER).alive(Frontier.of(), VNODES))
    assert len(near) == len(far) > 10
    blocks = {one: index for index, one in enumerate(dict.fromkeys(index for index, _ in near))}
    for (index, one), (number, other) in zip(near, far, strict=True):
        assert blocks[index] == number - 1
        assert (one.stage, one.batch, one.places.tolist()) == (
            other.stage,
            other.batch,
            other.places.tolist(),
        )
        assert other.names.items() <= one.names.items()
        assert set(one.batch.column("_vnode").to_pylist()) <= set(VNODES)


def test_a_damaged_queue_is_lost(cluster: Cluster) -> None:
    cluster.server.announce(cluster.slots)
    path = segment_path(cluster.folder, list_segments(cluster.folder)[0])
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(QueueLostError, match="damaged"):
        list(cluster.far().source(GIVER).alive(Frontier.of(), VNODES))


def test_who_serves_it_may_come_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is lost: all begin anew, and it is handed over once more."""
    monkeypatch.setattr(handover_serving, "FIND_SECONDS_MAX", 0.05)
    with pytest.raises(PeerUnavailableError, match="nobody serves"):
        cluster.far().source(GIVER)
    cluster.server.announce(cluster.slots)
    with pytest.raises(PeerUnavailableError, match="nobody serves"):
        cluster.far().source(GIVER + 1)
    cluster.server.close()
    with pytest.raises(PeerUnavailableError, match="gone"):
        list(cluster.far().source(GIVER).alive(Frontier.of(), VNODES))


def test_who_has_no_token_gets_nothing(cluster: Cluster) -> None:
    cluster.server.announce(cluster.slots)
    with pytest.raises(QueueLostError, match="read token"):
        list(cluster.far("x" * len(TOKEN)).source(GIVER).alive(Frontier.of(), VNODES))
