"""Either side is killed at any moment: the table holds the rows of the committed epochs, once each.

The decision is what the epoch's record would be: it exists once every part was prepared, and after
a crash whoever comes back follows it. What has no decision is aborted.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from penstock.errors import CommitFailedError, LocalProtocolError, PeerUnavailableError
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually
from tests.faults import Stage
from tests.postgres_proxy import LossyProxy
from tests.postgres_server import database
from tests.postgres_story import Row, barrier, client_story, open_sink, rows_of, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sinks.postgres import PostgresParticipant
    from tests.postgres_server import Database

__all__ = ["database"]

T = TypeVar("T")
U = TypeVar("U")


@pytest.fixture
def table(database: Database) -> Database:
    with database.connect() as administrator:
        administrator.execute("CREATE TABLE results (epoch integer, number integer)")
    return database


def visible(database: Database) -> Counter[Row]:
    with database.connect() as looking:
        found = looking.execute("SELECT epoch, number FROM results").fetchall()
    return Counter((int(str(epoch)), int(str(number))) for epoch, number in found)


def expected(epochs: set[int]) -> Counter[Row]:
    return Counter(row for epoch in epochs for row in rows_of(epoch))


def check_settled(database: Database, committed: set[int], when: str) -> None:
    """Nothing is in doubt, nothing is locked, and the committed rows are there, once each."""
    with database.connect() as looking:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        assert looking.execute(query).fetchall() == [], f"left over {when}"
    assert visible(database) == expected(committed), when


STEPS: list[tuple[str, Callable[[PostgresParticipant, int], object]]] = [
    ("write", write),
    ("capture", lambda sink, epoch: sink.capture(barrier(epoch))),
    ("prepare", lambda sink, epoch: sink.prepare(epoch)),
    ("decide", lambda *_: None),
    ("commit", lambda sink, epoch: sink.commit(epoch)),
    ("commit", lambda sink, epoch: sink.commit(epoch)),
]


@pytest.mark.parametrize("reopened", [False, True], ids=["same-process", "started-again"])
@pytest.mark.parametrize("killed_before", range(len(STEPS) + 1))
def test_server_killed_between_any_two_steps(
    table: Database, killed_before: int, reopened: bool
) -> None:
    sink = open_sink(table.conninfo)
    write(sink, 1)
    sink.capture(barrier(1))
    sink.prepare(1)
    sink.commit(1)
    committed, decided, failed = {1}, False, False
    for number, (name, step) in enumerate([*STEPS, ("nothing", lambda *_: None)]):
        if number == killed_before:
            table.server.restart()
            if reopened:
                sink.close()
                sink = open_sink(table.conninfo)
                break
        if name == "decide":
            decided = True
        try:
            step(sink, 2)
        except (PeerUnavailableError, CommitFailedError):
            assert not decided, "what was decided can be committed"
            failed = True
            break
    if decided:
        committed.add(2)
        sink.commit(2)
    elif failed or reopened:
        assert sink.in_doubt() in ([], [2])
        sink.abort(2)
    check_settled(table, committed, f"after a crash before step {killed_before}")
    if reopened and not decided:
        assert killed_before <= [name for name, _ in STEPS].index("decide")
    write(sink, 3)
    sink.capture(barrier(3))
    sink.prepare(3)
    sink.commit(3)
    check_settled(table, committed | {3}, "one epoch later")
    assert sink.last_committed() == 3
    sink.close()


def sleep_when_prepared(database: Database, seconds: float) -> None:
    """Deferred triggers run as part of PREPARE TRANSACTION: so that takes a while."""
    with database.connect() as administrator:
        administrator.execute(
            "CREATE FUNCTION sleep_now() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END'"
        )
        administrator.execute(
            "CREATE CONSTRAINT TRIGGER sleeping AFTER INSERT ON results DEFERRABLE INITIALLY"
            " DEFERRED FOR EACH ROW WHEN (NEW.number = 0) EXECUTE FUNCTION sleep_now()"
        )


def wait_for_sleeper(database: Database) -> None:
    query = "SELECT FROM pg_stat_activity WHERE datname = %s AND wait_event = 'PgSleep'"
    with database.connect() as looking:
        eventually(lambda: looking.execute(query, (database.name,)).fetchall(), "a PREPARE")


def test_server_killed_while_it_prepares(table: Database) -> None:
    sleep_when_prepared(table, 600)
    with open_sink(table.conninfo) as sink:
        write(sink, 1)
        sink.capture(barrier(1))
        preparing = Background(lambda: sink.prepare(1))
        wait_for_sleeper(table)
        table.server.kill()
        with pytest.raises(PeerUnavailableError, match="was lost while epoch 1 was prepared"):
            preparing.result()
        with pytest.raises(PeerUnavailableError, match="cannot be reached"):
            sink.abort(1)
        table.server.start()
        sink.abort(1)
        check_settled(table, set(), "after a crash during PREPARE")


@pytest.fixture
def proxy(table: Database) -> Iterator[LossyProxy]:
    with tempfile.TemporaryDirectory(prefix="pp-") as folder:
        made = LossyProxy(table, Path(folder))
        yield made
        made.close()


def test_connection_lost_after_the_server_has_prepared(table: Database, proxy: LossyProxy) -> None:
    with open_sink(proxy.conninfo) as sink:
        write(sink, 1)
        sink.capture(barrier(1))
        proxy.drop_at("PREPARE TRANSACTION", answered=True)
        with pytest.raises(PeerUnavailableError, match="was lost while epoch 1 was prepared"):
            sink.prepare(1)
        assert sink.in_doubt() == [1]
        sink.abort(1)
        check_settled(table, set(), "after the answer to PREPARE was lost")


def test_connection_lost_while_the_server_still_prepares(
    table: Database, proxy: LossyProxy
) -> None:
    """The client is gone, but its session goes on preparing. Who aborts must not be too early."""
    sleep_when_prepared(table, 600)
    with open_sink(proxy.conninfo) as sink:
        write(sink, 1)
        sink.capture(barrier(1))
        proxy.drop_at("PREPARE TRANSACTION", answered=False)
        with pytest.raises(PeerUnavailableError):
            sink.prepare(1)
        wait_for_sleeper(table)
        sink.abort(1)
        with table.connect() as looking:
            query = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
            assert looking.execute(query, (table.name,)).fetchall() == []
        check_settled(table, set(), "after an abort while the server prepared")


def test_process_replaced_while_the_server_still_prepares(
    table: Database, proxy: LossyProxy
) -> None:
    sleep_when_prepared(table, 600)
    old = open_sink(proxy.conninfo)
    write(old, 1)
    old.capture(barrier(1))
    proxy.drop_at("PREPARE TRANSACTION", answered=False)
    with pytest.raises(PeerUnavailableError):
        old.prepare(1)
    wait_for_sleeper(table)
    with open_sink(table.conninfo) as new:
        assert new.in_doubt() == []
        check_settled(table, set(), "when the successor has started")
    old.close()


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not-answered"])
def test_connection_lost_while_an_epoch_is_committed(
    table: Database, proxy: LossyProxy, answered: bool
) -> None:
    with open_sink(proxy.conninfo) as sink:
        write(sink, 1)
        sink.capture(barrier(1))
        sink.prepare(1)
        proxy.drop_at("COMMIT PREPARED", answered=answered)
        with pytest.raises(PeerUnavailableError, match="could not settle epoch 1"):
            sink.commit(1)
        sink.commit(1)
        check_settled(table, {1}, "after the answer to COMMIT PREPARED was lost")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.mark.slow
def test_client_killed_at_every_statement(table: Database, stage: Stage, tmp_path: Path) -> None:
    outcomes = set()
    open_sink(table.conninfo).close()  # makes our tables, so that each story has as many statements
    statement, done = 0, False
    while not done:
        statement += 1
        assert statement < 100
        for after in (False, True):
            reports, plan = tmp_path / f"{statement}-{after}", tmp_path / "plan.json"
            reports.touch()
            with table.connect() as administrator:
                administrator.execute("TRUNCATE results, penstock.epochs")
            plan.write_text(
                json.dumps({"conninfo": table.conninfo, "statement": statement, "after": after})
            )
            stage.kill_at(0, client_story, plan, reports)
            told = reports.read_text().split()
            decided = {int(line) for line in told if line != "done"}
            done = "done" in told
            with open_sink(table.conninfo) as sink:
                doubtful = sink.in_doubt()
                for epoch in doubtful:
                    (sink.commit if epoch in decided else sink.abort)(epoch)
                for epoch in decided:
                    sink.commit(epoch)
                when = f"killed at statement {statement}, after it: {after}"
                check_settled(table, decided, when)
                assert sink.in_doubt() == []
                assert sink.last_committed() == max(decided, default=None)
            outcomes.add((len(decided), tuple(doubtful)))
    assert statement > 25
    # Killed before, while and after each epoch was prepared, decided and committed.
    assert {(0, ()), (0, (1,)), (1, (1,)), (1, ()), (1, (2,)), (2, (2,)), (3, (3,)), (3, ())} <= (
        outcomes
    )


class Killer:
    """Kills the server now and then, at a random moment, and starts it again."""

    def __init__(self, database: Database, seed: int) -> None:
        self._server = database.server
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self.kills = 0
        self._killing = Background(self._run, "the killer")

    def end(self) -> None:
        self._ending.set()
        self._killing.result()

    def _run(self) -> None:
        longest_seconds = 0.03
        while not self._ending.wait(self._random.uniform(0.0, longest_seconds)):
            self._server.restart()
            self.kills += 1
            longest_seconds *= 1.02  # on a slow machine, too, some epoch comes through


def until_done(call: Callable[[T], U], argument: T) -> U:
    """As the protocol does with what is decided: tries again until it is done."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            return call(argument)
        except PeerUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_server_killed_at_random_moments(table: Database, seed: int) -> None:
    chance = random.Random(seed)
    sink = open_sink(table.conninfo)
    killer = Killer(table, seed)
    committed: set[int] = set()
    lost = 0
    try:
        for epoch in itertools.count(1):
            if len(committed) >= 15 and lost >= 5:
                break
            try:
                write(sink, epoch)
                sink.capture(barrier(epoch))
                sink.prepare(epoch)
            except (PeerUnavailableError, CommitFailedError):
                lost += 1
                with suppress(LocalProtocolError):
                    sink.capture(barrier(epoch))  # if it did not come that far: the rows go too
                until_done(sink.abort, epoch)
            else:
                if chance.random() < 0.7:
                    committed.add(epoch)
                    until_done(sink.commit, epoch)
                else:
                    until_done(sink.abort, epoch)
            if chance.random() < 0.1:
                sink.close()
                sink = until_done(open_sink, table.conninfo)
    finally:
        killer.end()
    assert sink.in_doubt() == []
    check_settled(table, committed, f"seed {seed}: {killer.kills} kills, {lost} epochs lost")
    sink.close()
