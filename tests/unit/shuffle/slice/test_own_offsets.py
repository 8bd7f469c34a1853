"""Offsets with gaps between them, ends that are not offset + 1, and times apart from clocks.

Two Slices are told the same story, each in its own numbers: one as files tell it, the other with
any offsets and ends, with ranks for clocks and the clocks as times. They do the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError
from penstock.ids import CLOCK_FLOOR
from penstock.journal.offset_identity import clock_of
from penstock.routing import assign
from penstock.shuffle.parcels import PARCEL_FIELDS, fields_of
from penstock.shuffle.queue.block import PartEncoder
from penstock.shuffle.queue.machine import keys_of
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetch,
    Fetched,
    Flushed,
    Probe,
    Probed,
    ProgressAsked,
    ReadStarted,
    Replay,
    ReplayFetched,
    Report,
    SendFlush,
    SendMark,
    SendParcel,
    SendReads,
    SendRollbacks,
    Sleep,
)
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.shuffle.slice.state import SliceState
from tests.unit.shuffle.slice.harness import Index
from tests.unit.shuffle.slice.model import Row, Walk, batches_of, binding, random_journal
from tests.unit.shuffle.slice.test_stories import NOW, documents, fed, of, slice_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.journal.store import JournalBatch

PLENTY = {1: 10**9, 2: 10**9}


@dataclass(frozen=True)
class Spaced:
    """A journal whose rows have offsets of their own."""

    offsets: list[int]
    ends: list[int]

    @classmethod
    def by_chance(cls, rng: random.Random, rows: int) -> Spaced:
        offsets, ends, at = [], [], rng.choice((0, 5))
        for _ in range(rows):
            offsets.append(at)
            ends.append(at + rng.choice((1, 1, 7)))
            at = ends[-1] + rng.choice((0, 0, 1, 30))
        return cls(offsets, ends)

    def row_at(self, offset: int) -> int:
        """The first row at the offset or behind it."""
        return int(np.searchsorted(self.offsets, offset))

    def end(self, rows: int) -> int:
        """The end of the first so many rows."""
        return self.ends[rows - 1] if rows else 0

    def at(self, rng: random.Random, row: int) -> int:
        """Any offset from which on this row is the next."""
        return rng.randint(self.end(row), self.offsets[row])

    def close(self, offset: int) -> int:
        """A frontier's offset in the numbers of files. A close must be the end of a row."""
        if offset >= 0:
            return self.row_at(offset)
        return -(self.ends.index(-offset) + 1)


def numbers(batch: pa.RecordBatch, name: str) -> list[int]:
    found: list[int] = batch[name].to_numpy().tolist()
    return found


