"""Warnings come once per peer and minute, and everything is counted."""

from __future__ import annotations

from penstock.directory.gossip.complaints import PEERS_MAX, QUIET_SECONDS, Complaints


def test_a_peer_is_complained_about_once_per_minute() -> None:
    complaints = Complaints()
    due = [complaints.is_due("a", now) for now in (0.0, 1.0, QUIET_SECONDS - 1, QUIET_SECONDS)]
    assert due == [True, False, False, True]
    assert complaints.is_due("b", 1.0)
    assert complaints.count == 5


def test_no_more_peers_are_remembered_than_the_limit() -> None:
    complaints = Complaints()
    for number in range(3 * PEERS_MAX):
        assert complaints.is_due(str(number), 0.0)
    assert len(complaints._said) == PEERS_MAX
    assert not complaints.is_due(str(3 * PEERS_MAX - 1), 0.0), "the newest are remembered"
