"""Batches into a table of a PostgreSQL database: added to it, or upserted by key.

Tasks copy their rows into a staging table of ours, tagged with the name of their part. The rows of
the parts that were chosen go into the user's table by one statement, in a transaction that also has
a row of ours naming the batch, and that is prepared: it survives a crash of this process and of the
server, and shows nothing. When the decision is on record it is committed. Our row tells later that
it was; if neither the row nor the prepared transaction is there, it is lost, and made again.

While a batch is prepared the rows that it changes are locked. Whoever prepares one ends those of
the same query that a process which died has left.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from psycopg import errors, sql
from pyarrow import csv

from penstock.epoch.postgres_records import PostgresRecords
from penstock.errors import CommitFailedError, ConfigurationError, CorruptStorageError
from penstock.postgres import Server, Session, words
from penstock.sinks.staging import grouped, part_name
from penstock.sinks.two_phase import Part, TwoPhaseSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.postgres import Connection
    from penstock.sinks.two_phase import Batch, Decision

LOCK_SECONDS_MAX: Final = 5
"""A statement waits so long for a row that another process has locked. What locks a row of ours may
be prepared, and nobody's any more: then it is ended, and the statement tried again."""
TRIES_MAX: Final = 3
SETTLE_SECONDS_MAX: Final = 10.0
SETTLE_POLL_SECONDS: Final = 0.01
_SERVERS_KEPT_MAX: Final = 16

_BATCHES: Final = """
    CREATE TABLE penstock.sink_batches (
        query text NOT NULL, batch bigint NOT NULL, PRIMARY KEY (query, batch)
    )
"""
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_PREPARED: Final = """
    SELECT gid FROM pg_prepared_xacts
    WHERE database = current_database() AND starts_with(gid, %s)
"""
_PREPARED_MAX: Final = "SELECT current_setting('max_prepared_transactions')::integer"
_DATABASE: Final = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
_NAME_BATCH: Final = "INSERT INTO penstock.sink_batches (query, batch) VALUES (%s, %s)"
_WAS_COMMITTED: Final = "SELECT FROM penstock.sink_batches WHERE query = %s AND batch = %s"
_FORGET: Final = "DELETE FROM penstock.sink_batches WHERE query = %s AND batch < %s"
_SET_LOCK_TIMEOUT: Final = f"SET LOCAL lock_timeout = '{LOCK_SECONDS_MAX}s'"
_TAGS: Final = ("penstock_query", "penstock_batch", "penstock_part")


