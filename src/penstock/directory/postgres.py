"""The key-value interface over a PostgreSQL server, for those who run one already.

Slots are rows. A write tells all members by a notification, which the server sends once the write
is committed: whoever is woken by it reads the new value.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import psycopg
from psycopg import sql

from penstock.directory.keyvalue import DirectoryEndedError, Watches
from penstock.errors import FencedError, LocalProtocolError, PenstockError
from penstock.postgres import (
    Server,
    Session,
    check_member,
    check_name,
    close_quietly,
    utf8,
)
from penstock.threads import supervised

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.directory.keyvalue import Watch
    from penstock.postgres import Connection

KEY_BYTES_MAX: Final = 256
VALUE_BYTES_MAX: Final = 1024 * 1024
"""As over gossip: what fits one store fits the other. The server itself would take keys of some
2,600 bytes, which an index and a notification still hold."""
RECONNECT_SECONDS_MIN: Final = 0.05
RECONNECT_SECONDS_MAX: Final = 2.0
"""Between attempts to listen again. A server that restarts is back within seconds; one that is down
for an hour is asked some thousand times."""
CLOSE_SECONDS_MAX: Final = 10.0
"""A listener that is about to connect gives up after half of that by itself."""

_LOG: Final = logging.getLogger("penstock.directory")

_MEMBERS: Final = """
    CREATE TABLE penstock.members (
        cluster text NOT NULL,
        member bigint NOT NULL,
        generation bigint NOT NULL,
        PRIMARY KEY (cluster, member)
    )
"""
_SLOTS: Final = """
    CREATE TABLE penstock.slots (
        cluster text NOT NULL,
        key bytea NOT NULL,
        member bigint NOT NULL,
        value bytea NOT NULL,
        PRIMARY KEY (cluster, key, member)
    )
"""
_TAKE: Final = """
    INSERT INTO penstock.members AS taken (cluster, member, generation) VALUES (%s, %s, 1)
    ON CONFLICT (cluster, member) DO UPDATE SET generation = taken.generation + 1
    RETURNING generation
"""
_FENCE_OTHERS: Final = """
    UPDATE penstock.members SET generation = generation + 1 WHERE cluster = %s AND member <> %s
"""
_EMPTY_OTHERS: Final = "DELETE FROM penstock.slots WHERE cluster = %s AND member <> %s"
_EMPTY: Final = "DELETE FROM penstock.slots WHERE cluster = %s AND member = %s"
_NOTIFY: Final = "SELECT pg_notify(%s, %s)"
# The lock on the member's row makes a successor wait until this write is committed, or this write
# see that there is a successor: a slot is never written by two generations.
_WRITE: Final = """
    WITH mine AS (
        SELECT FROM penstock.members
        WHERE cluster = %(cluster)s AND member = %(member)s AND generation = %(generation)s
        FOR SHARE
    ), written AS (
        INSERT INTO penstock.slots (cluster, key, member, value)
        SELECT %(cluster)s, %(key)s, %(member)s, %(value)s FROM mine
        ON CONFLICT (cluster, key, member) DO UPDATE SET value = excluded.value
        RETURNING true
    )
    SELECT pg_notify(%(channel)s, %(told)s) FROM written
