"""What a Slice should do, one document at a time, and journals to do it with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.frontier import ProducerFrontier
from penstock.ids import Producer
from penstock.journal.names import EVERYTHING
from penstock.journal.store import JournalBatch
from penstock.routing import vnodes_of
from penstock.sequence import Outcome, SequenceFaultError, sequence
from penstock.shuffle.plan import BindingPlan

if TYPE_CHECKING:
    import random

    from penstock.routing import Assignment

COMMITS = (Outcome.ACK_COMMIT, Outcome.ACK_EMPTY)
ROLLBACKS = (Outcome.ACK_CLEAN_ROLLBACK, Outcome.ACK_DEEP_ROLLBACK)
CLOSES = (Outcome.OUTSIDE_COMMIT, *COMMITS, *ROLLBACKS)
KEPT = (Outcome.OUTSIDE_COMMIT, Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND)


@dataclass(frozen=True)
class Row:
    producer: int
    clock: int
    flags: int
    value: int
    key: int
    hints: tuple[str, ...] = ()
    wide: bool = False
    """Of a later schema."""


def binding(
    place: int = 0,
    delay: int = 0,
    cohort: int = 0,
    not_before: int = 0,
    not_after: int = 2**64 - 1,
) -> BindingPlan:
    return BindingPlan(
        place, "things", ("k",), False, EVERYTHING, (), 0, cohort, delay, not_before, not_after
    )


def producer(number: int) -> int:
    """Some have their highest bit set: as signed numbers they sort before the others."""
    return Producer(bytes([1 if number % 2 else 0x81, 0, 0, 0, 0, number])).int64


def random_journal(rng: random.Random, name: str, others: list[str], first_value: int) -> list[Row]:
    """Rows that no reader may fault: documents, transactions, rollbacks and repetitions."""
    rows: list[Row] = []
    states = {producer(number): (1, 0) for number in range(rng.randint(1, 4))}
    base = rng.randint(2, 40)
    widens_at = rng.choice((10**6, rng.randint(0, 30)))
    for number in range(rng.randint(0, 45)):
        who = rng.choice(list(states))
        last_commit, max_continue = states[who]
        flags = rng.choice((0, 1, 1, 2))
        newest = max(last_commit, max_continue, base + number - 5)
        clock = newest + rng.choice((1, 1, 2, 7))
        if flags == 2 and rng.random() < 0.35:
            clock = rng.choice((last_commit, max(last_commit - 1, 1)))
        elif rng.random() < 0.12:
            clock = rng.randint(1, newest)
        elif rng.random() < 0.03:
            clock += 60
        hints: tuple[str, ...] = ()
        if flags == 2 and others and rng.random() < 0.5:
            hints = tuple(rng.sample(others, rng.randint(1, len(others))))
        row = Row(who, clock, flags, first_value + number, rng.randint(0, 30), hints)
        try:
            _, *after = sequence(flags, clock, last_commit, max_continue)
        except SequenceFaultError:
            continue
        states[who] = (after[0], after[1])
        rows.append(Row(who, clock, flags, row.value, row.key, hints, wide=len(rows) >= widens_at))
        if rng.random() < 0.05:
            rows.append(rows[rng.randrange(len(rows))])
            again = rows[-1]
            try:
                _, *after = sequence(again.flags, again.clock, *states[again.producer])
                states[again.producer] = (after[0], after[1])
                rows[-1] = Row(
                    again.producer,
                    again.clock,
                    again.flags,
                    again.value,
                    again.key,
                    again.hints,
                    wide=len(rows) > widens_at,
                )
            except SequenceFaultError:
                rows.pop()
    return rows


def batch_of(journal: str, rows: list[Row], begin: int, end: int) -> JournalBatch:
    """Rows of one schema."""
    chosen = rows[begin:end]
    is_ack = [row.flags & 3 == 2 for row in chosen]
    columns: dict[str, pa.Array[Any]] = {
        "k": pa.array(
            [None if ack else row.key for row, ack in zip(chosen, is_ack, strict=True)], pa.int64()
        ),
        "text": pa.array(
            [None if ack else f"{row.value}" for row, ack in zip(chosen, is_ack, strict=True)],
            pa.string(),
        ),
    }
    if chosen and chosen[0].wide:
        columns["late"] = pa.nulls(len(chosen), pa.int32())
    return JournalBatch.numbered(
        journal,
        begin,
        np.array([row.producer for row in chosen], np.int64),
        np.array([row.clock for row in chosen], np.uint64),
        np.array([row.flags for row in chosen], np.uint16),
        pa.record_batch(columns),
        {index: row.hints for index, row in enumerate(chosen) if row.hints},
    )


def batches_of(
    rng: random.Random, journal: str, rows: list[Row], begin: int, end: int
) -> tuple[JournalBatch, ...]:
    """[begin, end) in batches of any size, but each of one schema."""
    batches = []
    while begin < end:
        stop = min(end, begin + rng.choice((1, 2, 5, 20)))
        same = [at for at in range(begin, stop) if rows[at].wide == rows[begin].wide]
        batches.append(batch_of(journal, rows, begin, same[-1] + 1))
        begin = same[-1] + 1
    return tuple(batches)


def owner_of(assignment: Assignment, key: int) -> int:
    return assignment.owner_of(int(vnodes_of([pa.array([key], pa.int64())])[0]))


@dataclass
class Walk:
    """One read, walked over document by document."""

    rows: list[Row]
    binding: BindingPlan
    offset: int = 0
    first_kept: int = 0
    states: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Last commit, max continue, offset."""
    stored: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """Producer, clock, value of what was sent and not rolled back."""
    committed: dict[int, int] = field(default_factory=dict)
    """Newest clock of each producer's acknowledged commits."""
    hints: dict[tuple[str, int], int] = field(default_factory=dict)
    """By journal and producer."""

    @classmethod
    def begin(
        cls,
        rows: list[Row],
        binding: BindingPlan,
        entries: tuple[ProducerFrontier, ...],
        first_kept: int = 0,
    ) -> Walk:
        """As 2.3 has it."""
        floor = max((abs(entry.offset) for entry in entries), default=0)
        states = {}
        for entry in entries:
            last_commit = max(entry.last_commit, 1)
            gapped = 0 < entry.offset < floor or (
                entry.offset == 0 and entry.last_commit == 1 and floor > 0
            )
            states[entry.producer.int64] = (last_commit, last_commit * gapped, entry.offset)
        return cls(rows, binding, max(floor, first_kept), first_kept, states)

    def walk_to(self, end: int) -> Walk:
        while self.offset < end:
            row = self.rows[self.offset]
            is_newer = row.clock > self.states.get(row.producer, (1, 0, 0))[0]
            if self.is_gapped(row.producer) and row.flags & 3 != 0 and is_newer:
                self.replay(row.producer)
            self._take(self.offset)
            self.offset += 1
        return self

    def is_gapped(self, who: int) -> bool:
        last_commit, max_continue, _ = self.states.get(who, (1, 0, 0))
        return max_continue == last_commit

    def replay(self, who: int) -> None:
        last_commit, _, begin = self.states[who]
        self.states[who] = (last_commit, 0, begin)
        for at in range(max(begin, self.first_kept), self.offset):
            if self.rows[at].producer == who:
                outcome = self._take(at)
                assert outcome not in CLOSES

    def _take(self, at: int) -> Outcome:
        row = self.rows[at]
        last_commit, max_continue, begin = self.states.get(row.producer, (1, 0, 0))
        outcome, new_commit, new_continue = sequence(
            row.flags, row.clock, last_commit, max_continue
        )
        if outcome in CLOSES:
            begin = -(at + 1)
        elif outcome == Outcome.CONTINUE_BEGIN:
            begin = at
        if outcome in (*CLOSES, *KEPT):
            self.states[row.producer] = (new_commit, new_continue, begin)
        if outcome in KEPT and self.binding.not_before <= row.clock < self.binding.not_after:
            self.stored[row.producer, row.clock, row.value] += 1
        if outcome in ROLLBACKS:
            for document in list(self.stored):
                who, clock, _ = document
                if who == row.producer and last_commit < clock <= max_continue:
                    del self.stored[document]
        if outcome in COMMITS:
            self.committed[row.producer] = row.clock
            for journal in row.hints:
                self.hints[journal, row.producer] = row.clock
        return outcome

    def entries(self) -> dict[int, tuple[int, int]]:
        return {who: (state[0], state[2]) for who, state in self.states.items()}

    def checkpoint(self) -> tuple[ProducerFrontier, ...]:
        entries = [
            ProducerFrontier(Producer.from_int64(who), state[0], 0, state[2])
            for who, state in self.states.items()
        ]
        return tuple(sorted(entries, key=lambda entry: entry.producer.raw))
