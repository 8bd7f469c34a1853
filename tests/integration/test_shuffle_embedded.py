"""A whole shuffle in this process: what producers committed comes out once, through any restart."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock import threads
from penstock.errors import LocalProtocolError
from penstock.frontier import Frontier
from penstock.routing import vnodes_of
from penstock.shuffle.capture import MemberParticipant
from penstock.shuffle.control import SESSION
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.member import Settings
from penstock.shuffle.queue import log as queue_log
from penstock.shuffle.resume import SNAPSHOTS, Epoch, load_record
from penstock.shuffle.session import aborts
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.slice.state import FETCH_BYTES
from penstock.snapshot import SnapshotStore
from penstock.snapshot.participant import DROP_EVERY
from tests.conformance.waiting import eventually
from tests.counting import CountingStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.shuffle.member import Setup
    from penstock.shuffle.resume import Resume

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 120.0
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
                "id BIGINT NOT NULL, region STRING, v BIGINT, text STRING",
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

    def start(self, members: int = 2, **settings: Any) -> None:
        self._shuffle = EmbeddedShuffle(
            self.feed,
            self.store,
            self.root / "shuffle",
            members=members,
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

    def append(self, producer: Any, count: int, **more: Any) -> None:
        rows = self.rows(count, **more)
        producer.append("orders", rows)
        self.committed.update(row["id"] for row in rows)

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

    @property
    def disk_bytes(self) -> int:
        """What the queues of all members take."""
        return sum(path.stat().st_size for path in (self.root / "shuffle").glob("member-*/*"))

    def consume_until_disk_has(self, bytes_max: float, producer: Any) -> None:
        """Room is freed when the consumer is done with an epoch."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.disk_bytes > bytes_max:
            assert time.monotonic() < deadline, f"{self.disk_bytes:,} bytes are held"
            self.append(producer, 5, region="b")
            self.settle()
            assert self.position is not None
            self.shuffle.session.consumed(self.position.number)

    def wait_rows(self, is_enough: Callable[[int], bool]) -> int:
        """How many rows the queues of all members got, which they tell a few times a second."""

        def told() -> list[int]:
            queues = self.shuffle.session.queues
            rows = sum(queue.rows for queue in queues.values())
            return [rows] if len(queues) == len(self.shuffle.members) and is_enough(rows) else []

        (rows,) = eventually(told, "so many rows in the queues", PATIENCE_SECONDS)
        return rows

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
        # Also what is behind the last commit, and rolled back.
        world.wait_rows(lambda _: world.shuffle.session.rows_behind == 0)
        world.shuffle.session.begin_epoch()
        newest = world.shuffle.session.newest.number
        assert world.shuffle.session.wait_epoch(newest, PATIENCE_SECONDS)
        world.stop()
        world.start()
        before = world.shuffle.session.newest.number
        world.outside(producer, 10)
        world.settle()
        world.check()
        rows = world.wait_rows(lambda rows: rows >= 10)
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


