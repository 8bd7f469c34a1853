"""With very many producers, journals and hints, a Slice does work for what is new, not for all."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.ids import Kind
from penstock.routing import assign
from penstock.sequence import ProducerState, StateColumns, sequence_batch, sequence_rows
from penstock.shuffle.slice import fetching, state
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetch,
    Fetched,
    Flushed,
    Probed,
    ReadStarted,
    SendFlush,
    SendParcel,
    SendRollbacks,
)
from penstock.shuffle.slice.reads import row_bytes_of
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.shuffle.slice.state import SliceState
from penstock.shuffle.slice.states import ReadStates
from tests.unit.shuffle.slice.model import Row, batch_of, binding, producer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.journal.store import JournalBatch
    from penstock.shuffle.slice.events import SliceEffect

CREDIT = {1: 10**9}
NOW = 10**6
BUDGET = 10**9


class Counting(dict[int, ProducerState]):
    """States that count how often one is asked for, and do not give all of them."""

    def __init__(self, states: Mapping[int, ProducerState]) -> None:
        super().__init__(states)
        self.asked = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)

    def __getitem__(self, key: int) -> ProducerState:
        self.asked += 1
        return super().__getitem__(key)

    def items(self) -> Any:
        raise AssertionError("all states were walked over")

    keys = values = __iter__ = items


class Index:
    def __init__(self) -> None:
        self.looked_up = 0

    def targets(self, journal: str, cohort: int) -> tuple[int, ...]:  # noqa: ARG002
        self.looked_up += 1
        return (0,)


def started(journals: int, index: Index | None = None, budget: int = BUDGET) -> SliceState:
    slice_ = SliceState([binding()], assign([1]), index or Index(), read_ahead_bytes=budget)
    for number in range(journals):
        slice_.handle(ReadStarted(number, 0, f"j{number:04}"))
    slice_.handle(AllReadsStarted())
    return slice_


def flushed(slice_: SliceState, effects: list[SliceEffect]) -> None:
    for effect in effects:
        if isinstance(effect, SendFlush):
            slice_.handle(Flushed(1, effect.cycle, 1))


def rows_of(count: int, clock: int) -> list[Row]:
    return [Row(producer(number % 200), clock + number, 0, 0, 0) for number in range(count)]


def fetched(journal: str, first: int, rows: list[Row]) -> tuple[JournalBatch, ...]:
    return (batch_of(journal, [Row(0, 0, 0, 0, 0)] * first + rows, first, first + len(rows)),)


@pytest.mark.parametrize("form", [sequence_batch, sequence_rows])
def test_sequencing_asks_for_the_states_of_the_producers_in_the_batch(form: Any) -> None:
    states = Counting({number << 16: ProducerState(5, 0, -1) for number in range(1, 1000)})
    producers = np.array([7 << 16, 9 << 16, 7 << 16], np.int64)
    offsets, ends = np.array([0, 4, 9]), np.array([4, 7, 20])
    clocks, flags = np.array([6, 6, 7], np.uint64), np.zeros(3, np.uint16)
    found = form(offsets, ends, producers, clocks, flags, states)
    assert found.changed == {7 << 16: ProducerState(7, 0, -20), 9 << 16: ProducerState(6, 0, -7)}
    assert states.asked <= len(producers)


@pytest.mark.parametrize("journals", [1, 3])
def test_a_round_of_a_row_asks_for_few_states(
    journals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_ = started(journals)
    for number in range(journals):
        slice_.handle(Probed(number, 0, 200))
        slice_.handle(Fetched(number, fetched(f"j{number:04}", 0, rows_of(200, 10)), 200))
    flushed(slice_, slice_.round(NOW, CREDIT))
    counting = []
    for number in range(journals):
        read = slice_._read(number)
        counted = Counting(read.states)
        counting.append(counted)
        monkeypatch.setattr(read, "states", counted)
        more = fetched(read.journal, 200, [Row(producer(5), 900, 0, 0, 0)])
        slice_.handle(Fetched(number, more, 201))
    effects = slice_.round(NOW, CREDIT)
    assert sum(one.batch.num_rows for one in effects if isinstance(one, SendParcel)) == journals
    assert all(one.asked <= 8 for one in counting)


def test_a_snapshot_makes_columns_of_what_changed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = started(2)
    for number in range(2):
        slice_.handle(Probed(number, 0, 200))
        slice_.handle(Fetched(number, fetched(f"j{number:04}", 0, rows_of(200, 10)), 200))
    flushed(slice_, slice_.round(NOW, CREDIT))
    first = slice_.snapshot()
    slice_.handle(Fetched(1, fetched("j0001", 200, [Row(producer(5), 900, 0, 0, 0)]), 201))
    flushed(slice_, slice_.round(NOW, CREDIT))

    made: list[int] = []
    of = StateColumns.of

    def counted(states: Any) -> StateColumns:
        rows = list(states)
        made.append(len(rows))
        return of(rows)

    monkeypatch.setattr(StateColumns, "of", counted)
    second = slice_.snapshot()
    assert sum(made) == 1
    assert [len(read.states) for read in second.reads] == [200, 200]
    changed = {
        who for who, found in second.reads[1].states.items() if first.reads[1].states[who] != found
    }
    assert changed == {producer(5)}
    assert SliceSnapshot.decode(second.encode()).reads == second.reads


def test_columns_of_states_follow_every_change() -> None:
    """By chance: states are set and dropped, some were never saved, some come back."""
    rng = random.Random(7)
    states = ReadStates({})
    for _ in range(300):
        for _ in range(rng.randrange(4)):
            who = producer(rng.randrange(40))
            if who in states and rng.random() < 0.4:
                del states[who]
            else:
                states[who] = ProducerState(rng.randrange(1, 99), 0, -rng.randrange(99))
        if rng.random() < 0.5:
            columns = states.columns()
            assert columns.to_dict() == dict(states)
            assert columns.producers.view(np.uint64).tolist() == sorted(
                who % 2**64 for who in states
            )


def acknowledged(journals: int, clock: int) -> Iterator[tuple[int, list[Row]]]:
    """A transaction over all journals."""
    names = [f"j{number:04}" for number in range(journals)]
    for number, name in enumerate(names):
        others = tuple(other for other in names if other != name)
        yield (
            number,
            [
                Row(producer(1), clock, Kind.CONTINUE, 0, 0),
                Row(producer(1), clock + journals, Kind.ACK, 0, 0, others),
            ],
        )


def test_a_transaction_over_many_journals_is_looked_up_once_per_journal() -> None:
    """Its acknowledgements name n * (n - 1) journals, n different ones."""
    count, index = 60, Index()
    slice_ = started(count, index)
    index.looked_up = 0
    for number, rows in acknowledged(count, 10):
        slice_.handle(Probed(number, 0, 2))
        slice_.handle(Fetched(number, fetched(f"j{number:04}", 0, rows), 2))
    for _ in range(3):
        flushed(slice_, slice_.round(NOW, CREDIT))
    assert count <= index.looked_up <= 2 * count
    hints = slice_.snapshot().frontier
    assert hints.journal_count == count
    assert (hints.hinted_commits == 10 + count).all()


def asked_for(effects: list[SliceEffect]) -> dict[int, int]:
    return {effect.read: effect.bytes_max for effect in effects if isinstance(effect, Fetch)}


@pytest.mark.parametrize("journals", [1, 7, 33, 500])
@pytest.mark.parametrize("is_behind", [True, False])
def test_what_is_fetched_at_once_fits_the_budget_whatever_the_number_of_journals(
    journals: int, is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "FETCH_BYTES", 1_000)
    slice_ = started(journals, budget=16_000)
    asked: dict[int, int] = {}
    for number in range(journals):
        asked |= asked_for(slice_.handle(Probed(number, 0, 10**6 if is_behind else 0)))
    assert len(asked) == journals
    assert sum(asked.values()) <= 16_000
    assert min(asked.values()) >= 1
    if journals == 1:
        assert asked == {0: 1_000}


def test_who_holds_up_the_others_is_fetched_much_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many journals have a row or two at hand, and wait for one that is behind them."""
    monkeypatch.setattr(state, "FETCH_BYTES", 1_000)
    slice_ = started(100, budget=40_000)
    for number in range(100):
        slice_.handle(Probed(number, 0, 10_000))
    for number in range(1, 100):
        slice_.handle(Fetched(number, fetched(f"j{number:04}", 0, rows_of(1, 9_000)), 10_000))
    for offset in range(20):
        more = fetched("j0000", offset, rows_of(1, 10 + offset))
        effects = [*slice_.handle(Fetched(0, more, 10_000)), *slice_.round(NOW, CREDIT)]
        assert asked_for(effects) == {0: 1_000}


