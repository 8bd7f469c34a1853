"""A shuffle that is stopped at M members and started at N: nothing lost, nothing repeated, and no
more vnodes moved than must be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.routing import VNODES
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.plan import make_plan
from penstock.shuffle.serving import open_queue
from penstock.shuffle.verify import Delivered, verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal import OpenStore
    from penstock.shuffle.resume import Epoch

FEED = Feed("orders", (Binding("orders"),))
WAIT_SECONDS_MAX = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with ps.open_store(tmp_path / "store", durability="buffered") as opened:
        opened.create(ps.Collection.define("orders", "id BIGINT NOT NULL", "id"))
        yield opened


class Consumer:
    """Keeps its place, as Spark does, and is told of it by number alone."""

    def __init__(self, store: OpenStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self.position = 0
        """What it has processed."""
        self.owners: tuple[int, ...] = ()

    def run(self, members: int, *, done: bool = True) -> None:
        """Reads what is there, verified. Unless it is `done`, it dies before it says that it has
        processed what it read, and will ask for it again."""
        shuffle = EmbeddedShuffle(FEED, self._store, self._folder, members=members)
        outlet = Outlet(shuffle, self._store, FEED)
        outlet.set_target()
        start = end = outlet.epoch(self.position)
        while not outlet.has_reached(end):
            found = outlet.wait_epoch(end.number, WAIT_SECONDS_MAX)
            assert found is not None
            end = found
        self._check(outlet, shuffle, start, end)
        self.owners = shuffle.assignment.owners
        if done:
            self.position = end.number
            outlet.consumed(end.number)
        outlet.close()

    def _check(self, outlet: Outlet, shuffle: EmbeddedShuffle, start: Epoch, end: Epoch) -> None:
        delivered = Delivered()
        for share in outlet.shares():
            reader = open_queue(Path(share.folder), share.generation)
            for found in reader.read(start.frontier, end.frontier, share.lsn):
                delivered.add(share.member, found)
                vnodes: list[Any] = found.batch.column("_vnode").to_pylist()
                assert set(vnodes) <= set(share.vnodes), "splits would lose them"
            reader.close()
        found_equal = verify(
            self._store,
            make_plan(FEED, self._store),
            shuffle.assignment,
            delivered,
            start=start.frontier,
            end=end.frontier,
        )
        assert found_equal.differences == ()
        assert found_equal.documents


def _write(store: OpenStore, begin: int, count: int = 500) -> None:
    """Some alone and twice, some in a transaction, some rolled back."""
    with store.producer() as producer:
        stamped = producer.stamp("orders", [{"id": begin + one} for one in range(count)])
        producer.send(stamped)
        producer.send(stamped)
        with producer.transaction() as transaction:
            transaction.append("orders", [{"id": begin + one} for one in range(count, 2 * count)])
        transaction = producer.transaction()
        transaction.append("orders", [{"id": -1}])
        transaction.rollback()


@pytest.mark.slow
def test_members_come_and_go_between_runs(store: OpenStore, tmp_path: Path) -> None:
    consumer = Consumer(store, tmp_path / "feed")
    _write(store, 0)
    consumer.run(2)
    two = consumer.owners
    _write(store, 10_000)
    consumer.run(2, done=False)  # what is in these queues is asked for again, of others
    consumer.run(3)
    three = consumer.owners
    assert sum(one != other for one, other in zip(two, three, strict=True)) == VNODES // 3
    _write(store, 20_000)
    consumer.run(3)
    assert consumer.owners == three
    _write(store, 30_000)
    consumer.run(1)
    assert set(consumer.owners) == {1}
    queues = {path.name for path in (tmp_path / "feed").glob("member-*")}
    assert queues == {"member-1"}, "nobody needs the others"


@pytest.mark.slow
def test_there_and_back_without_an_epoch_between(store: OpenStore, tmp_path: Path) -> None:
    """The members are those of the newest epoch again, but not the assignment: its queues are of no
    use. A start with one that comes to nothing leaves such a record."""
    consumer = Consumer(store, tmp_path / "feed")
    _write(store, 0)
    consumer.run(2, done=False)
    before = consumer.owners
    died = EmbeddedShuffle(FEED, store, tmp_path / "feed", members=1)
    died._rebuild = lambda: None  # type: ignore[method-assign]
    died.start()
    died.close()
    consumer.run(2)
    assert consumer.owners != before
