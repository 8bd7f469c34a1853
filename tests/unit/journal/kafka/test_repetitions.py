"""Repetitions are found whatever connectors and readers do.

A database commits transactions; some overlap, and some rows share a record of its log. A connector
is killed again and again: each partition has a part of what it had sent, and the next one goes on
from what all partitions had, counting a transaction's rows from 1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.debezium import ADDED, COMMITTED, ORDER, SEQUENCE
from penstock.journal.kafka.repetitions import Changes, Known, changes_in, repeated

PATIENCE_US = 1_000
PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    transaction: int
    partition: int
    commit: int
    change: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class Row:
    event: Event
    order: int


def committed(random_: random.Random) -> list[Event]:
    """In the order of commits."""
    events: list[Event] = []
    place = commit = 0
    early: list[int] = []
    for transaction in range(random_.randrange(1, 12)):
        rows = [early.pop() for _ in range(random_.randrange(3)) if early]
        for _ in range(random_.randrange(1, 7)):
            place += random_.randrange(1, 4) * 8
            rows += [place] * random_.choice([1, 1, 1, 5])
            if random_.random() < 0.2:
                place += 8
                early.append(place)  # another transaction's, that commits later
        place += 48
        events += [
            Event(len(events) + place_, transaction, random_.randrange(PARTITIONS), commit, at, at)
            for place_, at in enumerate(sorted(rows))
        ]
        commit = place
    return events


def written(events: list[Event], random_: random.Random) -> list[list[Row]]:
    """By partition."""
    partitions: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    noted = 0
    for life in range(random_.randrange(1, 6)):
        is_last = life and random_.random() < 0.3
        sent: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        order, transaction = 0, -1
        stop = len(events) if is_last else random_.randrange(noted, len(events) + 1)
        for event in events[noted:stop]:
            order = order + 1 if event.transaction == transaction else 1
            transaction = event.transaction
            sent[event.partition].append(Row(event, order))
        there = [random_.randrange(len(rows) + 1) for rows in sent]
        missing = [len(events)]
        for stored, rows, count in zip(partitions, sent, there, strict=True):
            stored.extend(rows[:count])
            missing += [row.event.number for row in rows[count : count + 1]]
        reached = min(*missing, stop)
        noted = random_.randrange(noted, reached + 1)
        while 0 < noted < len(events) and events[noted].change == events[noted - 1].change:
            noted -= 1  # a place is all that is noted, and a record is sent whole
    return partitions


def changes(rows: list[Row]) -> Changes:
    return Changes(
        np.array([row.event.commit for row in rows], np.uint64),
        np.array([row.event.change for row in rows], np.uint64),
        np.array([row.order for row in rows], np.int64),
        np.array([row.event.committed_us for row in rows], np.int64),
    )


@pytest.mark.parametrize("seed", range(0, 2_000, 100))
def test_each_change_is_kept_once(seed: int) -> None:
    repetitions = 0
    for one in range(seed, seed + 100):
        random_ = random.Random(one)
        events = committed(random_)
        for rows in written(events, random_):
            known: Known | None = None
            kept: list[int] = []
            begin = 0
            while begin < len(rows):
                end = begin + random_.randrange(1, 9)
                told = repeated(changes(rows[begin:end]), known, PATIENCE_US * 1_000)
                assert told.begun_anew is None, f"seed {one}"
                known = told.known
                some = zip(rows[begin:end], told.is_repeated.tolist(), strict=True)
                kept += [row.event.number for row, is_repeated in some if not is_repeated]
                begin = end
            repetitions += len(rows) - len(kept)
            first_ones = list(dict.fromkeys(row.event.number for row in rows))
            assert kept == first_ones, f"seed {one}"
    assert repetitions


def test_batches_know_what_was_before_them() -> None:
    """However the rows are cut, the same are repetitions."""
    random_ = random.Random(7)
    for rows in written(committed(random_), random_):
        whole = repeated(changes(rows), None, PATIENCE_US * 1_000)
        known, found = None, []
        for row in rows:
            told = repeated(changes([row]), known, PATIENCE_US * 1_000)
            known = told.known
            found += told.is_repeated.tolist()
        assert found == whole.is_repeated.tolist()
        assert known == whole.known


def test_a_log_that_begins_anew_is_no_repetition() -> None:
    """The database was restored: its places are below those before, and its commits later."""
    before = Event(0, 0, 0, 800, 840, 5_000)
    late = Event(1, 1, 0, 16, 40, 5_000 + PATIENCE_US + 1)
    told = repeated(changes([Row(before, 1), Row(late, 1)]), None, PATIENCE_US)
    assert told.begun_anew == 1
    told = repeated(changes([Row(late, 1)]), repeated(changes([Row(before, 1)]), None, 0).known, 0)
    assert told.begun_anew == 0


def test_rows_without_a_place_take_no_part() -> None:
    """A snapshot's, those of a connector without transactions, and the first transaction's."""
    columns: dict[str, list[Any]] = {
        SEQUENCE: ['[null,"24"]', '["16","24"]', None, '["16","32"]', "[]"],
        ORDER: [1, None, 1, 2, 3],
        COMMITTED: [None, 1, 1, 1, 1],
    }
    schema = pa.schema([ADDED.field(name) for name in columns])
    found, rows = changes_in(pa.RecordBatch.from_pydict(columns, schema=schema))
    assert rows.tolist() == [0, 3]
    assert found.commits.tolist() == [0, 16]
    assert found.changes.tolist() == [24, 32]
