"""The PostgreSQL participant: rows show up with their epoch, and misuse is told in plain words.

What happens when either side is killed is in tests/integration/test_postgres_participant.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from penstock.checkpoint import Barrier
from penstock.errors import (
    CommitFailedError,
    ConfigurationError,
    CorruptStorageError,
    FencedError,
    LocalProtocolError,
    PeerUnavailableError,
)
from penstock.postgres import NAME_CHARACTERS_MAX
from penstock.sinks import postgres as postgres_module
from penstock.sinks.postgres import EPOCHS_IN_FLIGHT_MAX, PostgresParticipant
from tests.conformance.waiting import Background, eventually, never
from tests.postgres_server import GUARDED, database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.epoch.participant import Participant
    from tests.postgres_server import Database

__all__ = ["database"]


@pytest.fixture
def table(database: Database) -> Database:
    with database.connect() as administrator:
        administrator.execute("CREATE TABLE totals (epoch numeric, name text)")
    return database


@pytest.fixture
def sink(table: Database) -> Iterator[PostgresParticipant]:
    with PostgresParticipant(table.conninfo, "totals", 1) as opened:
        yield opened


def write(sink: PostgresParticipant, epoch: int, *names: str) -> None:
    with sink.writing() as cursor:
        rows = [(epoch, name) for name in names]
        cursor.executemany("INSERT INTO totals VALUES (%s, %s)", rows)


def visible(database: Database) -> list[tuple[int, str]]:
    with database.connect() as looking:
        rows = looking.execute("SELECT epoch::bigint, name FROM totals ORDER BY 1, 2").fetchall()
    return [(int(str(epoch)), str(name)) for epoch, name in rows]


def sleep_when_prepared(database: Database, seconds: float) -> None:
    """From now on, the server takes so long to prepare an epoch with a row named 'sleep'."""
    with database.connect() as administrator:
        administrator.execute(
            "CREATE FUNCTION sleep_now() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END'"
        )
        administrator.execute(
            "CREATE CONSTRAINT TRIGGER sleeping AFTER INSERT ON totals DEFERRABLE INITIALLY"
            " DEFERRED FOR EACH ROW WHEN (NEW.name = 'sleep') EXECUTE FUNCTION sleep_now()"
        )


def wait_for_event(database: Database, event: str) -> None:
    """Until a session waits for that, as the server calls it."""
    query = "SELECT FROM pg_stat_activity WHERE datname = %s AND wait_event = %s"
    with database.connect() as looking:
        eventually(
            lambda: looking.execute(query, (database.name, event)).fetchall(),
            f"a session to wait for {event}",
        )


def barrier(epoch: int) -> Barrier:
    return Barrier(checkpoint=epoch, epoch=epoch)


def test_rows_show_up_when_their_epoch_is_committed(
    table: Database, sink: PostgresParticipant
) -> None:
    participant: Participant = sink
    write(sink, 1, "a", "b")
    assert participant.capture(barrier(1)) is None
    write(sink, 2, "c")
    participant.prepare(1)
    assert participant.in_doubt() == [1]
    assert visible(table) == []
    participant.commit(1)
    assert visible(table) == [(1, "a"), (1, "b")]
    assert participant.in_doubt() == []
    participant.capture(barrier(2))
    participant.prepare(2)
    participant.abort(2)
    assert visible(table) == [(1, "a"), (1, "b")]
    assert sink.last_committed() == 1


def test_rows_by_copy(table: Database, sink: PostgresParticipant) -> None:
    with sink.writing() as cursor, cursor.copy("COPY totals FROM STDIN") as copy:
        for name in "ab":
            copy.write_row((1, name))
    sink.capture(barrier(1))
    sink.prepare(1)
    sink.commit(1)
    assert visible(table) == [(1, "a"), (1, "b")]


def test_commit_and_abort_can_be_repeated(table: Database, sink: PostgresParticipant) -> None:
    write(sink, 1, "a")
    sink.capture(barrier(1))
    sink.prepare(1)
    for _ in range(3):
        sink.commit(1)
        sink.abort(1)
    write(sink, 2, "b")
    sink.capture(barrier(2))
    for _ in range(3):
        sink.abort(2)
    write(sink, 3, "c")
    sink.capture(barrier(3))
    sink.prepare(3)
    for _ in range(3):
        sink.abort(3)
    sink.abort(99)
    assert visible(table) == [(1, "a")]


def test_an_epoch_without_rows_is_prepared_and_committed_too(sink: PostgresParticipant) -> None:
    for epoch in (1, 2):
        sink.capture(barrier(epoch))
        sink.prepare(epoch)
        assert sink.in_doubt() == [epoch]
        sink.commit(epoch)
        sink.commit(epoch)
    assert sink.last_committed() == 2


def test_several_epochs_are_in_flight(table: Database, sink: PostgresParticipant) -> None:
    for epoch in (1, 2, 3):
        write(sink, epoch, "a")
        sink.capture(barrier(epoch))
    for epoch in (2, 1, 3):
        sink.prepare(epoch)
    assert sink.in_doubt() == [1, 2, 3]
    sink.commit(1)
    sink.abort(2)
    sink.commit(3)
    assert visible(table) == [(1, "a"), (3, "a")]


def test_a_prepared_transaction_that_was_taken_away_is_not_taken_for_committed(
    table: Database, sink: PostgresParticipant
) -> None:
    write(sink, 1, "a")
    sink.capture(barrier(1))
    sink.prepare(1)
    (found,) = sink.prepared()
    with table.connect() as administrator:
        administrator.execute(f"ROLLBACK PREPARED '{found.identifier}'")
    with pytest.raises(CorruptStorageError, match="rolled back by hand") as raised:
        sink.commit(1)
    assert found.identifier in str(raised.value)
    with pytest.raises(CorruptStorageError):
        sink.commit(2)


def test_the_report_of_what_is_in_doubt_says_what_it_costs(sink: PostgresParticipant) -> None:
    sink.capture(barrier(7))
    sink.prepare(7)
    (found,) = sink.prepared()
    assert found.epoch == 7
    assert "keeps its rows locked" in str(found)
    assert "VACUUM" in str(found)
    assert found.identifier in str(found)
    sink.abort(7)


def test_a_number_that_was_committed_cannot_be_used_again(
    table: Database, sink: PostgresParticipant
) -> None:
    for last in (True, False):
        write(sink, 1, "a")
        sink.capture(barrier(1))
        if last:
            sink.prepare(1)
            sink.commit(1)
    with pytest.raises(LocalProtocolError, match=r"epoch 1 .* was committed before"):
        sink.prepare(1)
    sink.abort(1)
    assert visible(table) == [(1, "a")]


def test_a_failed_write_spoils_its_epoch_only(table: Database, sink: PostgresParticipant) -> None:
    write(sink, 1, "a")
    with pytest.raises(psycopg.errors.UndefinedTable), sink.writing() as cursor:
        cursor.execute("INSERT INTO elsewhere VALUES (1)")
    with pytest.raises(CommitFailedError, match="elsewhere"):
        write(sink, 1, "b")
    sink.capture(barrier(1))
    write(sink, 2, "c")
    with pytest.raises(CommitFailedError, match=r"epoch 1 cannot be prepared: .*elsewhere"):
        sink.prepare(1)
    sink.abort(1)
    sink.capture(barrier(2))
    sink.prepare(2)
    sink.commit(2)
    assert visible(table) == [(2, "c")]


def test_a_block_that_raises_spoils_its_epoch(table: Database, sink: PostgresParticipant) -> None:
    """Else half of what the block wanted to write would be committed."""
    with pytest.raises(ZeroDivisionError), sink.writing() as cursor:  # noqa: PT012
        cursor.execute("INSERT INTO totals VALUES (1, 'half')")
        raise ZeroDivisionError
    sink.capture(barrier(1))
    with pytest.raises(CommitFailedError, match="ZeroDivisionError"):
        sink.prepare(1)
    sink.abort(1)
    assert visible(table) == []


def test_a_swallowed_error_of_the_server_is_noticed(
    table: Database, sink: PostgresParticipant
) -> None:
    with sink.writing() as cursor:
        cursor.execute("INSERT INTO totals VALUES (1, 'a')")
        with pytest.raises(psycopg.errors.UndefinedTable):
            cursor.execute("INSERT INTO elsewhere VALUES (1)")
    sink.capture(barrier(1))
    with pytest.raises(CommitFailedError, match="current transaction is aborted"):
        sink.prepare(1)
    sink.abort(1)
    assert (visible(table), sink.in_doubt()) == ([], [])


@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])
def test_whoever_ends_the_transaction_himself_is_told(
    sink: PostgresParticipant, command: str
) -> None:
    write(sink, 1, "a")
    with sink.writing() as cursor:
        cursor.execute(command)
    sink.capture(barrier(1))
    with pytest.raises(LocalProtocolError, match="was ended by the code that writes"):
        sink.prepare(1)
    sink.abort(1)
    assert sink.in_doubt() == []


def test_what_cannot_be_prepared_is_told_by_the_server(
    table: Database, sink: PostgresParticipant
) -> None:
    with table.connect() as administrator:
        administrator.execute(
            "ALTER TABLE totals ADD CONSTRAINT once UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
        )
    with sink.writing() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE scratch (name text)")
    sink.capture(barrier(1))
    write(sink, 2, "a", "a")
    sink.capture(barrier(2))
    with pytest.raises(CommitFailedError, match="temporary"):
        sink.prepare(1)
    with pytest.raises(CommitFailedError, match="once"):
        sink.prepare(2)
    sink.abort(1)
    sink.abort(2)
    assert (visible(table), sink.in_doubt()) == ([], [])


def test_steps_out_of_order_are_told(sink: PostgresParticipant) -> None:
    with pytest.raises(LocalProtocolError, match="epoch 1 cannot be prepared: it was not captured"):
        sink.prepare(1)
    sink.capture(barrier(1))
    with pytest.raises(LocalProtocolError, match="epoch 1 was captured already"):
        sink.capture(barrier(1))
    with pytest.raises(LocalProtocolError, match="epoch 1 cannot be committed"):
        sink.commit(1)
    with (
        sink.writing(),
        pytest.raises(LocalProtocolError, match="inside of a block"),
    ):
        sink.capture(barrier(2))
    with (
        sink.writing(),
        pytest.raises(LocalProtocolError, match="inside of another"),
        sink.writing(),
    ):
        pass
    for epoch in range(2, EPOCHS_IN_FLIGHT_MAX + 1):
        sink.capture(barrier(epoch))
    with pytest.raises(LocalProtocolError, match="at most 4 may be"):
        sink.capture(barrier(9))


def test_no_barrier_comes_into_the_middle_of_a_block(
    table: Database, sink: PostgresParticipant
) -> None:
    with sink.writing() as cursor:
        cursor.execute("INSERT INTO totals VALUES (1, 'a')")
        capturing = Background(lambda: sink.capture(barrier(1)))
        never(lambda: not capturing.running, "the block is not over")
        cursor.execute("INSERT INTO totals VALUES (1, 'b')")
    capturing.result()
    write(sink, 2, "c")
    sink.prepare(1)
    sink.commit(1)
    assert visible(table) == [(1, "a"), (1, "b")]


def test_a_row_that_two_epochs_change(
    table: Database, sink: PostgresParticipant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first to be committed, or gives up."""
    with table.connect() as administrator:
        administrator.execute("ALTER TABLE totals ADD PRIMARY KEY (name)")
        administrator.execute("INSERT INTO totals VALUES (0, 'a')")

    def update(epoch: int) -> None:
        with sink.writing() as cursor:
            cursor.execute("UPDATE totals SET epoch = %s", (epoch,))

    update(1)
    sink.capture(barrier(1))
    sink.prepare(1)
    updating = Background(lambda: update(2))
    never(lambda: not updating.running, "the row is locked")
    sink.commit(1)
    updating.result()
    sink.capture(barrier(2))
    sink.prepare(2)
    # Connections that are idle have the limit they were opened with.
    monkeypatch.setattr(postgres_module, "_SET_LOCK_TIMEOUT", "SET lock_timeout = '20ms'")
    while (idle := sink._take_idle()) is not None:
        idle.connection.close()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        update(3)
    sink.commit(2)
    assert visible(table) == [(2, "a")]


