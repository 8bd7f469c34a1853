"""A participant's place at a PostgreSQL server: only its newest process has it.

A process that is started again replaces the one before, which may be dead, or paused and about to
come back. If that one went on, it could prepare an epoch after its successor has looked what is in
doubt, and nobody would know of it; or abort what its successor has prepared.

So every session holds a lock that names the process's generation, and then looks whether that is
the newest. A successor first raises the generation, and then ends all sessions that hold an older
one: either it sees a session, or that session sees that it is replaced.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, FencedError, PeerUnavailableError
from penstock.postgres import Session, check_member, check_name, close_quietly

if TYPE_CHECKING:
    import datetime

    from penstock.postgres import Connection, Server

SETTLE_SECONDS_MAX: Final = 10.0
"""For a session that is lost or replaced to end at the server, and for a prepared transaction that
another session has in hand."""
SETTLE_POLL_SECONDS: Final = 0.01

PREPARED_FOR_EACH: Final = 4
"""Prepared transactions that a participant may need at a time: one, and a few that were given up
and wait to be aborted."""

_PARTICIPANTS: Final = """
    CREATE TABLE penstock.participants (
        cluster text NOT NULL,
        participant text NOT NULL,
        member bigint NOT NULL,
        generation integer NOT NULL,
        PRIMARY KEY (cluster, participant, member)
    )
"""
_EPOCHS: Final = """
    CREATE TABLE penstock.epochs (
        cluster text NOT NULL,
        participant text NOT NULL,
        member bigint NOT NULL,
        epoch numeric(20) NOT NULL,
        PRIMARY KEY (cluster, participant, member, epoch)
    )
"""
_ABOUT_SERVER: Final = """
    SELECT oid, current_setting('max_prepared_transactions')::integer
    FROM pg_database WHERE datname = current_database()
"""
_TAKE: Final = """
    INSERT INTO penstock.participants AS taken (cluster, participant, member, generation)
    VALUES (%s, %s, %s, 1)
    ON CONFLICT (cluster, participant, member) DO UPDATE SET generation = taken.generation + 1
    RETURNING generation
"""
_GENERATION: Final = """
    SELECT generation FROM penstock.participants
    WHERE cluster = %s AND participant = %s AND member = %s
"""
_HOLD: Final = "SELECT pg_advisory_lock_shared(%s, %s)"
_WHICH: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END_SESSIONS: Final = """
    SELECT pid, pg_terminate_backend(pid) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND pid <> pg_backend_pid()
      AND pg_locks.database = %(database)s AND classid = %(lock)s::bigint::oid
      AND (objid::bigint < %(older_than)s OR (pid, backend_start) = (%(pid)s, %(since)s))
"""


@dataclass(frozen=True, slots=True)
class PlacedSession:
    """A connection of its own, and which session that is at the server. A process number alone may
    be another's after a while, and is soon when the server was restarted."""

    connection: Connection
    pid: int
    since: datetime.datetime


class Place:
    def __init__(self, server: Server, cluster: str, participant: str, member: int) -> None:
        self.key = (
            check_name("cluster", cluster),
            check_name("participant", participant),
            check_member(member),
        )
        """What rows of this participant begin with."""
        self._server = server
        with closing(Session(server)) as session:
            session.make_tables(("participants", _PARTICIPANTS), ("epochs", _EPOCHS))
            self._database, prepared_max = session.run("tell its settings", _ABOUT_SERVER)[0]
            if prepared_max == 0:
                raise ConfigurationError(
                    f"{server} does not allow prepared transactions, which epochs need: set "
                    "max_prepared_transactions in its postgresql.conf to at least "
                    f"{PREPARED_FOR_EACH} for each participant of each member, and restart it"
                )
            self.prefix = f"penstock:{self._database}:{cluster}:{participant}:{member}:"
            """What the identifiers of its prepared transactions begin with. They are known to all
            databases of a server, so they name this one."""
            self._lock = _lock_number(self.prefix)
            doing = f"take the place of participant {participant!r}"
            self.generation: int = session.run(doing, _TAKE, *self.key)[0][0]
            self._end(session, older_than=self.generation)
        self.session = Session(server, self._hold)
        """For statements that are a transaction by themselves."""

    def connect(self) -> PlacedSession:
        connection = self._server.connect_as(self._hold)
        try:
            with self._server.translated("tell which session this is"):
                ((pid, since),) = connection.execute(_WHICH).fetchall()
        except BaseException:
            close_quietly(connection)
            raise
        return PlacedSession(connection, pid, since)

    def end_session(self, lost: PlacedSession) -> None:
        """Returns when a session that was lost is over at the server too."""
        self._end(self.session, lost=lost)

    def close(self) -> None:
        self.session.close()

    def _hold(self, connection: Connection) -> None:
        connection.execute(_HOLD, (self._lock, self.generation))
        found = connection.execute(_GENERATION, self.key).fetchone()
        if found is None or found[0] != self.generation:
            _, participant, member = self.key
            raise FencedError(
                f"participant {participant!r} of member {member} was started again elsewhere: this "
                f"process, its start number {self.generation}, has no part in it any more"
            )

    def _end(
        self, session: Session, older_than: int = 0, lost: PlacedSession | None = None
    ) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while left := session.run(
            "end the sessions of a process that is gone or replaced",
            _END_SESSIONS,
            database=self._database,
            lock=self._lock,
            older_than=older_than,
            pid=lost.pid if lost is not None else None,
            since=lost.since if lost is not None else None,
        ):
            if time.monotonic() > deadline:
                raise PeerUnavailableError(
                    f"{self._server}: sessions {sorted(each for each, _ in left)} of participant "
                    f"{self.key[1]!r} do not end within {SETTLE_SECONDS_MAX:g} s; try again"
                )
            time.sleep(SETTLE_POLL_SECONDS)


def _lock_number(prefix: str) -> int:
    """A participant as a number of 31 bits: the server's advisory locks have no names. Two that
    share one, once in two billion, end each other's sessions when they start."""
    return int.from_bytes(hashlib.blake2b(prefix.encode(), digest_size=4).digest(), "big") >> 1
