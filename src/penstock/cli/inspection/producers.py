"""A producer's files: who it is, what it has in flight, and what it decided."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from penstock.cli.inspection.documents import clock_of, moment_of
from penstock.cli.inspection.report import NO_CHECKSUM, Report
from penstock.errors import CorruptStorageError
from penstock.journal.file.durable import try_lock
from penstock.journal.file.ledger import read_sealed, read_touches
from penstock.journal.file.sealed import unsealed
from penstock.journal.store import Touch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.cli.inspection.report import Row


def inspect_alive(path: Path, limit: int | None) -> Report:
    report = Report(path, "producer's sign of life", limit, notes=[NO_CHECKSUM])
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
    except ValueError as error:
        report.damaged(f"it does not say whose it is: {error}")
    else:
        report.facts |= {name: found.get(name) for name in ("name", "pid", "host", "at")}
    report.facts["alive"] = is_locked(path)
    return report


def is_locked(path: Path) -> bool:
    """Whether a process that lives holds the file's lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def inspect_touched(path: Path, limit: int | None) -> Report:
    report = Report(path, "touches of an open transaction", limit, notes=[NO_CHECKSUM])
    try:
        report.add(_rows(read_touches(path)))
    except (ValueError, TypeError) as error:
        report.damaged(f"a line is no touch: {error}")
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        report.notes.append("its last line is unfinished: the process died then, or writes it now")
    return report


def inspect_decision(path: Path, limit: int | None) -> Report:
    kind = "completed decision" if path.name == "completed" else "decision"
    report = Report(path, f"{kind} of a transaction", limit)
    try:
        found = read_sealed(path)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    if found is not None:
        clock = found["clock"]
        report.facts = {"commit": clock_of(clock), "committed_at": moment_of(clock)}
        report.add(_rows(Touch(*touch) for touch in found["touches"]))
    return report


def inspect_settled(path: Path, limit: int | None) -> Report:
    return Report(path, "mark of a settled producer", limit)


def inspect_abort(path: Path, limit: int | None) -> Report:
    report = Report(path, "abort of a transaction by hand", limit)
    try:
        found = unsealed(path.name, path.read_bytes())
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = {name: found[name] for name in ("producer", "name", "at", "by", "outcome")}
    report.add([{"journal": journal} for journal in found["journals"]])
    return report


def _rows(touches: Iterable[Touch]) -> list[Row]:
    return [
        {
            "journal": touch.journal,
            "offset": touch.offset,
            "last_commit": clock_of(touch.last_commit),
        }
        for touch in touches
    ]
