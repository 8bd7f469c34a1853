"""Which snapshot counts and what goes: rules, against what they say in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.snapshot.names import Attempt
from penstock.snapshot.rules import counting_attempts, oldest_kept, orphans, outlived
from penstock.storage import Entry

ATTEMPTS = st.builds(
    Attempt, st.integers(1, 6), st.integers(0, 3), st.sampled_from(("a" * 16, "b" * 16))
)


@given(st.sets(ATTEMPTS), st.sets(ATTEMPTS))
def test_one_attempt_of_each_epoch_counts(finished: set[Attempt], committed: set[Attempt]) -> None:
    counting = counting_attempts(finished, committed)
    for epoch in range(1, 7):
        marked = [attempt for attempt in committed if attempt.epoch == epoch]
        others = [attempt for attempt in finished if attempt.epoch == epoch]
        expected = max(marked) if marked else max(others, default=None)
        assert counting.get(epoch) == expected


@given(st.sets(ATTEMPTS), st.sets(st.integers(1, 6)), st.integers(1, 4), st.sets(st.integers(1, 6)))
def test_the_newest_are_kept(
    attempts: set[Attempt], counted: set[int], keep: int, protect: set[int]
) -> None:
    oldest = oldest_kept(counted, keep)
    gone = outlived(attempts, oldest, protect)
    assert gone == sorted(gone)
    for attempt in attempts:
        newer = {epoch for epoch in counted if epoch > attempt.epoch}
        stays = len(newer) < keep or attempt.epoch in protect
        assert (attempt not in gone) == stays


@given(
    st.lists(st.tuples(ATTEMPTS, st.integers(0, 9)), max_size=8, unique_by=lambda pair: pair[0]),
    st.none() | st.integers(1, 6),
    st.data(),
)
def test_only_parts_that_nobody_can_need_are_orphans(
    written: list[tuple[Attempt, int]], oldest: int | None, data: st.DataObject
) -> None:
    parts = [Entry(attempt.part(0), 5, modified) for attempt, modified in written]
    referred = {part.name for part in parts if data.draw(st.booleans())}
    strangers = [Entry("parts/readme", 5, 0), Entry("parts/.tmp", 5, 0)]
    found = {part.name for part in orphans([*parts, *strangers], referred, oldest, 5)}
    for attempt, modified in written:
        name = attempt.part(0)
        over = oldest is not None and attempt.epoch < oldest
        assert (name in found) == (name not in referred and (over or modified < 5))
    assert not found & {part.name for part in strangers}
