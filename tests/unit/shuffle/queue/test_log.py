"""A Queue's log: what opening, appending, syncing and cutting promise, and what they refuse."""

from __future__ import annotations

import errno
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import PARCEL_FIELDS, Stage
from penstock.shuffle.queue import log as log_module
from penstock.shuffle.queue.errors import QueueInUseError, QueueLostError, QueueWriteError
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.segment import list_segments, lsn_of, segment_path
from tests.unit.shuffle.queue.queues import Entry, Row, append, batch_of, names_of, producer, read

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = (0, "orders/000", producer(1))
ALL = {SOURCE: 10**6}
NAMES = {1: (0, "orders/000")}
STAGE = Stage(0, 1)


def rows(first: int, count: int = 3) -> list[Entry]:
    return [Row(*SOURCE, number, number) for number in range(first, first + count)]


def batch(first: int = 1, count: int = 3) -> pa.RecordBatch:
    return batch_of(rows(first, count), names_of(rows(1)))


def filled(folder: Path, blocks: int = 6, segment_bytes_max: int = 1_500) -> list[int]:
    """A queue with its blocks' LSNs; all are durable."""
    with QueueLog.open(folder, 0, segment_bytes_max=segment_bytes_max) as log:
        lsns = [append(log, rows(1 + 3 * block)) for block in range(blocks)]
        log.sync()
    return lsns


def ids(folder: Path, lsn: int) -> list[int]:
    return [row.id for row in read(QueueReader(folder), {}, ALL, lsn)]


def test_lsns_count_blocks_and_segments(tmp_path: Path) -> None:
    lsns = filled(tmp_path)
    assert lsns[0] == lsn_of(1, 0)
    assert lsns[1] == lsn_of(1, 1)
    assert [lsn >> 16 for lsn in lsns] == sorted(lsn >> 16 for lsn in lsns)
    assert sorted({lsn >> 16 for lsn in lsns}) == list_segments(tmp_path) == [1, 2, 3]
    assert (tmp_path / "000000000001.queue").exists()
    for count, lsn in enumerate(lsns, 1):
        assert ids(tmp_path, lsn) == list(range(1, 1 + 3 * count))


def test_a_segment_has_a_limited_number_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_BLOCKS_MAX", 2)
    lsns = filled(tmp_path, 5, 10**6)
    assert lsns == [lsn_of(1, 0), lsn_of(1, 1), lsn_of(2, 0), lsn_of(2, 1), lsn_of(3, 0)]
    assert ids(tmp_path, lsns[-1]) == list(range(1, 16))


def test_a_cut_keeps_what_is_before_it(tmp_path: Path) -> None:
    lsns = filled(tmp_path)
    for kept in reversed(range(6)):
        with QueueLog.open(tmp_path, lsns[kept], segment_bytes_max=1_500) as log:
            assert log.last_lsn == log.durable_lsn == lsns[kept]
            assert log.size_bytes == sum(f.stat().st_size for f in tmp_path.glob("*.queue"))
            assert list_segments(tmp_path)[-1] == lsns[kept] >> 16
            assert ids(tmp_path, lsns[kept]) == list(range(1, 4 + 3 * kept))
            again = append(log, rows(1_000))
            assert again == (lsns[kept + 1] if kept < 5 else again)
            assert ids(tmp_path, again)[-3:] == [1_000, 1_001, 1_002]


def test_a_queue_does_not_begin_over_another(tmp_path: Path) -> None:
    lsns = filled(tmp_path)
    reader = QueueReader(tmp_path)
    assert read(reader, {}, ALL, lsns[-1])
    with pytest.raises(QueueInUseError, match="3 segments"):
        QueueLog.open(tmp_path, 0)
    assert ids(tmp_path, lsns[-1]) == list(range(1, 19)), "nothing was touched"
    with QueueLog.open(tmp_path, 0, discard=True) as log:
        assert (log.last_lsn, log.size_bytes, list_segments(tmp_path)) == (0, 0, [])
        append(log, rows(50))
        log.sync()
        assert ids(tmp_path, lsn_of(1, 0)) == [50, 51, 52]
        with pytest.raises(LocalProtocolError, match="begun anew"):
            read(reader, {}, ALL, lsn_of(1, 0))


def test_files_of_another_queue_are_not_taken_for_its_own(tmp_path: Path) -> None:
    lsns = filled(tmp_path / "one")
    filled(tmp_path / "other")
    stray = segment_path(tmp_path / "other", 2)
    stray.write_bytes(segment_path(tmp_path / "one", 2).read_bytes())
    with pytest.raises(QueueLostError, match="queue") as raised:
        QueueLog.open(tmp_path / "other", lsns[-1])
    assert raised.value.segment == 2


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_missing_segment_is_noticed(tmp_path: Path, segment: int) -> None:
    lsns = filled(tmp_path)
    segment_path(tmp_path, segment).unlink()
    with pytest.raises(QueueLostError, match="missing") as raised:
        QueueLog.open(tmp_path, lsns[-1])
    assert raised.value.segment == segment
    assert pickle.loads(pickle.dumps(raised.value)).segment == segment
    assert f"{segment:012x}" in str(raised.value)


