"""Small files that change as a whole, and locks between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING

from penstock.disk import explained, sync_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and syncs its contents, not yet its name."""
    with explained("write", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Whoever reads the path sees the old contents or the new, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    write_file(temporary, data)
    with explained("write", path):
        temporary.rename(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Holds a file's lock against other processes. The kernel lets go of it when one dies."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
