"""How Penstock reaches a PostgreSQL server: connections, our tables, and errors in plain words.

What we keep there is in a schema of its own, `penstock`. Texts are kept as UTF-8 bytes: so neither
the database's encoding nor its order of letters has a say.
"""

from __future__ import annotations

import re
import select
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import ConfigurationError, LocalProtocolError, PeerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

NAME_CHARACTERS_MAX: Final = 48
"""Clusters and participants. With what is put before it, a name still fits the 63 bytes of a
notification channel, and two of them the 199 bytes of a prepared transaction's identifier."""
MEMBER_MAX: Final = 2**63 - 1
"""What a column of type bigint holds."""
DEFAULTS: Final = {
    # A server that is gone is noticed within some ten seconds, also by those who only listen.
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    # Of several hosts, the one that may be written to.
    "target_session_attrs": "read-write",
    "fallback_application_name": "penstock",
}
"""Where the connection string says something else, that counts."""

REFUSALS_MAX: Final = 2
"""A server that says no while it starts, and is up when it is asked whether it is, says no once."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_FAREWELL_READS_MAX: Final = 10
"""A server that ends a session says why, and then closes: two reads. One that has that much to say
to nobody is not to be trusted either."""
_TABLES_LOCK: Final = 0x70656E73746F636B
"""Held by whoever makes tables: `IF NOT EXISTS` alone fails when two do it at once."""
_SESSION: Final = """
    SELECT set_config('default_transaction_isolation', 'read committed', false),
           CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
                THEN set_config('synchronous_commit', 'on', false) END
"""
"""What was committed survives a crash, whatever the server's default is."""


class Server:
    """Where the server is, and as whom we go there. Errors name it, without the password."""

    def __init__(self, conninfo: str) -> None:
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError:
            # The parser quotes what it does not understand, which may be part of a password.
            raise ConfigurationError(
                "the connection string cannot be read; write it like "
                "'host=db.example port=5432 dbname=streams user=penstock' or "
                "'postgresql://penstock@db.example:5432/streams'"
            ) from None
        self._conninfo = make_conninfo(
            "",
            **{**DEFAULTS, **given, "client_encoding": "UTF8"},
        )
        self.name = _server_name(given)

    def __str__(self) -> str:
        return self.name

    def connect(self) -> Connection:
        """A connection on which every statement is a transaction, unless one is begun."""
        for _ in range(REFUSALS_MAX):
            try:
                return self._open()
            except errors.ConnectionTimeout as error:
                raise PeerUnavailableError(f"{self} does not answer: {words(error)}") from error
            except psycopg.OperationalError as error:
                if not (_is_refusal(error) and self._answers()):
                    raise PeerUnavailableError(
                        f"{self} cannot be reached: {words(error)}"
                    ) from error
                refusal = error
        raise ConfigurationError(
            f"{self} is up, but refuses this connection: {words(refusal)}; correct the "
            "connection string, or let the user in"
        ) from refusal

    def connect_as(self, opened: Callable[[Connection], None]) -> Connection:
        """The same, once `opened` has found nothing wrong with it."""
        connection = self.connect()
        try:
            with self.translated("open a session"):
                opened(connection)
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raises the server's errors as ours: which server, what could not be done, and why."""
        try:
            yield
        except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
            raise ConfigurationError(
                f"{self} does not let this user {doing}: {words(error)}"
            ) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise PeerUnavailableError(f"{self} could not {doing}: {words(error)}") from error
        except psycopg.Error as error:
            raise ConfigurationError(f"{self} could not {doing}: {words(error)}") from error

    def _answers(self) -> bool:
        """Whether the server is up, and would let somebody in."""
        return pq.PGconn.ping(self._conninfo.encode()) == pq.Ping.OK

    def _open(self) -> Connection:
        connection: Connection = psycopg.connect(
            self._conninfo, autocommit=True, prepare_threshold=None
        )
        try:
            connection.execute(_SESSION)
        except BaseException:
            connection.close()
            raise
        return connection


