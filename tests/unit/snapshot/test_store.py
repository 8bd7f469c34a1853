"""Snapshots in a store: written once, checked when read, found again, and dropped in order."""

from __future__ import annotations

import errno
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.snapshot import (
    CorruptSnapshotError,
    MissingSnapshotError,
    Snapshot,
    SnapshotStore,
)
from penstock.snapshot import store as store_module
from penstock.snapshot.store import ORPHAN_SECONDS_MIN
from penstock.storage import Storage, StorageError, StorageRefusedError
from penstock.storage import storage as storage_module
from tests.unit.storage.places import KINDS, fast_folder, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with storage_of(request.param) as storage:
        yield storage


@pytest.fixture
def store(storage: Storage) -> SnapshotStore:
    return SnapshotStore(storage, 3)


def write(
    store: SnapshotStore,
    epoch: int,
    parts: Mapping[str, bytes],
    base: Snapshot | None = None,
    attempt: int = 0,
) -> Snapshot:
    with store.begin(epoch, attempt, base=base) as writer:
        for name, data in parts.items():
            writer.add(name, data)
        return writer.finish({"epoch": epoch}, epoch * 10)


def contents(snapshot: Snapshot) -> dict[str, bytes]:
    return {name: snapshot.part(name).to_pybytes() for name in snapshot.parts}


# One snapshot


def test_a_snapshot_comes_back_as_it_was_written(store: SnapshotStore) -> None:
    with store.begin(5, 2) as writer:
        writer.add("whole", b"one")
        writer.add("buffer", pa.py_buffer(b"two"))
        writer.add("pieces", [b"th", memoryview(b"re"), pa.py_buffer(b"e")])
        writer.add("passing", (piece for piece in (b"fo", b"ur")))
        writer.add("empty", b"")
        written = writer.finish({"offsets": [1, 2]}, 77)
    for snapshot in (written, store.load(5)):
        assert contents(snapshot) == {
            "whole": b"one", "buffer": b"two", "pieces": b"three", "passing": b"four", "empty": b"",
        }  # fmt: skip
        assert (snapshot.member, snapshot.epoch, snapshot.attempt.number) == (3, 5, 2)
        assert (snapshot.attributes, snapshot.watermark) == ({"offsets": [1, 2]}, 77)
        assert snapshot.size_bytes == 15
        snapshot.verify()


def test_a_snapshot_without_a_manifest_does_not_exist(
    store: SnapshotStore, storage: Storage
) -> None:
    writer = store.begin(5)
    writer.add("a", b"one")
    assert store.epochs() == []
    with pytest.raises(MissingSnapshotError, match="member 3 has no snapshot of epoch 5"):
        store.load(5)
    assert store.recover().chosen is None
    writer.discard()
    assert storage.names() == []
    with pytest.raises(LocalProtocolError, match="finished or discarded"):
        writer.finish()


def test_an_exception_on_the_way_leaves_nothing(store: SnapshotStore, storage: Storage) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("the state broke")

    def attempt() -> None:
        with store.begin(5) as writer:
            writer.add("a", b"one")
            writer.add("b", broken())

    with pytest.raises(RuntimeError, match="the state broke"):
        attempt()
    assert storage.names() == []