def test_a_sealed_segment_without_its_last_block_is_noticed(tmp_path: Path) -> None:
    lsns = filled(tmp_path)
    QueueLog.open(tmp_path, lsns[0]).close()  # cuts the first segment behind its first block
    one = segment_path(tmp_path, 1).read_bytes()
    assert lsns == filled(tmp_path / "again")
    path = segment_path(tmp_path / "again", 1)
    path.write_bytes(path.read_bytes()[: len(one)])
    with pytest.raises(QueueLostError, match="missing"):
        QueueLog.open(tmp_path / "again", lsns[-1])


def test_a_queue_that_was_never_there_is_lost(tmp_path: Path) -> None:
    with pytest.raises(QueueLostError, match="no queue"):
        QueueLog.open(tmp_path / "nothing", lsn_of(1, 0))
    lsns = filled(tmp_path / "some")
    (tmp_path / "some" / "floor").write_bytes(b"")
    with pytest.raises(QueueLostError, match="header"):
        QueueLog.open(tmp_path / "some", lsns[-1])
    filled(tmp_path / "short", 2)
    with pytest.raises(QueueLostError, match="missing"):
        QueueLog.open(tmp_path / "short", lsns[-1])


def test_leftovers_are_removed(tmp_path: Path) -> None:
    lsns = filled(tmp_path)
    for name in (".000000000001.queue.tmp", "000000000009.queue"):
        (tmp_path / name).write_bytes(b"unfinished")
    with segment_path(tmp_path, lsns[-1] >> 16).open("ab") as file:
        file.write(b"torn")
    with QueueLog.open(tmp_path, lsns[-1]) as log:
        assert {path.name for path in tmp_path.iterdir()} == {
            "floor", *(segment_path(tmp_path, number).name for number in (1, 2, 3)),
        }  # fmt: skip
        append(log, rows(19))
        assert ids(tmp_path, log.last_lsn) == list(range(1, 22))


@pytest.mark.parametrize("at_segment_start", [False, True])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_segment_start: bool
) -> None:
    real = os.pwritev

    def full(descriptor: int, views: list[Any], position: int) -> int:
        real(descriptor, [b"".join(views)[:100]], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1 if at_segment_start else 10**6)
    append(log, rows(1))
    log.sync()
    before = log.size_bytes
    monkeypatch.setattr(os, "pwritev", full)
    for _ in range(2):
        with pytest.raises(QueueWriteError, match=r"No space left.*make room"):
            append(log, rows(4))
    assert log.size_bytes == before
    assert log.last_lsn == lsn_of(1, 0)
    assert log.sync() == lsn_of(1, 0)
    monkeypatch.setattr(os, "pwritev", real)
    lsn = append(log, rows(4))
    assert lsn == (lsn_of(2, 0) if at_segment_start else lsn_of(1, 1))
    assert log.sync() == lsn
    assert ids(tmp_path, lsn) == [1, 2, 3, 4, 5, 6]
    log.close()
    QueueLog.open(tmp_path, lsn).close()
    assert ids(tmp_path, lsn) == [1, 2, 3, 4, 5, 6]


def test_a_disk_that_also_refuses_to_cut_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    log = QueueLog.open(tmp_path, 0)
    append(log, rows(1))
    lsn = log.sync()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", broken)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(QueueWriteError):
            append(log, rows(4))
    with pytest.raises(LocalProtocolError, match="in part"):
        append(log, rows(4))
    log.close()
    with QueueLog.open(tmp_path, lsn):
        assert ids(tmp_path, lsn) == [1, 2, 3]


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_after_a_failed_sync_the_log_refuses_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = QueueLog.open(tmp_path, 0)
    append(log, rows(1))

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(QueueWriteError, match="the disk failed"):
            log.sync()
    assert log.durable_lsn == 0
    for act in (log.sync, lambda: append(log, rows(4)), lambda: log.drop(1, 0)):
        with pytest.raises(LocalProtocolError, match="cannot go on"):
            act()


