"""Disks that fail: what was acknowledged is never built on sand, and the error names the file."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.disk import (
    DiskDamagedError,
    DiskError,
    DiskFullError,
    DiskRefusedError,
    explained,
    make_folder,
    write_new_file,
)
from penstock.errors import CommitFailedError, PenstockError
from penstock.journal import open_store
from penstock.journal.errors import CorruptJournalError, SyncFailedError
from penstock.journal.file import head as head_module
from penstock.journal.file import repair
from penstock.journal.file.rescue.backup import back_up
from penstock.journal.file.rescue.restore import restore
from penstock.journal.store import Probe
from tests.unit.journal import journal_children as children
from tests.unit.journal.journal_files import (
    JOURNAL,
    NUMBERS,
    Writer,
    append,
    fast_folder,
    ids_of,
    journal_folder,
    open_numbers,
    segments,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.journal.file.store import FileStore


class FailingSync:
    """Stands before `os.fdatasync`: fails once for a segment, and then says that all is well, as
    the kernel does. What was to be written is dropped, if so wanted."""

    def __init__(self, patched: pytest.MonkeyPatch, *, drop_from: int | None = None) -> None:
        self.failures, real = 1, os.fdatasync

        def fdatasync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - as the kernel says
            if self.failures and path.endswith(".segment"):
                self.failures -= 1
                if drop_from is not None:
                    size = os.fstat(descriptor).st_size - drop_from
                    os.pwrite(descriptor, bytes(size), drop_from)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        patched.setattr(os, "fdatasync", fdatasync)


@pytest.mark.parametrize("rolls", [False, True])
def test_after_a_failed_sync_nobody_appends_until_it_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolls: bool
) -> None:
    store, other = (open_numbers(tmp_path, segment_bytes_max=1 if rolls else 1 << 20) for _ in "ab")
    append(store, Writer().documents([0]))
    assert ids_of(other) == [0]
    durable = segments(tmp_path)[0].stat().st_size
    with monkeypatch.context() as patched:
        FailingSync(patched, drop_from=durable)
        with pytest.raises(SyncFailedError, match="Input/output error") as caught:
            append(store, Writer().documents([1]))
        assert caught.value.path == str(segments(tmp_path)[0])
        for each in (store, other):
            with pytest.raises(SyncFailedError, match="an earlier sync failed"):
                append(each, Writer().documents([2]))
        assert ids_of(other) == [0], "who reads is not disturbed"
    late = open_numbers(tmp_path)
    assert ids_of(late) == [0], "what was dropped was never acknowledged"
    for number, each in enumerate((late, other, store), 1):
        assert append(each, Writer().documents([number])) == number
    assert ids_of(late) == [0, 1, 2, 3]


def test_a_failed_sync_is_told_to_those_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync says nothing: so it must not be asked."""
    store, other = open_numbers(tmp_path), open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    append(other, Writer().documents([0]))
    one = store.append(JOURNAL, Writer().documents([0]), None)
    two = other.append(JOURNAL, Writer().documents([1]), None)
    with monkeypatch.context() as patched:
        FailingSync(patched)
        for each, end in ((store, one.end), (other, two.end)):
            with pytest.raises(SyncFailedError):
                each.sync(JOURNAL, end)
    assert store.probe(JOURNAL) == Probe(0, 2)


def test_a_transaction_whose_sync_failed_fails_and_recovery_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_numbers(tmp_path)
    producer = store.producer()
    with monkeypatch.context() as patched:
        transaction = producer.transaction()
        transaction.append("numbers", {"id": 1})
        FailingSync(patched)
        with pytest.raises(CommitFailedError, match="could not be made durable"):
            transaction.commit()
    assert store.recover() == [producer.id]
    with store.producer() as another:
        another.append("numbers", {"id": 2})
    assert 2 in ids_of(store)


# Damage, and torn ends


def older_head(folder: Path, store: Any, count: int) -> bytes:
    """Appends, and gives the head as it was after the first of them."""
    append(store, Writer().documents([0]))
    old = (journal_folder(folder) / "head").read_bytes()
    for number in range(1, count):
        append(store, Writer().documents([number]))
    store.close()
    return old