def test_a_manifest_that_may_have_been_written_goes_first(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, not the write: what is given up must not be left half deleted."""
    store = SnapshotStore(storage, 3)
    writer = store.begin(5)
    writer.add("a", b"one")
    real_create, real_delete = Storage.create, Storage.delete_all
    deleted: list[str] = []

    def create(storage: Storage, name: str, value: bytes) -> bool:
        real_create(storage, name, value)
        raise StorageError("write", name, "here", "the answer was lost")

    def delete_all(storage: Storage, names: Iterable[str]) -> None:
        names = list(names)
        deleted.extend(name.split("/")[0] for name in names)
        real_delete(storage, names)

    monkeypatch.setattr(Storage, "create", create)
    monkeypatch.setattr(Storage, "delete_all", delete_all)
    with pytest.raises(StorageError, match="the answer was lost"):
        writer.finish()
    assert store.epochs() == [5]
    writer.discard()
    assert deleted == ["manifests", "parts"]
    assert storage.names() == []


def test_members_do_not_see_each_other(storage: Storage) -> None:
    first, second = SnapshotStore(storage, 1), SnapshotStore(storage, 11)
    write(first, 5, {"a": b"first"})
    write(second, 6, {"a": b"second"})
    assert first.epochs() == [5]
    assert second.epochs() == [6]
    second.forget(5)
    second.retain(1)
    assert contents(first.load(5)) == {"a": b"first"}


def test_misuse_is_told(store: SnapshotStore, storage: Storage) -> None:
    base = write(store, 5, {"a": b"one"})
    writer = store.begin(6, base=base)
    writer.add("a", b"two")
    for call in (writer.add, lambda name, _: writer.refer(name)):
        with pytest.raises(LocalProtocolError, match="part 'a' already"):
            call("a", b"")
    with pytest.raises(LocalProtocolError, match="epoch 5 has none; add it"):
        writer.refer("b")
    with pytest.raises(LocalProtocolError, match="there is no base; add it"):
        store.begin(6).refer("a")
    with pytest.raises(LocalProtocolError, match="no part 'b'; it has: a"):
        base.part("b")
    with pytest.raises(LocalProtocolError, match="a base is older"):
        store.begin(5, base=base)
    with pytest.raises(LocalProtocolError, match="of the same member"):
        SnapshotStore(storage, 4).begin(6, base=base)
    with pytest.raises(LocalProtocolError, match="the newest always stays"):
        store.retain(0)
    with pytest.raises(LocalProtocolError, match="below 0"):
        SnapshotStore(storage, -1)


# Incremental parts


def test_unchanged_parts_are_referred_to_and_not_written(
    store: SnapshotStore, storage: Storage
) -> None:
    state = {"big": b"x" * 1_000, "small": b"y", "known": b"z" * 500}
    base = write(store, 1, state)
    before = {entry.name: entry for entry in storage.entries()}
    with store.begin(2, base=base) as writer:
        writer.add("big", [b"x" * 400, b"x" * 600])
        writer.add("small", b"w")
        writer.refer("known")
        assert writer.written_bytes == 1
        second = writer.finish()
    new = [entry for entry in storage.entries() if entry.name not in before]
    assert sorted(entry.name.split("/")[1] for entry in new) == ["manifests", "parts"]
    assert sum(entry.size_bytes for entry in new if "/parts/" in entry.name) == 1
    assert contents(second) == contents(store.load(2)) == state | {"small": b"w"}
    assert contents(store.load(1)) == state
    third = write(store, 3, contents(second), base=second)
    assert len(storage.names()) == len(before) + 2 + 1, "a manifest alone"
    assert third.parts["big"].file == base.parts["big"].file


@pytest.mark.parametrize("other", [b"x" * 9, b"x" * 11, b"x" * 9 + b"y"])
def test_a_part_that_differs_is_written(store: SnapshotStore, other: bytes) -> None:
    base = write(store, 1, {"a": b"x" * 10})
    second = write(store, 2, {"a": other}, base=base)
    assert contents(second) == {"a": other}
    assert contents(base) == {"a": b"x" * 10}


def test_without_a_base_everything_is_written(store: SnapshotStore) -> None:
    first = write(store, 1, {"a": b"same"})
    second = write(store, 2, {"a": b"same"})
    assert first.parts["a"].file != second.parts["a"].file


def test_a_part_that_passes_by_is_written_once_and_never_held(store: SnapshotStore) -> None:
    base = write(store, 1, {"a": b"same"})
    with store.begin(2, base=base) as writer:
        part = writer.add("a", iter([b"same"]))
        writer.finish()
    assert part.file != base.parts["a"].file


def test_a_base_that_is_gone_is_noticed_before_the_manifest(
    store: SnapshotStore, storage: Storage
) -> None:
    base = write(store, 1, {"a": b"one"})
    writer = store.begin(2, base=base)
    writer.add("a", b"one")
    storage.delete(f"member-3/{base.parts['a'].file}")
    with pytest.raises(LocalProtocolError, match="begin again without a base"):
        writer.finish()
    assert store.epochs() == [1]


# Attempts


def test_the_latest_attempt_counts_until_one_is_committed(store: SnapshotStore) -> None:
    write(store, 5, {"a": b"second"}, attempt=2)
    write(store, 5, {"a": b"first, late"}, attempt=1)
    assert contents(store.load(5)) == {"a": b"second"}
    assert store.committed() == []
    assert store.commit(5).number == 2
    assert store.committed() == [5]
    write(store, 5, {"a": b"by one that was fenced off"}, attempt=9)
    assert store.commit(5).number == 2, "once committed it stays"
    assert contents(store.load(5)) == {"a": b"second"}
    chosen = store.recover().chosen
    assert chosen is not None
    assert contents(chosen) == {"a": b"second"}


def test_an_older_attempt_does_not_stand_in_for_a_damaged_one(
    store: SnapshotStore, storage: Storage
) -> None:
    """It cut the streams at another place than the other members' snapshots of that epoch."""
    write(store, 4, {"a": b"older epoch"})
    write(store, 5, {"a": b"first"}, attempt=1)
    second = write(store, 5, {"a": b"second"}, attempt=2)
    storage.delete(f"member-3/{second.parts['a'].file}")
    recovery = store.recover()
    assert recovery.chosen is not None
    assert recovery.chosen.epoch == 4
    assert recovery.examined == 2


def test_only_what_is_finished_can_be_committed(store: SnapshotStore) -> None:
    store.begin(5).add("a", b"")
    with pytest.raises(MissingSnapshotError):
        store.commit(5)
    assert store.committed() == []


# Recovery from damage


class Damage:
    """Three snapshots on a disk, the second and third sharing a part with the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "member-3"
        self.store = SnapshotStore(Storage.open(folder), 3)
        first = write(self.store, 1, {"shared": b"s" * 300, "own": b"1" * 100})
        second = write(self.store, 2, {"shared": b"s" * 300, "own": b"2" * 100}, first)
        third = write(self.store, 3, {"shared": b"s" * 300, "own": b"3" * 100}, second)
        self.manifest = self.folder / third.attempt.manifest
        self.own = self.folder / third.parts["own"].file
        self.shared = self.folder / third.parts["shared"].file

    def reason(self, chosen: int | None, skipped: int) -> str:
        """Why the newest was skipped; checks what was chosen, and that it is whole."""
        recovery = self.store.recover()
        assert (recovery.chosen.epoch if recovery.chosen is not None else None) == chosen
        assert [one.epoch for one in recovery.skipped] == [3, 2, 1][:skipped]
        assert recovery.examined == 3
        if recovery.chosen is not None:
            own = str(chosen).encode() * 100
            assert contents(recovery.chosen) == {"shared": b"s" * 300, "own": own}
        return recovery.skipped[0].reason


@pytest.fixture
def damage() -> Iterator[Damage]:
    with fast_folder() as folder:
        yield Damage(folder)


def flip(path: Path, place: int, bit: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def test_a_flipped_bit_in_any_byte_of_the_manifest(damage: Damage) -> None:
    data = damage.manifest.read_bytes()
    for place in range(len(data)):
        flip(damage.manifest, place)
        assert damage.reason(chosen=2, skipped=1).startswith("its manifest ")
        damage.manifest.write_bytes(data)


def test_a_manifest_cut_anywhere(damage: Damage) -> None:
    data = damage.manifest.read_bytes()
    for size in range(len(data)):
        damage.manifest.write_bytes(data[:size])
        assert damage.reason(chosen=2, skipped=1).startswith("its manifest has ")
    damage.manifest.write_bytes(data + b"\0")
    assert damage.reason(chosen=2, skipped=1) == "its manifest does not match its checksum"


def test_a_manifest_that_is_deleted_was_never_there(damage: Damage) -> None:
    damage.manifest.unlink()
    recovery = damage.store.recover()
    assert recovery.chosen is not None
    assert (recovery.chosen.epoch, recovery.skipped, recovery.examined) == (2, [], 2)


def test_a_committed_manifest_that_is_deleted_is_missed(damage: Damage) -> None:
    damage.store.commit(3)
    damage.manifest.unlink()
    assert damage.reason(chosen=2, skipped=1) == "its manifest is missing"


def test_a_flipped_bit_in_any_byte_of_a_part(damage: Damage) -> None:
    data = damage.own.read_bytes()
    for place in range(len(data)):
        flip(damage.own, place)
        reason = damage.reason(chosen=2, skipped=1)
        assert reason.startswith("part 'own' does not match its checksum (parts/")
        with pytest.raises(CorruptSnapshotError, match="at epoch 3: part 'own' does not match"):
            damage.store.load(3).part("own")
        damage.own.write_bytes(data)
    assert damage.store.recover().skipped == []


def test_a_part_of_another_length(damage: Damage) -> None:
    for size in (0, 1, 99, 101):
        damage.own.write_bytes(b"3" * size)
        reason = damage.reason(chosen=2, skipped=1)
        assert reason.startswith(f"part 'own' has {size} bytes; 100 were written")
        with pytest.raises(CorruptSnapshotError, match="100 were written"):
            damage.store.load(3).part("own")


def test_a_part_that_is_missing(damage: Damage) -> None:
    damage.own.unlink()
    assert damage.reason(chosen=2, skipped=1).startswith("part 'own' is missing (parts/")
    with pytest.raises(CorruptSnapshotError, match="is missing"):
        damage.store.load(3).part("own")


def test_a_shared_part_takes_all_who_refer_to_it(damage: Damage) -> None:
    flip(damage.shared, 0)
    assert damage.reason(chosen=None, skipped=3).startswith("part 'shared' does not match")


def test_a_part_in_the_place_of_another(damage: Damage) -> None:
    older = damage.folder / damage.store.load(2).parts["own"].file
    damage.own.write_bytes(older.read_bytes())
    assert "does not match its checksum" in damage.reason(chosen=2, skipped=1)


def test_a_disk_that_cannot_read_a_part(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pa.OSFile

    def open_file(path: str, mode: Any) -> pa.NativeFile:
        if path == str(damage.own):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, mode)

    monkeypatch.setattr(pa, "OSFile", open_file)
    assert "cannot be read: Input/output error" in damage.reason(chosen=2, skipped=1)
    with pytest.raises(CorruptSnapshotError, match="Input/output error"):
        damage.store.load(3).part("own")


def test_a_storage_that_does_not_answer_is_no_damage(
    damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to an older snapshot would be wrong: the newest is there, only not now."""
    for number, kind in ((errno.EACCES, StorageRefusedError), (errno.ETIMEDOUT, StorageError)):

        def fail(*_: object, number: int = number) -> pa.NativeFile:
            raise OSError(number, "not now")

        with monkeypatch.context() as patch:
            patch.setattr(pa, "OSFile", fail)
            with pytest.raises(kind, match="not now"):
                damage.store.recover()


def test_a_huge_manifest_is_not_read(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MANIFEST_BYTES_MAX", 10_000)
    damage.manifest.write_bytes(bytes(10_001))
    assert damage.reason(chosen=2, skipped=1) == "its manifest has 10001 bytes, too many"


def test_large_parts_are_checked_in_pieces(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "PIECE_BYTES", 7)
    assert damage.store.recover().skipped == []
    flip(damage.own, 99)
    assert "does not match its checksum" in damage.reason(chosen=2, skipped=1)


def test_epochs_that_may_not_be_used_are_skipped(damage: Damage) -> None:
    recovery = damage.store.recover({1}.__contains__)
    assert recovery.chosen is not None
    assert recovery.chosen.epoch == 1
    assert str(recovery) == (
        "chosen of 3 snapshots: epoch 1; "
        "skipped: epoch 3: it was not committed; epoch 2: it was not committed"
    )
    assert damage.store.recover(lambda _: False).chosen is None


def test_files_of_others_are_left_alone(damage: Damage) -> None:
    strangers = [
        damage.folder / folder / "readme" for folder in ("manifests", "parts", "committed")
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("what is here")
    assert damage.store.epochs() == [1, 2, 3]
    assert damage.store.recover().skipped == []
    damage.store.retain(1)
    assert all(path.exists() for path in strangers)


def test_errors_pickle() -> None:
    for error in (CorruptSnapshotError(3, 5, "why"), MissingSnapshotError(3, 5)):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


# Retention


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_newest_are_kept_with_all_they_refer_to(store: SnapshotStore, storage: Storage) -> None:
    snapshot = None
    for epoch in range(1, 6):
        state = {"shared": b"s" * 50, "own": bytes([epoch])}
        snapshot = write(store, epoch, state, snapshot)
        store.commit(epoch)
    retained = store.retain(2)
    assert retained.epochs == [1, 2, 3]
    assert (retained.files, retained.size_bytes) == (3 + 3, 3)
    assert store.epochs() == store.committed() == [4, 5]
    assert len(storage.names()) == 2 + 2 + 3
    for epoch in (4, 5):
        assert contents(store.load(epoch)) == {"shared": b"s" * 50, "own": bytes([epoch])}
    assert store.retain(2).files == 0


def test_protected_epochs_and_those_that_do_not_count(store: SnapshotStore) -> None:
    for epoch in range(1, 8):
        write(store, epoch, {"own": bytes([epoch])})
    assert store.retain(2, protect=[2], counts={1, 3, 5, 6}.__contains__).epochs == [1, 3, 4]
    assert store.epochs() == [2, 5, 6, 7]
    assert store.retain(10).epochs == []
    for epoch in store.epochs():
        assert contents(store.load(epoch)) == {"own": bytes([epoch])}


def test_parts_of_an_attempt_under_way_are_not_orphans(storage: Storage) -> None:
    clock = Clock()
    ours = SnapshotStore(storage, 3, clock=clock)
    theirs = SnapshotStore(storage, 3, clock=clock)
    base = write(ours, 1, {"a": b"one"})
    writer = ours.begin(3, base=base)
    writer.add("b", b"under way")
    write(ours, 2, {"c": b"two"})
    clock.seconds = min(entry.modified_seconds for entry in storage.entries())
    clock.seconds += ORPHAN_SECONDS_MIN - 1
    assert theirs.retain(2).files == 0, "a process that does not know of the writer"
    clock.seconds = 1e12
    ours.retain(1)
    writer.refer("a")
    writer.finish()
    assert contents(ours.load(3)) == {"a": b"one", "b": b"under way"}


def test_parts_of_a_dead_attempt_are_dropped_after_a_while(storage: Storage) -> None:
    clock = Clock()
    store = SnapshotStore(storage, 3, clock=clock)
    write(store, 1, {"a": b"one"})
    SnapshotStore(storage, 3).begin(2).add("b", b"of a dead process")
    written = max(entry.modified_seconds for entry in storage.entries())
    clock.seconds = written + ORPHAN_SECONDS_MIN
    assert store.retain(1).files == 0
    clock.seconds += 1
    assert store.retain(1).files == 1
    store.load(1).verify()


def test_parts_of_a_dead_attempt_are_dropped_once_its_epoch_is_over(storage: Storage) -> None:
    store = SnapshotStore(storage, 3, clock=Clock())
    SnapshotStore(storage, 3).begin(2).add("b", b"of a dead process")
    write(store, 2, {"a": b"one"}, attempt=1)
    assert store.retain(1).files == 0
    write(store, 3, {"a": b"two"})
    assert store.retain(1).files == 3


def test_damaged_snapshots_do_not_count_as_kept(damage: Damage) -> None:
    flip(damage.manifest, 30)
    retained = damage.store.retain(1)
    assert retained.epochs == [1]
    assert retained.unreadable == [3]
    assert retained.files == 1, "nobody knows to which parts the damaged manifest refers"
    chosen = damage.store.recover().chosen
    assert chosen is not None
    assert chosen.epoch == 2


def test_nothing_is_lost_by_parts_that_wait(damage: Damage) -> None:
    data = damage.manifest.read_bytes()
    flip(damage.manifest, 30)
    damage.store.retain(1)
    damage.manifest.write_bytes(data)
    assert damage.store.recover().skipped == []


# Epochs that were given up


def test_a_forgotten_epoch_leaves_what_others_refer_to(
    store: SnapshotStore, storage: Storage
) -> None:
    first = write(store, 1, {"a": b"one", "b": b"two"})
    write(store, 2, {"a": b"one"}, base=first)
    write(store, 1, {"a": b"another attempt"}, attempt=1)
    store.begin(1, 2).add("a", b"not finished")
    store.forget(1)
    assert store.epochs() == [2]
    assert contents(store.load(2)) == {"a": b"one"}
    assert len(storage.names()) == 2
    store.forget(1)
    store.forget(7)


def test_a_committed_epoch_cannot_be_forgotten(store: SnapshotStore) -> None:
    write(store, 1, {"a": b"one"})
    store.commit(1)
    with pytest.raises(LocalProtocolError, match="epoch 1 is committed"):
        store.forget(1)
    store.load(1).verify()


def test_forgetting_beside_a_damaged_manifest_deletes_no_part(damage: Damage) -> None:
    data = damage.manifest.read_bytes()
    flip(damage.manifest, 30)
    damage.store.forget(1)
    assert damage.store.epochs() == [2, 3]
    damage.manifest.write_bytes(data)
    damage.store.load(3).verify()
