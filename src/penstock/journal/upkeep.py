"""What is done to the files of a store beside reading and writing it: backups, rescue, a look into
each of them, and at what crashes left there.

Only a store of files has that. Whoever asks for it of another is told so: a log broker's cluster is
backed up and mended by its own tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.journal import kind_of_store, local_folder, open_store
from penstock.journal.file import leftovers as _leftovers
from penstock.journal.file.description import journals, producers
from penstock.journal.file.ledger import list_ledgers
from penstock.journal.file.leftovers import End, newest_clock, unrest_of
from penstock.journal.file.repair import Unrest
from penstock.journal.file.rescue import backup as _backup
from penstock.journal.file.rescue import restore as _restore
from penstock.journal.file.rescue import salvage as _salvage
from penstock.journal.file.rescue.points import Point, list_points, read_point
from penstock.journal.file.rescue.restore import check_point
from penstock.journal.file.rescue.salvage import SalvagedJournal
from penstock.journal.file.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal.opened import OpenStore

    Moved = Callable[[int, int], None]

__all__ = [
    "End",
    "NoFilesError",
    "Point",
    "SalvagedJournal",
    "Unrest",
    "back_up",
    "check_point",
    "find_ends",
    "journals",
    "list_ledgers",
    "list_points",
    "newest_clock",
    "producers",
    "read_point",
    "restore",
    "salvage",
    "unrest_of",
]

_INSTEAD: Final = {
    "kafka": "a Kafka cluster is backed up by its own tools: replicas, MirrorMaker, tiered storage"
}


class NoFilesError(ConfigurationError):
    """The store is not one of files. Use the tools of the system that keeps it."""

    def __init__(self, url: str, task: str) -> None:
        super().__init__(url, task)
        self.url, self.task = url, task

    def __str__(self) -> str:
        instead = _INSTEAD.get(kind_of_store(self.url), "use the tools of what keeps it")
        return f"cannot {self.task} {self.url}, which is no store of files: {instead}"


def back_up(url: str, folder: Path, moved: Moved) -> _backup.BackedUp:
    _check_files(url, "back up")
    with open_store(url, create=False) as store:
        return _backup.back_up(store, folder, moved)


def restore(folder: Path, url: str, point: int | None, moved: Moved) -> _restore.Restored:
    """Makes a store at this address."""
    _check_files(url, "restore into")
    return _restore.restore(folder, local_folder(url), point, moved)


def salvage(url: str, target: str, moved: Moved) -> list[SalvagedJournal]:
    """Brings what is whole into a new store at the address `target`."""
    _check_files(url, "salvage")
    _check_files(target, "salvage into")
    with open_store(url, create=False) as store:
        return _salvage.salvage(store, local_folder(target), moved)


def find_ends(store: OpenStore, root: Path) -> Iterator[End]:
    """The ends of all journals, and what is wrong with them."""
    is_buffered = isinstance(store, FileStore) and store.durability != "synced"
    return _leftovers.find_ends(root, to_disk=not is_buffered)


def _check_files(url: str, task: str) -> None:
    if kind_of_store(url) != "file":
        # What stands behind the # of an address may be secret.
        raise NoFilesError(url.partition("#")[0], task)
