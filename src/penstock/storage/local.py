"""Files on a disk: whole under their name or not there, also after a power cut."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.disk import make_folder, sync_folder, write_new_file
from penstock.errors import LocalProtocolError
from penstock.storage.files import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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

    A file without contents is created under its name at once: there is nothing to be half there.

    Between 2 and 4 others see a name that a power cut could still take. Whoever is shown a name
    has its folder synced first, and so never acts on what may be lost. That is done once for each
    file: a sync takes milliseconds, also if there is nothing to sync.
    """

    creates_atomically: Final = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._durable_folders: set[Path] = set()
        """Known to be there and synced into their parents, all the way from the root."""
        self._settled: dict[str, tuple[int, int]] = {}
        """Names that are durable, with what tells their files from others of the same name."""

    def create(self, name: str, pieces: Iterable[Piece]) -> bool:
        path = self._folder / name
        status = _status(path)
        if status is None:
            self._make_folder(path.parent)
            temporary = path.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")
            try:
                write_new_file(temporary, pieces)
                created = _link(temporary, path)
            finally:
                with contextlib.suppress(OSError):  # what went wrong before matters more
                    temporary.unlink()
            status = _status(path)
        else:
            created = False
        self._settle_created(name, status)
        return created

    def create_empty(self, name: str) -> bool:
        path = self._folder / name
        self._make_folder(path.parent)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            self._settle_created(name, _status(path))
            return False
        try:
            self._settle_created(name, os.fstat(descriptor))
        finally:
            os.close(descriptor)
        return True

    def replace(self, name: str, value: bytes) -> None:
        path = self._folder / name
        temporary = path.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")
        try:
            write_new_file(temporary, (value,))
            temporary.rename(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        sync_folder(path.parent)

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
        status = _status(self._folder / name)
        return None if status is None or stat.S_ISDIR(status.st_mode) else status.st_size

    def settle(self, name: str) -> None:
        path = self._folder / name
        status = _status(path)
        if status is not None:
            self._settle(path.parent, {name: status})

    def names(self, folder: str) -> list[str]:
        """What is settled already is told by its inode, which the listing has: a file is looked at
        once. Nobody creates a name again that was deleted, so a name's inode is enough for that."""
        found = []
        for below, files in self._walk(folder):
            unknown = {}
            for file in files:
                if file.name.startswith("."):
                    continue
                name = f"{below}/{file.name}" if below else file.name
                settled = self._settled.get(name)
                if settled is None or settled[0] != file.inode():
                    try:
                        unknown[name] = file.stat()
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                found.append(name)
            self._settle(self._folder / below, unknown)
        return found

    def entries(self, folder: str) -> list[Entry]:
        found = []
        for below, files in self._walk(folder):
            seen = {}
            for file in files:
                if not file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        seen[f"{below}/{file.name}" if below else file.name] = file.stat()
            self._settle(self._folder / below, seen)
            found += [Entry(name, each.st_size, each.st_mtime) for name, each in seen.items()]
        return found

    def delete(self, names: Iterable[str]) -> None:
        changed = set()
        for name in names:
            path = self._folder / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                changed.add(path.parent)
            self._settled.pop(name, None)
        for folder in sorted(changed):
            sync_folder(folder)

    def sweep(self, modified_before_seconds: float) -> int:
        count = 0
        for path in self.unfinished(modified_before_seconds):
            with contextlib.suppress(FileNotFoundError):  # somebody else sweeps, too
                path.unlink()
                count += 1
        return count

    def unfinished(self, modified_before_seconds: float) -> Iterator[Path]:
        """What `sweep` removes."""
        for _, files in self._walk(""):
            for file in files:
                if not (file.name.startswith(".") and file.name.endswith(_TEMPORARY)):
                    continue
                with contextlib.suppress(FileNotFoundError):  # its writer has come to its end
                    if file.stat().st_mtime < modified_before_seconds:
                        yield Path(file.path)

    def _settle_created(self, name: str, status: os.stat_result | None) -> None:
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise LocalProtocolError(f"{name!r} is a folder here; a name is a file or a folder")
        if status is not None:
            self._settle((self._folder / name).parent, {name: status})

    def _settle(self, folder: Path, seen: Mapping[str, os.stat_result]) -> None:
        """Makes sure that files of a folder, which were seen, keep their names."""
        identities = {name: (each.st_ino, each.st_mtime_ns) for name, each in seen.items()}
        unsettled = identities.items() - self._settled.items()
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

    def _walk(self, folder: str) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """Every folder from this one down, with its files."""
        try:
            with os.scandir(self._folder / folder) as scanned:
                entries = list(scanned)
        except (FileNotFoundError, NotADirectoryError):
            return
        folders = [entry for entry in entries if entry.is_dir()]
        yield folder, [entry for entry in entries if not entry.is_dir()] if folders else entries
        for entry in folders:
            if not entry.name.startswith("."):
                yield from self._walk(f"{folder}/{entry.name}" if folder else entry.name)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _link(temporary: Path, path: Path) -> bool:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    return True
