"""Reclaim: disk space comes back, and nothing that anybody may still ask for goes."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from penstock.errors import LocalProtocolError
from penstock.shuffle.queue import block as block_module
from penstock.shuffle.queue import log as log_module
from penstock.shuffle.queue import reclaim as reclaim_module
from penstock.shuffle.queue.errors import QueueLostError, QueueWriteError
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.reclaim import Reclaimed, reclaim
from penstock.shuffle.queue.segment import list_segments, segment_path
from tests.unit.shuffle.queue.queues import (
    Rollback,
    Row,
    append,
    frontier,
    names_of,
    parts_of,
    producer,
    read,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.shuffle.queue.queues import Entry

BUSY = (0, "orders/000", producer(1))
OPEN = (0, "orders/000", producer(2))
SEGMENT_BYTES_MAX = 8_000


def busy(first: int, count: int = 20) -> list[Entry]:
    return [Row(*BUSY, clock, clock) for clock in range(first, first + count)]


def opened(first: int, count: int = 1) -> list[Entry]:
    return [Row(*OPEN, clock, 10**6 + clock) for clock in range(first, first + count)]


@pytest.mark.parametrize("open_rows", [1, 150])
def test_a_span_that_stays_open_does_not_pin_the_disk(tmp_path: Path, open_rows: int) -> None:
    """Also if it fills more than half of the first segments: others pass by."""
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=SEGMENT_BYTES_MAX)
    append(log, [*busy(1), *opened(1, open_rows)])
    clock, sizes, rewritten = 21, [], 0
    for number in range(120):
        entries = busy(clock)
        if number % 10 == 9:
            entries += opened(open_rows + 1 + number // 10)
        append(log, entries)
        clock += 20
        lsn = log.sync()
        result = reclaim(log, frontier({BUSY: clock - 1}), lsn)
        assert result.freed_bytes >= 0
        rewritten += result.survivors_rows
        sizes.append(log.size_bytes)
    total = open_rows + 12
    assert log.first_segment > 10
    open_bytes = 60 * total
    assert max(sizes) < 4 * SEGMENT_BYTES_MAX + 8 * open_bytes, "it stays bounded"
    assert rewritten > total
    written_bytes = sum(max(0, after - before) for before, after in pairwise(sizes))
    assert written_bytes < 3 * 120 * 20 * 60 + 20_000, "nor is it written again and again"
    consumed = {BUSY: clock - 1}
    found = read(QueueReader(tmp_path), consumed, {**consumed, OPEN: total}, log.sync())
    assert [row.clock for row in found] == list(range(1, total + 1)), "once, and in their order"
    log.close()


def story(folder: Path) -> tuple[QueueLog, list[int]]:
    """Four segments of a block each; the first has an open row."""
    log = QueueLog.open(folder, 0, segment_bytes_max=1)
    lsns = [append(log, [*busy(1), *opened(1)])]
    lsns += [append(log, busy(first)) for first in (21, 41, 61)]
    log.sync()
    return log, lsns


def test_what_was_consumed_goes_and_the_rest_stays(tmp_path: Path) -> None:
    log, lsns = story(tmp_path)
    assert reclaim(log, frontier({}), 0) == Reclaimed()
    assert reclaim(log, frontier({BUSY: 20}), lsns[0]) == Reclaimed(), "a cut may come back here"
    sizes = {number: segment_path(tmp_path, number).stat().st_size for number in (1, 2, 3)}
    result = reclaim(log, frontier({BUSY: 30, OPEN: 1}), lsns[3])
    assert result == Reclaimed((1,), sizes[1]), "half of the second segment was not consumed"
    assert list_segments(tmp_path) == [2, 3, 4]
    result = reclaim(log, frontier({BUSY: 80, OPEN: 1}), lsns[3])
    assert result == Reclaimed((2, 3), sizes[2] + sizes[3])
    assert list_segments(tmp_path) == [4]


def test_an_old_segment_stays_until_its_survivors_are_read(tmp_path: Path) -> None:
    log, lsns = story(tmp_path)
    first = {BUSY: 60}
    result = reclaim(log, frontier(first), lsns[3])
    survivors = result.survivors_lsn
    assert survivors is not None
    assert result.survivors_rows == 1
    assert result.segments == ()
    assert list_segments(tmp_path) == [1, 2, 3, 4, 5]
    for _ in range(2):  # again, as long as nobody is done with the survivors
        assert reclaim(log, frontier(first), lsns[3]) == Reclaimed()
    end = {BUSY: 80, OPEN: 1}
    for lsn in (lsns[3], survivors):
        found = read(QueueReader(tmp_path), first, end, lsn)
        assert [row.clock for row in found] == [1, *range(61, 81)], "before what came later"
    with pytest.raises(LocalProtocolError, match="durable"):
        reclaim(log, frontier(first), survivors)
    log.sync()
    append(log, busy(81))
    log.sync()
    assert reclaim(log, frontier(first), survivors).segments == (1, 2, 3)
    found = read(QueueReader(tmp_path), first, end, log.last_lsn)
    assert [row.clock for row in found] == [1, *range(61, 81)]
    with pytest.raises(LocalProtocolError, match="done up to"):
        read(QueueReader(tmp_path), {}, first, lsns[3])
    log.close()
    with pytest.raises(QueueLostError, match="done up to"):
        QueueLog.open(tmp_path, lsns[3])
    with QueueLog.open(tmp_path, survivors):
        found = read(QueueReader(tmp_path), first, end, survivors)
        assert [row.clock for row in found] == [1, *range(61, 81)]


def test_a_cut_may_take_the_survivors_away(tmp_path: Path) -> None:
    log, lsns = story(tmp_path)
    assert reclaim(log, frontier({BUSY: 60}), lsns[3]).survivors_rows == 1
    log.sync()
    log.close()
    with QueueLog.open(tmp_path, lsns[3]) as again:
        found = read(QueueReader(tmp_path), {BUSY: 60}, {BUSY: 60, OPEN: 1}, lsns[3])
        assert [row.clock for row in found] == [1]
        assert reclaim(again, frontier({BUSY: 60}), lsns[3]).survivors_rows == 1


def test_a_log_that_was_opened_again_knows_of_its_survivors(tmp_path: Path) -> None:
    log, lsns = story(tmp_path)
    survivors = reclaim(log, frontier({BUSY: 60}), lsns[3]).survivors_lsn
    assert survivors is not None
    log.sync()
    log.close()
    with QueueLog.open(tmp_path, survivors) as again:
        assert reclaim(again, frontier({BUSY: 60}), lsns[3]) == Reclaimed(), "not a second time"
        assert reclaim(again, frontier({BUSY: 60}), survivors).segments == (1, 2, 3)


def test_forgotten_rows_hold_nothing_back(tmp_path: Path) -> None:
    """Once no cut can take the rollback back."""
    log, lsns = story(tmp_path)
    rolled_back = append(log, [Rollback(*OPEN, 0, 5), *opened(1)])
    log.sync()
    consumed = frontier({BUSY: 80})
    assert reclaim(log, consumed, lsns[3]) == Reclaimed(), "nothing survives, nothing is certain"
    assert reclaim(log, consumed, rolled_back).segments == (1, 2, 3, 4)
    found = read(QueueReader(tmp_path), {BUSY: 80}, {BUSY: 80, OPEN: 1}, rolled_back)
    assert [row.clock for row in found] == [1]


def test_rollbacks_may_go_before_the_survivors_they_spoke_of(tmp_path: Path) -> None:
    """A rollback that lies between an old segment and its survivors is dropped before these."""
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1)
    append(log, [*busy(1), *opened(1, 2)])
    done = append(log, busy(21))
    append(log, [Rollback(*OPEN, 1, 2), *busy(41)])
    log.sync()
    survivors = reclaim(log, frontier({BUSY: 40}), done)
    assert survivors.survivors_rows == 1
    append(log, busy(61))
    lsn = log.sync()
    consumed = {BUSY: 80}
    assert reclaim(log, frontier(consumed), lsn).segments == (1, 2, 3)
    found = read(QueueReader(tmp_path), consumed, {BUSY: 80, OPEN: 9}, lsn)
    assert [row.clock for row in found] == [1]


@pytest.mark.parametrize("behind", [0, 1, 3, 5])
def test_survivors_of_survivors_keep_their_order(tmp_path: Path, behind: int) -> None:
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1)
    epochs: list[int] = []
    rewritten = 0
    for number in range(40):
        append(log, [*busy(1 + 20 * number), *(opened(number + 1) if number % 3 < 2 else [])])
        epochs.append(log.sync())
        if number >= behind:
            done = number - behind
            result = reclaim(log, frontier({BUSY: 20 * done + 20}), epochs[done])
            rewritten += result.survivors_lsn is not None
            found = read(QueueReader(tmp_path), {BUSY: 10**6}, {OPEN: 10**6}, log.last_lsn)
            clocks = [clock for clock in range(1, number + 2) if (clock - 1) % 3 < 2]
            assert [row.clock for row in found] == clocks
    assert rewritten > 3
    assert log.first_segment > 10


def test_space_comes_back_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lsns = story(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "write_new_file", full)
        patch.setattr(os, "pwritev", full)
        assert reclaim(log, frontier({BUSY: 60}), lsns[3]) == Reclaimed(), "no room to rewrite"
        assert reclaim(log, frontier({BUSY: 60, OPEN: 1}), lsns[3]).segments == (1, 2, 3)
    assert list_segments(tmp_path) == [4, 5]
    found = read(QueueReader(tmp_path), {BUSY: 60}, {BUSY: 80}, lsns[3])
    assert [row.clock for row in found] == list(range(61, 81))
    append(log, busy(81))
    assert log.sync() == log.last_lsn


@pytest.mark.parametrize("blocks_max", [1, 4])
def test_a_span_of_many_blocks_of_survivors_pins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks_max: int
) -> None:
    """However large it is: it costs a few times its own size, and keeps its order, also if the rest
    of it is written again with a later epoch only."""
    monkeypatch.setattr(reclaim_module, "SURVIVORS_BYTES_MAX", 5_000)
    monkeypatch.setattr(reclaim_module, "SURVIVORS_BLOCKS_MAX", blocks_max)
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=SEGMENT_BYTES_MAX)
    for first in range(1, 401, 20):
        append(log, opened(first, 20))
    span_bytes, clock, sizes, lsns = log.size_bytes, 1, [], []
    for number in range(400):
        append(log, busy(clock))
        clock += 20
        lsn = log.sync()
        reclaim(log, frontier({BUSY: clock - 1}), lsn)
        sizes.append(log.size_bytes)
        lsns.append(lsn)
        if number % 67 == 0:
            end = {BUSY: clock - 1, OPEN: 400}
            found = read(QueueReader(tmp_path), {BUSY: clock - 1}, end, log.sync())
            assert [row.clock for row in found] == list(range(1, 401))
    assert log.first_segment > 20
    assert max(sizes) < 6 * span_bytes + 6 * SEGMENT_BYTES_MAX
    assert min(sizes[200:]) < 3 * span_bytes, "it is freed again and again"
    append(log, [Rollback(*OPEN, 0, 400)])
    lsn = log.sync()
    reclaim(log, frontier({BUSY: clock - 1}), lsn)
    assert log.first_segment == log.segment
    log.close()


def test_survivors_that_cannot_all_be_written_are_whole_as_far_as_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk between two blocks of survivors: each stands for its own segments."""
    monkeypatch.setattr(reclaim_module, "SURVIVORS_BYTES_MAX", 1)
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1)
    for first in (1, 11, 21):
        append(log, opened(first, 2))
        for clock in range(first * 10, first * 10 + 80, 20):
            append(log, busy(clock))
    append(log, busy(500))
    lsn = log.sync()
    real, calls = block_module.encode_block, []

    def refuse(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise QueueWriteError("no room")
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log_module, "encode_block", refuse)
    consumed = {BUSY: 10**5}
    assert reclaim(log, frontier(consumed), lsn).survivors_rows == 2
    end = {**consumed, OPEN: 100}
    wanted = [1, 2, 11, 12, 21, 22]
    found = read(QueueReader(tmp_path), consumed, end, log.sync())
    assert [row.clock for row in found] == wanted
    assert reclaim(log, frontier(consumed), log.sync()).survivors_rows == 4
    found = read(QueueReader(tmp_path), consumed, end, log.sync())
    assert [row.clock for row in found] == wanted
    reclaim(log, frontier(consumed), log.sync())
    assert log.first_segment > 10
    log.close()


