"""A shuffle that is stopped at M members and started at N: nothing lost, nothing repeated, nothing
read again that was queued, and no more rows moved than those of vnodes that change hands."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock as ps
from penstock.frontier import Frontier
from penstock.routing import VNODES
from penstock.shuffle import handover
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.handover import Left, Step, _slice
from penstock.shuffle.member import Settings
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.parcels import OFFSET, READ, VNODE
from penstock.shuffle.plan import make_plan
from penstock.shuffle.processes import ProcessShuffle
from penstock.shuffle.queue.catalogue import Catalogue
from penstock.shuffle.queue.visible import Window
from penstock.shuffle.resume import SNAPSHOTS, find_resume
from penstock.shuffle.serving import open_queue
from penstock.shuffle.session import actor
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.verify import Delivered, verify
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage
from tests.counting import CountingStore
from tests.integration.rescale_program import FEED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal import OpenStore
    from penstock.shuffle.member import Setup
    from penstock.shuffle.resume import Epoch, Resume
    from penstock.shuffle.running import Shuffle

pytestmark = pytest.mark.slow

WAIT_SECONDS_MAX = 120.0
PROGRAM = Path(__file__).with_name("rescale_program.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with ps.open_store(tmp_path / "store", durability="buffered") as opened:
        schema = "id BIGINT NOT NULL, region STRING"
        opened.create(ps.Collection.define("orders", schema, "id", partition_by="region"))
        opened.create(ps.Collection.define("payments", schema, "id", partition_by="region"))
        opened.create(ps.Collection.define("audits", schema, "id"))
        yield opened


@pytest.fixture
def consumer(store: OpenStore, tmp_path: Path) -> Consumer:
    return Consumer(store, tmp_path / "feed")


class WatchedShuffle(EmbeddedShuffle):
    """One that knows what each of its sessions began with, and read."""

    sessions: list[tuple[Setup, CountingStore, dict[str, int]]]

    def _open_parts(self, setup: Setup, resume: Resume) -> None:
        if not hasattr(self, "sessions"):
            self.sessions, self.read_from = [], self._store
        store = CountingStore(self.read_from)
        self._store = store  # type: ignore[assignment]
        self.sessions.append((setup, store, self._reached(setup)))
        super()._open_parts(setup, resume)

    def _reached(self, setup: Setup) -> dict[str, int]:
        """How far the journals were read in the epoch that a session goes on from."""
        if setup.epoch is None or not setup.epoch:
            return {}
        assignment = setup.assignment if setup.handover is None else setup.handover.before
        left = Left(self._place, setup.epoch, make_plan(FEED, self._store))
        return {
            read.journal: read.offset
            for member in assignment.members
            for lane in left.lanes
            for read in _slice(left.snapshot(member), lane).reads
        }

    def check_reads(self) -> None:
        for _, store, reached in self.sessions:
            for journal, begin in store.begins.items():
                assert begin >= reached.get(journal, 0), f"{journal} was read again"


class Consumer:
    """Keeps its place, as Spark does, and is told of it by number alone."""

    def __init__(self, store: OpenStore, folder: Path) -> None:
        self._store = store
        self.folder = folder
        self.position = 0
        """What it has processed."""
        self.owners: tuple[int, ...] = ()
        self.rows_read: Counter[str] = Counter()
        """Of each journal, over all runs."""
        self.sessions: list[Setup] = []
        """Of the last run."""

    def run(self, members: int, *, done: bool = True) -> None:
        """Reads what is there, verified. Unless it is `done`, it dies before it says that it has
        processed what it read, and will ask for it again."""
        shuffle = self.shuffle(members)
        self.run_with(shuffle, done=done)
        shuffle.check_reads()
        self.sessions = [setup for setup, _, _ in shuffle.sessions]
        for _, counting, _ in shuffle.sessions:
            self.rows_read.update(counting.rows)

    def run_with(self, shuffle: Shuffle, *, done: bool = True) -> None:
        outlet = Outlet(shuffle, self._store, FEED)
        outlet.set_target()
        start = end = outlet.epoch(self.position)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not outlet.has_reached(end):  # which it may have, as soon as that is known
            assert time.monotonic() < deadline
            end = outlet.wait_epoch(end.number, 0.1) or end
        # Now the next epoch has everything, also of transactions that are open.
        assert shuffle.session.wait_caught_up(WAIT_SECONDS_MAX)
        shuffle.session.begin_epoch()
        assert shuffle.session.wait_epoch(shuffle.session.newest.number, WAIT_SECONDS_MAX)
        self._check(outlet, shuffle, start, end)
        self.owners = shuffle.assignment.owners
        if done:
            self.position = end.number
            outlet.consumed(end.number)
        outlet.close()

    def shuffle(self, members: int, **settings: Any) -> WatchedShuffle:
        return WatchedShuffle(
            FEED,
            self._store,
            self.folder,
            members=members,
            epoch_seconds=0.05,
            settings=Settings(**settings),
        )

    def lsn(self, member: int) -> int:
        """Of a member's queue in the newest epoch."""
        place = Storage.open(self.folder / "cluster")
        snapshots = SnapshotStore(place.within(SNAPSHOTS), member)
        attributes: Any = snapshots.load(find_resume(place).newest.number).attributes
        return int(attributes["lsn"])

    @property
    def handed_over(self) -> bool:
        """Whether the last run began with a handover, and with nothing else."""
        return [(one.epoch is None, one.handover is None) for one in self.sessions] == [
            (False, False)
        ]

    def _check(self, outlet: Outlet, shuffle: Shuffle, start: Epoch, end: Epoch) -> None:
        delivered = Delivered()
        for share in outlet.shares():
            reader = open_queue(Path(share.folder), share.generation)
            order: dict[tuple[tuple[int, str], int], int] = {}
            for found in reader.read(start.frontier, end.frontier, share.lsn):
                delivered.add(share.member, found)
                columns = (found.batch.column(name).to_pylist() for name in (READ, VNODE, OFFSET))
                for read, vnode, offset in zip(*columns, strict=True):
                    assert vnode in share.vnodes, "splits would lose it"
                    key = found.names[read], vnode
                    assert offset > order.get(key, -1), "rows of a key are in order"
                    order[key] = offset
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