"""
_READ: Final = "SELECT value FROM penstock.slots WHERE cluster = %s AND key = %s AND member = %s"
_SCAN: Final = "SELECT member, value FROM penstock.slots WHERE cluster = %s AND key = %s"


class PostgresKeyValue:
    """Fits `KeyValue`. Every read asks the server, so what a member has written all others read
    from then on.

    A member that is started again takes its slot over: the slot is empty then, and the process
    that had it before can no longer write (`FencedError`). Needs a connection of its own to
    listen on; a pooler that hands connections out by the transaction cannot be in between.
    """

    def __init__(self, member: int, conninfo: str, cluster: str = "penstock") -> None:
        self.member = check_member(member)
        self._cluster = check_name("cluster", cluster)
        self._channel = f"penstock:{cluster}"
        self._watches = Watches()
        server = Server(conninfo)
        self._session = Session(server)
        try:
            self._session.make_tables(("members", _MEMBERS), ("slots", _SLOTS))
            self.generation = self._take_slot()
            """Which start of this member this is; it rises by one each time."""
            self._listener = _Listener(server, self._channel, self._watches)
        except BaseException:
            self._session.close()
            raise

    def write(self, key: str, value: str) -> None:
        written = self._session.run(
            f"write the key {key!r}",
            _WRITE,
            cluster=self._cluster,
            member=self.member,
            generation=self.generation,
            key=_encoded(key),
            value=utf8("value", value, VALUE_BYTES_MAX),
            channel=self._channel,
            told=quote(key),
        )
        if not written:
            raise FencedError(
                f"member {self.member} of {self._cluster!r} was started again elsewhere: this "
                f"process, its start number {self.generation}, can no longer write {key!r}"
            )

    def read(self, member: int, key: str) -> str | None:
        arguments = (self._cluster, _encoded(key), check_member(member))
        rows = self._session.run(f"read the key {key!r}", _READ, *arguments)
        return bytes(rows[0][0]).decode() if rows else None

    def scan(self, key: str) -> dict[int, str]:
        rows = self._session.run(f"scan the key {key!r}", _SCAN, self._cluster, _encoded(key))
        return {member: bytes(value).decode() for member, value in rows}

    def watch(self, prefix: str = "") -> Watch:
        return self._watches.open(prefix)

    def check(self) -> None:
        """Raises DirectoryEndedError if it was closed, or its listener has ended."""
        self._listener.check()

    def take_over(self) -> None:
        """Empties the slots of all others, whose processes can no longer write. Members that are
        started from here on find each other, and nobody from before."""
        others = (self._cluster, self.member)
        with (
            self._session.using("take the slots of earlier members over") as connection,
            connection.transaction(),
        ):
            connection.execute(_FENCE_OTHERS, others)
            connection.execute(_EMPTY_OTHERS, others)
            connection.execute(_NOTIFY, (self._channel, ""))

    def close(self) -> None:
        """Lets go of the server and of whoever waits. The slot stays as it is."""
        self._listener.close()
        self._watches.close()
        self._session.close()

    def __enter__(self) -> PostgresKeyValue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _take_slot(self) -> int:
        with (
            self._session.using(f"take the slot of member {self.member}") as connection,
            connection.transaction(),
        ):
            taken = connection.execute(_TAKE, (self._cluster, self.member)).fetchone()
            connection.execute(_EMPTY, (self._cluster, self.member))
            connection.execute(_NOTIFY, (self._channel, ""))
            return int(taken[0]) if taken is not None else 0


class _Listener:
    """Hears of changes on a connection of its own, and tells the watches. While the connection is
    lost it hears nothing: once there is another, anything may have changed."""

    def __init__(self, server: Server, channel: str, watches: Watches) -> None:
        self._server = server
        self._listen = sql.SQL("LISTEN {}").format(sql.Identifier(channel))
        self._watches = watches
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._wake_receiver, self._wake_sender = os.pipe()
        try:
            # Before anybody can watch: no change is missed, and what is wrong is told at once.
            connection = self._server.connect_as(self._begin_to_listen)
        except BaseException:
            self._close_pipe()
            raise
        self._thread = supervised(
            "postgres listener",
            self._run,
            connection,
            fail=self._fail,
            until=self._closing.is_set,
        )
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise DirectoryEndedError(
                f"nothing is heard from the server any more: {self._failure}"
            ) from self._failure
        if self._closing.is_set():
            raise DirectoryEndedError("this view of the server's slots was closed")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        _LOG.error("the listener at the server ended: %s", error, exc_info=error)
        self._watches.close()

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._wake_sender, b"x")
        self._thread.join(CLOSE_SECONDS_MAX)
        if not self._thread.is_alive():
            self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._wake_receiver)
        os.close(self._wake_sender)

    def _begin_to_listen(self, connection: Connection) -> None:
        connection.execute(self._listen)

    def _run(self, connection: Connection | None) -> None:
        delay_seconds = RECONNECT_SECONDS_MIN
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._server.connect_as(self._begin_to_listen)
                    delay_seconds = RECONNECT_SECONDS_MIN
                    self._watches.tell_all()
                self._hear(connection)
            except Exception as error:  # noqa: BLE001 - whatever came, it listens again
                # Whoever calls is told that the server is away; here there is nobody to tell.
                if not isinstance(error, PenstockError | psycopg.Error | OSError):
                    _LOG.exception("a notification cannot be used")
                if connection is not None:
                    close_quietly(connection)
                    connection = None
                self._closing.wait(delay_seconds)
                delay_seconds = min(2 * delay_seconds, RECONNECT_SECONDS_MAX)
        if connection is not None:
            close_quietly(connection)

    def _hear(self, connection: Connection) -> None:
        with selectors.DefaultSelector() as either:
            either.register(connection, selectors.EVENT_READ)
            either.register(self._wake_receiver, selectors.EVENT_READ)
            while not self._closing.is_set():
                for told in connection.notifies(timeout=0):
                    if told.payload:
                        self._watches.tell(unquote(told.payload))
                    else:
                        self._watches.tell_all()
                either.select()


def _encoded(key: str) -> bytes:
    if not key:
        raise LocalProtocolError("a key has at least one character")
    return utf8("key", key, KEY_BYTES_MAX)
