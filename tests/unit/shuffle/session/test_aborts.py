"""Epochs that are aborted again and again end the session, and those of a moment do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shuffle.session.aborts import (
    ABORTED_SECONDS_MIN,
    ABORTS_MAX,
    Aborts,
    EpochsAbortedError,
)


def test_epochs_that_time_out_one_after_the_other_end_the_session_with_their_reason() -> None:
    aborts = Aborts()
    reason = "no answer from member 2 in time; member 1 answered"
    for number in range(ABORTS_MAX - 1):
        aborts.aborted(reason, 30.0 * number)
    with pytest.raises(EpochsAbortedError, match=f"the last {ABORTS_MAX} epochs .*: {reason}"):
        aborts.aborted(reason, 30.0 * (ABORTS_MAX - 1))


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=20))
def test_only_a_row_of_aborts_that_lasts_ends_it(epochs: list[tuple[float, bool]]) -> None:
    aborts, now = Aborts(), 0.0
    row: list[float] = []
    for seconds, committed in epochs:
        now += seconds
        if committed:
            aborts.committed()
            row = []
            continue
        row.append(now)
        lasts = row[-1] - row[0] >= ABORTED_SECONDS_MIN and len(row) >= ABORTS_MAX
        try:
            aborts.aborted("a reason", now)
        except EpochsAbortedError:
            assert lasts
            return
        assert not lasts
