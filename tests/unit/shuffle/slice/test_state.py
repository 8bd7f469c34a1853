"""The Slice against a walk over its documents one by one, whatever the order of events."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.routing import assign
from penstock.sequence import SequenceFaultError
from penstock.shuffle.slice import levelling, parcelling, rounds, state
from tests.unit.shuffle.slice.harness import FRAME_BYTES, Harness
from tests.unit.shuffle.slice.model import Walk, binding, random_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.shuffle.plan import BindingPlan
    from tests.unit.shuffle.slice.model import Row


@pytest.fixture(autouse=True, scope="module")
def _small_limits() -> Iterator[None]:
    """So that a few dozen documents reach them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levelling, "ROUND_ROWS_MAX", 12)
        patch.setattr(state, "ROUND_ROWS_MAX", 12)
        for module in (rounds, state):
            patch.setattr(module, "ROUND_READS_MAX", 5)
        patch.setattr(parcelling, "LARGE_ROWS", 4)
        patch.setattr(state, "FETCH_BYTES", 300)
        for module in (parcelling, state):
            patch.setattr(module, "frame_bytes", lambda _: FRAME_BYTES)
        yield


def some_bindings(rng: random.Random) -> list[BindingPlan]:
    chosen = [binding(0, rng.choice((0, 9)))]
    if rng.random() < 0.4:
        delay = rng.choice((chosen[0].delay, 30))
        cohort = 0 if delay == chosen[0].delay else 1
        chosen.append(binding(1, delay, cohort, rng.choice((0, 20)), rng.choice((45, 2**64 - 1))))
    return chosen


def some_journals(rng: random.Random) -> dict[str, list[Row]]:
    names = [f"j{number}" for number in range(rng.randint(1, 4))]
    return {
        name: random_journal(
            rng, name, [*(other for other in names if other != name), "x"], 1000 * number
        )
        for number, name in enumerate(names)
    }


def run(rng: random.Random, harness: Harness, steps: int) -> None:
    for _ in range(steps):
        harness.step()
    harness.finish()
    for number, view in harness.reads.items():
        assert harness.state._numbers[number].offset == max(
            len(harness.journals[view.journal]), harness.walk(view, 0).offset
        )
    check_spans(harness)


def check_spans(harness: Harness) -> None:
    """What is told of open spans is what a walk over the rows counts."""
    spans = harness.state._spans._spans
    reads = harness.state._numbers
    assert set(spans) == {
        (number, producer)
        for number, read in reads.items()
        for producer, state in read.states.items()
        if state.max_continue
    }
    for (number, producer), span in spans.items():
        rows = harness.journals[span.read.journal]
        binding = span.read.binding
        state = reads[number].states[producer]
        assert span.offset == state.offset
        if span.rows is None:
            continue  # it was open where this life began
        newest = count = 0
        for row in rows[state.offset :]:
            if row.producer == producer and row.flags == 1 and row.clock > newest:
                newest = row.clock
                count += binding.not_before <= row.clock < binding.not_after
        assert (span.rows, span.time) == (count, rows[state.offset].clock)
    assert len(harness.state.details().spans) == len(spans)


@given(st.integers(0, 2**32), st.integers(0, 120))
@settings(max_examples=60)
def test_whatever_the_order_of_events_queues_and_frontier_are_as_the_walk_has_them(
    seed: int, steps: int
) -> None:
    rng = random.Random(seed)
    assignment = assign(range(1, rng.randint(2, 4)))
    harness = Harness(rng, some_bindings(rng), some_journals(rng), assignment)
    run(rng, harness, steps)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 120))
@settings(max_examples=60)
def test_a_read_that_resumes_goes_back_for_the_spans_that_were_open(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    bindings, journals = some_bindings(rng), some_journals(rng)
    entries = {
        (name, each.place): Walk(rows, each).walk_to(rng.randint(0, len(rows))).checkpoint()
        for name, rows in journals.items()
        for each in bindings
    }
    harness = Harness(rng, bindings, journals, assign((1, 2)), entries=entries)
    run(rng, harness, steps)


@given(st.integers(0, 2**32), st.integers(0, 80))
@settings(max_examples=40)
def test_bytes_that_are_gone_are_passed_over_and_told(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    bindings, journals = some_bindings(rng), some_journals(rng)
    first_kept = {name: faultless_begin(rng, rows) for name, rows in journals.items()}
    harness = Harness(rng, bindings, journals, assign((1, 2)), first_kept=first_kept)
    run(rng, harness, steps)


def faultless_begin(rng: random.Random, rows: list[Row]) -> int:
    """An offset from which on no row is a fault, although those before it are gone."""
    while True:
        begin = rng.randint(0, len(rows))
        try:
            Walk(rows, binding(), begin).walk_to(len(rows))
        except SequenceFaultError:
            continue
        return begin
