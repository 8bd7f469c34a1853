"""What it takes on a disk to keep a promise: contents synced, then the name in its folder.

And what is said when the disk refuses: an error of this module names the file and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
UNREADABLE: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""The device, or the file system's own checksum, gives the bytes up."""
_PART_OF_THE_FLOW: Final = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    BlockingIOError,
)
"""What callers ask the disk on purpose, and decide upon."""


class DiskError(PenstockError, OSError):
    """The system could not read or write a file. Look at the disk, then try again."""

    advice = "look at the disk and the system's log, then try again"

    def __init__(self, doing: str, path: str, number: int | None, reason: str) -> None:
        super().__init__(number or 0, reason, path)
        self.doing, self.path, self.reason = doing, path, reason

    def __reduce__(self) -> tuple[type[DiskError], tuple[str, str, int | None, str]]:
        return type(self), (self.doing, self.path, self.errno, self.reason)

    def __str__(self) -> str:
        return f"cannot {self.doing} {self.path}: {self.reason}; {self.advice}"


class DiskFullError(DiskError):
    """There is no room, or a limit is reached. Make room, then try again."""

    advice = "make room on the disk, or raise the limit, then try again"


class DiskRefusedError(DiskError, PermissionError):
    """This user may not. Give it the right to, or name another place."""

    advice = "give the user that runs Penstock the right to, or name another place"


class DiskDamagedError(DiskError):
    """The disk cannot read or write a block of the file. Replace the disk; the file has to come
    from a copy."""

    advice = "the disk is damaged there: replace it, and restore the file from a copy"


@contextlib.contextmanager
def explained(doing: str, path: Path | int) -> Iterator[None]:
    """Turns what the system says into what the operator can act on. `path` may be a descriptor.
    Files that are missing, or there already, are the caller's to judge."""
    try:
        yield
    except (DiskError, *_PART_OF_THE_FLOW):
        raise
    except OSError as error:
        raise disk_error(doing, path, error) from error


def disk_error(doing: str, path: Path | int, error: OSError) -> DiskError:
    name = _path_of(path) if isinstance(path, int) else str(path)
    reason = " ".join((error.strerror or str(error)).split()).rstrip(".")
    return _kind_of(error.errno)(doing, name, error.errno, reason)


def _kind_of(number: int | None) -> type[DiskError]:
    if number in FULL:
        return DiskFullError
    if number in REFUSED:
        return DiskRefusedError
    return DiskDamagedError if number in UNREADABLE else DiskError


def _path_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return f"the file with descriptor {descriptor}"


def sync_file(descriptor: int) -> None:
    """Makes contents and size durable."""
    with explained("sync", descriptor):
        os.fsync(descriptor)


_failed_folders: Final[set[tuple[int, int]]] = set()
"""By device and inode, folders whose last sync in this process failed."""


def sync_folder(folder: Path) -> None:
    """Makes names that were created, renamed or removed in the folder durable.

    A kernel tells once that a sync failed, and may take what it could not write for written: the
    next sync would succeed and mean nothing. So the folder is changed before it: its names are
    written again. That holds for the block of the folder in which a new name finds room, which in a
    folder of few names is the only one.
    """
    with explained("sync the folder", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            known = os.fstat(descriptor)
            key = (known.st_dev, known.st_ino)
            if key in _failed_folders:
                _change(descriptor)
            try:
                os.fsync(descriptor)
            except OSError:
                _failed_folders.add(key)
                raise
            _failed_folders.discard(key)
        finally:
            os.close(descriptor)


def _change(folder_descriptor: int) -> None:
    """Makes a name in a folder, and removes it: who lists folders passes over such names."""
    name = f".again-{os.getpid()}-{threading.get_ident()}"
    flags = os.O_WRONLY | os.O_CREAT
    os.close(os.open(name, flags, 0o644, dir_fd=folder_descriptor))
    os.unlink(name, dir_fd=folder_descriptor)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, durably. A folder that is there may have been made
    a moment ago by a process that did not come to sync it: its name is synced as well."""
    if not folder.parent.is_dir():
        make_folder(folder.parent)
    with contextlib.suppress(FileExistsError), explained("make the folder", folder):
        folder.mkdir()
    sync_folder(folder.parent)


def write_new_file(path: Path, pieces: Iterable[bytes | memoryview | pa.Buffer]) -> None:
    """Writes a file that must not exist and syncs its contents, not yet its name."""
    with explained("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for piece in pieces:
                write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview | pa.Buffer) -> None:
    view = memoryview(data).cast("B")
    with explained("write", descriptor):
        while view:
            view = view[os.write(descriptor, view) :]


def read_file(path: Path) -> bytes:
    """All of a small file."""
    with explained("read", path):
        return path.read_bytes()


def forget_cached(descriptor: int) -> None:
    """The next read comes from the device. What the kernel holds of a file after a failed sync is
    what was to be written, not what was. Nothing is forgotten that is still to be written."""
    with explained("read back", descriptor):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
