"""A backup's folder: the bytes of segments, and points that say up to where they count.

    points/NUMBER.json          a point: the store at one moment, whole transactions only
    journals/NAME/.../ID/       one journal's segments, byte for byte as in the store
    records/NUMBER/             what queries that write batches have decided and staged; aborts

Segments only grow, so all points share them: a later point is longer, and an earlier one is still
there. A point is written last, whole and under its name at once; without it a copy counts for
nothing, and the next backup writes over it.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.disk import make_folder, sync_folder
from penstock.errors import ConfigurationError
from penstock.ids import Producer
from penstock.journal.collection import Collection
from penstock.journal.file.durable import replace_file, write_file
from penstock.journal.file.head import Position
from penstock.sealed import sealed_json, unsealed_json

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION: Final = 1
_POINT: Final = re.compile(r"(\d{6})\.json")


@dataclass(frozen=True, slots=True)
class KeptJournal:
    """A journal at a point: its rows [first_kept, end.offset) are in the backup.

    `hidden` are producers with a transaction that was half acknowledged at that moment, each with
    the clock of the first one: a restored store must not show it in this journal alone.
    """

    name: str
    identity: str
    first_kept: int
    suspended: bool
    end: Position
    hidden: dict[Producer, int]

    def folder(self, backup: Path) -> Path:
        collection, _, rest = self.name.partition("/")
        return backup / "journals" / collection / rest.replace("/", "+") / self.identity


@dataclass(frozen=True, slots=True)
class Point:
    """The store at one moment."""

    number: int
    at: float
    """Seconds of the wall clock."""
    store: str
    durability: str
    collections: tuple[Collection, ...]
    journals: tuple[KeptJournal, ...]

    @property
    def rows(self) -> int:
        return sum(kept.end.offset - kept.first_kept for kept in self.journals)


def write_point(backup: Path, point: Point) -> None:
    make_folder(backup / "points")
    data = {
        "format": FORMAT_VERSION,
        "number": point.number,
        "at": point.at,
        "store": point.store,
        "durability": point.durability,
        "collections": [collection.to_json() for collection in point.collections],
        "journals": [_journal_to_json(kept) for kept in point.journals],
    }
    replace_file(_path(backup, point.number), sealed_json(data))


def list_points(backup: Path) -> list[int]:
    """The numbers of a backup's points, ascending; none if there is no backup."""
    folder = backup / "points"
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _POINT.fullmatch(name)))


def read_point(backup: Path, number: int | None = None) -> Point:
    """A point by its number, or the newest."""
    known = list_points(backup)
    if not known:
        raise ConfigurationError(
            f"{backup} holds no backup: make one with `penstock backup`, or correct the path"
        )
    number = known[-1] if number is None else number
    if number not in known:
        there = ", ".join(map(str, known))
        raise ConfigurationError(f"{backup} has no point {number}; it has {there}")
    path = _path(backup, number)
    way_out = "restore another point, or from another copy"
    data = unsealed_json(str(path), path.read_bytes(), (), way_out)
    if data["format"] != FORMAT_VERSION:
        raise ConfigurationError(
            f"{path} has backup format {data['format']}, and this Penstock reads {FORMAT_VERSION}"
        )
    return Point(
        data["number"],
        data["at"],
        data["store"],
        data["durability"],
        tuple(Collection.from_json(one) for one in data["collections"]),
        tuple(_journal_from_json(one) for one in data["journals"]),
    )


def records_folder(backup: Path, number: int) -> Path:
    return backup / "records" / f"{number:06}"


def copy_files(source: Path, target: Path) -> None:
    """Copies all files below a folder, durably. Unfinished ones are left out, and so are those that
    vanish meanwhile: they were of a batch that is committed, and nobody needs them any more."""
    for path in sorted(source.rglob("[!.]*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                make_folder(copy.parent)
                write_file(copy, data)
                sync_folder(copy.parent)


def _path(backup: Path, number: int) -> Path:
    return backup / "points" / f"{number:06}.json"


def _journal_to_json(kept: KeptJournal) -> dict[str, Any]:
    return {
        "name": kept.name,
        "identity": kept.identity,
        "first_kept": kept.first_kept,
        "suspended": kept.suspended,
        "end": asdict(kept.end),
        "hidden": {str(producer): clock for producer, clock in kept.hidden.items()},
    }


def _journal_from_json(data: dict[str, Any]) -> KeptJournal:
    hidden = {Producer.from_hex(name): clock for name, clock in data["hidden"].items()}
    return KeptJournal(**(data | {"end": Position(**data["end"]), "hidden": hidden}))
