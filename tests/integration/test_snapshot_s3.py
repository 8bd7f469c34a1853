"""Snapshots on an object store: pyarrow's S3 client and a server, over HTTP.

The store has no way to create an object only if there is none. What makes it safe all the same is
that no two attempts use the same name: see docs/snapshots.md.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.checkpoint.barrier import Barrier
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.snapshot.participant import DROP_EVERY
from penstock.storage import Storage, StorageError, StorageRefusedError
from tests.integration.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.snapshot import Snapshot

pytestmark = pytest.mark.slow

MEMBER = """
import sys
from penstock.checkpoint.barrier import Barrier
from penstock.snapshot import Captured, SnapshotParticipant, SnapshotStore
from penstock.storage import Storage


def capture(barrier):
    return Captured({"state": b"%d" % barrier.epoch * 100, "fixed": b"f" * 500}, {}, None)


store = SnapshotStore(Storage.open(sys.argv[1]), 1)
member = SnapshotParticipant(store, capture, keep=1, held_bytes_max=5)
member.recover()
print("ready", flush=True)
sys.stdin.readline()
for epoch, decision in ((1, "commit"), (2, "abort"), (3, "commit")):
    member.capture(Barrier(epoch, epoch))
    member.prepare(epoch)
    print("prepared", epoch, flush=True)
    getattr(member, decision)(epoch)
    print(decision, epoch, flush=True)
