"""Vnodes change hands: what is still needed of their rows goes to another queue, no other rows."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.checkpoint import Barrier
from penstock.shuffle.queue.budget import Budget
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.events import Arrived, BarrierCame, Captured, Part, ReadNames
from penstock.shuffle.queue.handover import Source, settle, take
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.machine import QueueMachine
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.reclaim import reclaim
from penstock.shuffle.queue.segment import list_segments, segment_path
from penstock.shuffle.queue.snapshot import decode_state, encode_state
from tests.unit.shuffle.queue.queues import (
    Commits,
    Entry,
    Model,
    Rollback,
    Row,
    append,
    batch_of,
    frontier,
    producer,
    read,
    stage_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.shuffle.queue.events import QueueEvent, QueueState

FIRST = (0, "orders/000", producer(1))
SECOND = (0, "orders/000", producer(2))
OTHER = (1, "payments/000", producer(1))
SOURCES = [FIRST, SECOND, OTHER]
READS = {(0, "orders/000"): 5, (1, "payments/000"): 6}
NAMES = {number: name for name, number in READS.items()}
DELAYS = {0: 0, 1: 0}
EVERYTHING: Commits = dict.fromkeys(SOURCES, 10**6)
ODD = range(1, 256, 2)


def waiting(lsn: int, entries: Sequence[Entry], early: int | None = None) -> QueueState:
    """The state of a queue that was at an LSN, and got these entries without a mark behind them:
    so many before the state was captured, the others before the barrier of their stream."""
    machine = QueueMachine([0, 0], DELAYS, Budget(2**60), aligned_seconds_max=0.0)
    machine.last_lsn = lsn
    early = len(entries) if early is None else early
    events: list[QueueEvent] = [Arrived(0, ReadNames(NAMES))]
    events += [Arrived(0, part) for part in parts_of(entries[:early])]
    events.append(BarrierCame(1, Barrier(1, 1)))
    events += [Arrived(0, part) for part in parts_of(entries[early:])]
    events.append(BarrierCame(0, Barrier(1, 1)))
    effects = [effect for event in events for effect in machine.handle(event, 0.0)]
    (captured,) = [effect for effect in effects if isinstance(effect, Captured)]
    return decode_state(pa.py_buffer(b"".join(map(bytes, encode_state(captured.state)))))


def parts_of(entries: Sequence[Entry]) -> list[Part]:
    found = [(stage, list(group)) for stage, group in itertools.groupby(entries, stage_of)]
    return [Part(stage, batch_of(group, READS), 100) for stage, group in found]


def source(log: QueueLog, state: QueueState) -> Source:
    return Source(log.folder, log.generation, state.lsn, settle(state, [0, 0], DELAYS))


def taken(folder: Path, given: Source, consumed: Commits, vnodes: Iterable[int]) -> list[Row]:
    """What another queue shows, once it has taken vnodes over."""
    with QueueLog.open(folder, 0) as log:
        count = take(log, given.alive(frontier(consumed), vnodes))
        rows = read(QueueReader(folder), {}, EVERYTHING, log.sync())
        assert count == len(rows)
        return rows


def some_entries(randomness: random.Random, clocks: Commits, count: int) -> list[Entry]:
    """Rows, and rollbacks after which the same clocks come again."""
    found: list[Entry] = []
    for _ in range(count):
        one = randomness.choice(SOURCES)
        clock = clocks.get(one, 0)
        if clock and randomness.random() < 0.1:
            after = randomness.randrange(clock)
            found.append(Rollback(*one, after, clock))
            clocks[one] = after
        else:
            clocks[one] = clock + 1
            found.append(Row(*one, clock + 1, next(IDS), randomness.choice([1, 2])))
    return found


IDS = itertools.count(1)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_alive_is_taken_in_order(tmp_path: Path, seed: int) -> None:
    """Against the list: the rows of some vnodes that were not consumed, and that no rollback
    forgets, be it one that still waited."""
    randomness, clocks, model = random.Random(seed), Commits(), Model()
    with QueueLog.open(tmp_path / "old", 0, segment_bytes_max=3_000) as log:
        for _ in range(6):
            entries = some_entries(randomness, clocks, 20)
            model.blocks.append((append(log, entries, READS), entries))
        if seed % 3 == 0:
            given = frozenset(randomness.sample(range(256), 60))
            model.given.append((log.append((), None, {}, gives=sorted(given)), given))
        lsn = log.sync()
        # What waits for the merge is ordered by its keys, and each stream's bindings apart.
        first: list[Entry] = [Row(*one, 50, next(IDS)) for one in (SECOND, OTHER)]
        waits = [*first, *some_entries(randomness, clocks, 60)]
        waits.sort(key=lambda one: one.binding)
        state = waiting(lsn, waits, randomness.randrange(60) if seed % 2 else None)
        append(log, [Row(*FIRST, 99, next(IDS))], READS)  # behind the epoch: it is cut off
        model.blocks.append((lsn + 1, waits))
        consumed = {one: randomness.randrange(5) for one in SOURCES}
        vnodes = randomness.sample(range(256), 100)
        rows = taken(tmp_path / "new", source(log, state), consumed, vnodes)
    expected = [
        row for row in model.visible(consumed, EVERYTHING, lsn + 1) if row.id % 256 in vnodes
    ]
    for binding in (0, 1):
        of_binding = [row for row in rows if row.binding == binding]
        assert of_binding == [row for row in expected if row.binding == binding]
    assert rows


def test_what_waited_is_written_in_the_order_of_the_merge(tmp_path: Path) -> None:
    waits: list[Entry] = [
        *(Row(*FIRST, clock, clock) for clock in (10, 30)),
        Rollback(*FIRST, 10, 30),
        *(Row(*FIRST, clock, 100 + clock) for clock in (11, 12)),
        *(Row(*OTHER, clock, 200 + clock) for clock in (5, 20)),
    ]
    state = waiting(0, waits, early=3)
    with QueueLog.open(tmp_path, 0) as log:
        settle(state, [0, 0], DELAYS).append_to(log)
        found = read(QueueReader(tmp_path), {}, EVERYTHING, log.sync())
    assert [row.id for row in found] == [205, 10, 220, 111, 112]


def test_a_vnode_that_comes_back_is_shown_once(tmp_path: Path) -> None:
    """There and back: what it held before is passed over, what it took is not; also when what is
    left of it is written again, and after all else is dropped."""
    done = {SECOND: 199}
    log = QueueLog.open(tmp_path / "one", 0, segment_bytes_max=1)
    append(log, [Row(*FIRST, clock, clock) for clock in range(1, 41)], READS)
    append(log, [Row(*OTHER, 1, 900)], READS)
    there = source(log, waiting(log.sync(), []))
    log.append((), None, {}, gives=list(ODD))
    with QueueLog.open(tmp_path / "two", 0) as other:
        take(other, there.alive(frontier({}), ODD))
        append(other, [Row(*FIRST, clock, clock) for clock in (41, 43)], READS)
        passing = [Row(*SECOND, clock, 1_000 + 2 * clock) for clock in range(1, 200)]
        append(log, [Row(*FIRST, 42, 42), *passing], READS)
        back = source(other, waiting(other.sync(), []))
        assert [row.id for row in shown(log, done)] == [*range(2, 41, 2), 900, 42]
        take(log, back.alive(frontier({}), ODD))
    everything = [*range(2, 41, 2), 900, 42, *range(1, 44, 2)]
    assert [row.id for row in shown(log, done)] == everything
    append(log, [Row(*SECOND, 200, 2_000)], READS)
    # All but four rows are consumed: these survive, and the block that gave vnodes away does not.
    consumed = {FIRST: 40, SECOND: 200}
    assert reclaim(log, frontier(consumed), log.sync()).survivors_rows == 4
    assert [row.id for row in shown(log, consumed)] == [900, 42, 41, 43]
    append(log, [Row(*SECOND, 201, 2_002)], READS)
    assert 3 in reclaim(log, frontier(consumed), log.sync()).segments, "the one that gave"
    assert [row.id for row in shown(log, consumed)] == [900, 42, 41, 43, 2_002]
    log.close()


def shown(log: QueueLog, start: Commits | None = None) -> list[Row]:
    return read(QueueReader(log.folder), start or {}, EVERYTHING, log.sync())


def test_what_was_given_away_holds_no_segment(tmp_path: Path) -> None:
    """The consumer has not seen these rows, and will not ask for them here."""
    with QueueLog.open(tmp_path, 0, segment_bytes_max=1) as log:
        for first in range(1, 400, 2):
            append(log, [Row(*FIRST, first, first)], READS)
        log.append((), None, {}, gives=list(ODD))
        append(log, [Row(*FIRST, 400, 400)], READS)
        reclaimed = reclaim(log, frontier({}), log.sync())
        assert len(reclaimed.segments) == 201, "the one that says so went with them"
        assert [row.id for row in shown(log)] == [400]


@pytest.mark.parametrize("harm", ["gone", "begun anew", "damaged", "a segment is missing"])
def test_a_queue_that_is_not_what_it_was_is_lost(tmp_path: Path, harm: str) -> None:
    with QueueLog.open(tmp_path, 0, segment_bytes_max=1) as log:
        for clock in range(1, 10):
            append(log, [Row(*FIRST, clock, clock)], READS)
        given = source(log, waiting(log.sync(), []))
    path = segment_path(tmp_path, list_segments(tmp_path)[3])
    if harm == "begun anew":
        QueueLog.open(tmp_path, 0, discard=True).close()
    elif harm == "damaged":
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    elif harm == "a segment is missing":
        path.unlink()
    else:
        (tmp_path / "floor").unlink()
    with pytest.raises(QueueLostError):
        list(given.alive(frontier({}), ODD))


def test_nothing_at_all_is_handed_over_too(tmp_path: Path) -> None:
    given = Source(tmp_path / "none", None, 0, settle(waiting(0, []), [0, 0], DELAYS))
    assert taken(tmp_path / "new", given, {}, ODD) == []