def test_an_epoch_that_is_given_up_waits_no_longer_to_be_prepared(
    table: Database, sink: PostgresParticipant
) -> None:
    sleep_when_prepared(table, seconds=600)
    write(sink, 1, "sleep")
    sink.capture(barrier(1))
    preparing = Background(lambda: sink.prepare(1))
    wait_for_event(table, "PgSleep")
    write(sink, 2, "awake")
    sink.give_up(1)
    with pytest.raises(CommitFailedError, match="could not prepare epoch 1: canceling statement"):
        preparing.result()
    sink.abort(1)
    sink.capture(barrier(2))
    sink.prepare(2)
    sink.commit(2)
    assert visible(table) == [(2, "awake")]


def test_an_epoch_that_is_given_up_waits_no_longer_to_be_captured(
    table: Database, sink: PostgresParticipant
) -> None:
    with table.connect() as administrator:
        administrator.execute("BEGIN")
        administrator.execute("LOCK TABLE totals")
        writing = Background(lambda: write(sink, 1, "a"))
        wait_for_event(table, "relation")
        capturing = Background(lambda: sink.capture(barrier(1)))
        never(lambda: not capturing.running, "a write is under way")
        sink.give_up(1)
        capturing.result()
        with pytest.raises(psycopg.errors.QueryCanceled):
            writing.result()
        with pytest.raises(CommitFailedError, match="canceling statement"):
            sink.prepare(1)
        sink.abort(1)
    write(sink, 2, "b")
    sink.give_up(1)
    sink.give_up(3)
    sink.capture(barrier(2))
    sink.prepare(2)
    sink.give_up(2)
    sink.commit(2)
    assert visible(table) == [(2, "b")]


