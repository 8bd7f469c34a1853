"""A producer's files: who it is, what it has in flight, and what it decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import CorruptStorageError
from penstock.journal.file.ledger import parse_alive, parse_decision, parse_touches
from penstock.locks import is_locked
from penstock.report import NO_CHECKSUM, Report, clock_of, moment_of, unsealed_note
from penstock.sealed import DamagedFileError, unsealed_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from penstock.journal.writable import Touch
    from penstock.report import Row


def inspect_alive(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "producer's sign of life", limit, notes=unsealed_note(data))
    try:
        found = parse_alive(path.name, data)
    except DamagedFileError as error:
        report.damaged(f"it does not say whose it is: {error}")
    else:
        report.facts |= {name: found.get(name) for name in ("name", "pid", "host", "at")}
    report.facts["alive"] = is_locked(path)
    return report


def inspect_touched(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    notes = [NO_CHECKSUM] if data.startswith(b"[") else []
    report = Report(path, "touches of an open transaction", limit, notes=notes)
    try:
        report.add(_rows(parse_touches(path.name, data, may_grow=True)))
    except DamagedFileError as error:
        report.damaged(error)
    if data and not data.endswith(b"\n"):
        report.notes.append("its last line is unfinished: the process died then, or writes it now")
    return report


def inspect_decision(path: Path, limit: int | None) -> Report:
    kind = "completed decision" if path.name == "completed" else "decision"
    report = Report(path, f"{kind} of a transaction", limit)
    try:
        found = parse_decision(path.name, path.read_bytes())
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = {"commit": clock_of(found.clock), "committed_at": moment_of(found.clock)}
    report.add(_rows(found.touches))
    return report


def inspect_settled(path: Path, limit: int | None) -> Report:
    return Report(path, "mark of a settled producer", limit)


def inspect_abort(path: Path, limit: int | None) -> Report:
    report = Report(path, "abort of a transaction by hand", limit)
    try:
        found = unsealed_line(path.name, path.read_bytes())
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
