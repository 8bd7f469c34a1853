"""A folder of ours: what is in it, and whether all of it is sound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.inspection.kinds import KINDS as FILE_KINDS
from penstock.cli.inspection.kinds import find_kind, is_lock, is_unfinished, kind_by_place
from penstock.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.report import Damage

_MARKS: Final = (
    # what a folder is if it has one of these; the first that fits
    ("store", ("penstock.json",)),
    ("feed", ("feed.json", "consumer.json", "cluster")),
    ("journal", ("head", "sync.lock", "*.segment")),
    ("queue", ("floor", "*.queue")),
    ("producer", ("alive", "touched")),
    ("member's snapshots", ("manifests", "parts")),
    ("place of a cluster", ("snapshots", "lease")),
    ("sinks", ("staged",)),
    ("Parquet sink", ("_manifests", "_sink")),
    ("snapshots of members", ("member-*/manifests",)),
)
OTHER: Final = "not ours"
UNFINISHED: Final = "unfinished writes"
LOCKS: Final = "locks"


@dataclass(slots=True)
class Group:
    """Files of one kind."""

    files: int = 0
    size_bytes: int = 0
    damaged: int = 0


@dataclass(slots=True)
class FolderReport:
    path: Path
    kind: str
    verified: bool
    groups: dict[str, Group] = field(default_factory=dict)
    damages: list[tuple[Path, Damage]] = field(default_factory=list)
    notes: list[tuple[Path, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "kind": self.kind,
            "verified": self.verified,
            "sound": not self.damages if self.verified else None,
            "files": [
                {
                    "kind": kind,
                    "files": group.files,
                    "bytes": group.size_bytes,
                    "damaged": group.damaged if self.verified else None,
                }
                for kind, group in self.groups.items()
            ],
            "damages": [{"file": str(path), **damage.as_json()} for path, damage in self.damages],
            "notes": [{"file": str(path), "note": note} for path, note in self.notes],
        }


def inspect_folder(
    path: Path, *, verify: bool, moved: Callable[[int, int], None] = lambda _done, _all: None
) -> FolderReport:
    """Counts what is there; with `verify` reads all of it. `moved` hears how many files are done,
    and how many there are."""
    report = FolderReport(path, folder_kind(path), verify)
    listed = sorted(_files(path))
    found: dict[str, Group] = {}
    for done, file in enumerate(listed, 1):
        try:
            size_bytes = file.stat().st_size
            kind = _kind(file, verify)
            group = found.setdefault(kind, Group())
            if verify and kind in FILE_KINDS:
                _verify(report, group, file)
        except FileNotFoundError:
            continue  # removed meanwhile, as files of a store that is in use are
        group.files += 1
        group.size_bytes += size_bytes
        moved(done, len(listed))
    order = [*FILE_KINDS, LOCKS, UNFINISHED, OTHER]
    report.groups = {kind: found[kind] for kind in order if kind in found}
    if report.kind == "folder" and not set(found) & set(FILE_KINDS):
        raise ConfigurationError(
            f"{path} has no file of Penstock's. Looked for in it and below: {', '.join(FILE_KINDS)}"
        )
    return report


def folder_kind(path: Path) -> str:
    for kind, marks in _MARKS:
        if any(any(path.glob(mark)) for mark in marks):
            return kind
    return "folder"


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def _kind(file: Path, verify: bool) -> str:
    if is_unfinished(file):
        return UNFINISHED
    if is_lock(file):
        return LOCKS
    try:
        # Only names are looked at where nothing is to be read.
        placed = kind_by_place(file)
        if placed is None and verify:
            placed = find_kind(file)
    except PenstockError:
        placed = None
    return OTHER if placed is None else placed[0]


def _verify(report: FolderReport, group: Group, file: Path) -> None:
    inspect = find_kind(file)[1]
    inspected = inspect(file, 0)
    damages = inspected.damages
    if damages and not file.exists():
        return  # removed meanwhile, with what it refers to
    if damages:
        # A store in use may have dropped a segment right behind the look at its head. Damage stays.
        again = inspect(file, 0).damages
        damages = [damage for damage in damages if damage in again]
    group.damaged += bool(damages)
    report.damages += [(file, damage) for damage in damages]
    report.notes += [
        (file, note) for note in inspected.notes if not note.startswith("it has no checksum")
    ]
