"""Storages to test on: a disk, and a file system of pyarrow that is not one."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from penstock.storage import Storage
from penstock.storage.arrow import ArrowFiles
from penstock.storage.local import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("local", "arrow")


def mock_filesystem() -> fs.FileSystem:
    """pyarrow's own file system for tests: it has real folders, in memory."""
    return fs._MockFileSystem()


def memory_storage() -> Storage:
    return Storage(ArrowFiles(mock_filesystem(), "bucket/folder"), "memory")


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """In memory where there is such a file system: syncing then costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextlib.contextmanager
def storage_of(kind: str) -> Iterator[Storage]:
    if kind == "arrow":
        yield memory_storage()
        return
    with fast_folder() as folder:
        yield Storage(LocalFiles(folder / "made" / "later"), str(folder))
