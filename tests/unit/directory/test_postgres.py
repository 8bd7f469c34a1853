"""What is particular to the store over PostgreSQL: a server that goes away, and one that is shared.

What it has in common with the others is in tests/conformance/keyvalue.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from penstock.directory.postgres import PostgresKeyValue, forget_cluster
from penstock.errors import ConfigurationError, FencedError, PeerUnavailableError
from penstock.postgres import NAME_CHARACTERS_MAX
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually
from tests.postgres_server import GUARDED, GUARDED_PASSWORD, database

if TYPE_CHECKING:
    from tests.postgres_server import Database

__all__ = ["database"]


def test_a_lost_server_is_named_and_the_next_call_reaches_it_again(database: Database) -> None:
    password = "a-secret-that-is-not-asked-for"
    conninfo = psycopg.conninfo.make_conninfo(database.conninfo, password=password)
    with PostgresKeyValue(1, conninfo) as store:
        store.write("address", "here")
        database.server.kill()
        for call in (
            lambda: store.write("address", "there"),
            lambda: store.read(1, "address"),
            lambda: store.scan("address"),
        ):
            with pytest.raises(PeerUnavailableError) as raised:
                call()
            assert f"database '{database.name}'" in str(raised.value)
            assert password not in str(raised.value)
            assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        database.server.start()
        assert store.read(1, "address") == "here"
        store.write("address", "there")
        assert store.scan("address") == {1: "there"}


def test_a_cluster_that_is_forgotten_leaves_nothing_and_no_other_notices(
    database: Database,
) -> None:
    with (
        PostgresKeyValue(1, database.conninfo, "over") as left,
        PostgresKeyValue(1, database.conninfo, "alive") as other,
    ):
        for store in (left, other):
            store.write("address", "here")
        forget_cluster(database.conninfo, "over")
        assert left.scan("address") == {}
        with pytest.raises(FencedError, match=r"member 1 of 'over'"):
            left.write("address", "there")
        other.write("address", "there")
        assert other.scan("address") == {1: "there"}
    with database.connect() as connection:
        found = connection.execute("SELECT cluster FROM penstock.members").fetchall()
    assert found == [("alive",)]


def test_a_notification_that_raises_ends_no_listener(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody with access to the database may notify anything."""
    with PostgresKeyValue(1, database.conninfo) as first:
        original, failing = first._watches.tell, [KeyError("x"), RecursionError()]

        def tell(key: str) -> None:
            if failing:
                raise failing.pop()
            original(key)

        monkeypatch.setattr(first._watches, "tell", tell)
        watch = first.watch("k")

        def is_told() -> bool:
            first.write("k", "v")
            return watch.wait(0.2) and not failing

        eventually(is_told, "that it listens again")
        first.check()


def test_who_listens_hears_of_what_changed_while_the_server_was_gone(database: Database) -> None:
    with PostgresKeyValue(1, database.conninfo) as first:
        watch = first.watch("address")
        for number in range(3):
            while watch.wait(0):
                pass
            waiter = Background(lambda: watch.wait(WAIT_SECONDS_MAX))
            database.server.restart()
            with database.connect() as other:  # before the listener is back, or after
                other.execute(
                    "INSERT INTO penstock.slots (cluster, key, member, value)"
                    " VALUES ('penstock', 'address', %s, 'here')",
                    (number + 2,),
                )
            assert waiter.result() is True
            assert len(first.scan("address")) == number + 1, "who is woken can read"
        second = PostgresKeyValue(2, database.conninfo)
        while watch.wait(0):
            pass
        second.write("address", "new")
        assert watch.wait(WAIT_SECONDS_MAX), "it listens again"
        second.close()


def test_a_write_survives_a_crash_whatever_the_servers_default_is(database: Database) -> None:
    with database.connect() as administrator:
        administrator.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    for number in range(3):
        with PostgresKeyValue(1, database.conninfo) as store:
            store.write("step", str(number))
            database.server.restart()
        with database.connect() as looking:
            (found,) = looking.execute("SELECT value FROM penstock.slots").fetchall()
        assert found == (str(number).encode(),)


def test_members_that_start_at_once_make_the_tables_once(database: Database) -> None:
    start = threading.Barrier(8)

    def open_store(member: int) -> PostgresKeyValue:
        start.wait()
        return PostgresKeyValue(member, database.conninfo)

    opening = [Background(lambda each=each: open_store(each)) for each in range(8)]  # type: ignore[misc]
    stores = [each.result() for each in opening]
    for store in stores:
        store.write("address", str(store.member))
    assert stores[0].scan("address") == {member: str(member) for member in range(8)}
    for store in stores:
        store.close()