def journal_of(*sizes: int, width: int = 100) -> list[JournalBatch]:
    """Batches of so many rows, each of about `width` bytes."""
    batches, first = [], 0
    for size in sizes:
        rows = [Row(producer(1), 10 + first + at, 0, 0, 0) for at in range(size)]
        batch = batch_of("j", [Row(0, 0, 0, 0, 0)] * first + rows, first, first + size)
        text = pa.array(["x" * width] * size)
        batches.append(
            replace(
                batch,
                documents=batch.documents.append_column("text", text),
                hints={at: (f"h{first + at}",) for at in range(0, size, 7)},
            )
        )
        first += size
    return batches


def test_a_fetch_takes_as_many_bytes_as_it_may_however_large_batches_are() -> None:
    """By chance, over batches of any size: no row is lost, repeated, or comes with another's hints,
    and the memory of what was taken is what was asked for."""
    rng = random.Random(5)
    for _ in range(40):
        sizes = [rng.choice((1, 3, 50, 400)) for _ in range(rng.randrange(1, 8))]
        batches = journal_of(*sizes)
        reader, rest = iter(batches), None
        offset = 0
        hints: dict[int, tuple[str, ...]] = {}
        is_more = True
        while is_more:
            bytes_max = rng.choice((1, 500, 5_000, 100_000))
            found, rest, is_more = fetching._some(rest, reader, bytes_max)
            taken = sum(one.rows * row_bytes_of(one.documents) for one in found)
            rows = sum(one.rows for one in found)
            assert rows == 1 or taken <= 1.1 * bytes_max  # rows are taken for average ones
            for one in found:
                assert one.offsets.tolist() == list(range(offset, offset + one.rows))
                assert one.clocks.tolist() == [10 + at for at in one.offsets.tolist()]
                hints |= {offset + row: named for row, named in one.hints.items()}
                if all(one is not batch for batch in batches):
                    assert one.documents.get_total_buffer_size() < 3 * bytes_max + 2_000
                offset += one.rows
        assert offset == sum(sizes)
        said = {int(b.offsets[row]): named for b in batches for row, named in b.hints.items()}
        assert hints == said


@pytest.mark.parametrize("is_known", [True, False])
def test_a_span_whose_producer_departed_behind_a_gap_is_forgotten(is_known: bool) -> None:
    """As one that was closed in the gap by a producer that is still known there."""
    slice_ = started(1)
    slice_.handle(Probed(0, 0, 20))
    open_ = [Row(producer(1), 10 + at, Kind.CONTINUE, 0, 0) for at in range(3)]
    slice_.handle(Fetched(0, fetched("j0000", 0, open_), 20))
    slice_.round(NOW, CREDIT)
    there = {producer(1): ProducerState(15, 0, -6)} if is_known else {}
    slice_.handle(Probed(0, 10, 20, there))
    effects = slice_.round(NOW, CREDIT)
    (rollbacks,) = (one.batch for one in effects if isinstance(one, SendRollbacks))
    assert rollbacks["_producer"].to_pylist() == [producer(1)]
    assert rollbacks["through"].to_pylist() == [12]
    state_ = slice_._read(0).states[producer(1)]
    assert (state_.max_continue, state_.offset) == (0, -10)