class Both:
    """The two Slices, told the same story."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        names = [f"j{number}" for number in range(rng.randint(1, 3))]
        self.rows = {
            name: random_journal(rng, name, [*(set(names) - {name})], 1000 * number)
            for number, name in enumerate(names)
        }
        self.spaced = {name: Spaced.by_chance(rng, len(rows)) for name, rows in self.rows.items()}
        clocks = {row.clock for rows in self.rows.values() for row in rows} - {CLOCK_FLOOR}
        self.clocks = {0: 0, CLOCK_FLOOR: CLOCK_FLOOR}
        self.clocks |= {clock: rank + 2 for rank, clock in enumerate(sorted(clocks))}
        limits = rng.choice(((0, 2**64 - 1), (20, 45)))
        self.plain_binding = binding(0, rng.choice((0, 9)), 0, *limits)
        self.heads = {name: rng.randint(0, len(rows)) for name, rows in self.rows.items()}
        self.names = names
        self.begin(None)

    def begin(self, snapshots: tuple[SliceSnapshot, SliceSnapshot] | None) -> None:
        plain = self.plain_binding
        self.both = tuple(
            SliceState(
                [one],
                assign((1, 2)),
                Index([one]),
                read_ahead_bytes=2**30,
                restored=None if snapshots is None else snapshots[at],
            )
            for at, one in enumerate((plain, replace(plain, is_timed=True)))
        )
        self.pending: list[tuple[Any, Any]] = []
        self.is_asked = False
        for number, name in enumerate(self.names):
            entries: Any = ()
            own: Any = ()
            if snapshots is None and self.rng.random() < 0.5:
                begin = self.rng.randint(0, len(self.rows[name]))
                entries = Walk.begin(self.rows[name], plain, ()).walk_to(begin).checkpoint()
                own = tuple(self._own_entry(name, entry) for entry in entries)
                self.heads[name] = max(self.heads[name], begin)
            self.handle(ReadStarted(number, 0, name, entries), ReadStarted(number, 0, name, own))
        self.handle(AllReadsStarted(), AllReadsStarted())

    def _own_entry(self, name: str, entry: Any) -> Any:
        spaced, offset = self.spaced[name], entry.offset
        own = -spaced.ends[-offset - 1] if offset < 0 else spaced.offsets[offset]
        return replace(entry, last_commit=self.clocks[entry.last_commit], offset=own)

    def handle(self, plain: Any, own: Any) -> None:
        self.check(self.both[0].handle(plain, NOW), self.both[1].handle(own, NOW))

    def round(self) -> None:
        self.check(*(state.round(NOW, PLENTY) for state in self.both))

    # What comes

    def answer(self) -> None:
        """One of the wishes."""
        plain, own = self.pending.pop(self.rng.randrange(len(self.pending)))
        name = plain.journal
        head, spaced = self.heads[name], self.spaced[name]
        match plain:
            case Probe(read=read):
                self.handle(Probed(read, 0, head), Probed(read, 0, spaced.end(head)))
            case Fetch(read=read, offset=offset):
                end = min(head, offset + self.rng.randint(1, 15))
                if offset >= end:
                    self.heads[name] = min(len(self.rows[name]), head + 5)
                    if self.heads[name] > head:
                        self.pending.append((plain, own))
                    return
                batches = batches_of(self.rng, name, self.rows[name], offset, end)
                mapped = self._own_batches(batches, name)
                self.handle(Fetched(read, batches, head), Fetched(read, mapped, spaced.end(head)))
            case Replay(read=read, begin=begin, end=end):
                reached = self.rng.randint(begin + 1, end)
                batches = batches_of(self.rng, name, self.rows[name], begin, reached)
                mapped = self._own_batches(batches, name)
                own_reached = own.end if reached == end else mapped[-1].next_offset
                self.handle(
                    ReplayFetched(read, batches, reached),
                    ReplayFetched(read, mapped, own_reached),
                )

    def _own_batches(self, batches: tuple[JournalBatch, ...], name: str) -> tuple[Any, ...]:
        spaced, found = self.spaced[name], []
        for batch in batches:
            first = int(batch.offsets[0])
            behind = first + batch.rows
            own = replace(
                batch,
                offsets=np.array(spaced.offsets[first:behind], np.int64),
                ends=np.array(spaced.ends[first:behind], np.int64),
                next_offset=self._next_offset(name, behind),
                clocks=np.array([self.clocks[c] for c in batch.clocks.tolist()], np.uint64),
                times=batch.clocks,
            )
            found.append(own)
            high = self._next_offset(name, behind)
            if high > own.next_offset:
                found.append(replace(own.part(0, 0), next_offset=high))
        return tuple(found)

    def _next_offset(self, name: str, row: int) -> int:
        """Not beyond the head: what is written there next may begin at once."""
        spaced = self.spaced[name]
        return spaced.end(row) if row == self.heads[name] else spaced.at(self.rng, row)

    # What goes

    def check(self, plain: list[Any], own: list[Any]) -> None:
        assert [type(effect) for effect in plain] == [type(effect) for effect in own]
        for one, other in zip(plain, own, strict=True):
            match one:
                case Probe() | Fetch():
                    assert self.spaced[one.journal].row_at(other.offset) == one.offset
                    self.pending.append((one, other))
                case Replay():
                    spaced = self.spaced[one.journal]
                    assert spaced.row_at(other.begin) == one.begin
                    assert spaced.row_at(other.end) == one.end
                    self.pending.append((one, other))
                case SendParcel():
                    self._check_parcel(one.batch, other.batch)
                    assert (one.member, one.stage) == (other.member, other.stage)
                case SendRollbacks():
                    for name in ("after", "through"):
                        assert self._mapped(one.batch, name) == other.batch[name].to_pylist()
                case Report():
                    self.is_asked = False
                    self._check_delta(one.delta, other.delta)
                case SendMark() | SendFlush() | Sleep():
                    assert one == other
                case SendReads():
                    assert one.batch == other.batch
                case _:
                    raise AssertionError(f"{one} was not expected")

    def _mapped(self, batch: pa.RecordBatch, name: str) -> list[int]:
        return [self.clocks[clock] for clock in numbers(batch, name)]

    def _check_parcel(self, plain: pa.RecordBatch, own: pa.RecordBatch) -> None:
        assert fields_of(plain.schema) == PARCEL_FIELDS
        assert own.schema.names[:6] == [
            "_read",
            "_offset",
            "_producer",
            "_clock",
            "_time",
            "_vnode",
        ]
        assert own["_time"] == plain["_clock"]
        assert own["_clock"].to_pylist() == self._mapped(plain, "_clock")
        for name in ("_read", "_producer", "_vnode", *plain.schema.names[5:]):
            assert own[name] == plain[name]
        names = [self.names[read] for read in numbers(plain, "_read")]
        offsets = [
            self.spaced[name].offsets[row]
            for name, row in zip(names, numbers(plain, "_offset"), strict=True)
        ]
        assert own["_offset"].to_pylist() == offsets
        for delay in (0, 9):
            assert keys_of(own, delay).tolist() == keys_of(plain, delay).tolist()

    def _check_delta(self, plain: Any, own: Any) -> None:
        assert own.gap_floor == {}
        assert plain.journal_names == own.journal_names
        assert plain.producers.tolist() == own.producers.tolist()
        for name in ("last_commits", "hinted_commits"):
            mapped = [self.clocks[clock] for clock in getattr(plain, name).tolist()]
            assert mapped == getattr(own, name).tolist()
        journals = [str(name) for name in own.journal_names.take(own.journal_indices())]
        pairs = zip(plain.offsets.tolist(), own.offsets.tolist(), journals, strict=True)
        for offset, other, journal in pairs:
            assert (offset or other) == 0 or self.spaced[journal].close(other) == offset

    def check_places(self) -> None:
        """Where both stand: between the end of a row and the next."""
        places = [
            [(read.journal, read.offset) for read in state._reads]
            + ([(replay.read.journal, replay.begin)] if (replay := state._replay) else [])
            for state in self.both
        ]
        for (journal, plain), (_, own) in zip(*places, strict=True):
            spaced = self.spaced[journal]
            assert spaced.end(plain) <= own
            assert spaced.row_at(own) == plain

    # All of it

    def flush(self) -> None:
        cycles = [state._flushes.cycle for state in self.both]
        assert cycles[0] == cycles[1]
        if not self.is_asked:
            self.is_asked = True
            self.handle(ProgressAsked(), ProgressAsked())
        if self.both[0]._flushes.is_open:
            for member in (1, 2):
                self.handle(Flushed(member, cycles[0], 1), Flushed(member, cycles[0], 1))

    def restart(self) -> None:
        first, second = (SliceSnapshot.decode(state.snapshot().encode()) for state in self.both)
        self.begin((first, second))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            chance = self.rng.random()
            if self.pending and chance < 0.5:
                self.answer()
            elif chance < 0.8:
                self.round()
            elif chance < 0.95:
                self.flush()
            else:
                self.restart()
            self.check_places()


@given(st.integers(0, 2**32), st.integers(0, 150))
@settings(max_examples=150, deadline=None)
def test_a_slice_does_the_same_whatever_offsets_and_clocks_its_journals_have(
    seed: int, steps: int
) -> None:
    Both(random.Random(seed)).run(steps)


def timed(rows: list[Row], spaced: Spaced, times: list[int]) -> JournalBatch:
    (batch,) = batches_of(random.Random(0), "j", rows, 0, len(rows))[:1]
    count = batch.rows
    return replace(
        batch,
        offsets=np.array(spaced.offsets[:count], np.int64),
        ends=np.array(spaced.ends[:count], np.int64),
        next_offset=spaced.ends[count - 1],
        times=np.array(times[:count], np.uint64),
    )


def started(*, is_timed: bool = True, head: int = 40, first_kept: int = 0) -> SliceState:
    state = slice_of(replace(binding(), is_timed=is_timed))
    state.handle(ReadStarted(7, 0, "j"))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, first_kept, head))
    return state


ONE_ROW = timed(documents(5), Spaced([10], [13]), [500_000])


def test_a_journal_is_read_to_its_end_though_no_row_is_there() -> None:
    state = started()
    state.handle(Fetched(7, (ONE_ROW,), 40))
    state.round(NOW, PLENTY)
    assert (state.status().read_offset, state.status().rows_behind) == (13, 27)
    nothing = replace(ONE_ROW.part(0, 0), next_offset=40)
    state.handle(Fetched(7, (nothing,), 40))
    assert (state.status().read_offset, state.status().rows_behind) == (40, 0)


def test_the_session_hears_that_a_journal_was_read_through_rows_that_are_left_out() -> None:
    """Else whoever waits for all that is there now would wait for ever."""
    state = slice_of(replace(binding(), is_timed=True, by_offset=True))
    for event in (ReadStarted(7, 0, "j"), AllReadsStarted(), Probed(7, 0, 40), ProgressAsked()):
        state.handle(event)
    nothing = replace(ONE_ROW.part(0, 0), next_offset=40)
    effects = [*state.handle(Fetched(7, (nothing,), 40)), *state.round(NOW, PLENTY)]
    told: list[int] = []
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, SendFlush):
            effects += state.handle(Flushed(1, effect.cycle, 65536))
        if isinstance(effect, Report):
            told += [
                entry.last_commit for one in effect.delta.journals() for entry in one.producers
            ]
            effects += state.handle(ProgressAsked())
    assert told[-1:] == [clock_of(40)]


def test_a_batch_that_ends_beyond_its_last_row_is_drained_to_there() -> None:
    state = started()
    state.handle(Fetched(7, (replace(ONE_ROW, next_offset=25),), 40))
    state.round(NOW, PLENTY)
    assert state.status().read_offset == 25


def test_a_read_stands_behind_the_rows_that_it_has_drained_and_no_further() -> None:
    state = started(head=13)
    state.handle(Fetched(7, (ONE_ROW,), 13))
    state.round(NOW, PLENTY)
    assert SliceSnapshot.decode(state.snapshot().encode()).reads[0].offset == 13


@pytest.mark.parametrize(
    ("batch", "is_timed", "problem"),
    [
        (replace(ONE_ROW.part(0, 0), next_offset=0), True, "from offset 0 up to 0, and those from"),
        (replace(ONE_ROW, offsets=np.array([-3])), True, "from offset -3 up to 13"),
        (ONE_ROW, False, "times apart from their clocks, and the plan of binding 0 does not"),
    ],
)
def test_batches_that_no_store_may_give_are_refused(
    batch: JournalBatch, is_timed: bool, problem: str
) -> None:
    state = started(is_timed=is_timed)
    with pytest.raises(LocalProtocolError, match=problem):
        state.handle(Fetched(7, (batch,), 40))


@pytest.mark.parametrize("is_timed", [True, False])
def test_rows_that_are_missing_raise_a_floor_only_where_clocks_are_times(is_timed: bool) -> None:
    """A floor is a time: who compares it with ranks would wait for no commit ever again."""
    state = started(is_timed=is_timed, first_kept=8, head=13)
    batch = ONE_ROW if is_timed else replace(ONE_ROW, times=ONE_ROW.clocks)
    state.handle(Fetched(7, (batch,), 13))
    effects = state.round(NOW, PLENTY)
    assert of(effects, SendParcel)
    assert bool(state.snapshot().frontier.gap_floor) is not is_timed


def test_rows_are_sent_within_the_times_of_a_binding_and_not_by_clock() -> None:
    spaced, times = Spaced([1, 2, 3], [2, 3, 4]), [30, 10, 20]
    state = slice_of(replace(binding(not_before=15, not_after=25), is_timed=True))
    state.handle(ReadStarted(7, 0, "j"))
    state.handle(AllReadsStarted())
    state.handle(Probed(7, 0, 4))
    rows = documents(2, 3, 4)
    batches = [timed(rows, spaced, times)]
    state.handle(Fetched(7, tuple(batches), batches[-1].next_offset))
    (sent,) = of(state.round(NOW, PLENTY), SendParcel)
    assert sent.batch["_offset"].to_pylist() == [3]


def test_a_block_takes_parcels_with_times_and_without() -> None:
    plain = fed(slice_of(), documents(5, 6)).round(NOW, PLENTY)
    state = started(head=13)
    state.handle(Fetched(7, (ONE_ROW,), 13))
    for effects in (plain, state.round(NOW, PLENTY)):
        (sent,) = of(effects, SendParcel)
        parts, _ = PartEncoder().encode([(sent.stage, sent.batch)], None)
        assert parts[0].groups["first"].tolist() == [5]
    wrong = sent.batch.select(["_read", "_offset", "_producer", "_time", "_clock", "_vnode"])
    with pytest.raises(LocalProtocolError, match="not the columns of a parcel"):
        PartEncoder().encode([(sent.stage, wrong)], None)
