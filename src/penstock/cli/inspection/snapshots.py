"""Snapshots: manifests, the parts that they list, and marks of those that were committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.cli.inspection.frontiers import show_frontier
from penstock.errors import CorruptStorageError, PenstockError
from penstock.report import Report
from penstock.shuffle.queue.snapshot import decode_state
from penstock.shuffle.resume import frontier_of_part
from penstock.shuffle.slice.snapshots import SliceSnapshot
from penstock.snapshot.errors import CorruptSnapshotError, DamagedManifestError
from penstock.snapshot.manifest import decode, decode_stated
from penstock.snapshot.names import MANIFESTS, PARTS, parse_label
from penstock.snapshot.snapshot import Snapshot
from penstock.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.snapshot.manifest import Manifest, Part

ROWS_WITHIN_MAX: Final = 100
"""Shown of a part that is in its manifest: it is one fact among others there."""


def inspect_manifest(path: Path, limit: int | None) -> Report:
    report = Report(path, "snapshot manifest", limit)
    try:
        manifest = _read(path)
    except DamagedManifestError as error:
        report.damaged(error)
        return report
    report.facts = {
        "member": manifest.member,
        "epoch": manifest.attempt.epoch,
        "attempt": manifest.attempt.number,
        "watermark": manifest.watermark,
        "attributes": dict(manifest.attributes),
    }
    within = {part.name: part.data for part in manifest.parts if part.data is not None}
    if within:
        report.facts["within"] = {name: _within(path, name, data) for name, data in within.items()}
    is_placed = path.parent.name == MANIFESTS.strip("/")
    if not is_placed:
        report.notes.append("it is not in a member's folder: its parts were not looked at")
    snapshot = Snapshot(Storage.open(path.parent.parent), manifest)
    for part in manifest.parts:
        sound: bool | None = None
        if is_placed:
            try:
                snapshot.verify_part(part)
                sound = True
            except CorruptSnapshotError as error:
                report.damaged(error.reason)
                sound = False
        file = part.file or "this manifest"
        row = {"part": part.name, "file": file, "bytes": part.size_bytes, "sound": sound}
        report.add([row | {"checksum": f"{part.checksum:016x}"}])
    return report


def _within(path: Path, name: str, data: bytes) -> dict[str, object]:
    """What a part has that is in its manifest. Its bytes were checked with that."""
    shown = Report(path, "snapshot part", ROWS_WITHIN_MAX)
    try:
        _show(shown, name, pa.py_buffer(data))
    except (PenstockError, pa.ArrowException, ValueError, KeyError) as error:
        return {"cannot be understood": str(error)}
    return {**shown.facts, "rows": shown.rows}


def _read(path: Path) -> Manifest:
    """Where a member's folder has it, it must be of that member and attempt."""
    attempt, folder = parse_label(path.name), path.parent.parent.name
    number = folder.removeprefix("member-")
    if attempt is None or not folder.startswith("member-") or not number.isdigit():
        return decode_stated(path.read_bytes())
    return decode(path.read_bytes(), int(number), attempt)


def inspect_part(path: Path, limit: int | None) -> Report:
    report = Report(path, "snapshot part", limit)
    file = f"{PARTS}{path.name}"
    naming, unreadable = _manifests_naming(path, file)
    if not naming:
        why = " (some cannot be read)" if unreadable else ""
        report.notes.append(
            f"no manifest names it{why}: its snapshot is under way, or was never finished. Its "
            "checksum is in the manifest, so nothing was checked"
        )
        return report
    manifest, part = naming[-1]
    report.facts = {
        "part": part.name,
        "member": manifest.member,
        "epochs": [one.attempt.epoch for one, _ in naming],
        "bytes": part.size_bytes,
    }
    try:
        data = Snapshot(Storage.open(path.parent.parent), manifest).part(part.name)
    except CorruptSnapshotError as error:
        report.damaged(error.reason)
        return report
    try:
        _show(report, part.name, data)
    except (PenstockError, pa.ArrowException, ValueError, KeyError) as error:
        report.damaged(f"its bytes are as they were written, and cannot be understood: {error}")
    return report


def _manifests_naming(path: Path, file: str) -> tuple[list[tuple[Manifest, Part]], bool]:
    """Those that list the file, oldest first; and whether some cannot be read."""
    found, unreadable = [], False
    for manifest_path in sorted((path.parent.parent / MANIFESTS).glob("[!.]*")):
        try:
            manifest = _read(manifest_path)
        except DamagedManifestError:
            unreadable = True
            continue
        found += [(manifest, part) for part in manifest.parts if part.file == file]
    return found, unreadable


def _show(report: Report, name: str, data: pa.Buffer) -> None:
    """The parts that a shuffle has. Others are their writers' own."""
    if name in ("frontier", "consumed"):
        show_frontier(report, frontier_of_part(data))
    elif name == "queue":
        state = decode_state(data)
        report.facts |= {"lsn": f"{state.lsn:#x}", "reads": len(state.names)}
        report.add(
            {
                "stream": number,
                "mark": stream.mark.kind.name.lower(),
                "key": stream.mark.key,
                "waiting_parts": len(stream.waiting),
                "in_flight": len(stream.in_flight),
            }
            for number, stream in enumerate(state.streams)
        )
    elif name.startswith("slice-"):
        found = SliceSnapshot.decode(memoryview(data))
        report.facts |= {"cycle": found.cycle, "frontier_entries": found.frontier.entry_count}
        report.add(
            {
                "journal": read.journal,
                "binding": read.binding,
                "offset": read.offset,
                "reported_offset": read.reported_offset,
                "producers": len(read.states),
            }
            for read in found.reads
        )


def inspect_frontier_part(path: Path, limit: int | None) -> Report:
    """A Session's part that was copied out of its place."""
    report = Report(path, "frontier (part of a snapshot)", limit)
    try:
        show_frontier(report, frontier_of_part(pa.py_buffer(path.read_bytes())))
    except (CorruptStorageError, pa.ArrowException, ValueError, IndexError) as error:
        report.damaged(error)
    return report


def inspect_mark(path: Path, limit: int | None) -> Report:
    report = Report(path, "mark of a committed snapshot", limit)
    attempt = parse_label(path.name)
    if attempt is not None:
        report.facts = {"epoch": attempt.epoch, "attempt": attempt.number}
        if not (path.parent.parent / attempt.manifest).is_file():
            report.notes.append("its manifest is gone: the snapshot was dropped, or lost")
    return report
