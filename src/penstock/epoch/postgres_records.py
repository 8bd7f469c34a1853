"""Records in a PostgreSQL table: the primary key lets one of those who create a name succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.postgres import Server, Session, check_name, utf8

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

NAME_BYTES_MAX: Final = 1_000
"""A name is part of an index, whose entries may have some 2,700 bytes."""
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A record is a decision or a lease, some hundred bytes. Large parts go to a snapshot store."""

_TABLE: Final = """
    CREATE TABLE penstock.records (
        cluster text NOT NULL,
        name bytea NOT NULL,
        value bytea NOT NULL,
        PRIMARY KEY (cluster, name)
    )
"""
_CREATE: Final = """
    INSERT INTO penstock.records (cluster, name, value) VALUES (%s, %s, %s)
    ON CONFLICT DO NOTHING RETURNING true
"""
_REPLACE: Final = "UPDATE penstock.records SET value = %s WHERE cluster = %s AND name = %s"
_READ: Final = "SELECT value FROM penstock.records WHERE cluster = %s AND name = %s"
# No UTF-8 text has the byte FF: every name with the prefix is below the prefix and FF.
_NAMES: Final = """
    SELECT name FROM penstock.records
    WHERE cluster = %(cluster)s AND name >= %(prefix)s AND name < %(prefix)s || '\\xff'::bytea
    ORDER BY name
"""
_DELETE: Final = "DELETE FROM penstock.records WHERE cluster = %s AND name = ANY(%s)"


class PostgresRecords:
    """Fits `Records`. A record that was created is there after a crash of the server; whether a
    crash of its disk loses it is a matter of the server's replication."""

    creates_atomically: Final = True

    def __init__(self, conninfo: str, cluster: str = "penstock") -> None:
        self._cluster = check_name("cluster", cluster)
        self._session = Session(Server(conninfo))
        self._session.make_tables(("records", _TABLE))

    def create(self, name: str, value: bytes) -> bool:
        if len(value) > VALUE_BYTES_MAX:
            raise LocalProtocolError(
                f"a record of {len(value)} bytes is too long: at most {VALUE_BYTES_MAX}"
            )
        doing = f"create the record {name!r}"
        return bool(self._session.run(doing, _CREATE, self._cluster, _encoded(name), value))

    def read(self, name: str) -> bytes | None:
        rows = self._session.run(f"read the record {name!r}", _READ, self._cluster, _encoded(name))
        return bytes(rows[0][0]) if rows else None

    def replace(self, name: str, value: bytes) -> None:
        doing = f"replace the record {name!r}"
        self._session.run(doing, _REPLACE, value, self._cluster, _encoded(name))

    def shown(self, name: str) -> str:
        return f"the record {name} of cluster {self._cluster} in PostgreSQL"

    def names(self, prefix: str = "") -> list[str]:
        rows = self._session.run(
            "list the records", _NAMES, cluster=self._cluster, prefix=_encoded(prefix)
        )
        return [bytes(name).decode() for (name,) in rows]

    def delete(self, name: str) -> None:
        self.delete_all((name,))

    def delete_all(self, names: Iterable[str]) -> None:
        encoded = [_encoded(name) for name in names]
        self._session.run("delete records", _DELETE, self._cluster, encoded)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> PostgresRecords:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _encoded(name: str) -> bytes:
    return utf8("record's name", name, NAME_BYTES_MAX)
