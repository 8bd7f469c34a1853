"""What can go wrong with stored files, and who must act."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.disk import FULL, REFUSED, UNREADABLE
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSED_WORDS: Final = re.compile(r"ACCESS_DENIED|INVALID_ACCESS_KEY|HTTP status 40[13]")
"""Object stores give no error number, only words."""


class StorageError(PenstockError):
    """A file could not be written, read, listed or deleted. Whether a write that was begun is
    there is open: read it to know. It is there whole, or not at all."""

    advice = "look at the storage, then try again"

    def __init__(self, doing: str, name: str, place: str, reason: str) -> None:
        super().__init__(doing, name, place, reason)
        self.doing, self.name, self.place, self.reason = doing, name, place, reason

    def __str__(self) -> str:
        what = f" {self.name}" if self.name else ""
        return f"cannot {self.doing}{what} in {self.place}: {self.reason}; {self.advice}"


class StorageFullError(StorageError):
    """There is no room, or a limit is reached. Make room, then try again."""

    advice = "nothing is half written; make room there, or raise the limit, then try again"


class StorageRefusedError(StorageError):
    """This user may not. Give it the right to, or name another place."""

    advice = "give the user that runs Penstock the right to, or name another place"


class StorageDamagedError(StorageError):
    """The disk has the file and cannot read it. Restore it from a copy, and replace the disk."""

    advice = "the disk is damaged there: restore the file from a copy"


@contextlib.contextmanager
def explained(doing: str, name: str, place: str) -> Iterator[None]:
    """Turns what the system says into what the operator can act on."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _error_for(error)(doing, name, place, _reason(error)) from error


def _error_for(error: Exception) -> type[StorageError]:
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL:
        return StorageFullError
    if number in UNREADABLE:
        return StorageDamagedError
    if number in REFUSED or (number is None and _REFUSED_WORDS.search(str(error))):
        return StorageRefusedError
    return StorageError


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".")
