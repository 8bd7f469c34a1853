"""Files whose process dies at a chosen change, before or after it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from penstock.storage import Entry, Piece
    from penstock.storage.files import Files


class Crash(BaseException):
    """The process is gone: nothing it calls has an effect from now on."""


class CrashingFiles:
    """Passes everything on until the change of that number. Each deletion is a change of its own,
    so that it dies between any two."""

    def __init__(self, files: Files, crash_at: int | None, *, done: bool = False) -> None:
        self._files = files
        self._crash_at = crash_at
        self._done = done
        """Whether the last change takes effect."""
        self.changes = 0

    @property
    def creates_atomically(self) -> bool:
        return self._files.creates_atomically

    @property
    def is_dead(self) -> bool:
        return self._crash_at is not None and self.changes >= self._crash_at

    def create(self, name: str, pieces: Iterable[Piece]) -> bool:
        if self._may():
            created = self._files.create(name, pieces)
            self._after()
            return created
        raise Crash

    def create_empty(self, name: str) -> bool:
        if self._may():
            created = self._files.create_empty(name)
            self._after()
            return created
        raise Crash

    def replace(self, name: str, value: bytes) -> None:
        if not self._may():
            raise Crash
        self._files.replace(name, value)
        self._after()

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            if not self._may():
                raise Crash
            self._files.delete([name])
            self._after()

    def open(self, name: str) -> pa.NativeFile | None:
        return self._files.open(name)

    def size_bytes(self, name: str) -> int | None:
        return self._files.size_bytes(name)

    def settle(self, name: str) -> None:
        self._files.settle(name)

    def names(self, folder: str) -> list[str]:
        return self._files.names(folder)

    def entries(self, folder: str) -> list[Entry]:
        return self._files.entries(folder)

    def sweep(self, modified_before_seconds: float) -> int:
        return self._files.sweep(modified_before_seconds)

    def _may(self) -> bool:
        if self.is_dead:
            return False
        self.changes += 1
        return not self.is_dead or self._done

    def _after(self) -> None:
        if self.is_dead:
            raise Crash
