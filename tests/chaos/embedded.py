"""Chaos over the embedded journals. Beside Spark's processes, a database and a disk are broken."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.chaos.harness import Chaos
from tests.chaos.schedule import Fault
from tests.chaos.world import QUERIES, check_world, make_world
from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.processes import Running
    from tests.chaos.schedule import Event

FEEDS = "feeds"
BLOCK_BYTES = 64 * 1024


class EmbeddedChaos(Chaos):
    package = "tests.chaos"
    queries = QUERIES

    def __init__(self, folder: Path, mark: str, seed: int, *, with_cluster: bool) -> None:
        self._server = PostgresServer()
        super().__init__(folder, mark, seed, with_cluster=with_cluster)

    def _open(self) -> None:
        self._database = self._server.new_database()
        self._store = make_world(self._folder, self._database)

    def _shut(self) -> None:
        self._server.close()

    @property
    def _where(self) -> str:
        return self._database.conninfo

    def _producer_arguments(self, place: int) -> tuple[str, ...]:  # noqa: ARG002 - all are alike
        return (next(self._seeds),)

    def _settle(self) -> None:
        self._store.recover()

    def _judge(self) -> dict[str, int]:
        return check_world(self._store, self._database)

    def _is_own(self, one: Running) -> bool:
        return str(self._server.folder) in one.command

    def _inflict_own(self, event: Event) -> bool:
        return self._fill_disk(event) if event.fault is Fault.DISK else self._kill_database(event)

    def _kill_database(self, event: Event) -> bool:
        if not self._server.is_running:
            return False
        self._say(f"the database is killed, for {event.lasts_seconds:.1f} s", event)
        self._server.kill()
        self._later(event, self._server.start, "the database is back")
        return True

    def _fill_disk(self, event: Event) -> bool:
        ballast = self._folder / FEEDS / "ballast"
        if ballast.exists():
            return False
        self._say(f"the feeds' disk is full, for {event.lasts_seconds:.1f} s", event)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * BLOCK_BYTES)
        self._later(event, lambda: ballast.unlink(missing_ok=True), "the feeds' disk has room")
        return True
