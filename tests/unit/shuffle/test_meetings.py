"""Sessions that meet at one server: each by itself, and none leaves anything there."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock.directory.meeting import ServerMeeting
from penstock.journal import Collection, open_store
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.meetings import Meetings
from penstock.shuffle.processes import ProcessShuffle
from penstock.storage import Storage
from penstock.transport.security import Token
from tests.postgres_server import Database, database

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["database"]


def clusters(database: Database) -> list[str]:
    with database.connect() as connection:
        return sorted(
            str(name)
            for (name,) in connection.execute("SELECT DISTINCT cluster FROM penstock.members")
        )


@pytest.mark.parametrize("feeds", [("a", "b"), ("a", "a")])
def test_shuffles_with_the_same_path_on_two_machines_do_not_disturb_each_other(
    database: Database, tmp_path: Path, feeds: tuple[str, str]
) -> None:
    """Nor with the same feed in it. On two machines no lock keeps them apart."""
    meetings = []
    for number, feed in enumerate(feeds):
        store = open_store(tmp_path / f"store-{number}", durability="buffered")
        store.create(Collection.define("orders", "id BIGINT NOT NULL", key="id"))
        shuffle = ProcessShuffle(
            Feed(feed, (Binding("orders"),)), store, tmp_path / "f", directory=database.conninfo
        )
        meetings.append(shuffle._meeting(Token.generate()))
    first, second = meetings
    session, member = first.begin(0, ""), first.open(1, "")
    member.write("address", "here")
    other = second.begin(0, "")
    assert other.scan("address") == {}
    for each in (session, member, other):
        each.write("key", "value")
    assert session.scan("address") == {1: "here"}
    for each in (session, member, other):
        each.close()


def test_what_a_killed_session_left_is_removed_by_the_next(
    database: Database, tmp_path: Path
) -> None:
    def begun(folder: Path) -> ServerMeeting:
        meeting = ServerMeeting(database.conninfo)
        Meetings(Storage.open(folder / "cluster"), folder).begin(meeting)
        meeting.begin(0, "").close()
        return meeting

    folder, copy = tmp_path / "feed", tmp_path / "copy"
    killed = begun(folder)
    assert clusters(database) == [killed.cluster]
    shutil.copytree(folder, copy)
    of_copy = begun(copy)
    assert clusters(database) == sorted([killed.cluster, of_copy.cluster]), "it may still run"
    after = begun(folder)
    assert clusters(database) == sorted([after.cluster, of_copy.cluster])
    for place, meeting in ((folder, after), (copy, of_copy)):
        Meetings(Storage.open(place / "cluster"), place).end(meeting)
    assert clusters(database) == []


def test_a_server_that_is_away_keeps_no_session_from_ending(tmp_path: Path) -> None:
    place = Storage.open(tmp_path / "cluster")
    away = ServerMeeting(f"host={tmp_path} dbname=none")
    meetings = Meetings(place, tmp_path)
    meetings.begin(away)
    meetings.end(away)
    (note,) = place.names("meetings/")
    assert note.endswith(away.cluster), "the next one tries again"
