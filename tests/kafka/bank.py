"""A database that changes in transactions over three tables, and what a reader of it has to see."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, TypeAlias

import psycopg

from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from penstock.testing.kafka.ports import ReservedPort

Change: TypeAlias = tuple[str, str, int, int | None]
TABLES = ("debits", "credits", "notes")
SCHEMA = "id BIGINT, account INT, cents BIGINT, version BIGINT"
COPIED_ROWS = 40
"""They stand in one or two records of the database's log."""
OVERLAPPING_CLIENTS = 3


def bank_server(port: ReservedPort) -> PostgresServer:
    """One whose log can be decoded."""
    return PostgresServer(
        wal_level="logical",
        listen_addresses="127.0.0.1",
        port=str(port.number),
        # Soon enough for what a killed connector left, and late enough for one that is starved.
        wal_sender_timeout="20s",
    )


class Bank:
    """`expected` has each change that was committed: by table, the operation, the row's number, and
    the version that it has since."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._lock = threading.Lock()
        self._next = 0
        self.expected: set[Change] = set()
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for table in TABLES:
                connection.execute(
                    f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, account INT, cents BIGINT,"
                    " version BIGINT)"
                )

    def transact(self, count: int, seed: int) -> None:
        """So many transactions, by clients at the same time: their rows are mixed in the log."""
        clients = [
            threading.Thread(target=self._client, args=(count // OVERLAPPING_CLIENTS, seed + one))
            for one in range(OVERLAPPING_CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def _client(self, count: int, seed: int) -> None:
        random_ = random.Random(seed)
        own: list[tuple[str, int]] = []
        with psycopg.connect(self._conninfo) as connection:
            for _ in range(count):
                done: list[Change] = []
                for table in TABLES:
                    number, version = self._numbers()
                    cents = random_.randrange(1_000)
                    connection.execute(
                        f"INSERT INTO {table} VALUES (%s, %s, %s, %s)",
                        (number, number % 10, cents, version),
                    )
                    done.append((table, "c", number, version))
                if own and random_.random() < 0.5:
                    table, number = random_.choice(own)
                    _, version = self._numbers()
                    connection.execute(
                        f"UPDATE {table} SET version = %s WHERE id = %s", (version, number)
                    )
                    done.append((table, "u", number, version))
                if own and random_.random() < 0.2:
                    table, number = own.pop(random_.randrange(len(own)))
                    connection.execute(f"DELETE FROM {table} WHERE id = %s", (number,))
                    done.append((table, "d", number, None))
                if random_.random() < 0.05:
                    done += self._copy(connection, random_.choice(TABLES))
                if random_.random() < 0.1:
                    connection.rollback()
                    continue
                connection.commit()
                own += [(table, number) for table, kind, number, _ in done if kind == "c"]
                gone = {(table, number) for table, kind, number, _ in done if kind == "d"}
                own = [one for one in own if one not in gone]
                with self._lock:
                    self.expected.update(done)

    def _copy(self, connection: psycopg.Connection[tuple[object, ...]], table: str) -> list[Change]:
        """Many rows in one record of the log."""
        done: list[Change] = []
        with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
            for _ in range(COPIED_ROWS):
                number, version = self._numbers()
                copy.write_row((number, number % 10, 1, version))
                done.append((table, "c", number, version))
        return done

    def _numbers(self) -> tuple[int, int]:
        with self._lock:
            self._next += 2
            return self._next, self._next + 1
