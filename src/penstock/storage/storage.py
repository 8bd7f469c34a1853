"""A folder of files that are written once: what decisions, leases and snapshots are kept in."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import ConfigurationError
from penstock.storage.arrow import ArrowFiles
from penstock.storage.errors import explained
from penstock.storage.files import Entry
from penstock.storage.local import LocalFiles
from penstock.storage.names import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage.files import Files, Piece

LEFTOVER_SECONDS_MIN: Final = 3_600.0
"""A temporary file that nobody has written to for an hour belongs to a process that died. Should
its writer live after all, its write fails, and nothing wrong is published."""

PIECE_BYTES: Final = 8 * 1024 * 1024
"""Read at once by `read_pieces`: one request to an object store."""

_DELAYED_OPEN: Final = "allow_delayed_open"
_CREDENTIALS: Final = re.compile(r"://[^@/?#]*@")


class Storage:
    """Files that are created once, read, listed and deleted, never changed. Safe for any number of
    threads and processes. What it shows (`read`, `names`, `entries`, a `create` that says False)
    is durable: nobody acts on what a power cut could take back.

    It fits `penstock.epoch.records.Records`. Where `creates_atomically` is False, two who create
    the same name at once may both be told True: decisions and leases need a place where it is.
    """

    def __init__(self, files: Files, place: str, folder: str = "") -> None:
        self._files = files
        self._prefix = f"{folder}/" if folder else ""
        self.place = place
        """Where this is, as errors show it: without keys that an address may hold."""

    @classmethod
    def open(cls, place: str | Path) -> Storage:
        """A local path, or an address that pyarrow understands: `file:///data/snapshots`,
        `s3://bucket/folder?endpoint_override=host:9000&scheme=http`. Nothing is made yet: the
        folder is when the first file is, a bucket never is."""
        text = str(place)
        if isinstance(place, Path) or "://" not in text:
            if not text:
                raise ConfigurationError("the storage's place is empty; name a folder")
            folder = Path(text).absolute()
            return cls(LocalFiles(folder), str(folder))
        shown = _CREDENTIALS.sub("://", text)
        try:
            filesystem, path = fs.FileSystem.from_uri(_in_one_request(text))
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = _CREDENTIALS.sub("://", str(error))
            raise ConfigurationError(f"cannot open the storage {shown}: {reason}") from None
        if isinstance(filesystem, fs.LocalFileSystem):
            return cls(LocalFiles(Path(path)), path)
        if not path.strip("/"):
            raise ConfigurationError(f"the storage {shown} names no bucket or folder; add one")
        return cls(ArrowFiles(filesystem, path), shown)

    def within(self, folder: str) -> Storage:
        """A folder in this one, as a storage of its own."""
        return Storage(self._files, self.place, self._prefix + check_name(folder))

    @property
    def creates_atomically(self) -> bool:
        """Whether of two who create the same name at once, one is told False."""
        return self._files.creates_atomically

    def create(self, name: str, value: bytes) -> bool:
        """Writes a file, durably. False if there is one of that name: then nothing changed. An
        exception leaves open whether it was written; read it to know."""
        return self.create_from(name, (value,))

    def create_from(self, name: str, pieces: Iterable[Piece]) -> bool:
        """The same from pieces, each taken when the one before it is written. If they end in an
        exception, nothing is written."""
        with explained("write", self._prefix + name, self.place):
            return self._files.create(self._path(name), pieces)

    def create_empty(self, name: str) -> bool:
        """As `create`, of a file that says everything by its name. On a disk that takes one sync
        and not two."""
        with explained("write", self._prefix + name, self.place):
            return self._files.create_empty(self._path(name))

    def replace(self, name: str, value: bytes) -> None:
        """Puts a newer form of a file in place of it, which says the same. Whoever reads it sees
        one or the other."""
        with explained("replace", self._prefix + name, self.place):
            self._files.replace(self._path(name), value)

    def shown(self, name: str) -> str:
        """Which file this is, for errors."""
        return f"{self.place.rstrip('/')}/{self._prefix}{name}"

    def read(self, name: str) -> bytes | None:
        """A file's contents, or None if there is none."""
        with explained("read", self._prefix + name, self.place):
            file = self._files.open(self._path(name))
            if file is None:
                return None
            with file:
                data = file.read()
            self._files.settle(self._path(name))
            return data

    def read_buffer(self, name: str) -> pa.Buffer | None:
        """As `read`, in Arrow's memory. For large files that a durable one refers to: it does not
        make sure again that they are durable."""
        with explained("read", self._prefix + name, self.place):
            file = self._files.open(self._path(name))
            if file is None:
                return None
            with file:
                return file.read_buffer()

    def read_pieces(self, name: str) -> Iterator[pa.Buffer] | None:
        """As `read_buffer`, one piece after the other: for what need not be in memory at once."""
        with explained("read", self._prefix + name, self.place):
            file = self._files.open(self._path(name))
        return None if file is None else self._pieces(name, file)

    def size_bytes(self, name: str) -> int | None:
        with explained("look at", self._prefix + name, self.place):
            return self._files.size_bytes(self._path(name))

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin so, sorted. Unfinished files are not among them."""
        whole, folder = self._listed(prefix)
        with explained("list", whole, self.place):
            listed = self._files.names(folder)
        cut = len(self._prefix)
        return sorted(name[cut:] for name in listed if name.startswith(whole))

    def entries(self, prefix: str = "") -> list[Entry]:
        """The files whose names begin so, by name."""
        whole, folder = self._listed(prefix)
        with explained("list", whole, self.place):
            listed = self._files.entries(folder)
        cut = len(self._prefix)
        return sorted(
            (
                Entry(entry.name[cut:], entry.size_bytes, entry.modified_seconds)
                for entry in listed
                if entry.name.startswith(whole)
            ),
            key=lambda entry: entry.name,
        )

    def delete(self, name: str) -> None:
        """Does nothing if there is no such file."""
        self.delete_all((name,))

    def delete_all(self, names: Iterable[str]) -> None:
        """Deletes files, durably once this returns. A crash may leave any of them."""
        paths = [self._path(name) for name in names]
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            with explained("delete", f"{paths[0]}{more}", self.place):
                self._files.delete(paths)

    def sweep(self, older_than_seconds: float = LEFTOVER_SECONDS_MIN) -> int:
        """Removes what writers that died have left unfinished; gives the number of files. It looks
        through all folders, also those this one is within."""
        with explained("sweep", "", self.place):
            return self._files.sweep(time.time() - older_than_seconds)

    def _pieces(self, name: str, file: pa.NativeFile) -> Iterator[pa.Buffer]:
        with explained("read", self._prefix + name, self.place), file:
            while (piece := file.read_buffer(PIECE_BYTES)).size:
                yield piece

    def _listed(self, prefix: str) -> tuple[str, str]:
        """How names begin, and the folder that they are in."""
        whole = self._prefix + prefix
        folder = whole.rpartition("/")[0]
        return whole, check_name(folder) if folder else folder

    def _path(self, name: str) -> str:
        return check_name(self._prefix + name)


def _in_one_request(address: str) -> str:
    """Lets a small object be put by one request: with S3, pyarrow would make three of it."""
    if not address.startswith("s3://") or _DELAYED_OPEN in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}{_DELAYED_OPEN}=true"
