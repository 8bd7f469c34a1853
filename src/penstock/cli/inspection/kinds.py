"""Which file is which: by its name in its place, else by how it begins, else by its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.cli.inspection import frontiers, queues, records, snapshots
from penstock.cli.inspection.documents import rows_of
from penstock.errors import ConfigurationError
from penstock.journal.upkeep import journals, producers

if TYPE_CHECKING:
    from penstock.report import Report

Inspect: TypeAlias = Callable[[Path, "int | None"], "Report"]

_BEGINNING_BYTES: Final = 24
_JSON_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is no frontier, and nothing else that is known by its fields."""
_HEX: Final = "[0-9a-f]"
_LABEL: Final = rf"[0-9]{{20}}-[0-9]{{20}}-{_HEX}{{16}}"
_PRODUCER: Final = rf"(?:producers|retired)/{_HEX}{{12}}"

_segment: Final = partial(journals.inspect_segment, rows_of=rows_of)

_PLACES: Final[tuple[tuple[str, str, Inspect], ...]] = (
    # the kind, the end of the path, who knows it
    ("journal segments", r"[0-9]{20}\.segment", _segment),
    ("heads of journals", r"journals/.+/head", journals.inspect_head),
    ("collections", r"collections/[^/.][^/]*\.json", journals.inspect_collection),
    ("producers' files", rf"{_PRODUCER}/alive", producers.inspect_alive),
    ("producers' files", rf"{_PRODUCER}/touched", producers.inspect_touched),
    ("producers' files", rf"{_PRODUCER}/(decision|completed)", producers.inspect_decision),
    ("producers' files", rf"{_PRODUCER}/settled", producers.inspect_settled),
    ("aborts by hand", rf"aborts/{_HEX}{{12}}", producers.inspect_abort),
    ("queue segments", rf"{_HEX}{{12}}\.queue", queues.inspect_segment),
    ("queue floors", r"floor", queues.inspect_floor),
    ("snapshot manifests", rf"manifests/{_LABEL}", snapshots.inspect_manifest),
    ("snapshot parts", rf"parts/{_LABEL}-[0-9]{{6}}", snapshots.inspect_part),
    ("marks of committed snapshots", rf"committed/{_LABEL}", snapshots.inspect_mark),
    ("epoch decisions", r"decisions/[0-9]{20}", records.inspect_epoch_decision),
    ("lease records", r"lease/[0-9]{20}", records.inspect_lease),
    ("assignments", r"assignments/[0-9]{10}", records.inspect_assignment),
    ("sink decisions", r"decisions/[^/]+/[0-9]{20}-[0-9]{6}", records.inspect_sink_decision),
    ("staged parts of sinks", rf"staged/[^/]+/[0-9]{{20}}-[0-9]{{6}}-{_HEX}{{16}}",
     records.inspect_staged),
    ("manifests of Parquet sinks", r"_manifests/[^/]+/[0-9]{20}", records.inspect_parquet_manifest),
    ("feeds", r"feed\.json", records.inspect_feed),
    ("markers of stores", r"penstock\.json", records.inspect_marker),
    ("positions of `penstock shuffle`", r"consumer\.json", records.inspect_consumer),
    ("states of feeds", r"state\.json", records.inspect_state),
    ("batches of Spark", r"spark\.json", records.inspect_batches),
)  # fmt: skip
_BY_PLACE: Final = tuple(
    (kind, re.compile(rf"(?:.*/)?{place}"), inspect) for kind, place, inspect in _PLACES
)

_BY_BEGINNING: Final[tuple[tuple[str, int, bytes, Inspect], ...]] = (
    ("journal segments", 0, b"PENSTOCK", _segment),
    ("queue segments", 0, b"PSTKQSEG", queues.inspect_segment),
    ("queue floors", 0, b"PSTKQFLR", queues.inspect_floor),
    ("snapshot manifests", 0, b"PENSNAPS", snapshots.inspect_manifest),
    ("frontiers", 0, b"PFRO", frontiers.inspect_chunks),
    ("frontiers", 4, b"PFRO", snapshots.inspect_frontier_part),
)
_BY_FIELDS: Final[tuple[tuple[str, set[str], Inspect], ...]] = (
    ("frontiers", {"version", "journals"}, frontiers.inspect_json),
    ("epoch decisions", {"epoch", "verdict"}, records.inspect_epoch_decision),
    ("lease records", {"term", "instance"}, records.inspect_lease),
    ("sink decisions", {"query", "batch", "prepared"}, records.inspect_sink_decision),
    ("collections", {"schemas", "key"}, journals.inspect_collection),
    ("feeds", {"format", "bindings"}, records.inspect_feed),
)
_SEALED: Final = re.compile(rb"[0-9a-f]{16} \{")
_UNFINISHED: Final = re.compile(r"(.*/)?(\.[^/]*\.tmp|[^/]+\.new)")
_LOCK: Final = re.compile(r"(.*/)?(\.lock(-[0-9a-f]{2})?|lock|sync\.lock)")

KINDS: Final = tuple(
    dict.fromkeys(
        [kind for kind, _, _ in _BY_PLACE]
        + [kind for kind, _, _, _ in _BY_BEGINNING]
        + [kind for kind, _, _ in _BY_FIELDS]
    )
)


class UnknownFileError(ConfigurationError):
    """A file is none of ours, or so damaged that nothing tells what it was."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} is no file of Penstock's that is known here. Looked for, by name, by "
            f"how it begins and by its fields: {', '.join(KINDS)}"
        )


def inspect_file(path: Path, limit: int | None) -> Report:
    return find_kind(path)[1](path, limit)


def find_kind(path: Path) -> tuple[str, Inspect]:
    placed = kind_by_place(path)
    if placed is not None:
        return placed
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    for kind, at, magic, inspect in _BY_BEGINNING:
        if beginning[at : at + len(magic)] == magic:
            return kind, inspect
    if _SEALED.match(beginning):
        return "producers' files", producers.inspect_decision
    if path.name == "head":
        return "heads of journals", journals.inspect_head
    if beginning.lstrip()[:1] == b"{" and path.stat().st_size <= _JSON_BYTES_MAX:
        try:
            fields = json.loads(path.read_bytes())
        except ValueError:
            fields = {}
        for kind, names, inspect in _BY_FIELDS:
            if names <= fields.keys():
                return kind, inspect
    raise UnknownFileError(str(path))


def kind_by_place(path: Path) -> tuple[str, Inspect] | None:
    """Without looking into it."""
    text = path.absolute().as_posix()
    for kind, place, inspect in _BY_PLACE:
        if place.fullmatch(text):
            return kind, inspect
    return None


def is_unfinished(path: Path) -> bool:
    """An unfinished write: nobody reads it."""
    return _UNFINISHED.fullmatch(path.as_posix()) is not None


def is_lock(path: Path) -> bool:
    return _LOCK.fullmatch(path.as_posix()) is not None