def test_no_write_of_the_old_process_lands_behind_its_successor(database: Database) -> None:
    """The old one writes all the time, with many threads, while the new one takes the slot."""
    for round_number in range(5):
        old = PostgresKeyValue(1, database.conninfo)
        started = threading.Semaphore(0)

        def write(store: PostgresKeyValue, key: str, started: threading.Semaphore) -> None:
            while True:
                store.write(key, "old")
                started.release()

        writing = [
            Background(lambda key=key: write(old, key, started))  # type: ignore[misc]  # noqa: B023
            for key in "abcd"
        ]
        for _ in range(20):
            assert started.acquire(timeout=WAIT_SECONDS_MAX)
        with PostgresKeyValue(1, database.conninfo) as new:
            assert new.generation == old.generation + 1 == 2 * round_number + 2
            assert [new.scan(key) for key in "abcd"] == [{}] * 4
            for each in writing:
                with pytest.raises(FencedError, match=r"member 1 .* was started again elsewhere"):
                    each.result()
            assert [new.scan(key) for key in "abcd"] == [{}] * 4
        old.close()


def test_clusters_do_not_see_each_other(database: Database) -> None:
    with (
        PostgresKeyValue(1, database.conninfo) as mine,
        PostgresKeyValue(1, database.conninfo, "another") as other,
        mine.watch() as watch,
    ):
        other.write("address", "elsewhere")
        assert mine.scan("address") == {}
        mine.write("address", "here")
        assert watch.wait(WAIT_SECONDS_MAX)
        assert (other.scan("address"), other.generation) == ({1: "elsewhere"}, 1)


def test_closing_leaves_no_session_and_no_thread(database: Database) -> None:
    threads = threading.active_count()
    stores = [PostgresKeyValue(member, database.conninfo) for member in range(3)]
    stores[0].write("address", "here")
    for store in stores:
        store.close()
    assert threading.active_count() == threads
    with database.connect() as looking:
        eventually(
            lambda: (
                looking.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (database.name,)
                ).fetchone()
                == (1,)
            ),
            "only the session of this test to be left",
        )


def test_a_server_that_is_not_there(database: Database) -> None:
    with pytest.raises(PeerUnavailableError, match=r"port 1, .* cannot be reached"):
        PostgresKeyValue(1, "host=127.0.0.1 port=1 dbname=x user=y password=hidden")
    database.server.kill()
    with pytest.raises(PeerUnavailableError, match="cannot be reached") as raised:
        PostgresKeyValue(1, database.conninfo)
    assert str(database.server.folder) in str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"user": GUARDED, "password": "wrong-password"}, "password authentication failed"),
        ({"user": GUARDED}, "no password supplied"),
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist'),
        ({"user": "stranger"}, 'role "stranger" does not exist'),
    ],
    ids=["wrong-password", "no-password", "no-database", "no-user"],
)
def test_a_server_that_refuses_us(
    database: Database, options: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    conninfo = psycopg.conninfo.make_conninfo(database.conninfo, **options)
    with pytest.raises(ConfigurationError, match=f"refuses this connection.*{told}") as raised:
        PostgresKeyValue(1, conninfo)
    assert "wrong-password" not in str(raised.value)


def test_a_user_without_rights_and_one_whom_the_administrator_helped(database: Database) -> None:
    options = {"user": GUARDED, "password": GUARDED_PASSWORD}
    conninfo = psycopg.conninfo.make_conninfo(database.conninfo, **options)
    with pytest.raises(ConfigurationError, match="does not let this user make its tables"):
        PostgresKeyValue(1, conninfo)
    PostgresKeyValue(2, database.conninfo).close()
    with database.connect() as administrator:
        administrator.execute(f"GRANT USAGE ON SCHEMA penstock TO {GUARDED}")
        administrator.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA penstock TO {GUARDED}"
        )
    with PostgresKeyValue(1, conninfo) as store:
        store.write("address", "here")
        assert store.scan("address") == {1: "here"}


@pytest.mark.parametrize("conninfo", ["host=x password=very secret", "postgresql://a:secret@[h/d"])
def test_a_connection_string_that_cannot_be_read_is_not_repeated(conninfo: str) -> None:
    with pytest.raises(ConfigurationError, match="write it like") as raised:
        PostgresKeyValue(1, conninfo)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("cluster", ["", "a b", "a:b", "ü", "-a", "x" * (NAME_CHARACTERS_MAX + 1)])
def test_a_name_that_cannot_be_a_clusters(cluster: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a cluster"):
        PostgresKeyValue(1, "host=nowhere", cluster)


def test_the_longest_name_and_the_greatest_member(database: Database) -> None:
    cluster = "x" * NAME_CHARACTERS_MAX
    with PostgresKeyValue(2**63 - 1, database.conninfo, cluster) as store, store.watch() as watch:
        store.write("address", "here")
        assert watch.wait(WAIT_SECONDS_MAX)
        assert store.scan("address") == {2**63 - 1: "here"}
    for member in (-1, 2**63):
        with pytest.raises(ConfigurationError, match="outside of 0 to"):
            PostgresKeyValue(member, database.conninfo)