class PostgresSink(TwoPhaseSink):
    """The table must be there. The server must allow prepared transactions."""

    def __init__(
        self, conninfo: str, table: str, columns: Sequence[str], key: Sequence[str] = ()
    ) -> None:
        """`table` may name a schema before a dot; `columns` are those that are written. With a key,
        a row whose key is in the table replaces these columns there; the key needs a unique
        index."""
        self._conninfo = conninfo
        self._table = table
        self._columns = tuple(columns)
        self._key = tuple(key)

    @property
    def records(self) -> PostgresRecords:
        return _records(self._conninfo)

    def check(self, frame: pa.Schema) -> None:
        """Refuses a frame that has other columns than the table, or what cannot be copied."""
        ((prepared_max,),) = self._session.run("tell its settings", _PREPARED_MAX)
        if prepared_max == 0:
            raise ConfigurationError(
                f"{Server(self._conninfo)} does not allow prepared transactions, which this sink "
                "needs: set max_prepared_transactions in its postgresql.conf to at least 2 for "
                "each query, and restart it"
            )
        known = self._types()
        for field in frame:
            if field.name not in known:
                raise ConfigurationError(
                    f"the frame has a column {field.name!r}, and table {self._table!r} has not: it "
                    f"has {', '.join(known)}. Drop the column, or add it to the table"
                )
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise ConfigurationError(
                    f"column {field.name!r} of the frame is {field.type}, which cannot be copied "
                    "into a table: turn it into text in the query, with to_json or hex"
                )
        for name in self._key:
            if name not in frame.names:
                raise ConfigurationError(f"the frame has no column {name!r}, which is in the key")

    def stage(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> Part | None:
        groups = grouped(rows)
        first = next(groups, None)
        if first is None:
            return None
        name = f"{batch.number}-{part_name(partition)}"
        columns = _names((*_TAGS, *first.schema.names))
        copying = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self._staging(), columns)
        count = size_bytes = 0
        with (
            self._session.using(f"copy rows for table {self._table!r}") as connection,
            connection.cursor() as cursor,
            cursor.copy(copying) as copy,
        ):
            for group in itertools.chain([first], groups):
                text = _as_text(group, (batch.query, batch.number, name))
                copy.write(text)
                count += group.num_rows
                size_bytes += len(text)
        return Part(name, count, size_bytes)

    def prepare(self, batch: Batch, parts: Sequence[Part]) -> str:
        prefix, insertion = self._prefix(batch.query), self._insertion()
        gid = f"{prefix}{batch.number}:{secrets.token_hex(8)}"
        with self._session.using(f"prepare {batch}") as connection:
            for tried in range(TRIES_MAX):
                _end_prepared(connection, prefix)
                try:
                    _prepare(connection, batch, insertion, parts, gid)
                except errors.LockNotAvailable:
                    if tried + 1 == TRIES_MAX:
                        raise
                except errors.UniqueViolation as error:
                    if error.diag.table_name != "sink_batches":
                        raise
                    break  # it is committed, by another process: its decision will be found
                except errors.CardinalityViolation as error:
                    raise ConfigurationError(
                        f"{batch} has several rows of one key for table {self._table!r}: keep one "
                        f"of each in the query ({words(error)})"
                    ) from error
                else:
                    break
        return gid

    def commit(self, decision: Decision) -> None:
        batch = decision.batch
        with self._session.using(f"commit {batch}") as connection:
            if _settle(connection, "COMMIT PREPARED {}", decision.prepared):
                return
            found = connection.execute(_WAS_COMMITTED, (batch.query, batch.number)).fetchone()
        if found is None:
            raise CommitFailedError(
                f"{batch} was prepared as {decision.prepared!r}, and is so no more"
            )

    def abandon(self, batch: Batch, prepared: str) -> None:
        with self._session.using(f"abandon {batch}") as connection:
            _settle(connection, "ROLLBACK PREPARED {}", prepared)

    def discard(self, parts: Sequence[Part]) -> None:
        if parts:
            removal = self._removal("penstock_part = ANY(%s)")
            with self._session.using("remove staged rows") as connection:
                connection.execute(removal, ([part.name for part in parts],))

    def finish(self, decision: Decision) -> None:
        batch = decision.batch
        prefix, removal = (
            self._prefix(batch.query),
            self._removal("penstock_query = %s AND penstock_batch <= %s"),
        )
        with self._session.using(f"finish {batch}") as connection:
            connection.execute(removal, (batch.query, batch.number))
            _end_prepared(connection, prefix, through=batch.number)
            connection.execute(_FORGET, (batch.query, batch.number))

    @property
    def _session(self) -> Session:
        return _session(self._conninfo)

    def _insertion(self) -> sql.Composed:
        insertion = sql.SQL(
            "INSERT INTO {} ({names}) SELECT {names} FROM {} WHERE penstock_part = ANY(%s)"
        ).format(self._target(), self._staging(), names=_names(self._columns))
        if not self._key:
            return insertion
        others = [name for name in self._columns if name not in self._key]
        change = sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(
                sql.SQL("{name} = EXCLUDED.{name}").format(name=sql.Identifier(name))
                for name in others or self._key  # so that every row counts as written
            )
        )
        return insertion + sql.SQL(" ON CONFLICT ({}) DO {}").format(_names(self._key), change)

    def _staging(self) -> sql.Composable:
        """The staging table, made if need be: our tags, and these columns with the table's types,
        without its constraints. Another table, other columns or types: another staging table."""
        types = self._types()
        described = repr([self._target().as_string(), [(n, types[n]) for n in self._columns]])
        digest = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
        columns = "penstock_query text, penstock_batch bigint, penstock_part text"
        own = sql.SQL("").join(
            sql.SQL(", {} {}").format(sql.Identifier(name), sql.SQL(types[name]))
            for name in self._columns
        )
        name = f"staged_{digest}"
        table = sql.Identifier("penstock", name)
        made = sql.SQL("CREATE TABLE {} ({}{})").format(table, sql.SQL(columns), own)
        self._session.make_tables(("sink_batches", _BATCHES), (name, made.as_string()))
        return table

    def _types(self) -> dict[str, Any]:
        """The table's columns, with their types as SQL writes them."""
        shown = self._target().as_string()
        rows = self._session.run(f"look at table {self._table!r}", _COLUMNS, shown)
        if not rows:
            raise ConfigurationError(
                f"{Server(self._conninfo)} has no table {self._table!r}; create it, or correct "
                "the name"
            )
        return dict(rows)

    def _target(self) -> sql.Identifier:
        return sql.Identifier(*self._table.split("."))

    def _removal(self, condition: str) -> sql.Composed:
        return sql.SQL("DELETE FROM {} WHERE {}").format(self._staging(), sql.SQL(condition))

    def _prefix(self, query: str) -> str:
        """Identifiers of prepared transactions are known to all databases of a server."""
        ((database,),) = self._session.run("tell which database this is", _DATABASE)
        return f"penstock:{database}:sink:{query}:"


