"""What it takes on a disk to keep a promise: contents synced, then the name in its folder."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa


def sync_folder(folder: Path) -> None:
    """Makes names that were created, renamed or removed in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, durably. A folder that is there may have been made
    a moment ago by a process that did not come to sync it: its name is synced as well."""
    if not folder.parent.is_dir():
        make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def write_new_file(path: Path, pieces: Iterable[bytes | memoryview | pa.Buffer]) -> None:
    """Writes a file that must not exist and syncs its contents, not yet its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for piece in pieces:
            write_all(descriptor, piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview | pa.Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]
