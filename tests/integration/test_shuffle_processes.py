"""A shuffle with members in processes of their own: over TLS, killed, robbed of a disk, orphaned.

Each start of members costs a second or two of importing for each of them, which is most of the time
these tests take.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.shuffle_run import POSITION_NAME, Position, Run
from penstock.errors import ConfigurationError, PeerUnavailableError
from penstock.frontier import Frontier
from penstock.journal import Collection, open_store
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.member import Settings
from penstock.shuffle.plan import make_plan
from penstock.shuffle.processes import ProcessShuffle
from penstock.shuffle.resume import Epoch
from penstock.shuffle.running import FolderInUseError
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.verify import Delivered, verify
from penstock.transport.discovery import ADDRESS_KEY, Address
from penstock.transport.security import ClusterSecurity
from tests.conformance.waiting import eventually
from tests.postgres_server import database  # noqa: F401 - a fixture, asked for by its name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.journal import OpenStore
    from penstock.shuffle.running import Shuffle
    from tests.postgres_server import Database

MEMBERS = 2
FEED = Feed("shuffle", (Binding("orders"),))
ORPHANED_SECONDS_MAX = 120.0
"""It is one or two, when nobody else works on this machine."""

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as opened:
        opened.create(
            Collection.define(
                "orders", "id BIGINT NOT NULL, region STRING", key="id", partition_by="region"
            )
        )
        yield opened


def _write(store: OpenStore, begin: int, batches: int = 4) -> int:
    """Transactions over three journals, some rolled back, and batches sent twice. How many
    documents count."""
    count = 0
    with store.producer() as producer:
        for batch in range(batches):
            first = begin + 1_000 * batch
            rows = [{"id": first + n, "region": f"r{n % 3}"} for n in range(1_000)]
            if batch % 4 == 1:
                transaction = producer.transaction()
                transaction.append("orders", rows)
                transaction.rollback()
                continue
            if batch % 4 == 2:
                stamped = producer.stamp("orders", rows)
                producer.send(stamped)
                producer.send(stamped)
            else:
                with producer.transaction() as transaction:
                    transaction.append("orders", rows)
            count += len(rows)
    return count


def _shuffle(store: OpenStore, place: Path, **more: Any) -> ProcessShuffle:
    return ProcessShuffle(
        more.pop("feed", FEED), store, place, members=MEMBERS, epoch_seconds=0.1, **more
    )


class _Consumer:
    """Runs a shuffle until it is caught up, and remembers all that came, and what was said."""

    def __init__(self, store: OpenStore, place: Path, on_show: Callable[[Run], None]) -> None:
        self.said: list[str] = []
        self.delivered = Delivered()
        self._store = store
        self._place = place
        self._on_show = on_show

    def run(self, shuffle: Shuffle) -> Run:
        position = Position.load(self._place, self._store, FEED, MEMBERS)
        self.start = position.last.frontier
        run = Run(shuffle, self._store, position, self, delivered=self.delivered)
        run.run()
        return run

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, run: Run) -> None:
        self._on_show(run)


def _run(
    store: OpenStore,
    shuffle: Shuffle,
    on_show: Callable[[Run], None] = lambda _: None,
) -> tuple[Run, list[str]]:
    """Verified: the documents between the epochs before and after, each once, at its owner."""
    consumer = _Consumer(store, shuffle.folder, on_show)
    run = consumer.run(shuffle)
    found = verify(
        store,
        make_plan(FEED, store),
        shuffle.assignment,
        consumer.delivered,
        start=consumer.start,
        end=run.position.last.frontier,
    )
    assert found.differences == ()
    return run, consumer.said


def test_members_speak_tls_and_everything_comes_once(store: OpenStore, tmp_path: Path) -> None:
    count = _write(store, 0)
    cluster = ClusterSecurity.create("test")
    shuffle = _shuffle(store, tmp_path / "shuffle", security=cluster)
    pids: dict[int, int] = {}

    def look(_: Run) -> None:
        if not pids:
            pids.update(shuffle.process_ids)
            for pid in pids.values():
                for place in ("cmdline", "environ"):
                    shown = Path(f"/proc/{pid}/{place}").read_bytes()
                    assert cluster.token.secret.encode() not in shown
                    assert b"PRIVATE KEY" not in shown

    run, said = _run(store, shuffle, look)
    assert run.position.documents == count
    assert said == []
    assert set(pids) == {1, 2}
    assert not any(_is_running(pid) for pid in pids.values())


def test_an_open_span_of_a_journal_that_went_while_all_was_down_is_let_go(
    store: OpenStore, tmp_path: Path
) -> None:
    place = tmp_path / "shuffle"
    rows = [{"id": number, "region": "gone"} for number in range(60_000)]

    def disk_bytes() -> int:
        return sum(path.stat().st_size for path in place.glob("member-*/*"))

    with store.producer() as hanging, store.producer() as producer:
        hanging.transaction().append("orders", rows)
        name = "orders/region=gone/000"
        store.sync(name, store.probe(name).write_head + 1)
        with _shuffle(store, place) as shuffle:
            eventually(
                lambda: sum(queue.rows for queue in shuffle.session.queues.values()) >= len(rows),
                "the span in the queues",
            )
            producer.append("orders", [{"id": -1, "region": "there"}])
            assert shuffle.session.wait_caught_up(60.0)
        held = disk_bytes()
        assert held > 1_000_000
        shutil.rmtree(tmp_path / "store" / "journals" / "orders" / "region=gone+000")
        # Above their budget, queues free their room as soon as they can.
        with _shuffle(store, place, settings=Settings(disk_budget_bytes=200_000)) as shuffle:

            def is_freed() -> bool:
                shuffle.session.consumed(shuffle.session.newest.number)
                return disk_bytes() < held / 4

            eventually(is_freed, "room on the disks", 60.0)


@pytest.mark.parametrize("meeting", ["gossip", "server"])
def test_a_killed_member_is_named_and_all_go_on(
    store: OpenStore, tmp_path: Path, meeting: str, request: pytest.FixtureRequest
) -> None:
    first = _write(store, 0)
    server: Database | None = request.getfixturevalue("database") if meeting == "server" else None
    directory = None if server is None else server.conninfo
    shuffle = _shuffle(store, tmp_path / "shuffle", directory=directory)
    killed: list[int] = []
    second: list[int] = []

    def kill_once(run: Run) -> None:
        if run.position.documents == first and not killed:
            second.append(_write(store, 100_000))  # it is on its way when the member dies
            killed.append(shuffle.process_ids[2])
            os.kill(killed[0], signal.SIGKILL)

    run, said = _run(store, shuffle, kill_once)
    assert run.restarts == 1
    assert run.position.documents == first + second[0]
    (why,) = said
    assert why.startswith("the process of member 2 was killed by SIGKILL; all begin anew after")
    if server is not None:
        # All three met there, twice. The names of both sessions are gone with them.
        with server.connect() as connection:
            members = connection.execute("SELECT * FROM penstock.members").fetchall()
            slots = connection.execute("SELECT * FROM penstock.slots").fetchall()
        assert (members, slots) == ([], [])


def test_a_server_that_is_not_there_is_named(store: OpenStore, tmp_path: Path) -> None:
    shuffle = _shuffle(store, tmp_path / "shuffle", directory="host=127.0.0.1 port=1 dbname=none")
    with pytest.raises(PeerUnavailableError, match=r"127\.0\.0\.1"):
        shuffle.start()
    assert shuffle.process_ids == {}


def test_a_lost_queue_is_built_anew_with_the_same_documents(
    store: OpenStore, tmp_path: Path
) -> None:
    """The consumer is done with nothing yet: all of it has to come back."""
    place = tmp_path / "shuffle"
    count = _write(store, 0)
    with _shuffle(store, place) as shuffle:
        assert shuffle.session.wait_caught_up(60)
        before = _ids(shuffle)
    assert _count(before) == count
    shutil.rmtree(place / "member-2")
    with _shuffle(store, place) as shuffle:
        assert shuffle.session.wait_caught_up(60)
        assert _ids(shuffle) == before
    run, said = _run(store, EmbeddedShuffle(FEED, store, place, members=MEMBERS))
    assert run.position.documents == count
    assert said == []


def _ids(shuffle: Shuffle) -> dict[int, Counter[Any]]:
    begin = Epoch(0, Frontier.of())
    return {
        member: Counter(
            number
            for found in shuffle.read(member, begin, shuffle.session.newest)
            for number in found.batch.column("id").to_pylist()
        )
        for member in shuffle.members
    }


def _count(documents: dict[int, Counter[Any]]) -> int:
    return sum(each.total() for each in documents.values())


def test_a_restart_reads_nothing_again_that_is_queued(store: OpenStore, tmp_path: Path) -> None:
    place = tmp_path / "shuffle"
    count = _write(store, 0)
    with _shuffle(store, place) as shuffle:
        assert shuffle.session.wait_caught_up(60)
        eventually(
            lambda: _rows(shuffle) >= count and shuffle.session.rows_behind == 0, "all rows queued"
        )
        offsets = _offsets(shuffle)
    new = [{"id": -number, "region": "r0"} for number in range(1, 8)]
    with store.producer() as producer:
        producer.append("orders", new)
    with _shuffle(store, place) as shuffle:
        assert shuffle.session.wait_caught_up(60)
        eventually(lambda: _rows(shuffle) >= len(new), "the new rows queued")
        assert _rows(shuffle) == len(new)
        assert _offsets(shuffle) == offsets + len(new)
        assert _count(_ids(shuffle)) == count + len(new)


def _rows(shuffle: Shuffle) -> int:
    return sum(queue.rows for queue in shuffle.session.queues.values())


def _offsets(shuffle: Shuffle) -> int:
    return sum(each.slice.read_offset for each in shuffle.session.statuses.values())


COMMAND = "import sys; from penstock.cli import main; sys.argv[0] = 'penstock'; main()"


def _command(store: OpenStore, place: Path, *more: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts it."""
    options = ["--store", store.url, "--collection", "orders", "--members", str(MEMBERS)]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "shuffle", *options, "--folder", str(place), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_members_of_a_killed_parent_are_gone_and_the_next_goes_on(
    store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "shuffle"
    count = _write(store, 0)
    parent = _command(store, place, "--follow")
    members: list[int] = []
    try:
        eventually(lambda: _held(place) == count, "all documents", 60)
        members += _members(parent.pid)
        assert len(members) == MEMBERS
        for member in members:
            os.kill(member, signal.SIGSTOP)  # it cannot even notice yet
    finally:
        parent.kill()
        parent.wait()
    following = EmbeddedShuffle(FEED, store, place, members=MEMBERS)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("penstock.shuffle.running.LOCK_SECONDS_MAX", 0.2)
            with pytest.raises(FolderInUseError, match="another shuffle works in"):
                following.start()
        for member in members:
            os.kill(member, signal.SIGCONT)
        eventually(
            lambda: not any(_is_running(pid) for pid in members),
            "the end of the members",
            ORPHANED_SECONDS_MAX,
        )
    finally:
        for member in filter(_is_running, members):  # nothing stays, even if this test fails
            os.kill(member, signal.SIGKILL)
    parent.communicate()
    second = _write(store, 100_000)
    run, said = _run(store, following)
    assert run.position.documents == count + second
    assert said == []


def test_ctrl_c_goes_to_all_processes_and_the_members_wait_for_the_parent(
    store: OpenStore, tmp_path: Path
) -> None:
    place = tmp_path / "shuffle"
    count = _write(store, 0)
    parent = _command(store, place, "--follow", "--verify", "--json")
    try:
        eventually(lambda: _held(place) == count, "all documents", 60)
        members = _members(parent.pid)
        os.killpg(parent.pid, signal.SIGINT)
        said, complained = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == 0, complained
    assert "stopped without" not in complained
    assert "Traceback" not in complained
    report = json.loads(said)
    assert report["documents"] == count
    assert report["restarts"] == 0
    assert report["verified"]["equal"]
    assert not any(_is_running(pid) for pid in members)


def test_a_member_that_hangs_is_given_up(store: OpenStore, tmp_path: Path) -> None:
    """Its streams are silent: after 20 s it is gone, and killed with the others."""
    count = _write(store, 0)
    shuffle = _shuffle(store, tmp_path / "shuffle")
    held_up: list[int] = []

    def hold_up_once(run: Run) -> None:
        if run.position.documents == count and not held_up:
            held_up.append(shuffle.process_ids[2])
            os.kill(held_up[0], signal.SIGSTOP)
            _write(store, 100_000)

    run, (why,) = _run(store, shuffle, hold_up_once)
    assert run.restarts == 1
    assert run.position.documents == 2 * count
    assert "member 2" in why
    assert not _is_running(held_up[0])


def _held(place: Path) -> int:
    try:
        found = json.loads((place / POSITION_NAME).read_text())
    except FileNotFoundError:
        return -1
    return sum(each["documents"] for each in found["holdings"].values())


def _members(parent: int) -> list[int]:
    """The processes that a parent has spawned, without the one that tracks its resources."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"spawn_main" in command:
            found.append(int(path.name))
    return found


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_the_number_of_streams_does_not_depend_on_that_of_journals(
    store: OpenStore, tmp_path: Path
) -> None:
    """M members and P lanes: M*P streams to the Session, M*M*P to the Queues; the Session has one
    to each member. Those of a member to itself need no connection."""
    with store.producer() as producer:
        rows = [{"id": number, "region": f"r{number % 1_000}"} for number in range(2_000)]
        producer.append("orders", rows)
    assert len(store.journals("orders")) == 1_000
    feed = Feed(
        "shuffle", (Binding("orders", priority=2), Binding("orders", key=("region",), priority=1))
    )
    lanes = len(feed.lanes)
    with _shuffle(store, tmp_path / "shuffle", feed=feed) as shuffle:
        assert shuffle.session.wait_caught_up(60)
        assert shuffle._keyvalue is not None
        ports = {
            member: Address.parse(text).port
            for member, text in shuffle._keyvalue.scan(ADDRESS_KEY).items()
        }
        connected = Counter(_connected_ports())
        assert {member: connected[port] for member, port in ports.items()} == {
            0: MEMBERS * lanes,
            **dict.fromkeys(shuffle.members, (MEMBERS - 1) * lanes + 1),
        }
        assert _count(_ids(shuffle)) == 2 * len(rows)


def _connected_ports() -> Iterator[int]:
    """Of this machine's end, of all connections that are open."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, _, state = line.split()[1:4]
        if state == "01":
            yield int(local.partition(":")[2], 16)


def test_grpc_carries_it_too(store: OpenStore, tmp_path: Path) -> None:
    count = _write(store, 0)
    run, _ = _run(store, _shuffle(store, tmp_path / "shuffle", settings=Settings(carrier="grpc")))
    assert run.position.documents == count


def test_a_member_that_cannot_start_says_why_and_leaves_nothing(
    store: OpenStore, tmp_path: Path
) -> None:
    place = tmp_path / "shuffle"
    place.mkdir()
    (place / "member-2").write_text("in the way")
    shuffle = _shuffle(store, place)
    with pytest.raises(MemberLostError, match=r"member 2 failed: .*member-2"):
        shuffle.start()
    assert shuffle.process_ids == {}
    with pytest.raises(ConfigurationError, match="not started"):
        _ = shuffle.session


def test_the_local_carrier_does_not_reach_other_processes(store: OpenStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="use tcp or grpc"):
        _shuffle(store, tmp_path, settings=Settings(carrier="local"))
