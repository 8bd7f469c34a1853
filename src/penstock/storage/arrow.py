"""Files wherever pyarrow can write: S3 and what speaks like it, Google's and Azure's stores."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from penstock.storage.files import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from penstock.storage.files import Piece


class ArrowFiles:
    """A folder of a pyarrow file system. A file is whole as soon as it is there, but pyarrow has no
    way to say "only if there is none": two who create one name at once may both succeed, and the
    later one's contents stay. Names that nobody else uses make up for that, where it matters."""

    creates_atomically: Final = False

    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        self._filesystem = filesystem
        self._folder = folder.rstrip("/")

    def create(self, name: str, pieces: Iterable[Piece]) -> bool:
        path = self._path(name)
        if self.size_bytes(name) is not None:
            return False
        stream = self._open_output(path)
        try:
            for piece in pieces:
                stream.write(piece)
        except BaseException:
            # A stream can only be closed, which publishes what it has so far.
            with contextlib.suppress(OSError):
                stream.close()
            with contextlib.suppress(OSError):
                self._filesystem.delete_file(path)
            raise
        stream.close()
        return True

    def create_empty(self, name: str) -> bool:
        return self.create(name, ())

    def replace(self, name: str, value: bytes) -> None:
        with self._open_output(self._path(name)) as stream:
            stream.write(value)

    def open(self, name: str) -> pa.NativeFile | None:
        try:
            return self._filesystem.open_input_file(self._path(name))
        except OSError:
            if self.size_bytes(name) is None:
                return None
            raise

    def size_bytes(self, name: str) -> int | None:
        info = self._filesystem.get_file_info(self._path(name))
        return info.size if info.type == fs.FileType.File else None

    def settle(self, name: str) -> None:
        """What an object store shows is durable."""

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self.entries(folder)]

    def entries(self, folder: str) -> list[Entry]:
        base = f"{self._folder}/{folder}" if folder else self._folder
        selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
        found = []
        for info in self._filesystem.get_file_info(selector):
            name = info.path[len(self._folder) + 1 :]
            if info.type == fs.FileType.File and not info.base_name.startswith("."):
                modified_ns = info.mtime_ns or 0
                found.append(Entry(name, info.size, modified_ns / 1e9))
        return found

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._filesystem.delete_file(self._path(name))
            except OSError:
                if self.size_bytes(name) is not None:
                    raise

    def sweep(self, modified_before_seconds: float) -> int:  # noqa: ARG002
        """Uploads that were not finished are not files. Let a rule of the bucket drop them."""
        return 0

    def _open_output(self, path: str) -> pa.NativeFile:
        try:
            return self._filesystem.open_output_stream(path)
        except FileNotFoundError:  # a file system that has real folders
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            return self._filesystem.open_output_stream(path)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
