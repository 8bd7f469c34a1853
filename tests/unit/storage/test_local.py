"""Files on a disk: whole or not there, and what goes wrong is said plainly."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.storage import (
    LEFTOVER_SECONDS_MIN,
    Storage,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65_534


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(tmp_path / "storage")


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@contextlib.contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """A real limit of the kernel: it fails writes as a full disk does, with another number."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_does_not_fit_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    storage.create("parts/small", b"here")
    with (
        files_no_larger_than(100_000),
        pytest.raises(StorageFullError, match=r"cannot write parts/large .* make room"),
    ):
        storage.create_from("parts/large", [bytes(60_000)] * 3)
    assert storage.read("parts/large") is None
    assert storage.names() == ["parts/small"]
    assert hidden(tmp_path) == []
    assert storage.create("parts/large", bytes(180_000))


def test_a_place_that_may_not_be_written(storage: Storage, tmp_path: Path) -> None:
    storage.create("a", b"")
    (tmp_path / "storage").chmod(0o555)
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:
        if os.geteuid() == 0:  # whom no mode keeps out
            os.seteuid(NOBODY)
            stack.callback(os.seteuid, 0)
        with pytest.raises(StorageRefusedError, match="Permission denied; give the user"):
            storage.create("b", b"")
    (tmp_path / "storage").chmod(0o755)
    assert storage.names() == ["a"]


def test_a_disk_that_cannot_read(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.create("a", b"here")

    def fail(*_: object) -> pa.NativeFile:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pa, "OSFile", fail)
    for read in (storage.read, storage.read_buffer, storage.read_pieces):
        with pytest.raises(StorageDamagedError, match="restore the file from a copy"):
            read("a")


def test_a_name_is_a_file_or_a_folder(storage: Storage) -> None:
    storage.create("a/b", b"")
    with pytest.raises(LocalProtocolError, match="'a' is a folder"):
        storage.create("a", b"")
    with pytest.raises(StorageError, match="Not a directory"):
        storage.create("a/b/c", b"")
    assert storage.names() == ["a/b"]


def test_unfinished_files_are_not_seen_and_swept_when_they_are_old(
    storage: Storage, tmp_path: Path
) -> None:
    storage.create("parts/a", b"here")
    folder = tmp_path / "storage" / "parts"
    (folder / ".0123.tmp").write_bytes(b"ha")
    (folder / ".other").write_bytes(b"not ours")
    assert storage.names() == ["parts/a"]
    assert storage.sweep() == 0, "its writer may be alive"
    old = (folder / ".0123.tmp").stat().st_mtime - LEFTOVER_SECONDS_MIN - 1
    for name in (".0123.tmp", ".other", "a"):
        os.utime(folder / name, (old, old))
    assert storage.sweep() == 1
    assert sorted(path.name for path in folder.iterdir()) == [".other", "a"]
    assert storage.sweep(older_than_seconds=0) == 0


def test_hidden_folders_are_not_looked_into(storage: Storage, tmp_path: Path) -> None:
    """A file system's own, say, where files are that nobody has created here."""
    storage.create("parts/a", b"here")
    hidden_folder = tmp_path / "storage" / "parts" / ".snapshots"
    hidden_folder.mkdir()
    (hidden_folder / "a").write_bytes(b"not ours")
    assert storage.names() == ["parts/a"]


def test_a_writer_whose_file_was_swept_publishes_nothing(storage: Storage, tmp_path: Path) -> None:
    def slow() -> Iterator[bytes]:
        yield b"here"
        assert storage.sweep(older_than_seconds=-60) == 1

    with pytest.raises(StorageError, match="No such file"):
        storage.create_from("a", slow())
    assert storage.read("a") is None


def test_a_folder_that_somebody_removed_is_made_again(storage: Storage, tmp_path: Path) -> None:
    storage.create("x/a", b"")
    storage.delete("x/a")
    (tmp_path / "storage" / "x").rmdir()
    assert storage.create("x/a", b"again")
    assert storage.read("x/a") == b"again"


def test_nothing_is_written_for_a_name_that_is_taken(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("a", b"here")
    monkeypatch.setattr("penstock.storage.local.write_new_file", None)
    assert not storage.create_from("a", iter([b"never taken"]))


def test_what_is_shown_is_durable(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads, lists, or is told that a name is taken may act on it: so its folder is synced
    first, in case that its writer died before it did."""
    storage.create("x/a", b"here")
    synced: list[str] = []
    monkeypatch.setattr(
        "penstock.storage.local.sync_folder", lambda folder: synced.append(folder.name)
    )
    ways: list[Callable[[Storage], object]] = [
        lambda other: other.read("x/a"),
        lambda other: other.names("x/"),
        lambda other: not other.create("x/a", b"other"),
        lambda other: not other.create_empty("x/a"),
    ]
    for way in ways:
        other = Storage.open(storage.place)
        assert other.read("x/b") is None
        assert other.read_buffer("x/a") is not None
        assert synced == []
        assert way(other)
        assert synced.pop() == "x"
        assert other.read("x/a") == b"here"
        assert synced == [], "once is enough"
    assert storage.names() == ["x/a"]
    assert synced == [], "its own it knows"


def test_a_file_without_contents_takes_one_sync(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("x/first", b"here")  # the folder is there from here on
    real, synced = os.fsync, []

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert storage.create_empty("x/mark")
    assert synced == [str(tmp_path / "storage" / "x")]
    assert storage.read("x/mark") == b""
    assert not storage.create_empty("x/mark")
    with pytest.raises(LocalProtocolError, match="'x' is a folder"):
        storage.create_empty("x")
    assert hidden(tmp_path) == []


def test_a_listing_settles_what_it_did_not_know(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("x/a", b"here")
    storage.create("x/b", b"here")
    folder = tmp_path / "storage" / "x"
    synced: list[str] = []
    monkeypatch.setattr(
        "penstock.storage.local.sync_folder", lambda folder: synced.append(folder.name)
    )
    assert storage.names("x/") == ["x/a", "x/b"]
    assert synced == [], "its own it knows"
    (folder / "c").write_bytes(b"of another process, not yet synced")
    assert storage.names("x/") == ["x/a", "x/b", "x/c"]
    assert synced == ["x"]
    assert storage.names("x/") == ["x/a", "x/b", "x/c"]
    assert synced == ["x"], "once is enough"
    (folder / "a").rename(folder / ".kept")  # so that its inode is not given to the next
    (folder / "a").write_bytes(b"another file")
    assert storage.names("x/") == ["x/a", "x/b", "x/c"]
    assert synced == ["x", "x"]


def test_a_file_of_the_same_name_is_another_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Storage.open(storage.place)
    synced: list[str] = []
    for number in range(3):
        storage.create("x/a", bytes([number]))
        with monkeypatch.context() as patch:
            patch.setattr(
                "penstock.storage.local.sync_folder", lambda folder: synced.append(folder.name)
            )
            assert other.read("x/a") == bytes([number])
        assert synced.pop() == "x"
        storage.delete("x/a")