class Session:
    """One connection for any number of threads, one statement at a time. If it is lost during a
    call, that call fails, and the next one opens another."""

    def __init__(
        self, server: Server, opened: Callable[[Connection], None] = lambda _: None
    ) -> None:
        """`opened` is called with every connection before it is used, and may refuse it."""
        self._server = server
        self._opened = opened
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    @contextmanager
    def using(self, doing: str) -> Iterator[Connection]:
        with self._lock:
            if self._closed:
                raise LocalProtocolError(f"cannot {doing}: this was closed")
            if self._connection is None or is_lost(self._connection):
                self._connection = self._server.connect_as(self._opened)
            with self._server.translated(doing):
                yield self._connection

    def run(
        self, doing: str, statement: str, *parameters: object, **named: object
    ) -> list[tuple[Any, ...]]:
        """One statement, by itself a transaction."""
        with self.using(doing) as connection:
            cursor = connection.execute(statement, named or parameters or None)
            return cursor.fetchall() if cursor.description is not None else []

    def make_tables(self, *definitions: tuple[str, str]) -> None:
        """Makes the tables that are missing: their names in our schema, and how to make them."""
        with self.using("make its tables in the schema 'penstock'") as connection:
            if all(
                _exists(connection, "to_regclass", f"penstock.{name}") for name, _ in definitions
            ):
                return  # whoever has no right to make tables may still use them
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_TABLES_LOCK,))
                if not _exists(connection, "to_regnamespace", "penstock"):
                    connection.execute("CREATE SCHEMA penstock")
                for name, definition in definitions:
                    if not _exists(connection, "to_regclass", f"penstock.{name}"):
                        connection.execute(definition)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()


def check_name(what: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {what}: use up to {NAME_CHARACTERS_MAX} letters and "
            "digits of ASCII, and after the first also '_', '.' and '-'"
        )
    return name


def check_member(member: int) -> int:
    if not 0 <= member <= MEMBER_MAX:
        raise ConfigurationError(f"member {member} is outside of 0 to {MEMBER_MAX}")
    return member


def utf8(what: str, text: str, bytes_max: int) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"a {what} is text: {text[:40]!r} has half a character") from None
    if len(encoded) > bytes_max:
        raise LocalProtocolError(
            f"a {what} of {len(encoded)} bytes is too long: at most {bytes_max}"
        )
    return encoded


def is_lost(connection: Connection) -> bool:
    """Whether it broke while nobody used it: then the server's farewell waits to be read."""
    waiting = select.poll()
    for _ in range(_FAREWELL_READS_MAX):
        if connection.closed:
            break
        waiting.register(connection.fileno(), select.POLLIN)
        if not waiting.poll(0):
            return False
        with suppress(psycopg.Error):
            connection.pgconn.consume_input()
    close_quietly(connection)
    return True


def close_quietly(connection: Connection) -> None:
    """For a connection that may be lost already."""
    with suppress(psycopg.Error, OSError):
        connection.close()


def words(error: psycopg.Error) -> str:
    """What the server said, on one line, with its advice if it gave any."""
    said = error.diag.message_primary or str(error)
    parts = [said, error.diag.message_detail, error.diag.message_hint]
    return "; ".join(" ".join(part.split()) for part in parts if part)


def _is_refusal(error: psycopg.OperationalError) -> bool:
    """Whether the server itself said no. The client library gives no error codes for connections,
    and the words depend on the server's language. But only what a server said has two blanks after
    its severity, as in `FATAL:  `."""
    needs_password = error.pgconn is not None and error.pgconn.needs_password
    return needs_password or ":  " in str(error)


def _exists(connection: Connection, by: str, name: str) -> bool:
    row = connection.execute(f"SELECT {by}(%s)", (name,)).fetchone()
    return row is not None and row[0] is not None


def _server_name(given: dict[str, Any]) -> str:
    """The client library takes what is not given from the environment, and so do we."""
    known = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }
    known |= {key: str(value) for key, value in given.items()}
    host = known.get("host") or known.get("hostaddr") or "this machine"
    database = known.get("dbname") or known.get("user") or ""
    return (
        f"PostgreSQL on {host}, port {known.get('port', '5432')}, database {database!r}, "
        f"user {known.get('user', '')!r}"
    )
