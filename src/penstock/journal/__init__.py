"""Journals: append-only lists of documents that many processes write in transactions.

Read in this order: collection.py (what is written), rows.py (users' rows made fit), frames.py
(their bytes), store.py (what a store can do), file/ (the store on a disk), producer.py and
transaction.py (writing), recovery.py (after a crash), cut.py and documents.py (reading once),
views.py (what is shown of it).
"""

from __future__ import annotations

import urllib.parse
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.journal.collection import Collection
from penstock.journal.file.store import SEGMENT_BYTES_MAX, FileStore
from penstock.journal.opened import OpenStore

__all__ = ["open_store", "Collection", "OpenStore"]


def open_store(
    url: str | Path,
    *,
    durability: str | None = None,
    create: bool = True,
    segment_bytes_max: int = SEGMENT_BYTES_MAX,
) -> FileStore:
    """Opens a store by its address, `file:///data/journals` or a plain path; makes it if missing.

    `durability` is chosen when the store is made. `"synced"`, the default: what an append returned
    for survives a power cut. `"buffered"`: it survives the death of the process only.
    """
    return FileStore(
        local_folder(url),
        durability=durability,
        segment_bytes_max=segment_bytes_max,
        create=create,
    )


def local_folder(url: str | Path) -> Path:
    """The folder that a store's address names."""
    text = str(url)
    parsed = urllib.parse.urlsplit(text)
    if parsed.scheme == "file":
        if parsed.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{text!r} names the machine {parsed.netloc!r}; write three slashes: "
                f"file:///{parsed.netloc}{parsed.path}"
            )
        folder = Path(urllib.parse.unquote(parsed.path))
    elif parsed.scheme and "://" in text:
        raise ConfigurationError(
            f"{text!r}: stores of kind {parsed.scheme!r} are not known; file is"
        )
    else:
        folder = Path(text)
    return folder.absolute()
