"""Files on a disk: whole under their name or not there, also after a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.errors import LocalProtocolError
from penstock.storage.durable import make_folder, sync_folder, write_new_file
from penstock.storage.files import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage.files import Piece

SETTLED_MAX: Final = 100_000
"""Names remembered as durable. Beyond that all are forgotten, which costs a sync and no more."""

_TEMPORARY: Final = ".tmp"
"""How the name of an unfinished file ends. It begins with a dot."""


class LocalFiles:
    """A folder on a disk that can link and sync. A file is written under a temporary name:

    1. its contents are written and synced,
    2. it is linked to its name, which fails if there is one: this is what makes it atomic,
    3. the temporary name is removed,
    4. the folder is synced.

    Between 2 and 4 others see a name that a power cut could still take. Whoever is shown a name
    has its folder synced first, and so never acts on what may be lost. That is done once for each
    file: a sync takes milliseconds, also if there is nothing to sync.
    """

    creates_atomically: Final = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable_folders: set[Path] = set()
        """Known to be there and synced into their parents, all the way from the root."""
        self._settled: dict[Path, tuple[int, int]] = {}
        """Files whose names are durable, with what tells them from others of the same name."""

    def create(self, name: str, pieces: Iterable[Piece]) -> bool:
        path = self._folder / name
        if not path.exists():
            self._make_folder(path.parent)
            temporary = path.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")
            try:
                write_new_file(temporary, pieces)
                created = _link(temporary, path)
            finally:
                with contextlib.suppress(OSError):  # what went wrong before matters more
                    temporary.unlink()
        else:
            created = False
        if not created and path.is_dir():
            raise LocalProtocolError(f"{name!r} is a folder here; a name is a file or a folder")
        self._settle(path.parent, [path])
        return created

    def open(self, name: str) -> pa.NativeFile | None:
        # Read, not mapped into memory: a bad sector is then an error, not the end of the process,
        # and what was checked is what is used.
        try:
            return pa.OSFile(str(self._folder / name), "rb")
        except OSError:
            if self.size_bytes(name) is None:
                return None
            raise

    def size_bytes(self, name: str) -> int | None:
        path = self._folder / name
        try:
            return path.stat().st_size if not path.is_dir() else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def settle(self, name: str) -> None:
        path = self._folder / name
        self._settle(path.parent, [path])

    def entries(self, folder: str) -> list[Entry]:
        found = []
        for path, files in self._walk(self._folder / folder):
            below = path.relative_to(self._folder)
            listed = [file for file in files if not file.name.startswith(".")]
            for file in listed:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    status = file.stat()
                    name = (below / file.name).as_posix()
                    found.append(Entry(name, status.st_size, status.st_mtime))
            self._settle(path, [path / file.name for file in listed])
        return found

    def delete(self, names: Iterable[str]) -> None:
        changed = set()
        for name in names:
            path = self._folder / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                changed.add(path.parent)
            self._settled.pop(path, None)
        for folder in sorted(changed):
            sync_folder(folder)

    def sweep(self, modified_before_seconds: float) -> int:
        count = 0
        for _, files in self._walk(self._folder):
            for file in files:
                if not (file.name.startswith(".") and file.name.endswith(_TEMPORARY)):
                    continue
                with contextlib.suppress(FileNotFoundError):  # its writer has come to its end
                    if file.stat().st_mtime < modified_before_seconds:
                        Path(file.path).unlink()
                        count += 1
        return count

    def _settle(self, folder: Path, paths: Iterable[Path]) -> None:
        """Makes sure that files of a folder, which were seen, keep their names."""
        unsettled = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = path.stat()
                identity = status.st_ino, status.st_mtime_ns
                if self._settled.get(path) != identity:
                    unsettled[path] = identity
        if unsettled:
            sync_folder(folder)
            if len(self._settled) + len(unsettled) > SETTLED_MAX:
                self._settled.clear()
            self._settled.update(unsettled)

    def _make_folder(self, folder: Path) -> None:
        """Once a process for each folder, also for those that are there: whoever made one may have
        died before it was synced. Should somebody remove one, it is made again."""
        if folder in self._durable_folders and folder.is_dir():
            return
        if folder != self._folder:
            self._make_folder(folder.parent)
        make_folder(folder)
        self._durable_folders.add(folder)

    def _walk(self, folder: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
        """Every folder from this one down, with its files."""
        try:
            with os.scandir(folder) as scanned:
                entries = list(scanned)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield folder, [entry for entry in entries if not entry.is_dir()]
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                yield from self._walk(Path(entry.path))


def _link(temporary: Path, path: Path) -> bool:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    return True
