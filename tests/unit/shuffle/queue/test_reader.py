"""Reading: no more is decoded than has to be, and files may change while they are read."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import LocalProtocolError
from penstock.shuffle.parcels import Stage
from penstock.shuffle.queue import block as block_module
from penstock.shuffle.queue import segment as segment_module
from penstock.shuffle.queue.block import PartEntry, decode_part
from penstock.shuffle.queue.errors import CorruptQueueError
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.segment import segment_path
from tests.unit.shuffle.queue.queues import (
    Entry,
    Model,
    Rollback,
    Row,
    append,
    frontier,
    producer,
    read,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST = (0, "orders/000", producer(1))
SECOND = (0, "orders/000", producer(2))
OTHER = (1, "orders/000", producer(1))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the parts that were decoded."""
    found: list[int] = []

    def counting(part: PartEntry, data: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        found.append(part.rows)
        return decode_part(part, data, schema)

    monkeypatch.setattr(segment_module, "decode_part", counting)
    return found


def rows(source: tuple[int, str, int], first: int, count: int) -> list[Entry]:
    return [Row(*source, clock, clock) for clock in range(first, first + count)]


def test_blocks_that_show_nothing_are_not_decoded(tmp_path: Path, decoded: list[int]) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        append(log, rows(FIRST, 1, 10))
        append(log, rows(FIRST, 11, 11))
        append(log, rows(SECOND, 1, 12))
        lsn = append(log, rows(OTHER, 1, 13))
    reader = QueueReader(tmp_path)
    assert not read(reader, {FIRST: 21}, {FIRST: 21}, lsn)
    assert decoded == []
    assert len(read(reader, {FIRST: 10}, {FIRST: 21}, lsn)) == 11
    assert decoded == [11]
    decoded.clear()
    assert len(read(reader, {FIRST: 10}, {FIRST: 21, OTHER: 13}, lsn)) == 24
    assert decoded == [11, 13], "the journal is another one for another binding"


def test_whole_parts_are_neither_filtered_nor_copied(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        lsn = append(log, rows(FIRST, 1, 10_000))
    before_bytes = pa.total_allocated_bytes()
    (batch,) = QueueReader(tmp_path).read(frontier({}), frontier({FIRST: 10_000}), lsn)
    allocated_bytes = pa.total_allocated_bytes() - before_bytes
    assert allocated_bytes < batch.batch.nbytes + 10_000, "as it was read"
    assert batch.batch["_clock"].to_pylist() == list(range(1, 10_001))
    (batch,) = QueueReader(tmp_path).read(frontier({FIRST: 4}), frontier({FIRST: 6}), lsn)
    assert batch.batch["_clock"].to_pylist() == [5, 6]
    assert batch.places.tolist() == [4, 5]


@pytest.mark.parametrize("fault", ["unreadable", "cut short"])
def test_a_file_that_the_disk_cannot_read_is_an_error_and_not_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Of a mapped file, the first look at the bad page would end the process."""
    with QueueLog.open(tmp_path, 0) as log:
        lsn = append(log, rows(FIRST, 1, 10_000))
    reader = QueueReader(tmp_path)
    assert reader.measure(frontier({}), frontier({FIRST: 10_000}), lsn).documents == 10_000
    path = segment_path(tmp_path, 1)
    if fault == "cut short":
        os.truncate(path, path.stat().st_size // 2)
    else:
        monkeypatch.setattr(os, "preadv", _raise_unreadable)
    with pytest.raises(CorruptQueueError, match=re.escape(str(path))) as caught:
        list(reader.read(frontier({}), frontier({FIRST: 10_000}), lsn))
    assert ("the disk cannot read" if fault == "unreadable" else "ends at byte") in str(
        caught.value
    )


def _raise_unreadable(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_interleaved_parcels_are_read_as_they_lie(tmp_path: Path) -> None:
    entries = rows(FIRST, 1, 10_000)
    with QueueLog.open(tmp_path, 0) as log:
        lsn = append(log, entries, part_of=[number % 3 for number in range(10_000)])
    before_bytes = pa.total_allocated_bytes()
    (batch,) = QueueReader(tmp_path).read(frontier({}), frontier({FIRST: 10_000}), lsn)
    allocated_bytes = pa.total_allocated_bytes() - before_bytes
    assert allocated_bytes < batch.batch.nbytes + 10_000, "as it was read"
    assert batch.batch["_clock"].to_pylist() == list(range(1, 10_001))


def test_a_stage_may_have_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the format allows, and blocks were written once."""
    entries = [*rows(FIRST, 1, 4), Rollback(*FIRST, 1, 3), *rows(FIRST, 2, 4), *rows(OTHER, 1, 2)]
    with monkeypatch.context() as patched, QueueLog.open(tmp_path, 0) as log:
        patched.setattr(block_module, "arranged", lambda parcels, order: (parcels, order))
        lsn = append(log, entries, part_of=[0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0])
        (loaded,) = log.catalogue.view(lsn).blocks
    assert [part.stage for part in loaded.block.parts].count(Stage(0, 1)) == 2
    model = Model([(lsn, entries)])
    for end in range(7):
        commits = {FIRST: end, OTHER: 1}
        assert read(QueueReader(tmp_path), {}, commits, lsn) == model.visible({}, commits, lsn)


def test_a_reader_follows_a_log_that_grows(tmp_path: Path) -> None:
    reader = QueueReader(tmp_path)
    assert read(reader, {}, {FIRST: 100}, 0) == []
    with QueueLog.open(tmp_path, 0, segment_bytes_max=3_000) as log:
        lsns = []
        for clock in range(1, 30):
            lsns.append(append(log, rows(FIRST, clock, 1)))
            found = read(reader, {}, {FIRST: 100}, lsns[-1])
            assert [row.clock for row in found] == list(range(1, clock + 1))
        assert log.segment > 3
        for count, lsn in enumerate(lsns, 1):
            assert len(read(reader, {}, {FIRST: 100}, lsn)) == count, "and no further"


def test_batches_outlive_the_reader_and_the_file(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        lsn = append(log, rows(FIRST, 1, 1_000))
    with QueueReader(tmp_path) as reader:
        (batch,) = reader.read(frontier({}), frontier({FIRST: 1_000}), lsn)
    segment_path(tmp_path, 1).unlink()
    assert batch.batch["_clock"].to_pylist() == list(range(1, 1_001))


def test_clocks_that_come_again_after_a_rollback(tmp_path: Path) -> None:
    """In one block, in the next, with another producer's and binding's rows untouched."""
    with QueueLog.open(tmp_path, 0) as log:
        append(log, [Row(*FIRST, 2, 1), Row(*SECOND, 2, 2), Row(*OTHER, 2, 3)])
        entries: list[Entry] = [Row(*FIRST, 2, 4), Rollback(*FIRST, 1, 2), Row(*FIRST, 2, 5)]
        second = append(log, entries)
        third = append(log, [Rollback(*FIRST, 1, 3), Row(*FIRST, 1, 6), Row(*FIRST, 2, 7)])
    everything = {FIRST: 9, SECOND: 9, OTHER: 9}
    assert [row.id for row in read(QueueReader(tmp_path), {}, everything, second)] == [2, 3, 5]
    assert [row.id for row in read(QueueReader(tmp_path), {}, everything, third)] == [2, 3, 6, 7]


def test_rollbacks_within_rollbacks(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        append(log, rows(FIRST, 1, 20))
        append(log, [Rollback(*FIRST, 0, 10), Rollback(*FIRST, 2, 3), Rollback(*SECOND, 0, 20)])
        lsn = append(log, [Rollback(*FIRST, 12, 14), Rollback(*FIRST, 13, 13)])
    found = read(QueueReader(tmp_path), {}, {FIRST: 20}, lsn)
    assert [row.clock for row in found] == [11, 12, 15, 16, 17, 18, 19, 20]


def test_there_is_no_queue(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="no queue"):
        read(QueueReader(tmp_path), {}, {}, 1 << 16)