def test_what_is_written_during_a_sync_is_not_durable_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another thread appended, and rolled, in the middle of a sync."""
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1_500)
    first = append(log, rows(1))
    real, synced = os.fdatasync, []

    def fdatasync(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    def fdatasync_and_append(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        real(descriptor)
        while log.segment == 1:
            append(log, rows(4))

    monkeypatch.setattr(os, "fdatasync", fdatasync_and_append)
    assert log.sync() == log.durable_lsn == first
    assert log.sync() == log.durable_lsn == log.last_lsn == lsn_of(2, 0)
    inodes = [segment_path(tmp_path, segment).stat().st_ino for segment in (1, 2)]
    assert synced == inodes, "the sealed segment has to be synced once more"
    synced.clear()
    assert log.sync() == log.last_lsn
    assert not synced, "there is nothing to sync"
    append(log, rows(4))
    log.sync()
    assert synced == inodes[1:]


def test_a_new_segment_is_synced_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1)
    synced: list[Path] = []
    monkeypatch.setattr(log_module, "sync_folder", synced.append)
    append(log, rows(1))
    assert not synced
    log.sync()
    assert synced == [tmp_path]
    append(log, rows(4))
    append(log, rows(7))
    log.sync()
    assert synced == [tmp_path] * 2


def refused(folder: Path, match: str, *arguments: Any) -> None:
    """And the log goes on as if nothing had been."""
    with QueueLog.open(folder, 0, discard=True) as log:
        append(log, rows(1))
        with pytest.raises(LocalProtocolError, match=match):
            log.append(*arguments)
        lsn = append(log, rows(4))
        assert ids(folder, lsn) == [1, 2, 3, 4, 5, 6]


def test_bad_blocks_are_refused(tmp_path: Path) -> None:
    good = [(STAGE, batch())]
    refused(tmp_path, "without rows", [], None, NAMES)
    refused(tmp_path, "without rows", [(STAGE, batch().slice(0, 0))], None, NAMES)
    refused(tmp_path, "read 1, which is unknown", good, None, {2: (0, "orders/000")})
    refused(tmp_path, "read 1, which is of binding 3", good, None, {1: (3, "orders/000")})
    for order in ([0, 1], [0, 0, 1], [0, 1, 3], [0, 1, 4_000_000_000]):
        refused(tmp_path, "the order of", good, np.array(order, np.uint32), NAMES)
    refused(tmp_path, "the order of", good, np.array([0, 1, 2], np.int64), NAMES)
    other = batch().append_column("more", pa.array([1, 2, 3]))
    refused(tmp_path, "changed its schema", [(STAGE, other)], None, NAMES)
    bare = batch().select(["_read", "_offset"])
    refused(tmp_path, "not the columns", [(Stage(0, 2), bare)], None, NAMES)
    refused(tmp_path, "not the columns", [(Stage(0, 0), batch())], None, NAMES)
    coded = other.set_column(6, "more", pa.array(["a", "b", "a"]).dictionary_encode())
    refused(tmp_path, "dictionary", [(Stage(0, 2), coded)], None, NAMES)


def test_a_schema_is_remembered_by_the_segment(tmp_path: Path) -> None:
    lsns = filled(tmp_path, 1)
    with QueueLog.open(tmp_path, lsns[0]) as log:
        other = batch().append_column("more", pa.array([1, 2, 3]))
        with pytest.raises(LocalProtocolError, match="changed its schema"):
            log.append([(STAGE, other)], None, NAMES)
        sizes = [log.size_bytes]
        for _ in range(2):
            append(log, rows(4))
            sizes.append(log.size_bytes)
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] < sizes[0] - 48, "it is stored once"


def test_parts_without_rows_and_sliced_parts(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        whole = batch(1, 10)
        parts = [(STAGE, whole.slice(2, 3)), (STAGE, whole.slice(0, 0)), (STAGE, whole.slice(7))]
        lsn = log.append(parts, np.array([5, 0, 1, 2, 3, 4], np.uint32), NAMES)
        assert ids(tmp_path, lsn) == [10, 3, 4, 5, 8, 9]


def test_buffers_go_to_the_file_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is the batch's own memory."""
    fields: list[pa.Field[Any]] = [*PARCEL_FIELDS, pa.field("text", pa.string())]
    small = batch(1, 1_000)
    columns = [*small.columns[:5], pa.array(["x" * 100] * 1_000)]
    large = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    own = {b.address for column in large.columns for b in column.buffers() if b is not None}
    real, written = os.pwritev, set()

    def pwritev(descriptor: int, views: list[memoryview], position: int) -> int:
        for view in views:
            written.add(np.frombuffer(view, np.uint8).ctypes.data)
        return real(descriptor, views, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with QueueLog.open(tmp_path, 0) as log:
        log.append([(Stage(0, 3), large)], None, NAMES)
    assert own <= written


def test_blocks_of_many_pieces_and_writes_that_come_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def short(descriptor: int, views: list[memoryview], position: int) -> int:
        assert len(views) <= 1_024
        data = b"".join(views[:40])[:997]
        return real(descriptor, [data], position)

    monkeypatch.setattr(os, "pwritev", short)
    with QueueLog.open(tmp_path, 0) as log:
        parts = [(STAGE, batch(number, 1)) for number in range(1, 400)]
        lsn = log.append(parts, None, NAMES)
        assert ids(tmp_path, lsn) == list(range(1, 400))
