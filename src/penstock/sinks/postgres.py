"""Rows written into a PostgreSQL database become visible with their epoch, or never.

1. What is written between two barriers is one open transaction.
2. `capture` hands that transaction over to the barrier's epoch; the next write begins another.
3. `prepare` adds a row of ours that names the epoch, and runs PREPARE TRANSACTION: from then on the
   transaction survives a crash of this process and of the server.
4. `commit` runs COMMIT PREPARED, `abort` ROLLBACK PREPARED. Our row tells later that the epoch was
   committed: a commit that is repeated does nothing, and one whose transaction is gone is an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus

from penstock.errors import (
    CommitFailedError,
    ConfigurationError,
    CorruptStorageError,
    LocalProtocolError,
    PeerUnavailableError,
)
from penstock.postgres import Server, close_quietly, words
from penstock.sinks.postgres_place import SETTLE_POLL_SECONDS, SETTLE_SECONDS_MAX, Place

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator
    from types import TracebackType

    from penstock.checkpoint.barrier import Barrier
    from penstock.postgres import Connection
    from penstock.sinks.postgres_place import PlacedSession

EPOCHS_IN_FLIGHT_MAX: Final = 4
"""Captured and not prepared yet. Each holds a connection, and locks on the rows it has written."""
CONNECTIONS_IDLE_MAX: Final = 2
"""Kept for the next epochs: one is written while the one before it is prepared."""
LOCK_SECONDS_MAX: Final = 60
"""A row that an epoch has changed stays locked until that epoch is committed. Whoever wants to
change it again waits, and gives up after so long: it may be the thread that should commit."""
CANCEL_SECONDS_MAX: Final = 5.0
"""To tell the server that nobody waits for a statement any more."""
EPOCHS_REMEMBERED: Final = 1_000
"""Committed epochs whose row is kept. No epoch is committed without this participant, so one that
is told again to commit is at most a few behind."""
FORGET_EVERY: Final = 100
"""Epochs between two times that old rows are removed."""

_SET_LOCK_TIMEOUT: Final = f"SET lock_timeout = '{LOCK_SECONDS_MAX}s'"
# A setting that ends with its transaction: it tells whether that is still the one that was begun.
_BEGIN: Final = "BEGIN; SET LOCAL penstock.writing = 'yes'"
_NAME_EPOCH: Final = """
    INSERT INTO penstock.epochs (cluster, participant, member, epoch)
    SELECT %(cluster)s, %(participant)s, %(member)s, %(epoch)s
    WHERE NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = %(gid)s)
    RETURNING current_setting('penstock.writing', true)
"""
_WAS_COMMITTED: Final = """
    SELECT FROM penstock.epochs
    WHERE cluster = %s AND participant = %s AND member = %s AND epoch = %s
"""
_LAST_COMMITTED: Final = """
    SELECT max(epoch) FROM penstock.epochs
    WHERE cluster = %s AND participant = %s AND member = %s
"""
_FORGET: Final = """
    DELETE FROM penstock.epochs
    WHERE cluster = %s AND participant = %s AND member = %s AND epoch <= %s
"""
_IN_DOUBT: Final = """
    SELECT gid, prepared FROM pg_prepared_xacts
    WHERE database = current_database() AND starts_with(gid, %s)
"""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A prepared epoch that waits for what was decided."""

    epoch: int
    identifier: str
    """What the server calls it: `COMMIT PREPARED` and `ROLLBACK PREPARED` take it."""
    since: datetime.datetime

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch} is prepared since {self.since:%Y-%m-%d %H:%M:%S %z} as "
            f"{self.identifier!r}: until it is committed or aborted it keeps its rows locked, and "
            "VACUUM from removing what is dead anywhere in the database"
        )


