"""A whole shuffle in this process: what producers committed comes out once, through any restart."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.frontier import Frontier
from penstock.routing import vnodes_of
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.member import Settings
from penstock.shuffle.resume import Epoch

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_SECONDS = 60.0
REGIONS = "abcdef"


class World:
    """Two collections that a producer writes to, and a consumer of what the shuffle delivers."""

    def __init__(self, root: Path, seed: int, bindings: tuple[Binding, ...] | None = None) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.store = ps.open_store(f"file://{root}/journals")
        self.store.create(
            ps.Collection.define(
                "orders",
                "id BIGINT NOT NULL, region STRING, v BIGINT",
                key="id",
                partition_by="region",
            )
        )
        self.store.create(
            ps.Collection.define("payments", "id BIGINT NOT NULL, v BIGINT", key="id")
        )
        self.feed = Feed("test", bindings or (Binding("orders"), Binding("payments")))
        self.committed: Counter[int] = Counter()
        self.got: Counter[int] = Counter()
        self.owners: dict[int, set[int]] = {}
        self._count = 0
        self._shuffle: EmbeddedShuffle | None = None
        self.position: Epoch | None = None

    @property
    def shuffle(self) -> EmbeddedShuffle:
        assert self._shuffle is not None
        return self._shuffle

    def start(self, **settings: Any) -> None:
        self._shuffle = EmbeddedShuffle(
            self.feed,
            self.store,
            self.root / "shuffle",
            members=2,
            epoch_seconds=0.05,
            settings=Settings(**settings),
        ).start()
        if self.position is None:
            self.position = self._shuffle.session.newest

    def stop(self) -> None:
        self.shuffle.close()

    def rows(self, count: int, **more: Any) -> list[dict[str, Any]]:
        first, self._count = self._count, self._count + count
        return [{"id": number, "v": 7 * number, **more} for number in range(first, first + count)]

    def outside(self, producer: Any, count: int) -> None:
        rows = self.rows(count, region=self.random.choice(REGIONS))
        producer.append("orders", rows)
        self.committed.update(row["id"] for row in rows)

    def transaction(self, producer: Any, count: int, *, fails: bool = False) -> None:
        written = []
        try:
            with producer.transaction() as txn:
                for _ in range(self.random.randint(1, 3)):
                    if self.random.random() < 0.5:
                        rows = self.rows(count, region=self.random.choice(REGIONS))
                        txn.append("orders", rows)
                    else:
                        rows = self.rows(count)
                        txn.append("payments", rows)
                    written += rows
                if fails:
                    raise InterruptedError
        except InterruptedError:
            return
        self.committed.update(row["id"] for row in written)

    def write(self, producer: Any) -> None:
        for _ in range(self.random.randint(1, 6)):
            kind = self.random.random()
            if kind < 0.4:
                self.outside(producer, self.random.randint(1, 200))
            else:
                self.transaction(producer, self.random.randint(1, 100), fails=kind > 0.9)

    def consume(self) -> None:
        """Everything up to the newest epoch."""
        assert self.position is not None
        newest = self.shuffle.session.newest
        if newest.number <= self.position.number:
            return
        for member in self.shuffle.members:
            for found in self.shuffle.read(member, self.position, newest):
                ids: list[int] = found.batch.column("id").to_pylist()  # type: ignore[assignment]
                self.got.update(ids)
                for number in ids:
                    self.owners.setdefault(number, set()).add(member)
        self.position = newest

    def settle(self) -> None:
        """Waits for everything that was written, and consumes it."""
        assert self.shuffle.session.wait_caught_up(PATIENCE_SECONDS), self.shuffle.session.statuses
        self.consume()

    def check(self) -> None:
        assert self.got == self.committed
        ids = sorted(self.owners)
        assert all(len(self.owners[number]) == 1 for number in ids), "a key is at one member"


@pytest.mark.parametrize("seed", range(6))
def test_what_was_committed_comes_out_once(tmp_path: Path, seed: int) -> None:
    """Restarts with the disks intact, with one of them lost, in the middle of everything."""
    priority = seed % 2
    world = World(tmp_path, seed, (Binding("orders"), Binding("payments", priority=priority)))
    with world.store.producer() as producer:
        world.start()
        for _ in range(6):
            world.write(producer)
            if world.random.random() < 0.5:
                world.consume()
            if world.random.random() < 0.5 and world.position is not None:
                world.shuffle.session.consumed(world.position.number)
            kind = world.random.random()
            if kind < 0.5:
                world.stop()
                if kind < 0.2:
                    shutil.rmtree(tmp_path / "shuffle" / f"member-{world.random.randint(1, 2)}")
                world.write(producer)
                world.start()
            if world.random.random() < 0.3:
                world.settle()
        world.settle()
        world.check()
        world.stop()


def test_nothing_that_is_queued_is_read_again(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    with world.store.producer() as producer:
        for _ in range(5):
            world.write(producer)
        world.start()
        world.settle()
        world.stop()
        world.start()
        before = world.shuffle.session.newest.number
        world.outside(producer, 10)
        world.settle()
        world.check()
        rows = sum(figures["rows"] for figures in world.shuffle.session.statuses.values())
        assert rows == 10, "written by this session"
        assert world.shuffle.session.newest.number > before
        world.stop()


def test_keys_are_at_the_members_that_own_their_vnodes(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    with world.store.producer() as producer:
        world.outside(producer, 500)
        world.start()
        world.settle()
        newest = world.shuffle.session.newest
        owners = world.shuffle.assignment.owners_array
        for member in world.shuffle.members:
            for found in world.shuffle.read(member, Epoch(0, Frontier.of()), newest):
                vnodes = vnodes_of([found.batch.column("id")])
                assert (found.batch.column("_vnode").to_numpy() == vnodes).all()
                assert (owners[vnodes] == member).all()
        world.stop()


def test_an_open_transaction_holds_nothing_else_up(tmp_path: Path) -> None:
    """And is delivered once it is committed, from before and after a restart."""
    world = World(tmp_path, 3)
    with world.store.producer() as slow, world.store.producer() as producer:
        world.start()
        txn = slow.transaction()
        early = world.rows(20, region="a")
        txn.append("orders", early)
        world.outside(producer, 50)
        world.settle()
        world.check()
        world.stop()
        world.start()
        late = world.rows(20)
        txn.append("payments", late)
        world.outside(producer, 50)
        world.settle()
        world.check()
        txn.commit()
        world.committed.update(row["id"] for row in (*early, *late))
        world.settle()
        world.check()
        world.stop()


def test_a_small_disk_budget_slows_and_does_not_stop(tmp_path: Path) -> None:
    """One transaction is larger than the budget: no consumer could make room for it."""
    world = World(tmp_path, 4)
    with world.store.producer() as producer:
        world.start(disk_budget_bytes=20_000)
        with producer.transaction() as txn:
            for _ in range(10):
                rows = world.rows(500, region=world.random.choice(REGIONS))
                txn.append("orders", rows)
                world.committed.update(row["id"] for row in rows)
        for _ in range(50):
            if world.shuffle.session.wait_caught_up(0.2):
                break
            world.consume()
            assert world.position is not None
            world.shuffle.session.consumed(world.position.number)
        world.settle()
        world.check()
        world.stop()


def test_journals_that_appear_later_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, 5)
    with world.store.producer() as producer:
        world.start()
        world.settle()
        for region in ("late", "later"):
            rows = world.rows(30, region=region)
            producer.append("orders", rows)
            world.committed.update(row["id"] for row in rows)
            world.settle()
            world.check()
        world.stop()
