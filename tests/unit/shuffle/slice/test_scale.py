"""With very many producers, journals and hints, a Slice does work for what is new, not for all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.ids import Kind
from penstock.routing import assign
from penstock.sequence import ProducerState, StateColumns, sequence_batch, sequence_rows
from penstock.shuffle.slice.events import (
    AllReadsStarted,
    Fetched,
    Flushed,
    Probed,
    ReadStarted,
    SendFlush,
    SendParcel,
)
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
    state = SliceState([binding()], assign([1]), index or Index(), read_ahead_bytes=budget)
    for number in range(journals):
        state.handle(ReadStarted(number, 0, f"j{number:04}"))
    state.handle(AllReadsStarted())
    return state


def flushed(state: SliceState, effects: list[SliceEffect]) -> None:
    for effect in effects:
        if isinstance(effect, SendFlush):
            state.handle(Flushed(1, effect.cycle, 1))


def rows_of(count: int, clock: int) -> list[Row]:
    return [Row(producer(number % 200), clock + number, 0, 0, 0) for number in range(count)]


def fetched(journal: str, first: int, rows: list[Row]) -> tuple[JournalBatch, ...]:
    return (batch_of(journal, [Row(0, 0, 0, 0, 0)] * first + rows, first, first + len(rows)),)


@pytest.mark.parametrize("form", [sequence_batch, sequence_rows])
def test_sequencing_asks_for_the_states_of_the_producers_in_the_batch(form: Any) -> None:
    states = Counting({number << 16: ProducerState(5, 0, -1) for number in range(1, 1000)})
    producers = np.array([7 << 16, 9 << 16, 7 << 16], np.int64)
    found = form(
        np.arange(3), producers, np.array([6, 6, 7], np.uint64), np.zeros(3, np.uint16), states
    )
    assert found.changed == {7 << 16: ProducerState(7, 0, -3), 9 << 16: ProducerState(6, 0, -2)}
    assert states.asked <= len(producers)


@pytest.mark.parametrize("journals", [1, 3])
def test_a_round_of_a_row_asks_for_few_states(
    journals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = started(journals)
    for number in range(journals):
        state.handle(Probed(number, 0, 200))
        state.handle(Fetched(number, fetched(f"j{number:04}", 0, rows_of(200, 10)), 200))
    flushed(state, state.round(NOW, CREDIT))
    counting = []
    for number in range(journals):
        read = state._read(number)
        counted = Counting(read.states)
        counting.append(counted)
        monkeypatch.setattr(read, "states", counted)
        more = fetched(read.journal, 200, [Row(producer(5), 900, 0, 0, 0)])
        state.handle(Fetched(number, more, 201))
    effects = state.round(NOW, CREDIT)
    assert sum(one.batch.num_rows for one in effects if isinstance(one, SendParcel)) == journals
    assert all(one.asked <= 8 for one in counting)


def test_a_snapshot_makes_columns_of_what_changed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    state = started(2)
    for number in range(2):
        state.handle(Probed(number, 0, 200))
        state.handle(Fetched(number, fetched(f"j{number:04}", 0, rows_of(200, 10)), 200))
    flushed(state, state.round(NOW, CREDIT))
    first = state.snapshot()
    state.handle(Fetched(1, fetched("j0001", 200, [Row(producer(5), 900, 0, 0, 0)]), 201))
    flushed(state, state.round(NOW, CREDIT))

    made: list[int] = []
    of = StateColumns.of

    def counted(states: Any) -> StateColumns:
        rows = list(states)
        made.append(len(rows))
        return of(rows)

    monkeypatch.setattr(StateColumns, "of", counted)
    second = state.snapshot()
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
    state = started(count, index)
    index.looked_up = 0
    for number, rows in acknowledged(count, 10):
        state.handle(Probed(number, 0, 2))
        state.handle(Fetched(number, fetched(f"j{number:04}", 0, rows), 2))
    for _ in range(3):
        flushed(state, state.round(NOW, CREDIT))
    assert count <= index.looked_up <= 2 * count
    hints = state.snapshot().frontier
    assert hints.journal_count == count
    assert (hints.hinted_commits == 10 + count).all()