def test_participants_do_not_see_each_other(table: Database) -> None:
    keys = [("totals", 1, "penstock"), ("totals", 2, "penstock"), ("totals", 11, "penstock"),
            ("totals-2", 1, "penstock"), ("totals", 1, "another")]  # fmt: skip
    sinks = [PostgresParticipant(table.conninfo, *key) for key in keys]
    elsewhere = table.server.new_database()
    sinks.append(PostgresParticipant(elsewhere.conninfo, *keys[0]))
    for number, each in enumerate(sinks):
        for epoch in (1, 10 + number):
            each.capture(barrier(epoch))
            each.prepare(epoch)
    for number, each in enumerate(sinks):
        assert each.in_doubt() == [1, 10 + number]
        each.commit(1)
        each.abort(10 + number)
        assert each.last_committed() == 1
        each.close()


def test_the_longest_names_and_the_greatest_numbers(table: Database) -> None:
    name, last = "x" * NAME_CHARACTERS_MAX, 2**64 - 1
    with PostgresParticipant(table.conninfo, name, 2**63 - 1, name) as sink:
        sink.capture(barrier(last))
        sink.prepare(last)
        assert sink.in_doubt() == [last]
        assert len(sink.prepared()[0].identifier) < 200
        sink.commit(last)
        sink.commit(last)
        assert sink.last_committed() == last
    for wrong in ("", "a:b", "x" * (NAME_CHARACTERS_MAX + 1)):
        with pytest.raises(ConfigurationError, match="cannot be the name of a participant"):
            PostgresParticipant(table.conninfo, wrong, 1)