"""
DECISIONS = {1: "commit", 2: "abort", 3: "commit"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def storage(server: S3Server) -> Storage:
    server.control(clear=True)
    return Storage.open(server.place("some/folder"))


def contents(snapshot: Snapshot) -> dict[str, bytes]:
    return {name: snapshot.part(name).to_pybytes() for name in snapshot.parts}


def write(store: SnapshotStore, epoch: int, base: Snapshot | None = None) -> Snapshot:
    with store.begin(epoch, base=base) as writer:
        writer.add("own", b"%d" % epoch)
        writer.add("shared", b"s" * 100)
        return writer.finish({"epoch": epoch})


def test_a_storage_as_a_dictionary(storage: Storage) -> None:
    names = ("a", "ab", "b/a", "b/c/d", "b/c/e", *(f"many/{number:02}" for number in range(20)))
    model: dict[str, bytes] = {}
    choose = random.Random(7)
    assert storage.names() == []
    for _ in range(120):
        name, value = choose.choice(names), choose.randbytes(choose.randrange(50))
        if choose.random() < 0.75:
            assert storage.create_from(name, [value[:5], pa.py_buffer(value[5:])]) == (
                name not in model
            )
            model.setdefault(name, value)
        else:
            storage.delete(name)
            model.pop(name, None)
    for name in (*names, "none", "b", "many"):
        assert storage.read(name) == model.get(name)
        size_bytes = len(model[name]) if name in model else None
        assert storage.size_bytes(name) == size_bytes
    for prefix in ("", "a", "b/", "b/c/", "many/", "many/1", "none/"):
        assert storage.names(prefix) == sorted(name for name in model if name.startswith(prefix))
    assert not storage.creates_atomically
    assert storage.sweep() == 0
    assert "secret" not in storage.place


def test_an_object_is_put_by_one_request(storage: Storage, server: S3Server) -> None:
    server.control(times=0)
    storage.create("record", b"small")
    asked = server.control()["asked"]
    assert [line for line in asked if line.startswith(("PUT", "POST"))] == [
        "PUT some/folder/record"
    ]


def test_a_large_part_is_uploaded_in_several(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    pieces = [bytes([number]) * 3_000_000 for number in range(8)]
    with store.begin(1) as writer:
        writer.add("large", pieces)
        writer.finish()
    chosen = SnapshotStore(storage, 1).recover().chosen
    assert chosen is not None
    assert chosen.part("large") == pa.py_buffer(b"".join(pieces))
    assert sum("partNumber" in line for line in server.control()["asked"]) > 1
    assert server.control()["uploads"] == 0


def test_unchanged_parts_are_not_sent_again(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    first = write(store, 1)
    server.control(times=0)
    second = write(store, 2, base=first)
    puts = [line for line in server.control()["asked"] if line.startswith("PUT")]
    assert sorted(line.split("/")[3] for line in puts) == ["manifests", "parts"]
    assert contents(second) == {"own": b"2", "shared": b"s" * 100}


def test_damage_is_found_and_named(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    write(store, 1)
    damaged = write(store, 2)
    whole = server.objects()
    prefix = "some/folder/member-1/"
    part = prefix + damaged.parts["own"].file
    manifest = prefix + damaged.attempt.manifest
    for key, data, reason in (
        (part, b"3", "part 'own' does not match its checksum"),
        (part, b"", "part 'own' has 0 bytes; 1 were written"),
        (manifest, whole[manifest][:-1], "its manifest has "),
        (manifest, whole[manifest].replace(b"shared", b"sharer"), "its manifest does not match"),
    ):
        server.control(objects={key: data.hex()})
        recovery = SnapshotStore(storage, 1).recover()
        assert recovery.chosen is not None
        assert recovery.chosen.epoch == 1
        assert recovery.skipped[0].reason.startswith(reason)
        server.control(objects={key: whole[key].hex()})
    assert store.recover().skipped == []


def test_a_store_that_hesitates_is_asked_again(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    server.control(status=503, method="PUT", key="parts", times=2)
    write(store, 1)
    assert store.recover().chosen is not None


def test_a_store_that_refuses_is_no_damage(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    write(store, 1)
    server.control(status=403, method="PUT", key="", times=100)
    with pytest.raises(StorageRefusedError, match="give the user that runs Penstock the right"):
        write(store, 2)
    server.control(status=403, method="GET", key="parts", times=100)
    with pytest.raises(StorageError, match="cannot read member-1/parts/"):
        store.recover()
    server.control(times=0)
    assert store.epochs() == [1]
    with pytest.raises(StorageError, match="NO_SUCH_BUCKET"):
        Storage.open(server.place("x").replace("@bucket", "@nowhere")).create("a", b"")


def test_two_processes_at_the_same_attempt_do_not_meet(storage: Storage) -> None:
    """Neither knows of the other, nothing is atomic, and both are whole."""
    first, second = SnapshotStore(storage, 1), SnapshotStore(storage, 1)
    writers = [first.begin(5, 1), second.begin(5, 1)]
    for number, writer in enumerate(writers):
        writer.add("a", b"of %d" % number)
    snapshots = [writer.finish() for writer in writers]
    assert [contents(snapshot) for snapshot in snapshots] == [{"a": b"of 0"}, {"a": b"of 1"}]
    counting = first.load(5)
    assert contents(counting) == contents(second.load(5))
    assert first.commit(5) == second.commit(5) == counting.attempt


def test_dropped_snapshots_leave_no_object(storage: Storage, server: S3Server) -> None:
    store = SnapshotStore(storage, 1)
    snapshot = None
    for epoch in range(1, 5):
        snapshot = write(store, epoch, snapshot)
        store.commit(epoch)
    store.retain(1)
    chosen = store.recover().chosen
    assert chosen is not None
    assert contents(chosen) == {"own": b"4", "shared": b"s" * 100}
    files = [key for key in server.objects() if not key.endswith("/")]  # pyarrow's folder marks
    assert len(files) == 2 + 1 + 1


def killed_at(server: S3Server, place: str, change: int) -> list[str] | None:
    """Runs a member that dies when the server has done its n-th change and has not yet answered.
    Gives what it was promised; None if it came to its end before."""
    member = subprocess.Popen(
        [sys.executable, "-c", MEMBER, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert member.stdin is not None
    assert member.stdout is not None
    assert member.stdout.readline() == "ready\n"
    server.control(kill_after=change, kill_pid=member.pid)
    told, _ = member.communicate("go\n", timeout=120)
    server.control(times=0)
    if member.returncode == 0:
        return None
    assert member.returncode == -signal.SIGKILL
    return told.splitlines()


def test_member_killed_after_every_change_to_the_store(server: S3Server) -> None:
    recovered = set()
    change = 0
    while True:
        change += 1
        server.control(clear=True)
        place = server.place(f"run-{change}")
        told = killed_at(server, place, change)
        if told is None:
            break
        recovered.add(check(Storage.open(place), told, f"killed after change {change}"))
    assert change > 10
    assert recovered == {None, 1, 3}, "it is killed in all of its chapters"


def check(storage: Storage, told: list[str], when: str) -> int | None:
    store = SnapshotStore(storage, 1)
    member = SnapshotParticipant(
        store,
        lambda _: Captured({"state": b"later", "fixed": b"f" * 500}),
        keep=1,
        held_bytes_max=5,
    )
    in_doubt, committed = member.in_doubt(), store.committed()
    for line in told:
        what, number = line.split()
        epoch = int(number)
        if what == "commit":
            assert max(committed) >= epoch, when
        if what == "prepared" and f"{DECISIONS[epoch]} {epoch}" not in told:
            assert epoch in [*in_doubt, *committed] or DECISIONS[epoch] == "abort", when
    for epoch in in_doubt:
        getattr(member, DECISIONS[epoch])(epoch)
    recovery = member.recover()
    assert recovery.skipped == [], when
    chosen = recovery.chosen
    if chosen is not None:
        assert contents(chosen) == {"state": b"%d" % chosen.epoch * 100, "fixed": b"f" * 500}, when
    later = range(9, 9 + DROP_EVERY)
    for epoch in later:
        member.capture(Barrier(epoch, epoch))
        member.prepare(epoch)
        member.commit(epoch)
    again = member.recover()
    assert again.chosen is not None, when
    assert (again.chosen.epoch, again.skipped) == (later[-1], []), when
    assert set(store.epochs()) <= set(later), "old ones were dropped on the way"
    return chosen.epoch if chosen is not None else None