@pytest.mark.parametrize("head", ["old", "damaged", "missing"])
def test_whatever_byte_is_damaged_behind_an_old_head_nothing_is_cut(head: str) -> None:
    """All rows were acknowledged. Only of the last one nobody can tell."""
    with fast_folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(head_module, "_READ_TRIES_MAX", 2)
        old = older_head(folder, open_numbers(folder), 4)
        (segment,) = segments(folder)
        whole, path = segment.read_bytes(), journal_folder(folder) / "head"
        begin, last = whole.index(b"PSF1"), whole.rindex(b"PSF1")
        for place in range(begin, last, 7):  # no common factor with what a frame is made of
            segment.write_bytes(whole[:place] + bytes([whole[place] ^ 0x04]) + whole[place + 1 :])
            path.write_bytes(old if head == "old" else bytes(192))
            if head == "missing":
                path.unlink()
            store = open_numbers(folder)
            assert store.probe(JOURNAL) == Probe(0, 4), place
            with pytest.raises(CorruptJournalError, match="is damaged at byte"):
                ids_of(store)
            assert append(store, Writer().documents([4])) == 4, "behind what is damaged"
            store.close()
            assert segment.read_bytes()[:place] == whole[:place]
            assert segment.read_bytes()[place + 1 : len(whole)] == whole[place + 1 :], place
            assert not repair.list_cuts(journal_folder(folder))


def test_a_hole_before_rows_that_were_not_durable_either_is_a_torn_end(tmp_path: Path) -> None:
    """Of three appends that nobody synced, the power cut kept the second and the third."""
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    (segment,) = segments(tmp_path)
    begin = segment.stat().st_size
    for number in (1, 2, 3):
        store.append(JOURNAL, Writer().documents([number]), None)
    store.close()
    torn = segment.read_bytes()[begin:]
    with segment.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(64))
    store = open_numbers(tmp_path)
    assert ids_of(store) == [0]
    (kept,) = repair.list_cuts(journal_folder(tmp_path))
    assert kept.read_bytes() == bytes(64) + torn[64:]
    assert append(store, Writer().documents([9])) == 1


def test_torn_ends_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    store = open_numbers(tmp_path)
    append(store, Writer().documents([0]))
    store.close()
    for number in range(repair.CUTS_KEPT_MAX + 3):
        with segments(tmp_path)[0].open("ab") as file:
            file.write(b"torn %d" % number)
        assert ids_of(open_numbers(tmp_path)) == [0]
    cuts = repair.list_cuts(journal_folder(tmp_path))
    assert len(cuts) == repair.CUTS_KEPT_MAX
    assert {path.read_bytes() for path in cuts} == {
        b"torn %d" % number for number in range(3, repair.CUTS_KEPT_MAX + 3)
    }


# Stores that are only buffered


@pytest.mark.parametrize("way", ["shorter", "zeros"])
def test_a_buffered_store_is_read_up_to_what_a_power_cut_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    ends = []
    for number in range(5):
        append(store, Writer().documents([number]))
        ends.append(segments(tmp_path)[0].stat().st_size)
    store.close()
    (segment,) = segments(tmp_path)
    if way == "shorter":
        os.truncate(segment, ends[2] - 1)
    else:  # the size is there, a page in the middle is not; and the machine was started anew
        with segment.open("r+b") as file:
            file.seek(ends[1])
            file.write(bytes(ends[2] - ends[1]))
        monkeypatch.setattr(repair, "this_boot", lambda: 7)
    store = open_numbers(tmp_path, durability="buffered")
    assert ids_of(store) == [0, 1]
    assert "rows 2 to 4 are lost" in caplog.text
    assert append(store, Writer().documents([9])) == 2
    assert ids_of(open_numbers(tmp_path, durability="buffered")) == [0, 1, 9]


# Who waits for whom


def hold_the_lock(folder: Path, name: str, ready: Any) -> None:
    """A process that is paused within an append, or a sync."""
    import fcntl  # noqa: PLC0415 - in the child only

    store = open_numbers(folder)
    store.append(JOURNAL, Writer().documents([1]), None)
    with (journal_folder(folder) / name).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        time.sleep(children.CHILD_S_MAX)