def test_old_epochs_are_forgotten_and_the_newest_kept(
    sink: PostgresParticipant, table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "EPOCHS_REMEMBERED", 5)
    monkeypatch.setattr(postgres_module, "FORGET_EVERY", 10)
    for epoch in range(1, 31):
        sink.capture(barrier(epoch))
        sink.prepare(epoch)
        sink.commit(epoch)
    with table.connect() as looking:
        kept = looking.execute("SELECT epoch FROM penstock.epochs ORDER BY 1").fetchall()
    assert [int(str(epoch)) for (epoch,) in kept] == [26, 27, 28, 29, 30]


def test_a_process_that_was_replaced_has_no_part_any_more(table: Database) -> None:
    old = PostgresParticipant(table.conninfo, "totals", 1)
    write(old, 1, "prepared")
    old.capture(barrier(1))
    old.prepare(1)
    write(old, 2, "captured")
    old.capture(barrier(2))
    write(old, 3, "written")
    with PostgresParticipant(table.conninfo, "totals", 1) as new:
        assert new.generation == old.generation + 1
        assert new.in_doubt() == [1]
        with table.connect() as looking:
            locks = "SELECT FROM pg_locks WHERE relation = 'totals'::regclass AND pid IS NOT NULL"
            assert looking.execute(locks).fetchall() == [], "its open transactions are gone"
        with pytest.raises(PeerUnavailableError, match="was lost"):
            old.prepare(2)
        for _ in range(2):
            with pytest.raises(FencedError, match="was started again elsewhere"):
                old.abort(1)
            with pytest.raises(FencedError):
                old.commit(1)
            with pytest.raises(FencedError):
                old.abort(2)
        with pytest.raises(PeerUnavailableError):
            write(old, 3, "more")
        old.capture(barrier(3))
        with pytest.raises(FencedError):
            write(old, 4, "later")
        assert new.in_doubt() == [1]
        new.commit(1)
        assert visible(table) == [(1, "prepared")]
    old.close()


