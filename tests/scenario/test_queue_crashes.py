"""A Queue's process dies at any of its changes to the disk: what an epoch counts on is there.

The story below is cut short after its first change to the disk, its second, and so on to the last,
once by SIGKILL and by power cuts (see `tests/power_cuts.py`). Then the queue is opened at the last
epoch that was reported: it has exactly the rows of that epoch, and goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock.shuffle.queue.compress import compress
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.reclaim import reclaim
from penstock.shuffle.queue.segment import list_segments
from tests.faults import Stage, report
from tests.power_cuts import scratch
from tests.unit.shuffle.queue.queues import (
    Commits,
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
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

BUSY = (0, "orders/000", producer(1))
OPEN = (0, "orders/000", producer(2))
UNSURE = (1, "payments/000", producer(2))
ROUNDS = 9
SEGMENT_BYTES_MAX = 5_000
"""Small enough that the story rolls segments on its way."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def entries_of(number: int) -> list[Entry]:
    """What block `number` has: committed rows, one of a span that stays open, one that is taken
    back two blocks later."""
    rows: list[Entry] = [Row(*BUSY, number * 12 + i, number * 100 + i) for i in range(1, 13)]
    rows.insert(5, Row(*OPEN, number + 1, number * 100 + 50))
    rows.append(Row(*UNSURE, number % 2 + 1, number * 100 + 60, 2))
    if number % 2:
        rows.append(Rollback(*UNSURE, 0, 2))
    return rows


def commits_of(blocks: int) -> Commits:
    return {BUSY: blocks * 12}


def story(folder: Path, reports: Path) -> None:
    """Two blocks a round, then an epoch. The consumer is two rounds behind."""
    log = QueueLog.open(folder, 0, segment_bytes_max=SEGMENT_BYTES_MAX)
    epochs: list[tuple[int, int]] = []
    block = 0
    for round_ in range(ROUNDS):
        for _ in range(2):
            report(reports, f"block {append(log, entries_of(block))} {block}")
            block += 1
        epochs.append((block, log.sync()))
        report(reports, f"epoch {block} {epochs[-1][1]}")
        if round_ >= 2:
            consumed, lsn = epochs[round_ - 2]
            report(reports, f"consumed {consumed}")
            reclaim(log, frontier(commits_of(consumed)), lsn)
        if round_ in (4, 7):
            compress(log, time.time() + 1, 0)
        if round_ == 5:  # a restart, with something written that no epoch has
            append(log, entries_of(block))
            log.close()
            report(reports, f"cut {epochs[-1][1]}")
            log = QueueLog.open(folder, epochs[-1][1], segment_bytes_max=SEGMENT_BYTES_MAX)


def check(folder: Path, promises: list[str], when: str) -> int:
    """Opens what is left at the last reported epoch; gives how many blocks that has."""
    model, consumed, blocks, lsn = Model(), 0, 0, 0
    for line in promises:
        what, *numbers = line.split()
        if what == "block":
            model.blocks.append((int(numbers[0]), entries_of(int(numbers[1]))))
        elif what == "epoch":
            blocks, lsn = int(numbers[0]), int(numbers[1])
        elif what == "consumed":
            consumed = int(numbers[0])
        else:
            model.cut(int(numbers[0]))
    with QueueLog.open(folder, lsn, discard=True, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        model.cut(lsn)
        check_rows(folder, model, (consumed, blocks), lsn, when)
        lsn = append(log, entries_of(blocks))
        model.blocks.append((lsn, entries_of(blocks)))
        log.sync()
        check_rows(folder, model, (consumed, blocks + 1), lsn, f"{when}, gone on")
        reclaim(log, frontier(commits_of(consumed)), log.last_lsn)
        check_rows(folder, model, (consumed, blocks + 1), log.last_lsn, f"{when}, reclaimed")
    return blocks


def check_rows(folder: Path, model: Model, span: tuple[int, int], lsn: int, when: str) -> None:
    consumed, blocks = span
    start = commits_of(consumed)
    end = {**commits_of(blocks), OPEN: 10**6, UNSURE: 10**6}
    found = read(QueueReader(folder), start, end, lsn)
    assert found == model.visible(start, end, lsn), when


def test_the_story_itself(stage: Stage, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    (tmp_path / "queue").mkdir()
    assert stage.count_changes(story, tmp_path / "queue", reports) > 100
    told = reports.read_text().splitlines()
    assert check(tmp_path / "queue", told, "after the whole story") == 2 * ROUNDS
    assert list_segments(tmp_path / "queue")[0] > 1, "segments were dropped"


def test_queue_killed_after_every_change(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "complete").mkdir()
    changes = stage.count_changes(story, tmp_path / "complete", tmp_path / "complete.txt")
    reached = set()
    for change in range(1, changes + 1):
        reports = tmp_path / f"reports-{change}"
        reports.touch()
        with scratch() as folder:
            folder.mkdir()
            stage.kill_at(change, story, folder, reports)
            told = reports.read_text().splitlines()
            reached.add(check(folder, told, f"killed after change {change}"))
    assert reached >= {2 * rounds for rounds in range(ROUNDS)}, "in every round"


def test_power_cut_after_every_change(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    recording = stage.record(story, tmp_path / "queue", tmp_path / "told")
    reached = set()
    for change, chance, when in recording.cuts():
        with scratch() as left:
            promises = recording.cut(change, chance, left)
            reached.add(check(left, promises, when))
    assert reached >= {2 * rounds for rounds in range(ROUNDS)}, "in every round"
