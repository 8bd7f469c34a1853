"""A folder of a cluster's own, for its socket, and what killed processes leave of theirs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from penstock.locks import take_lock, try_lock

_PREFIX: Final = "penstock-cluster-"
_SOCKET: Final = "outlets"
_LOCK: Final = "lock"
_SOCKET_PATH_MAX: Final = 100
"""The system takes some more, of which it wants one for itself."""
_UNLOCKED_SECONDS_MIN: Final = 3_600.0
"""A folder without a lock file is of a process that died just then, or that lives just now."""


_SHORT: Final = Path("/tmp")  # noqa: S108 - with a folder of its own in it
"""Where a socket always fits."""


class Private:
    """A folder of this process's own, for the socket. Its lock tells that the process lives."""

    def __init__(self) -> None:
        for temporary in {Path(tempfile.gettempdir()), _SHORT}:
            sweep(temporary)
        self._folder = _make_folder()
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        take_lock(self._lock)
        self.socket: Final = self._folder / _SOCKET

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # for this user alone
    if len(str(folder / _SOCKET)) <= _SOCKET_PATH_MAX:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT))


def sweep(temporary: Path) -> None:
    """Removes what killed processes of this user have left."""
    for folder in left_folders(temporary):
        shutil.rmtree(folder, ignore_errors=True)


def left_folders(temporary: Path) -> list[Path]:
    """What `sweep` removes."""
    found = []
    for folder in temporary.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_left(folder):
                found.append(folder)
    return sorted(found)


def _is_left(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS_MIN
    try:
        return try_lock(lock)
    finally:
        os.close(lock)
