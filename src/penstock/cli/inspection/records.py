"""Small sealed records: what epochs and sinks decided, who leads, whose a folder is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.cli.inspection.documents import rows_of
from penstock.epoch.decisions import Decision as EpochDecision
from penstock.epoch.lease import LeaseRecord
from penstock.errors import CorruptStorageError
from penstock.report import Report, unsealed_note
from penstock.sealed import unsealed_json
from penstock.shuffle.assigned import decode_assigned
from penstock.sinks.parquet import manifest_files
from penstock.sinks.staging import read_part
from penstock.sinks.two_phase import Decision as SinkDecision
from penstock.spark.streaming.folders import read_note
from penstock.storage import Storage
from penstock.watch.encoding import StateFormatError, decode_batches, decode_state, plain

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sinks.two_phase import Part


def inspect_epoch_decision(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "epoch decision", limit, notes=unsealed_note(data))
    try:
        decision = EpochDecision.from_bytes(data, path.name)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = _plain(asdict(decision))
    if path.name.isdigit() and int(path.name) != decision.epoch:
        report.damaged(f"it is of epoch {decision.epoch}, and was put under another name")
    return report


def inspect_lease(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "lease record", limit, notes=unsealed_note(data))
    try:
        record = LeaseRecord.from_bytes(data, path.name)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = asdict(record)
    if path.name.isdigit() and int(path.name) != record.number:
        report.damaged(f"it is number {record.number}, and was put under another name")
    return report


def inspect_sink_decision(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "sink decision", limit, notes=unsealed_note(data))
    try:
        decision = SinkDecision.from_bytes(data, path.name)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = {
        "query": decision.batch.query,
        "batch": decision.batch.number,
        "attempt": decision.attempt,
        "prepared": decision.prepared,
    }
    for part in decision.parts:
        row = {"part": part.name, "rows": part.rows, "bytes": part.size_bytes}
        report.add([row | {"staged": _staged(report, path, part)}])
    return report


def _staged(report: Report, path: Path, part: Part) -> str:
    """What became of a staged part: it is removed when its batch is committed."""
    storage = Storage.open(path.parent.parent.parent)
    if not part.name.startswith("staged/") or storage.size_bytes(part.name) is None:
        return "not there"
    try:
        for _ in read_part(storage, part):
            pass
    except (CorruptStorageError, pa.ArrowException) as error:
        report.damaged(error)
        return "damaged"
    return "sound"


def inspect_staged(path: Path, limit: int | None) -> Report:
    report = Report(path, "staged part of a sink", limit)
    root = path.parent.parent.parent
    name = f"staged/{path.parent.name}/{path.name}"
    decided = _deciding(root, path.parent.name, name)
    try:
        if decided is None:
            report.notes.append(
                "no decision names it: its task or batch failed, or is under way. Its checksum is "
                "in the decision, so only its form was checked"
            )
            with pa.ipc.open_stream(pa.py_buffer(path.read_bytes())) as reader:
                batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
        else:
            decision, part = decided
            report.facts = {"query": decision.batch.query, "batch": decision.batch.number}
            batches = list(read_part(Storage.open(root), part))
    except (CorruptStorageError, pa.ArrowException, OSError) as error:
        report.damaged(error)
        return report
    for batch in batches:
        report.add(rows_of(batch.slice(0, report.room)), batch.num_rows)
    return report


def _deciding(root: Path, query: str, name: str) -> tuple[SinkDecision, Part] | None:
    for path in sorted((root / "decisions" / query).glob("[!.]*")):
        try:
            decision = SinkDecision.from_bytes(path.read_bytes())
        except CorruptStorageError:
            continue  # told when that file is inspected
        for part in decision.parts:
            if part.name == name:
                return decision, part
    return None


def inspect_parquet_manifest(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "manifest of a Parquet sink's batch", limit, notes=unsealed_note(data))
    try:
        files = manifest_files(data, path.name)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    root = path.parent.parent.parent
    for file in files:
        there = (root / file).is_file()
        report.add([{"file": file, "there": there}])
        if not there:
            report.damaged(f"{file} is missing")
    return report


def inspect_feed(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "feed", limit, notes=unsealed_note(data))
    try:
        note = read_note(path)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    report.facts = {"feed": path.parent.name, "format": note.get("format")}
    bindings = note.get("bindings")
    if not isinstance(bindings, list) or not all(isinstance(one, dict) for one in bindings):
        report.damaged("it does not say which bindings are read")
        return report
    report.add({"binding": place, **binding} for place, binding in enumerate(bindings))
    return report


def inspect_assignment(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "assignment of vnodes", limit, notes=unsealed_note(data))
    try:
        assigned = decode_assigned(path.name, data)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    assignment = assigned.assignment
    report.facts = {"version": assignment.version, "after_epoch": assigned.after}
    report.add(
        {"member": member, "vnodes": len(assignment.vnodes_of(member))}
        for member in assignment.members
    )
    return report


def inspect_marker(path: Path, limit: int | None) -> Report:
    return _object(path, limit, "marker of a store", ("format", "durability"))


def inspect_consumer(path: Path, limit: int | None) -> Report:
    wanted = ("format", "of", "epoch", "holdings")
    return _object(path, limit, "position of `penstock shuffle`", wanted)


def inspect_state(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "state of a feed", limit, notes=unsealed_note(data))
    try:
        state = decode_state(data, path.name)
    except StateFormatError as error:
        report.damaged(error)
        return report
    names = ("feed", "process", "host", "phase", "reason", "verdict", "explanation")
    report.facts = {name: plain(getattr(state, name)) for name in names}
    report.add(
        {"kind": wait.kind, "who": wait.who, "stall": wait.is_stall, "text": wait.text}
        for wait in state.waits
    )
    return report


def inspect_batches(path: Path, limit: int | None) -> Report:
    data = path.read_bytes()
    report = Report(path, "batches of a query", limit, notes=unsealed_note(data))
    try:
        report.add(plain(batch) for batch in decode_batches(data, path.name))
    except StateFormatError as error:
        report.damaged(error)
    return report


def _object(path: Path, limit: int | None, kind: str, wanted: tuple[str, ...]) -> Report:
    data = path.read_bytes()
    report = Report(path, kind, limit, notes=unsealed_note(data))
    try:
        found = unsealed_json(path.name, data, wanted)
    except CorruptStorageError as error:
        report.damaged(error)
        return report
    missing = [name for name in wanted if name not in found]
    if missing:
        report.damaged(f"it does not say its {', '.join(missing)}")
        return report
    report.facts = found
    return report


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(json.dumps(fields))
    return decoded