@pytest.mark.parametrize("name", ["head", "sync.lock"])
def test_readers_do_not_wait_for_one_who_is_paused(tmp_path: Path, name: str) -> None:
    append(open_numbers(tmp_path), Writer().documents([0]))
    ready = children.PROCESSES.Event()
    process = children.start(hold_the_lock, tmp_path, name, ready)
    try:
        assert ready.wait(children.CHILD_S_MAX)
        store = open_numbers(tmp_path)
        assert process.is_alive()
        assert ids_of(store) == [0]
        assert process.is_alive(), "and it was not the holder who made way"
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        children.end(process)


# Words


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, DiskFullError, "make room"),
        (errno.EDQUOT, DiskFullError, "raise the limit"),
        (errno.EROFS, DiskRefusedError, "the right to"),
        (errno.EIO, DiskDamagedError, "restore the file from a copy"),
        (errno.ENFILE, DiskError, "look at the disk"),
    ],
)
def test_an_error_of_the_disk_names_the_file_and_what_to_do(
    tmp_path: Path, number: int, kind: type[DiskError], advice: str
) -> None:
    with pytest.raises(kind) as caught, explained("write", tmp_path / "file"):
        raise OSError(number, os.strerror(number))
    error = caught.value
    assert isinstance(error, PenstockError)
    assert isinstance(error, OSError)
    assert error.errno == number
    assert f"cannot write {tmp_path / 'file'}: {os.strerror(number)}; " in str(error)
    assert advice in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "kind", [FileNotFoundError, FileExistsError, NotADirectoryError, BlockingIOError]
)
def test_what_callers_ask_on_purpose_is_left_to_them(tmp_path: Path, kind: type[OSError]) -> None:
    with pytest.raises(kind), explained("read", tmp_path):
        raise kind(1, "as asked")


CALLS = ("open", "write", "fsync", "fdatasync", "mkdir", "rename", "pwrite", "pwritev", "ftruncate")
DOINGS: dict[str, Callable[[Path], object]] = {
    "make a folder": lambda folder: make_folder(folder / "a" / "b"),
    "write a file": lambda folder: write_new_file(folder / "new", [b"data"]),
    "make a store": lambda folder: open_store(folder / "another"),
    "make a collection": lambda folder: open_store(folder / "store").create(NUMBERS),
    "append": lambda folder: append(open_numbers(folder / "made"), Writer().documents([1])),
    "commit": lambda folder: _in_a_transaction(open_numbers(folder / "made"), "commit"),
    "roll back": lambda folder: _in_a_transaction(open_numbers(folder / "made"), "rollback"),
    "back up": lambda folder: back_up(open_numbers(folder / "made"), folder / "backup"),
    "restore": lambda folder: restore(_backed_up(folder), folder / "restored"),
}


def _in_a_transaction(store: FileStore, ending: str) -> None:
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("numbers", {"id": 1, "text": "one"})
        getattr(transaction, ending)()


def _backed_up(folder: Path) -> Path:
    back_up(open_numbers(folder / "made"), folder / "backup")
    return folder / "backup"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("doing", DOINGS)
def test_no_step_of_anything_ends_in_a_bare_error(
    monkeypatch: pytest.MonkeyPatch, doing: str, number: int
) -> None:
    """Each call that changes files, of each kind, fails once: the first, the second, ..."""
    for call in CALLS:
        fail_at = 0
        while _fails_well(monkeypatch, call, fail_at, number, DOINGS[doing]):
            fail_at += 1


def _fails_well(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    fail_at: int,
    number: int,
    doing: Callable[[Path], object],
) -> bool:
    """Whether the call came to be made so often. Then it failed, in plain words."""
    real, seen = getattr(os, call), 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == fail_at + 1:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **named)

    with fast_folder() as folder:
        append(open_numbers(folder / "made"), Writer().documents([0]))
        open_store(folder / "store")
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            told = _told(doing, folder)
        # Some failures are put up with, as that of a head's sync.
        if told is not None:
            assert os.strerror(number) in told, (call, fail_at)
            assert str(folder) in told or JOURNAL in told, (call, fail_at, told)
    return seen > fail_at


def _told(doing: Callable[[Path], object], folder: Path) -> str | None:
    try:
        doing(folder)
    except PenstockError as error:
        return str(error)
    return None
