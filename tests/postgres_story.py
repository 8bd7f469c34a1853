"""What a process does with the PostgreSQL participant, until it is killed at some statement."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.checkpoint import Barrier
from penstock.sinks.postgres import PostgresParticipant
from tests.faults import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 5
"""Of each epoch."""
Row = tuple[int, int]
CLIENT_EPOCHS = 3


def client_story(plan_file: Path, reports: Path) -> None:
    """Writes epochs, and ends itself by SIGKILL at the n-th statement, before it or after it."""
    plan = json.loads(plan_file.read_text())
    _kill_at(plan["statement"], after=plan["after"])
    sink = open_sink(plan["conninfo"])
    for epoch in range(1, CLIENT_EPOCHS + 1):
        write(sink, epoch)
        sink.capture(barrier(epoch))
        if epoch > 1:
            sink.commit(epoch - 1)  # while the next one is being written
        sink.prepare(epoch)
        report(reports, str(epoch))  # the decision
    sink.commit(CLIENT_EPOCHS)
    report(reports, "done")
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(statement: int, *, after: bool) -> None:
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            number = count
            if number == statement and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **named)
            if number == statement:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    psycopg.Connection.execute = counted(psycopg.Connection.execute)  # type: ignore[method-assign]
    psycopg.Cursor.executemany = counted(psycopg.Cursor.executemany)  # type: ignore[method-assign]


def open_sink(conninfo: str) -> PostgresParticipant:
    return PostgresParticipant(conninfo, "results", 1)


def rows_of(epoch: int) -> list[Row]:
    return [(epoch, number) for number in range(ROWS)]


def write(sink: PostgresParticipant, epoch: int) -> None:
    """In two blocks: a crash may come in between."""
    rows = rows_of(epoch)
    for part in (rows[:2], rows[2:]):
        with sink.writing() as cursor:
            cursor.executemany("INSERT INTO results VALUES (%s, %s)", part)


def barrier(epoch: int) -> Barrier:
    return Barrier(checkpoint=epoch, epoch=epoch)
