"""Debezium's connector for PostgreSQL, in a Kafka Connect of its own.

    connector = PostgresConnector(kafka.bootstrap_servers, folder, "bank", database)
    connector.start()
    connector.kill()   # SIGKILL: it goes on from what it had noted, and writes the rest again
    connector.start()

The topics (`bank.public.accounts`, and `bank.transaction` with one partition) have to be there:
our brokers make none by themselves. The server has `wal_level = logical`, and listens on a port.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.testing.kafka.jars import debezium_jars
from penstock.testing.kafka.machine import BRIEF, JavaMachine, wait_until
from penstock.testing.kafka.ports import LOOPBACK
from penstock.testing.kafka.settings import properties_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

START_SECONDS_MAX = 120.0
NOTING_MS = 2_000
"""How often Connect notes how far it has come. By default it is a minute."""
_STREAMING = "Processing messages"
_TAIL_CHARACTERS = 4_000
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


class PostgresConnector:
    """What it has noted is in the folder, and outlives it."""

    def __init__(
        self,
        bootstrap_servers: str,
        folder: Path,
        prefix: str,
        server: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
        *,
        with_schemas: bool = False,
    ) -> None:
        """`server` has port, user and dbname; `settings` of the connector go before ours."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._output = folder, folder / "connect.log"
        self._machine: JavaMachine | None = None
        self._launched = 0
        worker = {
            "bootstrap.servers": bootstrap_servers,
            "key.converter": _CONVERTER,
            "value.converter": _CONVERTER,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": str(with_schemas).lower(),
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": str(NOTING_MS),
            "listeners": f"http://{LOOPBACK}:0",
            "plugin.discovery": "only_scan",
        }
        connector = {
            "name": prefix,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "topic.prefix": prefix,
            "slot.name": prefix,
            "publication.name": prefix,
            "database.hostname": LOOPBACK,
            "database.port": server["port"],
            "database.user": server["user"],
            "database.password": "none is asked for",
            "database.dbname": server["dbname"],
            "provide.transaction.metadata": "true",
            "snapshot.mode": "no_data",
            **(settings or {}),
        }
        self._files = [folder / "worker.properties", folder / "connector.properties"]
        for path, given in zip(self._files, (worker, connector), strict=True):
            path.write_text(properties_text(given))

    def start(self) -> None:
        """Returns once it reads the database's log."""
        self._launched = self._output.stat().st_size if self._output.exists() else 0
        path = os.pathsep.join(map(str, debezium_jars()))
        arguments = ["-Xmx384m", *BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"]
        arguments += ["-cp", path, "org.apache.kafka.connect.cli.ConnectStandalone"]
        self._machine = JavaMachine(
            [*arguments, *map(str, self._files)], self._output, self._folder
        )
        what = "a connector to read the database's log"
        wait_until(self._streams_or_ended, what, START_SECONDS_MAX, self._tail)
        if not self._machine.is_running:
            raise RuntimeError(f"Kafka Connect ended by itself:\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL. Does nothing if it does not run."""
        if self._machine is not None and self._machine.is_running:
            self._machine.kill()

    def _streams_or_ended(self) -> bool:
        is_running = self._machine is not None and self._machine.is_running
        return not is_running or _STREAMING in self._text()

    def _text(self) -> str:
        with self._output.open("rb") as file:
            file.seek(self._launched)
            return file.read().decode(errors="replace")

    def _tail(self) -> str:
        return self._text()[-_TAIL_CHARACTERS:]
