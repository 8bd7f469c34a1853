"""Compression: smaller files with the same rows at the same LSNs."""

from __future__ import annotations

import errno
import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.disk import write_new_file
from penstock.shuffle.queue import compress as compress_module
from penstock.shuffle.queue.compress import compress
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.segment import OpenSegment, list_segments, segment_path
from tests.unit.shuffle.queue.queues import Row, append, frontier, producer, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.shuffle.queue.block import Piece

SOURCE = (0, "orders/000", producer(1))
ALL = {SOURCE: 10**6}


def filled(folder: Path) -> tuple[QueueLog, list[int]]:
    """Three segments of a block each."""
    log = QueueLog.open(folder, 0, segment_bytes_max=1)
    lsns = [append(log, [Row(*SOURCE, n, n, 2) for n in range(i, i + 500)]) for i in (1, 501, 1001)]
    log.sync()
    return log, lsns


def clocks(reader: QueueReader, lsn: int) -> list[int]:
    return [row.clock for row in read(reader, {}, ALL, lsn)]


def test_sealed_segments_become_smaller(tmp_path: Path) -> None:
    log, lsns = filled(tmp_path)
    old = QueueReader(tmp_path)
    halfway = old.read(frontier({}), frontier(ALL), lsns[-1])
    first = next(halfway)
    sizes = {n: segment_path(tmp_path, n).stat().st_size for n in (1, 2, 3)}
    freed_bytes = compress(log, time.time() + 1, 0)
    after = {n: segment_path(tmp_path, n).stat().st_size for n in (1, 2, 3)}
    assert after[1] < sizes[1] * 0.7
    assert after[3] == sizes[3], "the last one is still being written"
    assert freed_bytes == sum(sizes.values()) - sum(after.values())
    assert log.size_bytes == sum(after.values())
    inode = segment_path(tmp_path, 1).stat().st_ino
    assert compress(log, time.time() + 1, 0) == 0
    assert segment_path(tmp_path, 1).stat().st_ino == inode, "once is enough"
    whole = [*first.batch["_clock"].to_pylist()]
    for batch in halfway:
        whole += batch.batch["_clock"].to_pylist()
    assert whole == list(range(1, 1_501)), "who had begun to read goes on"
    for reader in (old, QueueReader(tmp_path)):
        for lsn, count in zip(lsns, (500, 1_000, 1_500), strict=True):
            assert clocks(reader, lsn) == list(range(1, count + 1))
    log.close()
    with QueueLog.open(tmp_path, lsns[1], segment_bytes_max=10**6) as log:
        assert append(log, [Row(*SOURCE, 1_001, 1_001, 2)]) == lsns[1] + 1
        assert clocks(QueueReader(tmp_path), lsns[1] + 1) == list(range(1, 1_002))


def test_files_are_let_go_one_by_one(tmp_path: Path) -> None:
    """A member would else take as much memory as it has compressed lately."""
    log, _ = filled(tmp_path)
    gc.collect()
    gc.disable()
    try:
        assert compress(log, time.time() + 1, 0) > 0
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
    log.close()


def test_only_what_is_old_and_durable(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    now = time.time()
    os.utime(segment_path(tmp_path, 2), (now - 100, now - 100))
    before = segment_path(tmp_path, 1).stat().st_size
    assert compress(log, now, 50) > 0
    assert segment_path(tmp_path, 1).stat().st_size == before
    append(log, [Row(*SOURCE, 5_000, 5_000)])
    os.utime(segment_path(tmp_path, 3), (now - 100, now - 100))
    assert compress(log, now, 50) == 0, "sealed, but a power cut could still take its end"
    log.sync()
    assert compress(log, now, 50) > 0


def test_a_full_disk_leaves_the_segment_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lsns = filled(tmp_path)

    def full(path: Path, pieces: Iterable[Piece]) -> None:
        path.write_bytes(bytes(next(iter(pieces))))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(compress_module, "write_new_file", full)
        with pytest.raises(OSError, match="No space"):
            compress(log, time.time() + 1, 0)
    assert not list(tmp_path.glob(".*"))
    assert clocks(QueueReader(tmp_path), lsns[-1]) == list(range(1, 1_501))


def test_a_segment_that_was_dropped_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lsns = filled(tmp_path)

    def slowly(path: Path, pieces: Iterable[Piece]) -> None:
        write_new_file(path, pieces)
        if log.first_segment == 1:
            log.drop(2, lsns[1])

    monkeypatch.setattr(compress_module, "write_new_file", slowly)
    compress(log, time.time() + 1, 0)
    assert list_segments(tmp_path) == [2, 3]
    assert not list(tmp_path.glob(".*"))
    assert log.size_bytes == sum(file.stat().st_size for file in tmp_path.glob("*.queue"))


def test_a_file_that_is_replaced_while_a_reader_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the reader looked whether it still is the same."""
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=60_000)
    first = append(log, [Row(*SOURCE, n, n, 2) for n in range(1, 501)])
    reader = QueueReader(tmp_path)
    assert len(clocks(reader, first)) == 500
    while log.segment == 1:
        last = log.last_lsn & 0xFFFF
        begin = 501 + 500 * last
        lsn = append(log, [Row(*SOURCE, n, n, 2) for n in range(begin, begin + 500)])
    log.sync()
    assert compress(log, time.time() + 1, 0) > 0
    monkeypatch.setattr(OpenSegment, "is_current", lambda _: True)
    assert clocks(reader, lsn) == list(range(1, begin + 500))
