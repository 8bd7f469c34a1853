"""A run taken at once leaves its producer where the walk over its rows does, or says it cannot."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ids import Kind, Producer
from penstock.sequence import (
    UNSEEN,
    OutsideWithPrecedingContinueError,
    ProducerState,
    Run,
    SequenceFaultError,
    sequence_rows,
    sequence_run,
)

PRODUCER = Producer.from_hex("0d0102030405").int64


@st.composite
def states(draw: st.DrawFn) -> ProducerState:
    last_commit = draw(st.integers(1, 8))
    max_continue = draw(st.sampled_from([0, last_commit, last_commit + 1, last_commit + 3]))
    offset = draw(st.integers(0, 9)) if max_continue else -draw(st.integers(1, 9))
    return ProducerState(last_commit, max_continue, offset)


def check_run(kind: Kind, clocks: list[int], state: ProducerState) -> str:
    """Compares with the walk; says which way it went."""
    count, begin = len(clocks), 20
    walked = sequence_rows(
        np.arange(begin, begin + count, dtype=np.int64),
        np.arange(begin, begin + count, dtype=np.int64) + 1,
        np.full(count, PRODUCER, np.int64),
        np.array(clocks, np.uint64),
        np.full(count, kind, np.uint16),
        {PRODUCER: state},
    )
    run = Run(PRODUCER, kind, clocks[0], clocks[-1], begin, begin + count)
    if walked.fault is not None:
        with pytest.raises(SequenceFaultError) as raised:
            sequence_run(run, state)
        assert type(raised.value) is walked.fault.error
        return "fault"
    after = sequence_run(run, state)
    if after is None:
        # Only where some rows are new and some are not.
        assert 0 < np.count_nonzero(walked.keep) < count
        return "looked at"
    assert after == walked.states[PRODUCER]
    return "moved" if after != state else "repeated"


@given(
    st.sampled_from(list(Kind)),
    st.lists(st.integers(1, 15), min_size=1, max_size=5, unique=True).map(sorted),
    states(),
)
def test_a_run_is_sequenced_as_its_rows_are(
    kind: Kind, clocks: list[int], state: ProducerState
) -> None:
    check_run(kind, clocks[:1] if kind is Kind.ACK else clocks, state)


def test_every_way_is_taken() -> None:
    ways: Counter[tuple[Kind, str]] = Counter()

    @settings(max_examples=600, derandomize=True, database=None)
    @given(
        st.sampled_from(list(Kind)),
        st.lists(st.integers(1, 15), min_size=1, max_size=5, unique=True).map(sorted),
        states(),
    )
    def collect(kind: Kind, clocks: list[int], state: ProducerState) -> None:
        clocks = clocks[:1] if kind is Kind.ACK else clocks
        ways[kind, check_run(kind, clocks, state)] += 1

    collect()
    partial = {(kind, "looked at") for kind in (Kind.OUTSIDE, Kind.CONTINUE)}
    faults = {(kind, "fault") for kind in (Kind.OUTSIDE, Kind.ACK)}
    plain = {(kind, way) for kind in Kind for way in ("moved", "repeated")}
    assert set(ways) == partial | faults | plain


def test_an_unseen_producer_starts_a_span_at_its_first_row() -> None:
    run = Run(PRODUCER, Kind.CONTINUE, 10, 12, 5, 8)
    assert sequence_run(run, UNSEEN) == ProducerState(1, 12, 5)
    with pytest.raises(OutsideWithPrecedingContinueError):
        sequence_run(Run(PRODUCER, Kind.OUTSIDE, 13, 13, 8, 9), ProducerState(1, 12, 5))
