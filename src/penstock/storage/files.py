"""What a Storage stands on: files by name, somewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

Piece: TypeAlias = bytes | memoryview | pa.Buffer
"""Some of a file's bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it is listed."""

    name: str
    size_bytes: int
    modified_seconds: float
    """Since 1970, by the clock of whoever keeps the file."""


class Files(Protocol):
    """One kind of file system. Names are checked before they come here. Errors are the system's
    own: the Storage says what they mean."""

    @property
    def creates_atomically(self) -> bool: ...

    def create(self, name: str, pieces: Iterable[Piece]) -> bool:
        """Writes a file, durably and whole. False if there is one of that name."""

    def create_empty(self, name: str) -> bool:
        """The same of a file without contents: its name is all that it says."""

    def replace(self, name: str, value: bytes) -> None:
        """Writes other contents in place of a file's, durably and whole."""

    def open(self, name: str) -> pa.NativeFile | None:
        """A file to read from any place in it, or None if there is none."""

    def size_bytes(self, name: str) -> int | None: ...

    def settle(self, name: str) -> None:
        """Makes sure that a file which was just seen is not lost in a power cut."""

    def names(self, folder: str) -> list[str]:
        """Of all files in a folder and in those within it, in any order, settled."""

    def entries(self, folder: str) -> list[Entry]:
        """The same files, with what is known of them."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes those that are there, durably. A crash may leave any of them."""

    def sweep(self, modified_before_seconds: float) -> int:
        """Removes unfinished files that were last written to before then; gives their number."""
