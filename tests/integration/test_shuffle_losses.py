"""What a shuffle makes of journals that lose rows, or are deleted."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.cli.shuffle_run import Position, Run
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.resume import NOTHING
from penstock.shuffle.session.lost import RowsLostError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore
    from penstock.shuffle.resume import Epoch

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 120.0
"""A failure that is noticed at once: far below the patience of anybody, on the slowest machine."""
FEED = Feed("losses", (Binding("orders"),))


class World:
    """A collection, whose journals are its regions, and a consumer."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: OpenStore = ps.open_store(f"file://{root}/journals")
        columns = "id BIGINT NOT NULL, region STRING"
        self.store.create(ps.Collection.define("orders", columns, key="id", partition_by="region"))
        self.position: Epoch = NOTHING
        self.got: Counter[int] = Counter()
        self._count = 0

    def rows(self, region: str, count: int = 1) -> list[dict[str, Any]]:
        first, self._count = self._count, self._count + count
        return [{"id": number, "region": region} for number in range(first, first + count)]

    def made(self, folder: str = "shuffle") -> EmbeddedShuffle:
        return EmbeddedShuffle(FEED, self.store, self.root / folder, epoch_seconds=0.05)

    def journal(self, region: str) -> str:
        return f"orders/region={region}/000"

    def delete(self, region: str) -> None:
        shutil.rmtree(self.root / "journals" / "journals" / "orders" / f"region={region}+000")

    def lose_queue(self) -> None:
        shutil.rmtree(self.root / "shuffle" / "member-1")

    def consume(self, shuffle: EmbeddedShuffle) -> Counter[int]:
        """All that is in the journals now, and what of it is new to the consumer."""
        assert shuffle.session.wait_caught_up(PATIENCE_SECONDS)
        newest, got = shuffle.session.newest, Counter[int]()
        for member in shuffle.members:
            for found in shuffle.read(member, self.position, newest):
                got.update(found.batch.column("id").to_pylist())  # type: ignore[arg-type]
        self.position = newest
        self.got += got
        return got


def ids(*rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["id"] for each in rows for row in each)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _promise(world: World, producer: Any) -> Counter[int]:
    """An epoch that the consumer is done with, and one that it has not read yet."""
    with world.made() as shuffle:
        for region in "abc":
            producer.append("orders", world.rows(region, 50))
        world.consume(shuffle)
        shuffle.session.consumed(world.position.number)
        producer.append("orders", promised := world.rows("a", 10))
        assert shuffle.session.wait_caught_up(PATIENCE_SECONDS)
    return ids(promised)


def _drop(world: World) -> None:
    world.store.suspend(world.journal("a"))


def _delete(world: World) -> None:
    world.delete("a")


def _replace(world: World) -> None:
    world.delete("a")
    with world.store.producer() as other:
        other.append("orders", world.rows("a", 3))


@pytest.mark.parametrize(
    ("lose", "what"),
    [
        (_drop, "rows 50 to 59 were dropped"),
        (_delete, "the journal is not there any more"),
        (_replace, "the journal was deleted, and another one was made under its name"),
    ],
)
def test_a_recovery_of_what_is_gone_fails_at_once_and_says_what(
    world: World, lose: Any, what: str
) -> None:
    with world.store.producer() as producer:
        _promise(world, producer)
        world.lose_queue()
        lose(world)
        shuffle = world.made()
        for _ in range(2):
            with pytest.raises(RowsLostError) as found:
                shuffle.start()
            for part in ("'losses'", world.journal("a"), str(producer.id), what, "new checkpoint"):
                assert part in str(found.value)
        # Whoever runs it does not try again and again.
        position = Position({}, world.root / "shuffle", world.position)
        run = Run(shuffle, world.store, position, _Silent())
        with pytest.raises(RowsLostError):
            run.run()
        assert run.restarts == 0

        # The way on: another folder, and all that the journals still hold.
        world.position = NOTHING
        kept = Counter(
            number
            for journal in world.store.journals("orders")
            for batch in world.store.read(journal.name, world.store.probe(journal.name).first_kept)
            for number in batch.documents.column("id").to_pylist()
        )
        with world.made("anew") as anew:
            assert world.consume(anew) == kept
            producer.append("orders", more := world.rows("b"))
            assert world.consume(anew) == ids(more)


class _Silent:
    def say(self, text: str) -> None:
        pass

    def show(self, run: Run) -> None:
        pass


def test_what_is_there_is_recovered_whatever_else_is_gone(world: World) -> None:
    """Rows that the consumer has, and journals that nothing was promised of."""
    with world.store.producer() as producer:
        promised = _promise(world, producer)
        world.lose_queue()
        world.delete("b")
        world.store.suspend(world.journal("c"))
        with world.made() as shuffle:
            assert world.consume(shuffle) == promised


def test_a_journal_that_loses_rows_with_a_transaction_in_them_goes_on(world: World) -> None:
    with world.store.producer() as producer, world.store.producer() as other:
        with world.made() as shuffle, producer.transaction() as txn:
            txn.append("orders", world.rows("a", 5))
            other.append("orders", first := world.rows("a"))
            assert world.consume(shuffle) == ids(first), "the five are read, and their span is open"
            shuffle.close()
            txn.append("orders", kept := world.rows("b", 5))
        # The end of the transaction in one of its journals is dropped before it is read.
        world.store.suspend(world.journal("a"))
        producer.append("orders", last := world.rows("a"))
        with world.made() as shuffle:
            assert world.consume(shuffle) == ids(kept, last)
            assert shuffle.session._state.waiting == ()


def test_a_suspended_journal_holds_nobody_up(world: World) -> None:
    with world.store.producer() as producer:
        with producer.transaction() as txn:
            txn.append("orders", world.rows("a", 5))
            txn.append("orders", kept := world.rows("b", 5))
        world.store.suspend(world.journal("a"))
        with world.made() as shuffle:
            assert world.consume(shuffle) == ids(kept)


@pytest.mark.parametrize("running", [False, True])
def test_a_deleted_journal_that_a_transaction_names_holds_nobody_up(
    world: World, running: bool
) -> None:
    with world.store.producer() as producer:
        shuffle = world.made()
        expected = Counter[int]()
        if running:
            shuffle.start()
            for region in "ab":
                producer.append("orders", rows := world.rows(region))
                expected += ids(rows)
            assert world.consume(shuffle) == expected
        with producer.transaction() as txn:
            txn.append("orders", gone := world.rows("a", 5))
            txn.append("orders", kept := world.rows("b", 5))
        world.delete("a")
        if not running:
            shuffle.start()
        with contextlib.closing(shuffle):
            producer.append("orders", more := world.rows("b"))
            got = world.consume(shuffle)
            assert got - ids(gone) == ids(kept, more)
            assert not got & ids(gone) or running, "some of it may have been read before"
