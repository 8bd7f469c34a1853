"""Small files that change as a whole."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from penstock.disk import explained, sync_folder, write_all
from penstock.locks import locked, try_lock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["locked", "replace_file", "try_lock", "write_file"]


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
    # Numbers of processes and threads are not enough: two containers have the same ones.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    write_file(temporary, data)
    with explained("write", path):
        temporary.rename(path)
    sync_folder(path.parent)
