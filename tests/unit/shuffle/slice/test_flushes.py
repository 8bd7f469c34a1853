"""When what was sent may be told."""

from __future__ import annotations

import pytest

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import Producer
from penstock.shuffle.slice.flushes import Flushes


def delta(commit: int, read: int = 1) -> Frontier:
    entry = ProducerFrontier(Producer(b"\x01\0\0\0\0\1"), commit, 0, -commit)
    return Frontier.of([JournalFrontier("j", 0, (entry,), read, -read)])


def due(flushes: Flushes) -> Flushes:
    flushes.is_due = True
    return flushes


def test_a_delta_is_told_once_when_all_members_have_answered() -> None:
    flushes = due(Flushes((1, 5)))
    assert flushes.start(delta(10)) == 1
    flushes.ask()
    flushes.flushed(5, 1, 70)
    assert flushes.answer() is None
    flushes.flushed(1, 1, 60)
    told, _ = flushes.answer() or (None, ())
    assert told is not None
    assert told.flushed_lsn.tolist() == [60, 70]
    assert told.last_commits.tolist() == [10]
    flushes.ask()
    assert flushes.answer() is None


def test_deltas_that_nobody_asked_for_are_told_together() -> None:
    flushes = Flushes((1,))
    for cycle in (1, 2):
        assert due(flushes).start(delta(10 * cycle)) == cycle
        flushes.flushed(1, cycle, 5 * cycle)
    assert flushes.answer() is None
    flushes.ask()
    told, _ = flushes.answer() or (None, ())
    assert told is not None
    assert told.last_commits.tolist() == [20]
    assert told.bytes_read_delta.tolist() == [2]
    assert told.flushed_lsn.tolist() == [10]


def test_one_flush_at_a_time_and_only_if_due() -> None:
    flushes = Flushes((1,))
    with pytest.raises(LocalProtocolError, match="none is due"):
        flushes.start(delta(1))
    due(flushes).start(delta(1))
    assert not due(flushes).may_start
    with pytest.raises(LocalProtocolError, match="under way"):
        flushes.start(delta(1))


def test_wrong_answers_are_errors() -> None:
    flushes = due(Flushes((1, 2)))
    with pytest.raises(RemoteProtocolError, match="none is under way"):
        flushes.flushed(1, 1, 9)
    flushes.start(delta(1))
    with pytest.raises(RemoteProtocolError, match="answered flush 2, and 1 is under way"):
        flushes.flushed(1, 2, 9)
    flushes.flushed(1, 1, 9)
    with pytest.raises(RemoteProtocolError, match="twice"):
        flushes.flushed(1, 1, 9)
    with pytest.raises(RemoteProtocolError, match="member 3"):
        flushes.flushed(3, 1, 9)


def test_progress_is_asked_for_once_at_a_time() -> None:
    flushes = Flushes((1,))
    flushes.ask()
    with pytest.raises(RemoteProtocolError, match="unanswered"):
        flushes.ask()


def test_answers_to_an_earlier_life_are_passed_over() -> None:
    flushes = due(Flushes((1,), cycle=4))
    flushes.flushed(1, 4, 9)
    assert flushes.start(delta(3)) == 5
    flushes.flushed(1, 4, 9)
    flushes.flushed(1, 5, 11)
    flushes.ask()
    told, _ = flushes.answer() or (None, ())
    assert told is not None
    assert told.flushed_lsn.tolist() == [11]


def test_what_was_not_told_goes_into_a_snapshot_without_its_lsns() -> None:
    flushes = Flushes((1,))
    due(flushes).start(delta(1))
    flushes.flushed(1, 1, 9)
    due(flushes).start(delta(2))
    assert [each.last_commits.tolist() for each in flushes.untold()] == [[1], [2]]
    assert all(not len(each.flushed_lsn) for each in flushes.untold())