def test_a_queue_short_of_room_lets_go_of_the_segment_it_writes(tmp_path: Path) -> None:
    """If a rollback is the last thing that happens, no document comes to seal the segment."""
    log = QueueLog.open(tmp_path, 0)
    append(log, [*busy(1), *opened(1, 150)])
    append(log, [Rollback(*OPEN, 0, 150)])
    lsn, consumed = log.sync(), frontier({BUSY: 20})
    size_bytes = log.size_bytes
    assert reclaim(log, consumed, lsn) == Reclaimed(), "there is no need"
    result = reclaim(log, consumed, lsn, short_of_room=True)
    assert result.survivors_lsn is not None
    assert result.survivors_rows == 0
    lsn = log.sync()
    freed = reclaim(log, consumed, lsn, short_of_room=True)
    assert freed.segments == (1,)
    assert log.size_bytes < size_bytes / 4
    assert freed.survivors_lsn is None, "an empty one is not written again and again"
    log.close()
    with QueueLog.open(tmp_path, lsn) as again:
        append(again, busy(21))
        found = read(QueueReader(tmp_path), {BUSY: 20}, {BUSY: 40}, again.sync())
        assert [row.clock for row in found] == list(range(21, 41))


def test_the_segment_that_is_written_stays_while_an_open_span_fills_it(tmp_path: Path) -> None:
    log = QueueLog.open(tmp_path, 0)
    append(log, [*busy(1), *opened(1, 150)])
    lsn = log.sync()
    assert reclaim(log, frontier({BUSY: 20}), lsn, short_of_room=True) == Reclaimed()
    log.close()


def test_survivors_among_other_blocks_are_still_read_and_written_again(tmp_path: Path) -> None:
    """As earlier releases wrote them: in a segment with rows behind them."""
    log = QueueLog.open(tmp_path, 0, segment_bytes_max=1)
    append(log, [*opened(1, 3), *busy(1, 150)])
    append(log, [*opened(4, 3), *busy(151, 150)])
    append(log, busy(301, 100))
    numbers = names_of(opened(1, 3))
    parts, order = parts_of(opened(1, 3), numbers, [0] * 3)
    names = {number: name for name, number in numbers.items()}
    with patch.object(log, "_roll"):
        log.append(parts, order, names, stands_for=[1])
        log._is_of_survivors = False
        append(log, opened(7, 3))
    for first in range(401, 1401, 100):
        append(log, busy(first, 100))
    consumed, wanted = {BUSY: 2000}, list(range(1, 10))
    for _ in range(3):
        found = read(QueueReader(tmp_path), consumed, {**consumed, OPEN: 9}, log.sync())
        assert [row.clock for row in found] == wanted
        reclaim(log, frontier(consumed), log.sync())
    assert log.first_segment > 3
    log.close()
