"""Places for strangers: who may enter, who has to leave, and when."""

from __future__ import annotations

import math

import pytest

from penstock.transport import lobby
from penstock.transport.lobby import Lobby

GRACE = lobby.GRACE_SECONDS


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Lobby[str]:
    """Three places, taken at 1, 2 and 3; everybody has ten seconds."""
    monkeypatch.setattr(lobby, "STRANGERS_MAX", 3)
    made: Lobby[str] = Lobby(10)
    for now, who in enumerate("abc", 1):
        assert made.room_at(now) == now
        assert made.crowded_out() is None
        made.enter(who, now)
    return made


def test_the_oldest_makes_room_once_it_has_had_its_time(full: Lobby[str]) -> None:
    assert full.room_at(1) == 1 + GRACE
    assert full.room_at(5) == 5
    assert full.crowded_out() == "a"
    full.leave("a")
    assert full.crowded_out() is None
    full.enter("d", 5)
    assert full.crowded_out() == "b"


@pytest.mark.parametrize("how", ["certified", "left"])
def test_who_is_no_stranger_any_more_takes_no_place_and_loses_none(
    full: Lobby[str], how: str
) -> None:
    (full.certify if how == "certified" else full.leave)("a")
    assert full.room_at(1) == 1
    full.enter("d", 4)
    assert full.crowded_out() == "b"


def test_nobody_stays_longer_than_its_time(full: Lobby[str]) -> None:
    assert full.next_overdue_at() == 11
    full.certify("a")
    assert full.next_overdue_at() == 11, "a certificate alone is no Hello"
    assert full.overdue(10.9) == []
    assert full.overdue(12) == ["b", "a"]
    for who in full.overdue(99):
        full.leave(who)
    assert full.next_overdue_at() == math.inf
    full.certify("a")
    assert full.overdue(99) == [], "who has left does not come back"


def test_where_there_is_too_little_only_who_had_its_time_goes(full: Lobby[str]) -> None:
    assert full.dispensable(1) is None
    assert full.dispensable(1 + GRACE) == "a"
    full.certify("a")
    assert full.dispensable(1 + GRACE) is None
    assert Lobby[str](10).dispensable(99) is None