def _prepare(
    connection: Connection, batch: Batch, insertion: sql.Composed, parts: Sequence[Part], gid: str
) -> None:
    rows = sum(part.rows for part in parts)
    try:
        connection.execute("BEGIN")
        connection.execute(_SET_LOCK_TIMEOUT)
        connection.execute(_NAME_BATCH, (batch.query, batch.number))
        written = connection.execute(insertion, ([part.name for part in parts],)).rowcount
        if written != rows:
            raise CorruptStorageError(
                f"{batch}: {written} of {rows} rows are staged; somebody has removed the others, "
                "or the query writes other columns now"
            )
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise


def _end_prepared(connection: Connection, prefix: str, through: int | None = None) -> None:
    """What processes of this query have left prepared, up to a batch. No decision names it; should
    somebody be about to record one, it will find its transaction lost, and prepare it again."""
    for (gid,) in connection.execute(_PREPARED, (prefix,)).fetchall():
        number = int(gid.removeprefix(prefix).partition(":")[0])
        if through is None or number <= through:
            _settle(connection, "ROLLBACK PREPARED {}", gid)


def _settle(connection: Connection, command: str, gid: str) -> bool:
    """Ends a prepared transaction. False if there is none."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        try:
            connection.execute(sql.SQL(command).format(sql.Literal(gid)))
        except errors.UndefinedObject:
            return False
        except errors.ObjectNotInPrerequisiteState:
            # Another session has it in hand right now.
            if time.monotonic() > deadline:
                raise
            time.sleep(SETTLE_POLL_SECONDS)
        else:
            return True


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _as_text(rows: pa.RecordBatch, tags: tuple[Any, ...]) -> memoryview:
    """As COPY takes it: every value in quotes, so that what is not is null."""
    columns: list[Any] = [pa.repeat(pa.scalar(tag), rows.num_rows) for tag in tags]
    for column in rows.columns:
        plain = pa.types.is_decimal(column.type)
        columns.append(column.cast(pa.string()) if plain else column)
    table = pa.Table.from_arrays(columns, names=[*_TAGS, *rows.schema.names])
    written = pa.BufferOutputStream()
    csv.write_csv(table, written, csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return memoryview(written.getvalue())


@functools.lru_cache(maxsize=_SERVERS_KEPT_MAX)
def _session(conninfo: str) -> Session:
    return Session(Server(conninfo))


@functools.lru_cache(maxsize=_SERVERS_KEPT_MAX)
def _records(conninfo: str) -> PostgresRecords:
    return PostgresRecords(conninfo)


os.register_at_fork(after_in_child=_session.cache_clear)
os.register_at_fork(after_in_child=_records.cache_clear)