class Writer:
    """Some alone and twice, some in transactions over several journals, some rolled back, and some
    that stay open for long."""

    def __init__(self, store: OpenStore, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.producers = [store.producer() for _ in range(3)]
        self.open: dict[int, Any] = {}
        self.count = 0

    def rows(self, count: int) -> list[dict[str, Any]]:
        first, self.count = self.count, self.count + count
        region = self.random.choice("abcd")
        return [{"id": number, "region": region} for number in range(first, first + count)]

    def write(self, count: int = 300) -> None:
        quick = self.producers[0]
        for _ in range(4):
            stamped = quick.stamp("orders", self.rows(count))
            quick.send(stamped)
            quick.send(stamped)
            quick.append("audits", self.rows(count))
        for fails in (False, True, False):
            transaction = quick.transaction()
            self._append(transaction, count)
            transaction.rollback() if fails else transaction.commit()
        for place in (1, 2):
            if place not in self.open:
                self.open[place] = self.producers[place].transaction()
            self._append(self.open[place], count)

    def end_some(self) -> None:
        for place in list(self.open):
            if self.random.random() < 0.6:
                self.end(place, commits=self.random.random() < 0.5)

    def end(self, place: int, *, commits: bool) -> None:
        transaction = self.open.pop(place)
        transaction.commit() if commits else transaction.rollback()

    def _append(self, transaction: Any, count: int) -> None:
        for collection in ("orders", "payments", "audits"):
            transaction.append(collection, self.rows(count))

    def close(self) -> None:
        for place in list(self.open):
            self.end(place, commits=True)
        for producer in self.producers:
            producer.close()


@pytest.fixture
def writer(store: OpenStore) -> Iterator[Writer]:
    made = Writer(store)
    yield made
    made.close()


def heads(store: OpenStore) -> dict[str, int]:
    return {
        journal.name: store.probe(journal.name).write_head
        for collection in ("orders", "payments", "audits")
        for journal in store.journals(collection)
    }


def test_members_come_and_go_between_runs(
    store: OpenStore, consumer: Consumer, writer: Writer
) -> None:
    """With transactions that are open over all of it. Every row of a journal is read once."""
    writer.write()
    consumer.run(2)
    two = consumer.owners
    writer.write()
    consumer.run(2, done=False)  # what is in these queues is asked for again, of others
    writer.end(1, commits=True)
    consumer.run(3)
    assert consumer.handed_over
    three = consumer.owners
    assert sum(one != other for one, other in zip(two, three, strict=True)) == VNODES // 3
    writer.write()
    consumer.run(3, done=False)
    assert consumer.owners == three
    assert consumer.sessions[0].handover is None
    writer.write()
    writer.end(2, commits=False)
    consumer.run(1, done=False)
    assert consumer.handed_over
    assert {path.name for path in consumer.folder.glob("member-*")} == {"member-1"}
    writer.end(1, commits=False)
    consumer.run(4, done=False)
    writer.write()
    consumer.run(2)
    assert consumer.handed_over
    writer.close()
    consumer.run(2)
    assert consumer.rows_read == heads(store)


def test_only_what_moves_is_moved(consumer: Consumer, writer: Writer) -> None:
    """A backlog that nobody has consumed: queues that stay keep their bytes, and get no rows; the
    new one has those of its vnodes."""
    writer.write(3_000)
    consumer.run(2, done=False)
    writer.end(1, commits=False)
    consumer.run(2, done=False)
    files = {member: contents(consumer, member) for member in (1, 2)}
    stored = {member: rows_of_vnodes(consumer, member) for member in (1, 2)}
    needed = rows_of_vnodes(consumer, 1, needed=True) + rows_of_vnodes(consumer, 2, needed=True)
    shuffle = consumer.shuffle(3)
    with shuffle:
        moved = set(shuffle.assignment.vnodes_of(3))
    for member in (1, 2):
        after = contents(consumer, member)
        assert all(after[name].startswith(data) for name, data in files[member].items())
        assert sum(map(len, after.values())) - sum(map(len, files[member].values())) < 10_000
        assert rows_of_vnodes(consumer, member) == stored[member]
    assert sum(needed.values()) < sum(map(Counter.total, stored.values())), "some are rolled back"
    taken = Counter({vnode: rows for vnode, rows in needed.items() if vnode in moved})
    assert rows_of_vnodes(consumer, 3) == taken
    assert rows_of_vnodes(consumer, 1, needed=True).keys() == needed.keys() - moved - {
        vnode for vnode in needed if shuffle.assignment.owner_of(vnode) == 2
    }
    assert [store.rows for _, store, _ in shuffle.sessions] == [Counter()], "of journals"


def contents(consumer: Consumer, member: int) -> dict[str, bytes]:
    queue = consumer.folder / f"member-{member}"
    return {path.name: path.read_bytes() for path in queue.glob("*.queue")}


def rows_of_vnodes(consumer: Consumer, member: int, *, needed: bool = False) -> Counter[int]:
    """How many of each vnode are in the files of a queue, or are still needed of them."""
    view = Catalogue(consumer.folder / f"member-{member}").view(consumer.lsn(member))
    window = Window(view, Frontier.of(), None)
    found: Counter[int] = Counter()
    for index, loaded in enumerate(view.blocks):
        for part, rows in zip(loaded.block.parts, window.select(index), strict=True):
            if not part.stage.is_rollbacks:
                vnodes = loaded.decode(part).column(VNODE).to_numpy()
                chosen = np.broadcast_to(rows, len(vnodes)) | (not needed)
                found.update(vnodes[chosen].tolist())
    return found


@pytest.mark.parametrize("seed", range(3))
def test_members_change_in_the_middle_of_everything(
    store: OpenStore, consumer: Consumer, seed: int
) -> None:
    """Stopped wherever it is, with rows on their way and queues that wait for each other."""
    writer = Writer(store, seed)
    members = 2
    consumer.position = 0
    for _ in range(4):
        writer.write(writer.random.choice([50, 4_000]))
        shuffle = consumer.shuffle(members, aligned_seconds_max=writer.random.choice([0.0, 5.0]))
        with shuffle:
            for _ in range(writer.random.randint(1, 3)):
                shuffle.session.wait_epoch(shuffle.session.newest.number, 0.2, hurry=True)
                writer.write(100)
                writer.end_some()
        shuffle.check_reads()
        if writer.random.random() < 0.4:
            consumer.run(members, done=writer.random.random() < 0.7)
        members = writer.random.choice([one for one in (1, 2, 3, 5) if one != members])
    writer.close()
    consumer.run(members)
    assert consumer.handed_over


def test_a_start_that_came_to_nothing_moves_nothing(consumer: Consumer, writer: Writer) -> None:
    """Back at the members of the newest epoch, its queues are as good as ever."""
    writer.write()
    consumer.run(2, done=False)
    before = consumer.owners
    died = consumer.shuffle(1)

    def die(*_: object) -> None:
        raise InterruptedError

    died._open_parts = die  # type: ignore[method-assign, assignment]
    with pytest.raises(InterruptedError):
        died.start()
    consumer.run(2)
    assert consumer.owners == before
    assert [one.epoch is not None for one in consumer.sessions] == [True]
    assert consumer.sessions[0].handover is None


@pytest.mark.parametrize("lost", ["of one who stays", "of one who goes"])
def test_a_queue_that_is_lost_is_read_again_from_the_journals(
    consumer: Consumer, writer: Writer, lost: str
) -> None:
    writer.write()
    consumer.run(2)
    writer.write()
    consumer.run(2, done=False)
    shutil.rmtree(consumer.folder / ("member-1" if lost == "of one who stays" else "member-2"))
    consumer.run(1)
    assert [one.epoch is None for one in consumer.sessions][:2] == [False, True], "one in vain"


def test_a_consumer_far_behind_is_no_hindrance(
    consumer: Consumer, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not be given more epochs; that of the new members is made all the same."""
    writer.write()
    consumer.run(2, done=False)
    monkeypatch.setattr(actor, "EPOCHS_AHEAD_MAX", 1)
    with consumer.shuffle(3) as shuffle:
        assert shuffle.session.newest.number > 1
    monkeypatch.undo()
    consumer.run(3)


def test_a_member_that_fails_on_the_way_begins_anew(
    consumer: Consumer, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write()
    consumer.run(2, done=False)
    failing = [Step.GAVE, Step.TOOK, Step.SYNCED]

    def reached(step: Step) -> None:
        if step in failing:
            failing.remove(step)
            raise MemberLostError("as the test wants it")

    monkeypatch.setattr(handover, "reached", reached)
    consumer.run(3)
    assert failing == []
    assert [one.handover is not None for one in consumer.sessions] == [True] * 4
    assert all(one.epoch is not None for one in consumer.sessions)


def test_members_in_processes_of_their_own(
    store: OpenStore, consumer: Consumer, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write()
    for members in (2, 3, 1):
        consumer.run_with(ProcessShuffle(FEED, store, consumer.folder, members=members), done=False)
        writer.end_some()
        writer.write(100)
    assert "built anew" not in caplog.text


@pytest.mark.parametrize("step", list(Step))
def test_killed_at_any_step(
    tmp_path: Path, store: OpenStore, consumer: Consumer, writer: Writer, step: Step
) -> None:
    """Whoever comes next finds the old epoch with its queues, or the new one: also with the number
    of members that there was, or yet another."""
    writer.write()
    consumer.run(2, done=False)
    killed(store.url, consumer.folder, 3 if int(step.value) % 2 else 1, step, tmp_path / "plan")
    writer.end(1, commits=False)
    writer.write(50)
    consumer.run({1: 3, 2: 2, 3: 1, 0: 4}[int(step.value) % 4])
    assert all(one.epoch is not None for one in consumer.sessions), "nothing was lost"


def killed(url: str, folder: Path, members: int, step: Step, plan: Path) -> None:
    plan.write_text(repr(step))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(PROGRAM), url, str(folder), str(members), str(plan)]
    ended = subprocess.run(command, env=environment, check=False, timeout=WAIT_SECONDS_MAX)
    assert ended.returncode == -signal.SIGKILL
    assert not plan.exists()
