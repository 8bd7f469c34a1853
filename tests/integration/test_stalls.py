"""Every kind of wait, provoked for real, and explained by name: who waits, for what, since when.

What is looked at is `state.json` of the feed's folder, as any other process would see it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.journal import Collection, open_store, transaction
from penstock.journal.transaction import Step
from penstock.shuffle import member as member_module
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.member import Settings
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.processes import ProcessShuffle
from penstock.shuffle.session import actor as session_module
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.session.lost import RowsLostError
from penstock.watch import FeedState, Wait, load
from tests.conformance.waiting import Background, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.journal import OpenStore
    from penstock.journal.producer import OpenProducer
    from penstock.shuffle.running import Shuffle

SECONDS_SLACK = 0.001
"""Of moments that others note: clocks of rows are coarser than floats of seconds, and some moments
come from a clock that counts from the machine's start."""
PATIENCE_SECONDS = 120.0
"""A machine may be busy."""
HELD_SECONDS_MAX = 90.0
"""What is held goes on then, if a test fails before it lets go."""
TEXT = "x" * 100
EU, US = "orders/region=eu/000", "orders/region=us/000"
COMMAND = "import sys; from penstock.cli import main; sys.argv[0] = 'penstock'; main()"


pytestmark = pytest.mark.slow


class HeldStore:
    """A store, of which some calls do not answer until they are let go."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._held: dict[tuple[str, str], threading.Event] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextlib.contextmanager
    def held(self, call: str, name: str) -> Iterator[None]:
        """Calls whose first argument begins with this name."""
        let_go = self._held[call, name] = threading.Event()
        try:
            yield
        finally:
            let_go.set()
            del self._held[call, name]

    def _wait(self, call: str, name: str) -> None:
        for (held, prefix), let_go in list(self._held.items()):
            if held == call and name.startswith(prefix):
                let_go.wait(HELD_SECONDS_MAX)

    def collection(self, name: str) -> Any:
        self._wait("collection", name)
        return self._store.collection(name)

    def journals(self, collection: str, *more: Any) -> Any:
        self._wait("journals", collection)
        return self._store.journals(collection, *more)

    def probe(self, journal: str) -> Any:
        self._wait("probe", journal)
        return self._store.probe(journal)

    def probes(self, journals: Iterable[str]) -> Any:
        names = list(journals)
        for name in names:
            self._wait("probe", name)
        return self._store.probes(names)

    def read(self, journal: str, *more: Any, **options: Any) -> Iterator[Any]:
        self._wait("read", journal)
        yield from self._store.read(journal, *more, **options)


class World:
    """A store with two collections, and a feed of them."""

    def __init__(self, root: Path, store: OpenStore, producer: OpenProducer) -> None:
        self.store = store
        self.held = HeldStore(store)
        self.producer = producer
        self.folder = root / "feed"
        self.count = 0
        self._begun = time.time()
        self._seen = 0

    def shuffle(self, *bindings: Binding, **settings: Any) -> EmbeddedShuffle:
        held: Any = self.held
        return EmbeddedShuffle(
            Feed("orders", bindings or (Binding("orders"),)),
            held,
            self.folder,
            members=2,
            epoch_seconds=0.05,
            settings=Settings(**settings),
        )

    def rows(self, count: int, region: str) -> list[dict[str, Any]]:
        self.count += count
        return [
            {"id": number, "region": region, "text": f"{number}{TEXT}"}
            for number in range(self.count - count, self.count)
        ]

    def write(self, count: int, *regions: str) -> None:
        for region in regions or ("eu", "us"):
            self.producer.append("orders", self.rows(count, region))

    def write_by_another(self, count: int, *regions: str) -> None:
        """What is in the same journals before it is readable then, too."""
        with self.store.producer() as other:
            for region in regions:
                other.append("orders", self.rows(count, region))

    @contextlib.contextmanager
    def held_up(
        self, call: str, name: str, *bindings: Binding, **settings: Any
    ) -> Iterator[EmbeddedShuffle]:
        """A shuffle that runs while the store does not answer. It does before the shuffle is
        closed, which waits for its readers."""
        shuffle = self.shuffle(*bindings, **settings)
        try:
            with self.held.held(call, name):
                yield shuffle.start()
        finally:
            shuffle.close()

    def explained(self) -> FeedState:
        return load(self.folder)

    def _changed(self) -> FeedState | None:
        """The state, if it is another than the last time."""
        try:
            found = (self.folder / "state.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if found == self._seen:
            return None
        self._seen = found
        return self.explained()

    def until(self, condition: Callable[[FeedState], bool], what: str) -> FeedState:
        self._seen = 0
        last: list[FeedState] = []

        def found() -> bool:
            state = self._changed()
            if state is not None:
                last[:] = [state]
            return state is not None and condition(state)

        def seen() -> str:
            return f"{what}; the last was {[(last[0].phase, last[0].waits) if last else None]}"

        eventually(found, seen, PATIENCE_SECONDS)
        return last[0]

    def wait(self, kind: str, **facts: Any) -> Wait:
        """The wait of this kind, once it stands with these facts."""

        def matching(state: FeedState) -> list[Wait]:
            return [
                wait
                for wait in state.waits
                if wait.kind == kind and facts.items() <= wait.facts.items()
            ]

        state = self.until(lambda state: bool(matching(state)), f"{kind} with {facts}")
        wait = matching(state)[0]
        now = time.time()
        assert self._begun - SECONDS_SLACK <= wait.since <= now + SECONDS_SLACK
        return wait


@contextlib.contextmanager
def consuming(shuffle: Shuffle) -> Iterator[None]:
    """Somebody draws every epoch, and is done with it."""
    stopping = threading.Event()

    def draw() -> None:
        last = shuffle.session.newest.number
        while not stopping.is_set():
            epoch = shuffle.session.wait_epoch(last, 0.1)
            if epoch is not None:
                last = epoch.number
                shuffle.session.consumed(last)

    drawing = Background(draw, "a consumer")
    try:
        yield
    finally:
        stopping.set()
        drawing.result()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_store(tmp_path / "store", durability="buffered") as store:
        for name in ("orders", "payments"):
            store.create(
                Collection.define(
                    name,
                    "id BIGINT NOT NULL, region STRING, text STRING",
                    key="id",
                    partition_by="region",
                )
            )
        with store.producer() as producer:
            yield World(tmp_path, store, producer)


# The beginning


def test_starting(world: World) -> None:
    shuffle = world.shuffle()
    with world.held.held("collection", "orders"):
        starting = Background(shuffle.start, "the start")
        wait = world.wait("starting", members=[1, 2])
        assert wait.text.startswith("Members 1 and 2 are coming up")
        assert world.explained().phase == "starting"
        assert world.explained().verdict == "waiting"
    starting.result(PATIENCE_SECONDS)
    world.until(lambda state: state.phase == "running", "that it runs")
    shuffle.close()
    assert world.explained().phase == "stopped"


def test_listing(world: World) -> None:
    world.write(10)
    bindings = Binding("orders"), Binding("payments")
    with world.held_up("journals", "payments", *bindings):
        wait = world.wait("listing", binding=1)
        assert wait.facts["collection"] == "payments"
        assert wait.who == f"slice {wait.facts['member']}.0"


def test_probing(world: World) -> None:
    world.write(10)
    with world.held_up("probe", EU):
        wait = world.wait("probing", journal=EU, count=1)
        assert EU in wait.text


def test_a_journal_lags_and_the_others_wait_for_it(world: World) -> None:
    regions = [f"r{number}" for number in range(8)]
    world.write(10, *regions)
    with world.held_up("read", "orders/region=r0/"):
        wait = world.wait("journal_lags", journal="orders/region=r0/000", offset=0, head=10)
        member = wait.facts["member"]
        other = 3 - member
        slow = world.wait("slow_slice", slices=[f"{member}.0"])
        assert slow.who in (f"queue {member}", f"queue {other}")
        state = world.until(
            lambda state: all(wait.is_stall for wait in state.waits) and len(state.waits) > 1,
            "that both are stalls",
        )
        assert state.verdict == "stuck"
        assert state.waits[0].kind == "journal_lags", "the cause comes first"
        assert "orders/region=r0/000" in state.explanation[1]
        assert "orders/region=r0/000" in state.advice[0]
        shown = {each.journal: each for each in state.journals.shown}
        assert shown["orders/region=r0/000"].rows_behind == 10
        assert shown["orders/region=r0/000"].member == member


def test_a_higher_lane_is_due_and_held(world: World) -> None:
    world.write(10, "eu")
    world.producer.append("payments", world.rows(30, "eu"))
    bindings = (Binding("payments", priority=0), Binding("orders", priority=5))
    with world.held_up("read", EU, *bindings):
        lags = world.wait("journal_lags", journal=EU)
        assert lags.facts["lane"] == 0, "the higher priority"
        wait = world.wait("higher_lane", lane=1, higher_lane=0)
        assert wait.facts["slices"] == [f"{lags.facts['member']}.0"]
        assert wait.facts["rows"] > 0
        assert wait.who == f"queue {wait.facts['member']}"


def test_rows_are_too_young(world: World) -> None:
    with world.shuffle(Binding("orders", read_delay_seconds=300.0)):
        before = time.time()
        world.write(10, "eu")
        after = time.time()
        wait = world.wait("read_delay", binding=0, rows=10)
        assert wait.facts["delay_seconds"] == 300.0
        written = wait.facts["due"] - 300.0
        assert before - SECONDS_SLACK <= written <= after + SECONDS_SLACK
        assert not wait.is_stall
        assert world.explained().verdict == "healthy"


# The consumer and the disk


def test_nobody_consumes(world: World) -> None:
    with world.shuffle() as shuffle:
        world.write(10)
        wait = world.wait("consumer", consumed=0)
        assert wait.facts["newest"] >= 1
        assert wait.facts["consumer"] == "shuffle"
        assert "is done with epoch 0" in wait.text
        shuffle.session.consumed(shuffle.session.newest.number)
        idle = world.wait("idle")
        assert not idle.is_stall
        assert world.explained().verdict == "healthy"


def test_the_consumer_is_as_many_epochs_behind_as_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "EPOCHS_AHEAD_MAX", 3)
    with world.shuffle() as shuffle:
        while (newest := shuffle.session.newest.number) < 3:
            world.write(10)
            assert shuffle.session.wait_epoch(newest, PATIENCE_SECONDS)
        world.write(10)
        wait = world.wait("epochs_ahead", consumed=0, newest=newest, limit=3)
        assert wait.is_stall
        assert world.explained().verdict == "stuck"


def test_the_disk_budget_is_used_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "STREAM_BYTES_MIN", 128 * 1024)
    monkeypatch.setattr(member_module, "STREAM_BYTES_MAX", 128 * 1024)
    with world.shuffle(disk_budget_bytes=100_000):
        world.write(20_000)
        wait = world.wait("disk_budget", limit_bytes=100_000)
        member = wait.facts["member"]
        assert wait.who == f"queue {member}"
        assert wait.facts["size_bytes"] >= 100_000
        credit = world.wait("credit")
        assert credit.who == f"slice {credit.facts['member']}.0"
        assert f"the queue of member {credit.facts['to_member']} has no room" in credit.text
        world.wait("consumer", consumed=0)
        state = world.until(lambda state: state.verdict == "stuck", "the verdict")
        queue = next(each.queue for each in state.members if each.member == member)
        assert queue is not None
        assert queue.disk.is_pressed


def test_an_open_transaction_overdraws_the_disk_budget(world: World) -> None:
    begun = time.time()
    with world.shuffle(disk_budget_bytes=100_000) as shuffle, consuming(shuffle):
        opened = world.producer.transaction()
        opened.append("orders", world.rows(5_000, "eu"))
        world.write_by_another(5, "eu")
        wait = world.wait("disk_overdrawn", producer=str(world.producer.id), journal=EU)
        assert wait.facts["overdrawn_bytes"] == wait.facts["size_bytes"] - 100_000 > 0
        assert wait.who == f"queue {wait.facts['member']}"
        assert f"Have producer {world.producer.id} commit or roll back" in str(wait.advice)
        transaction_wait = world.wait("open_transaction", rows=5_000)
        assert begun - 1 <= transaction_wait.since <= time.time()
        opened.rollback()  # and nothing comes after it
        world.until(
            lambda state: all(
                member.queue is not None and member.queue.disk.size_bytes < 50_000
                for member in state.members
            ),
            "that the rollback frees it",
        )


# Transactions


def test_a_transaction_is_left_open(world: World) -> None:
    with world.shuffle() as shuffle, consuming(shuffle):
        opened = world.producer.transaction()
        opened.append("orders", world.rows(7, "eu"))
        opened.append("orders", world.rows(3, "us"))
        world.write_by_another(1, "eu", "us")
        wait = world.wait("open_transaction", producer=str(world.producer.id), rows=10)
        assert sorted(wait.facts["journals"]) == [EU, US]
        assert wait.who == f"producer {world.producer.id}"
        shown = world.explained().transactions.shown[0]
        assert (shown.producer, shown.rows, shown.holds_up) == (str(world.producer.id), 10, False)
        assert shown.bytes is not None
        assert shown.bytes > 1_000
        opened.commit()
        world.until(lambda state: state.transactions.count == 0, "that it is over")


def test_a_commit_is_awaited_in_another_journal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def reached(step: Step) -> None:
        if step is Step.ACKNOWLEDGED_ONE:
            go_on.wait(HELD_SECONDS_MAX)

    with world.shuffle() as shuffle, consuming(shuffle):
        opened = world.producer.transaction()
        opened.append("orders", world.rows(7, "eu"))
        opened.append("orders", world.rows(3, "us"))
        monkeypatch.setattr(transaction, "reached", reached)
        committing = Background(opened.commit, "a commit that stops halfway")
        try:
            world.write_by_another(1, "eu")  # and so makes durable what is before it
            producer = str(world.producer.id)
            wait = world.wait("awaited_commit", producer=producer, journal=US, hinted_by=EU)
            assert wait.who == "cohort 0"
            assert f"producer {producer} in journal {US}, which journal {EU} hints at" in wait.text
            assert abs(wait.facts["committed"] - wait.since) < 10
            shown = world.explained().transactions.shown[0]
            assert (shown.producer, shown.awaited, shown.hinted_by) == (producer, (US,), EU)
            assert shown.holds_up
            world.until(lambda state: state.verdict == "stuck", "the verdict")
        finally:
            go_on.set()
            committing.result()
        world.until(lambda state: state.verdict == "healthy", "that it goes on")


# Recovery


def test_lost_queues_are_read_again(world: World) -> None:
    world.write(50)
    with world.shuffle() as shuffle:
        assert shuffle.session.wait_caught_up(PATIENCE_SECONDS)
    shutil.rmtree(world.folder / "member-1")
    shuffle = world.shuffle()
    with world.held.held("read", EU):
        starting = Background(shuffle.start, "a recovery")
        wait = world.wait("recovery", rows_total=100)
        assert wait.is_stall
        world.wait("journal_lags", journal=EU)
        state = world.until(lambda state: state.verdict == "stuck", "the verdict")
        assert state.phase == "recovering"
        assert state.recovery is not None
        assert state.recovery.rows_total == 100
    starting.result(PATIENCE_SECONDS)
    state = world.until(lambda state: state.phase == "running", "that it runs")
    assert state.recovery is None
    shuffle.close()


def test_a_recovery_needs_a_journal_that_is_gone(world: World) -> None:
    world.write(50)
    with world.shuffle() as shuffle:
        assert shuffle.session.wait_caught_up(PATIENCE_SECONDS)
    shutil.rmtree(world.folder / "member-1")
    shutil.rmtree(next((world.folder.parent / "store").rglob("region=eu+000")))
    with pytest.raises(RowsLostError, match=str(world.producer.id)) as raised:
        world.shuffle().start()
    state = world.explained()
    assert (state.phase, state.verdict) == ("failed", "down")
    assert state.reason == str(raised.value)
    assert EU in " ".join(state.explanation)


# Processes


def test_a_member_stops_answering_and_is_killed(world: World) -> None:
    shuffle = ProcessShuffle(
        Feed("orders", (Binding("orders"),)),
        world.store,
        world.folder,
        members=2,
        epoch_seconds=0.1,
        settings=Settings(aligned_seconds_max=HELD_SECONDS_MAX),
    )
    stopping = threading.Event()

    def draw() -> None:
        outlet = Outlet(shuffle, world.store, Feed("orders", (Binding("orders"),)))
        last = 0
        while not stopping.is_set():
            epoch = outlet.wait_epoch(last, 0.1)
            if epoch is not None:
                last = epoch.number
                outlet.consumed(last)
        outlet.close()

    drawing = Background(draw, "a consumer")
    world.write(10)
    state = world.until(lambda state: state.verdict == "healthy", "that it runs")
    world.wait("idle")
    processes = shuffle.process_ids
    assert {each.member: each.process for each in state.members} == processes

    os.kill(processes[2], signal.SIGSTOP)
    shuffle.session.begin_epoch()
    wait = world.wait("acknowledgement", silent=[2])
    assert 2 in wait.facts["members"]
    assert wait.who == f"epoch {wait.facts['epoch']}"
    assert "member 2 says nothing at all" in wait.text
    aligning = world.wait("alignment", epoch=wait.facts["epoch"])
    assert (aligning.who, aligning.facts["slices"]) == ("queue 1", ["2.0"])
    epoch = world.explained().epochs[-1]
    assert (epoch.number, epoch.verdict) == (wait.facts["epoch"], "open")
    assert 2 in epoch.waits_for

    os.kill(processes[2], signal.SIGCONT)
    world.until(lambda state: state.verdict == "healthy", "that it goes on")
    number = wait.facts["epoch"]
    over = {one.number: one for one in world.explained().epochs}[number]
    assert (over.verdict, over.aligned, over.waits_for) == ("commit", True, ())
    assert over.last_member in (1, 2), "member 1 waited for its barriers"
    assert over.captured_seconds is not None
    assert over.captured_seconds > 1

    os.kill(processes[2], signal.SIGKILL)
    restart = world.wait("restart", member=2)
    assert "the process of member 2 was killed by SIGKILL" in restart.text
    assert world.explained().phase == "restarting"
    state = world.until(lambda state: state.verdict == "healthy", "that it recovered")
    assert state.restarts.count == 1
    event = state.restarts.events[0]
    assert event.member == 2
    assert event.recovered is not None
    assert event.recovered > event.at
    stopping.set()
    drawing.result(PATIENCE_SECONDS)
    assert world.explained().phase == "stopped"


def test_a_failure_is_told_before_the_consumer_finds_out(world: World) -> None:
    with world.shuffle() as shuffle:
        world.until(lambda state: state.phase == "running", "that it runs")
        shuffle.session.fail(MemberLostError("member 2 tripped", 2))
        wait = world.wait("restart", member=2)
        assert "because member 2 tripped" in wait.text
        assert world.explained().phase == "restarting"


def test_a_process_is_gone_and_a_program_is_told(world: World) -> None:
    world.write(10)
    arguments = ["shuffle", "--collection", "orders", "--members", "1", "--carrier", "local"]
    arguments += ["--follow", "--folder", str(world.folder), "--store", world.store.url]
    running = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL
    )
    try:
        world.wait("idle")
        code, told = _explain(str(world.folder))
        assert (code, told[0]["verdict"], told[0]["process"]) == (0, "healthy", running.pid)
    finally:
        running.kill()
        running.wait()
    code, told = _explain(str(world.folder.parent))
    assert code == 1
    assert (told[0]["verdict"], told[0]["phase"]) == ("down", "failed")
    assert f"process {running.pid}" in told[0]["explanation"][0]
    assert "is gone since about" in told[0]["explanation"][0]


def _explain(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "explain", "--json", *arguments],
        stdout=subprocess.PIPE,
        check=False,
    )
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return done.returncode, told


# What is watched does not depend on being watched


def test_a_folder_that_cannot_be_written_to_does_not_end_the_feed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    state, temporary = world.folder / "state.json", world.folder / ".state.json.tmp"

    def complaints() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with world.shuffle() as shuffle, consuming(shuffle):
        world.wait("idle")

        def put_full_disk() -> bool:
            """It is removed when writing fails; a write may be under way just now."""
            with contextlib.suppress(FileExistsError):
                temporary.symlink_to("/dev/full")
            return any("No space left on device" in text for text in complaints())

        eventually(put_full_disk, "that the disk is full")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        world.write(10)
        assert shuffle.session.wait_caught_up(PATIENCE_SECONDS)
        before = state.stat().st_mtime_ns
        eventually(lambda: state.stat().st_mtime_ns > before, "that it goes on")
        assert len(complaints()) == 1, "once is enough"
        world.until(lambda found: found.verdict == "healthy", "that all is well")