def test_a_server_that_allows_no_prepared_transactions(database: Database) -> None:
    with (
        database.server.set_otherwise(max_prepared_transactions="0"),
        pytest.raises(ConfigurationError, match="set max_prepared_transactions in its"),
    ):
        PostgresParticipant(database.conninfo, "totals", 1)


def test_a_server_whose_prepared_transactions_are_used_up(database: Database) -> None:
    with (
        database.server.set_otherwise(max_prepared_transactions="1"),
        PostgresParticipant(database.conninfo, "totals", 1) as sink,
    ):
        for epoch in (1, 2):
            sink.capture(barrier(epoch))
        sink.prepare(1)
        with pytest.raises(CommitFailedError, match="max_prepared_transactions"):
            sink.prepare(2)
        sink.commit(1)
        sink.abort(2)


def test_another_users_prepared_transaction_is_not_ours_to_settle(
    table: Database, sink: PostgresParticipant
) -> None:
    sink.capture(barrier(1))
    sink.prepare(1)
    with table.connect() as administrator:
        for right in ("ALL ON SCHEMA penstock", "ALL ON ALL TABLES IN SCHEMA penstock"):
            administrator.execute(f"GRANT {right} TO {GUARDED}")
        administrator.execute("CREATE ROLE other_user LOGIN IN ROLE guarded")
    sink.close()
    try:
        conninfo = psycopg.conninfo.make_conninfo(table.conninfo, user="other_user")
        with PostgresParticipant(conninfo, "totals", 1) as other:
            with pytest.raises(ConfigurationError, match="stays prepared, and its rows locked"):
                other.commit(1)
            assert other.in_doubt() == [1]
    finally:
        with PostgresParticipant(table.conninfo, "totals", 1) as settling:
            settling.abort(1)
        with table.connect() as administrator:
            administrator.execute("DROP ROLE other_user")


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"user": GUARDED, "password": "wrong"}, ConfigurationError, "password authentication"),
        ({"dbname": "nowhere"}, ConfigurationError, 'database "nowhere" does not exist'),
        ({"host": "/nowhere"}, PeerUnavailableError, "cannot be reached"),
    ],
    ids=["password", "database", "server"],
)
def test_what_is_wrong_with_the_connection_is_told_at_once(
    database: Database, options: dict[str, str], error: type[Exception], told: str
) -> None:
    conninfo = psycopg.conninfo.make_conninfo(database.conninfo, **options)
    with pytest.raises(error, match=told):
        PostgresParticipant(conninfo, "totals", 1)
