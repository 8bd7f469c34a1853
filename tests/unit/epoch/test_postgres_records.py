"""Records in PostgreSQL: of those who create a name one succeeds, and a crash does not undo it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.epoch.postgres_records import NAME_BYTES_MAX, VALUE_BYTES_MAX, PostgresRecords
from penstock.errors import LocalProtocolError, PeerUnavailableError
from tests.conformance.waiting import Background, eventually
from tests.postgres_server import database

if TYPE_CHECKING:
    from penstock.epoch.records import Records
    from tests.postgres_server import Database

__all__ = ["database"]

RACE = """
import json, sys
from penstock.epoch.postgres_records import PostgresRecords
conninfo, who, count = sys.argv[1:]
records = PostgresRecords(conninfo)
print("ready", flush=True)
sys.stdin.readline()
mine = [name for name in range(int(count)) if records.create(f"epoch/{name}", who.encode())]
print(json.dumps(mine), flush=True)
"""
RACED = 300


def test_the_first_value_stays(database: Database) -> None:
    with PostgresRecords(database.conninfo) as opened:
        records: Records = opened
        assert records.creates_atomically
        assert records.read("epoch/1") is None
        assert records.create("epoch/1", b"commit")
        assert not records.create("epoch/1", b"abort")
        assert records.read("epoch/1") == b"commit"
        records.delete("epoch/1")
        records.delete("epoch/1")
        assert records.read("epoch/1") is None
        assert records.create("epoch/1", b"")
        assert records.read("epoch/1") == b""


def test_two_processes_race_and_each_name_has_one_winner(database: Database) -> None:
    racers = {
        who: subprocess.Popen(
            [sys.executable, "-c", RACE, database.conninfo, who, str(RACED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for who in ("first", "second")
    }
    for racer in racers.values():
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    won = {who: set(json.loads(racer.communicate()[0])) for who, racer in racers.items()}
    assert not won["first"] & won["second"]
    assert won["first"] | won["second"] == set(range(RACED))
    with PostgresRecords(database.conninfo) as records:
        for who, names in won.items():
            assert all(records.read(f"epoch/{name}") == who.encode() for name in names)


def test_a_created_record_survives_a_crash_whatever_the_servers_default_is(
    database: Database,
) -> None:
    with database.connect() as administrator:
        administrator.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    for number in range(3):
        with PostgresRecords(database.conninfo) as records:
            assert records.create(f"epoch/{number}", b"commit")
            database.server.restart()
            assert records.names("epoch/") == [f"epoch/{each}" for each in range(number + 1)]


def test_a_server_that_goes_away_during_a_call(database: Database) -> None:
    """The table is locked, so that the call is at the server when that is killed."""
    locking = database.connect()
    with PostgresRecords(database.conninfo) as records:
        locking.execute("BEGIN")
        locking.execute("LOCK TABLE penstock.records")
        creating = Background(lambda: records.create("epoch/1", b"commit"))
        with database.connect() as looking:
            blocked = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            eventually(lambda: looking.execute(blocked).fetchall(), "the call to wait")
        database.server.kill()
        locking.close()
        with pytest.raises(PeerUnavailableError, match="could not create the record 'epoch/1'"):
            creating.result()
        with pytest.raises(PeerUnavailableError, match="cannot be reached"):
            records.read("epoch/1")
        database.server.start()
        assert records.read("epoch/1") is None
        assert records.create("epoch/1", b"abort")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=12),
    prefix=st.text(st.characters(exclude_categories=["Cs"]), max_size=2),
)
def test_names_are_listed_by_prefix_in_order(
    database: Database, names: set[str], prefix: str
) -> None:
    names |= {prefix + "x", prefix, "\U0010ffff" + prefix}
    with PostgresRecords(database.conninfo) as records:
        for name in names:
            assert records.create(name, name.encode())
        assert records.names() == sorted(names)
        assert records.names(prefix) == sorted(each for each in names if each.startswith(prefix))
        for name in names:
            assert records.read(name) == name.encode()
        some = sorted(names)[::2]
        records.delete_all([*some, "of no record"])
        assert records.names() == sorted(names.difference(some))
        for name in names:
            records.delete(name)
        assert records.names() == []


def test_clusters_have_records_of_their_own(database: Database) -> None:
    with (
        PostgresRecords(database.conninfo) as mine,
        PostgresRecords(database.conninfo, "another") as other,
    ):
        assert mine.create("epoch/1", b"commit")
        assert other.create("epoch/1", b"abort")
        assert (mine.read("epoch/1"), other.read("epoch/1")) == (b"commit", b"abort")
        other.delete("epoch/1")
        assert (mine.names(), other.names()) == (["epoch/1"], [])


def test_limits(database: Database) -> None:
    with PostgresRecords(database.conninfo) as records:
        assert records.create("n" * NAME_BYTES_MAX, b"v" * VALUE_BYTES_MAX)
        assert len(records.read("n" * NAME_BYTES_MAX) or b"") == VALUE_BYTES_MAX
        with pytest.raises(LocalProtocolError, match="record's name of 1001 bytes is too long"):
            records.create("n" * (NAME_BYTES_MAX + 1), b"")
        with pytest.raises(LocalProtocolError, match="too long"):
            records.create("n", bytes(VALUE_BYTES_MAX + 1))
    with pytest.raises(LocalProtocolError, match="was closed"):
        records.read("n")