@pytest.mark.parametrize("how", ["runs on", "is begun anew", "has other members"])
@pytest.mark.parametrize("what", ["is back", "is another one"])
def test_a_journal_that_was_gone_is_read_on_or_anew(tmp_path: Path, what: str, how: str) -> None:
    """Nothing of it comes twice, nothing is lost, and transactions stay whole."""
    world = World(tmp_path, 5, (Binding("orders"),))
    folder = tmp_path / "journals" / "journals" / "orders" / "region=a+000"
    with world.store.producer() as producer:
        world.start()
        for region in "ab":
            world.append(producer, 30, region=region)
        world.settle()
        folder.rename(tmp_path / "away")
        if how != "runs on":
            world.append(producer, 5, region="b")
            world.settle()
            world.stop()
            world.start(**({"members": 3} if how == "has other members" else {}))
        world.append(producer, 5, region="b")
        world.settle()
        if what == "is back":
            (tmp_path / "away").rename(folder)
        for _ in range(3):
            rows = [*world.rows(5, region="a"), *world.rows(5, region="b")]
            with producer.transaction() as transaction:
                transaction.append("orders", rows)
            world.committed.update(row["id"] for row in rows)
            world.settle()
        world.check()
        world.stop()
        world.start()  # and what the snapshots have of both does not matter
        world.append(producer, 5, region="a")
        world.settle()
        world.check()
        assert not world.shuffle.session.view().awaited
        world.stop()


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is freed when it is sealed: here that takes few epochs."""
    monkeypatch.setattr(queue_log, "SEGMENT_BLOCKS_MAX", 8)


@pytest.mark.usefixtures("short_segments")
def test_an_open_span_of_a_deleted_journal_is_let_go(tmp_path: Path) -> None:
    world = World(tmp_path, 6, (Binding("orders"),))
    name = "orders/region=a/000"

    with world.store.producer() as hanging, world.store.producer() as producer:
        world.start()
        hanging.transaction().append("orders", world.rows(20_000, region="a", text="x" * 100))
        world.store.sync(name, world.store.probe(name).write_head + 1)
        world.append(producer, 5, region="b")
        world.settle()
        world.wait_rows(lambda rows: rows >= 20_005)
        held = world.disk_bytes
        assert held > 2_000_000
        shutil.rmtree(tmp_path / "journals" / "journals" / "orders" / "region=a+000")
        world.consume_until_disk_has(held / 4, producer)
        world.check()
        world.stop()


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("what", ["stays away", "is back", "is another one"])
def test_an_open_span_of_a_journal_that_went_while_all_was_down_is_let_go(
    tmp_path: Path, what: str, commits: bool
) -> None:
    """Whether its producer had committed something there before or not. If the journal is back, the
    span is delivered, once."""
    world = World(tmp_path, 6, (Binding("orders"),))
    folder = tmp_path / "journals" / "journals" / "orders" / "region=a+000"
    with world.store.producer() as hanging, world.store.producer() as producer:
        if commits:
            world.append(hanging, 5, region="a")
        world.start()
        transaction = hanging.transaction()
        span = world.rows(20_000, region="a", text="x" * 100)
        transaction.append("orders", span)
        name = "orders/region=a/000"
        world.store.sync(name, world.store.probe(name).write_head + 1)
        world.append(producer, 5, region="b")
        world.settle()
        world.wait_rows(lambda rows: rows >= 20_005)
        newest = world.shuffle.session.newest.number
        world.shuffle.session.begin_epoch()  # which has all of the span
        assert world.shuffle.session.wait_epoch(newest, PATIENCE_SECONDS)
        world.stop()
        held = world.disk_bytes
        assert held > 2_000_000
        folder.rename(tmp_path / "away")
        if what == "is another one":
            world.append(producer, 5, region="a")
        world.start()
        world.consume_until_disk_has(held / 4, producer)
        if what == "is back":
            (tmp_path / "away").rename(folder)
            world.append(producer, 5, region="a")
            world.settle()
            transaction.commit()
            world.committed.update(row["id"] for row in span)
        world.append(producer, 5, region="b")
        world.settle()
        world.check()
        world.stop()


def test_with_nothing_to_fetch_the_newest_epoch_can_still_be_read(tmp_path: Path) -> None:
    """The queues are lost, and the consumer has all that was in them."""
    world = World(tmp_path, 7)
    with world.store.producer() as producer:
        world.start()
        world.outside(producer, 100)
        world.settle()
        done = world.position
        assert done is not None
        world.shuffle.session.consumed(done.number)
        world.shuffle.session.begin_epoch()
        planned = world.shuffle.session.wait_epoch(done.number, PATIENCE_SECONDS)
        assert planned is not None
        world.stop()
        shutil.rmtree(tmp_path / "shuffle" / "member-1")
        world.start()
        newest = world.shuffle.session.newest
        assert newest.number > planned.number
        for end in (planned, newest):
            for member in world.shuffle.members:
                assert list(world.shuffle.read(member, done, end)) == []
        world.shuffle.session.consumed(planned.number)
        world.outside(producer, 100)
        world.settle()
        world.check()
        world.stop()


@pytest.mark.slow
def test_what_was_lost_is_read_up_to_its_last_commit_and_no_further(tmp_path: Path) -> None:
    world = World(tmp_path, 6)
    lives: list[tuple[bool, CountingStore]] = []

    class Watched(EmbeddedShuffle):
        def _open_parts(self, setup: Setup, resume: Resume) -> None:
            counting = CountingStore(world.store)
            lives.append((setup.recovering, counting))
            self._store = counting  # type: ignore[assignment]
            super()._open_parts(setup, resume)

    def start() -> None:
        shuffle = Watched(world.feed, world.store, tmp_path / "shuffle", epoch_seconds=0.05)
        world._shuffle = shuffle.start()

    with world.store.producer() as producer:
        start()
        world.position = world.shuffle.session.newest
        for region in ("a", "b"):
            world.append(producer, 1_000, region=region)
        world.settle()
        world.shuffle.session.consumed(world.position.number)
        world.append(producer, 300, region="a")
        assert world.shuffle.session.wait_caught_up(PATIENCE_SECONDS)
        world.stop()
        for region in ("a", "b", "c"):
            for _ in range(12):
                world.append(producer, 1_000, region=region, text="x" * 200)
        shutil.rmtree(tmp_path / "shuffle" / "member-2")
        start()
        world.settle()
        world.check()
        world.stop()
    assert [recovering for recovering, _ in lives] == [False, False, True, False], "one in vain"
    _, recovery = lives[2]
    (journal,) = recovery.rows
    assert "region=a" in journal
    assert recovery.rows[journal] >= 300
    assert recovery.bytes_read < 2 * FETCH_BYTES, "of 8 MB that are there"
    _, later = lives[3]
    rows = {name.split("=")[1][0]: rows for name, rows in later.rows.items()}
    assert rows == {"a": 12_000, "b": 12_000, "c": 12_000}, "nothing twice, nothing left out"


@pytest.mark.slow
def test_epochs_are_kept_until_the_consumer_is_done_with_them(tmp_path: Path) -> None:
    """It may come back to any of them, also after a restart. Later ones are kept no longer."""
    world = World(tmp_path, 3)
    world.start()
    session, place = world.shuffle.session, world.shuffle.place
    epochs: list[Epoch] = []

    def more(count: int) -> None:
        with world.store.producer() as producer:
            for _ in range(count):
                world.outside(producer, 1)
                newest = epochs[-1].number if epochs else session.newest.number
                found = session.wait_epoch(newest, PATIENCE_SECONDS, hurry=True)
                assert found is not None
                epochs.append(found)

    more(2 * DROP_EVERY)
    for epoch in epochs:
        assert load_record(place, epoch.number).frontier == epoch.frontier
    done, left = epochs[DROP_EVERY], epochs[DROP_EVERY:]
    session.consumed(done.number)
    more(DROP_EVERY + 1)
    kept = SnapshotStore(place.within(SNAPSHOTS), SESSION).epochs()
    assert kept[0] == done.number
    for epoch in left:
        assert load_record(place, epoch.number).frontier == epoch.frontier
    world.stop()


def test_one_that_runs_is_not_started_again(tmp_path: Path) -> None:
    world = World(tmp_path, 4)
    with (
        EmbeddedShuffle(world.feed, world.store, tmp_path / "shuffle") as shuffle,
        world.store.producer() as producer,
    ):
        with pytest.raises(LocalProtocolError, match="this shuffle runs"):
            shuffle.start()
        world.outside(producer, 1)
        assert shuffle.session.wait_epoch(0, PATIENCE_SECONDS, hurry=True) is not None


def test_an_epoch_is_ready_before_a_busy_consumer_asks_again(tmp_path: Path) -> None:
    world = World(tmp_path, 4)
    shuffle = EmbeddedShuffle(
        world.feed,
        world.store,
        tmp_path / "shuffle",
        members=2,
        epoch_seconds=10 * PATIENCE_SECONDS,
    )
    with shuffle, world.store.producer() as producer:
        session = shuffle.session
        at = session.newest.number
        for _ in range(2):
            world.outside(producer, 1)
            found = session.wait_epoch(at, PATIENCE_SECONDS, hurry=True)
            assert found is not None
            at = found.number
        world.outside(producer, 1)
        # By one who is in no hurry: it waits, and is no reason for an epoch.
        assert session.wait_epoch(at, PATIENCE_SECONDS) is not None


def test_old_documents_of_low_priority_do_not_delay_live_ones(tmp_path: Path) -> None:
    """While a backfill drains, live documents come as soon at its end as at its beginning."""
    old, at_once = 4_000_000, 50_000
    store = ps.open_store(f"file://{tmp_path}/journals")
    for name in ("history", "live"):
        store.create(ps.Collection.define(name, "id BIGINT NOT NULL, v STRING", key="id"))
    feed = Feed("backfill", (Binding("history"), Binding("live", priority=1)))
    texts = pa.array(["x" * 20] * at_once)
    came = 0
    """Of the old ones."""
    written: dict[int, int] = {}
    """Of each live document that is under way: how many old ones had come when it was written."""
    lags: list[tuple[int, int]] = []
    """Of each that came: how many old ones had come by then, and how many of them meanwhile. That
    is the same on a busy machine, where seconds are not."""

    def write_live(producer: Any, number: int) -> None:
        written[number] = came
        producer.append("live", [{"id": number, "v": "now"}])

    with store.producer() as historian:
        for first in range(0, old, at_once):
            historian.append("history", pa.table({"id": range(first, first + at_once), "v": texts}))
    # The clocks of one that writes millions a second are ahead of the time.
    with store.producer() as producer:
        write_live(producer, 0)  # or the journal is found by a later listing
        with EmbeddedShuffle(feed, store, tmp_path / "shuffle", epoch_seconds=0.05) as shuffle:
            deadline = time.monotonic() + PATIENCE_SECONDS
            position, number = shuffle.session.newest, 0
            while came < old:
                assert time.monotonic() < deadline
                number += 1
                write_live(producer, number)
                newest = shuffle.session.wait_epoch(position.number, 0.02, hurry=True)
                if newest is None:
                    continue
                live: list[int] = []
                for member in shuffle.members:
                    for found in shuffle.read(member, position, newest):
                        if found.stage.binding == 0:
                            came += found.batch.num_rows
                        else:
                            live += found.batch.column("id").to_pylist()  # type: ignore[arg-type]
                lags += [(came, came - written.pop(one)) for one in live]
                shuffle.session.consumed(newest.number)
                position = newest
    during = [meanwhile for passed, meanwhile in lags if passed < old]
    assert len(during) >= 6, "they come long before all old ones"
    early, late = during[: len(during) // 2], during[len(during) // 2 :]
    assert statistics.median(late) < 2 * statistics.median(early) + old / 20, "it does not grow"


def test_epochs_that_are_all_aborted_end_the_session_with_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one that is aborted now and then."""
    monkeypatch.setattr(aborts, "ABORTED_SECONDS_MIN", 0.0)
    world = World(tmp_path, 1)
    prepare, failing = MemberParticipant.prepare, [2]

    def fails(self: MemberParticipant, epoch: int) -> None:
        if failing[0]:
            failing[0] -= 1
            raise OSError(5, "the disk is gone")
        prepare(self, epoch)

    monkeypatch.setattr(MemberParticipant, "prepare", fails)
    world.start()
    try:
        with world.store.producer() as producer:
            world.outside(producer, 10)
            assert world.shuffle.session.wait_caught_up(PATIENCE_SECONDS), "after two aborts"
            failing[0] = 10**6
            world.outside(producer, 10)
            with pytest.raises(MemberLostError, match=r"aborted.*the disk is gone"):
                world.shuffle.session.wait_caught_up(PATIENCE_SECONDS)
        assert world.shuffle.session.failed.is_set()
    finally:
        world.stop()


def test_a_thread_that_nobody_owns_and_that_ended_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, although members and Session of this process tell of it."""
    monkeypatch.setattr(threads, "_ended", deque(maxlen=5))
    world = World(tmp_path, 1)
    world.start()
    try:
        ended = threads.supervised("test", lambda: 1 // 0)  # type: ignore[arg-type]
        ended.start()
        ended.join()

        def shown() -> list[str]:
            waits = world.shuffle.watch.state().waits
            return [wait.text for wait in waits if wait.kind == "thread_ended"]

        eventually(lambda: world.shuffle.session.statuses, "that members are heard")
        (text,) = eventually(shown, "that it is shown")
        assert "'penstock test'" in text
        assert "ZeroDivisionError" in text
    finally:
        world.stop()