class PostgresParticipant:
    """Fits `Participant`. Rows are written through `writing`, by any thread.

    The server must allow prepared transactions (`max_prepared_transactions`; by default it does
    not). While an epoch is prepared its rows are locked, so an epoch should be decided soon: see
    `prepared` for those that wait. Rows of an aborted epoch are gone, and whoever wrote them writes
    them again. Temporary tables, LISTEN and NOTIFY cannot be part of an epoch.

    A participant that is started again ends the sessions of the process it replaces.
    """

    def __init__(self, conninfo: str, name: str, member: int, cluster: str = "penstock") -> None:
        self.name = name
        self._server = Server(conninfo)
        self._place = Place(self._server, cluster, name, member)
        self._line = threading.RLock()
        """Held by a write, and where the line between two epochs is drawn."""
        self._inside = False
        self._giving_up = threading.Lock()
        self._capturing: int | None = None
        self._current: _Writes | None = None
        self._captured: dict[int, _Writes | None] = {}
        self._idle: deque[PlacedSession] = deque()

    @property
    def generation(self) -> int:
        """Which start of this participant this is; it rises by one each time."""
        return self._place.generation

    @contextmanager
    def writing(self) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        """A cursor for rows of the epoch that is being written: execute, executemany, copy. No
        barrier comes in between while it is in use. If the block raises, the epoch is spoilt: it
        will not be prepared."""
        with self._line:
            if self._inside:
                raise LocalProtocolError("a block of `writing` is inside of another one")
            current = self._current = self._current or self._begin()
            if current.spoilt is not None:
                raise CommitFailedError(
                    f"nothing more can be written into this epoch, which is to be aborted: "
                    f"{current.spoilt}"
                )
            self._inside = True
            try:
                with current.connection.cursor() as cursor:
                    yield cursor
            except BaseException as error:
                current.spoilt = f"{type(error).__name__}: {error}"
                if isinstance(error, psycopg.Error) and current.connection.broken:
                    raise PeerUnavailableError(
                        f"{self._server} was lost while an epoch was written: {words(error)}"
                    ) from error
                raise
            finally:
                self._inside = False

    def capture(self, barrier: Barrier) -> None:
        with self._capture_begun(barrier.epoch), self._line:
            if self._inside:
                raise LocalProtocolError("a barrier cannot come inside of a block of `writing`")
            if barrier.epoch in self._captured:
                raise LocalProtocolError(f"epoch {barrier.epoch} was captured already")
            if len(self._captured) >= EPOCHS_IN_FLIGHT_MAX:
                raise LocalProtocolError(
                    f"epochs {sorted(self._captured)} are captured and neither prepared nor "
                    f"aborted; at most {EPOCHS_IN_FLIGHT_MAX} may be"
                )
            with self._giving_up:
                self._captured[barrier.epoch] = self._current
                self._current = None

    def prepare(self, epoch: int) -> None:
        if epoch not in self._captured:
            raise LocalProtocolError(f"epoch {epoch} cannot be prepared: it was not captured")
        # An epoch without rows is prepared too: whoever commits it can then tell that it was.
        writes = self._captured[epoch] = self._captured[epoch] or self._begin()
        if writes.spoilt is not None:
            raise CommitFailedError(f"epoch {epoch} cannot be prepared: {writes.spoilt}")
        try:
            self._prepare(writes.connection, epoch)
        except BaseException as error:
            writes.spoilt = f"{type(error).__name__}: {error}"
            if not isinstance(error, psycopg.Error):
                raise
            if writes.connection.broken:
                raise PeerUnavailableError(
                    f"{self._server} was lost while epoch {epoch} was prepared: {words(error)}"
                ) from error
            raise CommitFailedError(
                f"{self._server} could not prepare epoch {epoch}: {words(error)}"
            ) from error
        with self._giving_up:
            del self._captured[epoch]
        self._keep(writes)

    def give_up(self, epoch: int) -> None:
        """Cancels the statement that `prepare` waits for, or the write that `capture` does."""
        with self._giving_up:
            waits = self._current if epoch == self._capturing else None
            writes = self._captured.get(epoch, waits)
            if writes is None:
                return
            writes.given_up = True
            writes.spoilt = writes.spoilt or "it was given up"
            with suppress(psycopg.Error):  # lost: then it waits for nothing
                writes.connection.cancel_safe(timeout=CANCEL_SECONDS_MAX)

    def commit(self, epoch: int) -> None:
        if epoch in self._captured:
            raise LocalProtocolError(f"epoch {epoch} cannot be committed: it was not prepared")
        if not self._settle("COMMIT PREPARED {}", epoch) and not self._was_committed(epoch):
            raise CorruptStorageError(
                f"epoch {epoch} of participant {self.name!r} is to be committed, but "
                f"{self._server} has neither its prepared transaction "
                f"{self._identifier(epoch)!r} nor the row that tells that it was committed: it was "
                "rolled back by hand, the database comes from an older backup, or the epoch was "
                "never prepared. Its rows are missing"
            )
        if epoch % FORGET_EVERY == 0:
            doing = "forget old epochs"
            self._place.session.run(doing, _FORGET, *self._place.key, epoch - EPOCHS_REMEMBERED)

    def abort(self, epoch: int) -> None:
        writes = self._captured.get(epoch)
        if writes is not None:
            self._roll_back(writes)
        with self._giving_up:
            self._captured.pop(epoch, None)
        self._settle("ROLLBACK PREPARED {}", epoch)

    def in_doubt(self) -> list[int]:
        return [found.epoch for found in self.prepared()]

    def prepared(self) -> list[InDoubt]:
        """The epochs in doubt, with since when: for an operator who finds rows locked."""
        rows = self._place.session.run(
            "list its prepared transactions", _IN_DOUBT, self._place.prefix
        )
        epochs = [(gid.removeprefix(self._place.prefix), gid, since) for gid, since in rows]
        found = [(int(epoch), *more) for epoch, *more in epochs if epoch.isdecimal()]
        return [InDoubt(*each) for each in sorted(found)]

    def last_committed(self) -> int | None:
        """The newest epoch whose rows are visible: a writer goes on behind it."""
        rows = self._place.session.run("read the last epoch", _LAST_COMMITTED, *self._place.key)
        return None if rows[0][0] is None else int(rows[0][0])

    def close(self) -> None:
        """What is not prepared is rolled back. What is prepared stays, for the next start."""
        with self._line:
            open_writes = [self._current, *self._captured.values()]
            self._current = None
            self._captured.clear()
            for writes in open_writes:
                if writes is not None:
                    close_quietly(writes.connection)
            while self._idle:
                close_quietly(self._idle.pop().connection)
            self._place.close()

    def __enter__(self) -> PostgresParticipant:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _capture_begun(self, epoch: int) -> Iterator[None]:
        self._capturing = epoch
        try:
            yield
        finally:
            self._capturing = None

    def _begin(self) -> _Writes:
        while (idle := self._take_idle()) is not None:
            try:
                idle.connection.execute(_BEGIN)
            except psycopg.Error:
                close_quietly(idle.connection)  # lost while nobody used it, and nothing with it
            else:
                return _Writes(idle)
        session = self._place.connect()
        try:
            with self._server.translated("begin an epoch"):
                session.connection.execute(_SET_LOCK_TIMEOUT)
                session.connection.execute(_BEGIN)
        except BaseException:
            close_quietly(session.connection)
            raise
        return _Writes(session)

    def _prepare(self, connection: Connection, epoch: int) -> None:
        cluster, participant, member = self._place.key
        gid = self._identifier(epoch)
        named = {"cluster": cluster, "participant": participant, "member": member}
        try:
            row = connection.execute(_NAME_EPOCH, {**named, "epoch": epoch, "gid": gid}).fetchone()
        except errors.UniqueViolation as error:
            raise LocalProtocolError(
                f"epoch {epoch} of participant {self.name!r} was committed before; a new epoch "
                "needs a new number"
            ) from error
        if row is None:
            raise CommitFailedError(
                f"epoch {epoch} of participant {self.name!r} is prepared already, by an earlier "
                "start: commit or abort what is in doubt first"
            )
        if row[0] != "yes":
            raise LocalProtocolError(
                f"the transaction of epoch {epoch} was ended by the code that writes: what it "
                "committed is visible, and what it rolled back is lost. Leave that to the epoch"
            )
        connection.execute(_with_identifier("PREPARE TRANSACTION {}", gid))

    def _settle(self, command: str, epoch: int) -> bool:
        """Ends a prepared transaction. False if there is none."""
        gid = self._identifier(epoch)
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            with self._place.session.using(f"settle epoch {epoch}") as connection:
                try:
                    connection.execute(_with_identifier(command, gid))
                except errors.UndefinedObject:
                    return False
                except errors.ObjectNotInPrerequisiteState:
                    # Another session settles it right now, one that was lost perhaps.
                    if time.monotonic() > deadline:
                        raise
                except errors.InsufficientPrivilege as error:
                    raise ConfigurationError(
                        f"{self._server} does not let this user settle epoch {epoch}: "
                        f"{words(error)}. {gid!r} stays prepared, and its rows locked"
                    ) from error
                else:
                    return True
            time.sleep(SETTLE_POLL_SECONDS)

    def _was_committed(self, epoch: int) -> bool:
        return bool(
            self._place.session.run("look for an epoch", _WAS_COMMITTED, *self._place.key, epoch)
        )

    def _roll_back(self, writes: _Writes) -> None:
        try:
            writes.connection.rollback()
        except psycopg.Error:
            close_quietly(writes.connection)
        if writes.connection.closed:
            # Its session may be alive at the server, and about to prepare.
            self._place.end_session(writes.session)
        else:
            self._keep(writes)

    def _keep(self, writes: _Writes) -> None:
        is_idle = writes.connection.info.transaction_status == TransactionStatus.IDLE
        if is_idle and not writes.given_up and len(self._idle) < CONNECTIONS_IDLE_MAX:
            self._idle.append(writes.session)
        else:
            close_quietly(writes.connection)

    def _take_idle(self) -> PlacedSession | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _identifier(self, epoch: int) -> str:
        return f"{self._place.prefix}{epoch}"


@dataclass(slots=True)
class _Writes:
    """An epoch's transaction, while it is open."""

    session: PlacedSession
    spoilt: str | None = None
    """Why it cannot be prepared any more."""
    given_up: bool = False
    """A cancellation is on its way to this session. It must not reach the next epoch's writes."""

    @property
    def connection(self) -> Connection:
        return self.session.connection


def _with_identifier(command: str, identifier: str) -> sql.Composed:
    """These commands take no parameters."""
    return sql.SQL(command).format(sql.Literal(identifier))
