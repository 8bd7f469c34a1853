"""A member dies at any of its changes to the disk: what it was promised is there, and whole.

The story is cut short after its first change to the disk, its second, and so on to the last, once
by SIGKILL and by power cuts (see `tests/power_cuts.py`). What must hold after:

- an epoch whose `prepare` returned is in doubt, committed, or dropped as it is outlived
- an epoch whose `commit` returned is recovered, unless a later one is
- every snapshot that is there is whole, and has the state of its epoch
- an aborted epoch is not there, or is in doubt and can be aborted again
- what is in doubt can be settled either way, and the next epoch goes on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.checkpoint.barrier import Barrier
from penstock.snapshot import SnapshotStore
from penstock.snapshot.participant import DROP_EVERY
from penstock.storage import Storage
from tests.faults import Stage, copy_store
from tests.integration.snapshot_stories import (
    EPOCHS,
    KEEP,
    doubtful,
    fresh,
    make_store,
    open_member,
    state_of,
    story,
)
from tests.power_cuts import scratch
from tests.small_disk import needs_small_disk, run_on_small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def promises(reports: Path | list[str], kind: str) -> set[int]:
    told = reports if isinstance(reports, list) else reports.read_text().splitlines()
    lines = [line.split() for line in told]
    return {int(epoch) for what, epoch in lines if what == kind}


def check_store(folder: Path, reports: Path | list[str], when: str) -> int:
    """Everything that must hold after a crash; gives the newest committed epoch."""
    prepared, committed = promises(reports, "prepared"), promises(reports, "committed")
    aborted = promises(reports, "aborted")
    newest = max(committed, default=1)
    member = open_member(folder)
    store = SnapshotStore(Storage.open(folder), 7)
    check_whole(store, when)
    in_doubt = set(member.in_doubt())
    assert not in_doubt & (committed | aborted), when
    for epoch in prepared - committed - aborted:
        assert epoch in in_doubt | set(store.committed()) or EPOCHS[epoch] == "abort", when
    found = set(store.committed())
    assert max(found) >= newest, when
    for epoch in sorted(in_doubt):
        getattr(member, EPOCHS[epoch])(epoch)
    assert member.in_doubt() == [], when
    recovery = member.recover()
    assert recovery.chosen is not None, when
    last = recovery.chosen.epoch
    expected = found | {epoch for epoch in in_doubt if EPOCHS[epoch] == "commit"}
    assert last == max(expected), when
    assert recovery.skipped == [], when
    assert 3 not in store.epochs(), when
    check_whole(store, when)
    member.capture(Barrier(100, 100))
    member.prepare(100)
    member.commit(100)
    check_whole(store, when)
    assert len(store.epochs()) < KEEP + DROP_EVERY, when
    storage = Storage.open(folder)
    storage.sweep(older_than_seconds=-60)
    assert not list(folder.rglob(".*")), when
    return last


def check_whole(store: SnapshotStore, when: str) -> None:
    for epoch in store.epochs():
        snapshot = store.load(epoch)
        found = {name: snapshot.part(name).to_pybytes() for name in snapshot.parts}
        assert found == state_of(epoch), when
        assert snapshot.attributes == {"epoch": epoch}, when


def changes_of_story(stage: Stage, tmp_path: Path) -> int:
    reports = tmp_path / "complete.txt"
    folder = make_store(tmp_path / "complete")
    changes = stage.count_changes(story, folder, reports)
    assert promises(reports, "prepared") == set(EPOCHS)
    assert check_store(folder, reports, "after the whole story") == max(EPOCHS)
    assert changes > 100
    return changes


def test_member_killed_after_every_change(stage: Stage, tmp_path: Path) -> None:
    original = make_store(tmp_path / "original")
    recovered = set()
    for change in range(1, changes_of_story(stage, tmp_path) + 1):
        reports = tmp_path / f"reports-{change}.txt"
        reports.touch()
        with scratch() as folder:
            stage.kill_at(change, story, copy_store(original, folder), reports)
            recovered.add(check_store(folder, reports, f"killed after change {change}"))
    assert recovered == {1, 2, 4, 5, 6}, "the story is cut in all of its chapters"


def test_power_cut_after_every_change(stage: Stage, tmp_path: Path) -> None:
    recording = stage.record(story, make_store(tmp_path / "store"), tmp_path / "told")
    recovered = set()
    for change, chance, when in recording.cuts():
        with scratch() as left:
            told = recording.cut(change, chance, left)
            recovered.add(check_store(left, told, when))
    assert recovered == {1, 2, 4, 5, 6}


def test_power_cut_while_folders_are_made(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    recording = stage.record(fresh, tmp_path / "store", tmp_path / "told")
    for change, chance, when in recording.cuts():
        with scratch() as left:
            told = recording.cut(change, chance, left)
            storage = Storage.open(left / "deep" / "er")
            for number, name in ((1, "x/y/record"), (2, "x/z/record")):
                read = storage.read(name)
                assert read in (None, b"whole"), when
                assert read is not None or number not in promises(told, "created"), when


def test_what_was_seen_is_not_lost_in_a_power_cut(stage: Stage, tmp_path: Path) -> None:
    complete = tmp_path / "complete.txt"
    recording = stage.record(doubtful, make_store(tmp_path / "store"), complete)
    assert promises(complete, "doubtful") == promises(complete, "seen") == {0, 1, 2}
    for change, chance, when in recording.cuts():
        with scratch() as left:
            for number in promises(recording.cut(change, chance, left), "seen"):
                assert Storage.open(left).read(f"decision-{number}") == b"commit", when


FULL_DISK = """
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage, StorageFullError

folder = Path(sys.argv[1])
ballast = folder / "ballast"
ballast.write_bytes(bytes(300_000))
storage = Storage.open(folder / "storage")
store = SnapshotStore(storage, 1)


def write(epoch):
    with store.begin(epoch) as writer:
        for name in ("a", "b", "c"):
            writer.add(name, [bytes([epoch]) * 10_000] * 3)
        return writer.finish({})


written = []
for epoch in range(1, 100):
    try:
        write(epoch)
    except StorageFullError as error:
        print(error)
        break
    written.append(epoch)
assert 2 < len(written) < 99, written
assert store.epochs() == written
assert store.recover().chosen.epoch == written[-1]
assert not list(folder.rglob(".*")), "nothing half written is left"
used = {entry.name for entry in storage.entries()}
assert len(used) == 4 * len(written), "nor parts of the attempt that did not fit"
try:
    storage.create("record", bytes(900_000))
except StorageFullError:
    pass
assert storage.read("record") is None
store.retain(1)
assert store.epochs() == written[-1:], "room can be made on a full disk"
ballast.unlink()
write(100)
assert store.recover().chosen.epoch == 100
print("it goes on")
"""


@needs_small_disk
def test_a_full_file_system(tmp_path: Path) -> None:
    refused, goes_on = run_on_small_disk(tmp_path, "1m", FULL_DISK)
    assert refused.startswith("cannot write member-1/parts/")
    assert "No space left on device; nothing is half written; make room there" in refused
    assert goes_on == "it goes on"
