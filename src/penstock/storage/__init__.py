"""Storage: a folder of files that are written once, on a disk or on an object store.

Read in this order: names.py (what a file may be called), storage.py (what a folder can do),
files.py (what it stands on), local.py (on a disk, durably and atomically), arrow.py (wherever
pyarrow can write), errors.py.
"""

from penstock.storage.errors import (
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
)
from penstock.storage.files import Entry, Piece
from penstock.storage.names import NAME_BYTES_MAX, check_name
from penstock.storage.storage import LEFTOVER_SECONDS_MIN, Storage

__all__ = [
    "Storage",
    "Entry",
    "Piece",
    "StorageError",
    "StorageFullError",
    "StorageRefusedError",
    "StorageDamagedError",
    "check_name",
    "LEFTOVER_SECONDS_MIN",
    "NAME_BYTES_MAX",
]
