"""A connection to PostgreSQL that is lost at a chosen moment: after the server got a command, and
before the client got its answer."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres_server import Database

PORT = 5432
"""Only part of the socket's name."""


class LossyProxy:
    """Passes everything on, until the client sends `command`. If `answered`, it waits for the
    server's answer; then it drops the connection, once."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._behind = str(database.server.folder / f".s.PGSQL.{PORT}")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        self.conninfo = psycopg.conninfo.make_conninfo(database.conninfo, host=str(folder))
        self._command: bytes | None = None
        self._answered = False
        self.dropped = threading.Event()
        threading.Thread(target=self._accept, name="test: proxy", daemon=True).start()

    def drop_at(self, command: str, *, answered: bool) -> None:
        self.dropped.clear()
        self._answered = answered
        self._command = command.encode()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with (
            contextlib.suppress(OSError),
            client,
            server,
            selectors.DefaultSelector() as either,
        ):
            server.connect(self._behind)
            either.register(client, selectors.EVENT_READ, server)
            either.register(server, selectors.EVENT_READ, client)
            while True:
                for ready, _ in either.select():
                    source, target = ready.fileobj, ready.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(65536)
                    if not data:
                        return
                    target.sendall(data)
                    if source is client and self._is_asked_for(data):
                        if self._answered:
                            server.recv(65536)
                        return

    def _is_asked_for(self, data: bytes) -> bool:
        if self._command is None or self._command not in data:
            return False
        self._command = None
        self.dropped.set()
        return True
