"""One snapshot, to read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.checksum import RunningChecksum, checksum
from penstock.errors import LocalProtocolError
from penstock.snapshot.errors import CorruptSnapshotError
from penstock.storage import StorageDamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from penstock.snapshot.manifest import JSON, Manifest, Part
    from penstock.snapshot.names import Attempt
    from penstock.storage import Storage


class Snapshot:
    """What a manifest lists. Parts are checked whenever they are read."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self.parts: Mapping[str, Part] = {part.name: part for part in manifest.parts}

    @property
    def member(self) -> int:
        return self._manifest.member

    @property
    def epoch(self) -> int:
        return self._manifest.attempt.epoch

    @property
    def attempt(self) -> Attempt:
        return self._manifest.attempt

    @property
    def attributes(self) -> Mapping[str, JSON]:
        return self._manifest.attributes

    @property
    def watermark(self) -> int | None:
        return self._manifest.watermark

    @property
    def size_bytes(self) -> int:
        """Of all parts, also of those that older snapshots share."""
        return sum(part.size_bytes for part in self.parts.values())

    def part(self, name: str) -> pa.Buffer:
        """A part's bytes, as they were written."""
        part = self.parts.get(name)
        if part is None:
            known = ", ".join(sorted(self.parts)[:10]) or "none"
            raise LocalProtocolError(
                f"the snapshot of epoch {self.epoch} has no part {name!r}; it has: {known}"
            )
        if part.data is not None:
            return pa.py_buffer(part.data)
        self.check_size(part)
        try:
            buffer = self._storage.read_buffer(part.file)
        except StorageDamagedError as error:
            self._fail(part, f"cannot be read: {error.reason}")
        if buffer is None:
            self._fail(part, "is missing")
        self._check(part, buffer.size, checksum(buffer))
        return buffer

    def verify(self) -> None:
        """Reads everything once, in steps, and raises if anything is not as it was written."""
        for part in self.parts.values():
            self.check_size(part)
        for part in self.parts.values():
            self.verify_part(part)

    def verify_part(self, part: Part) -> None:
        """Reads one part once, in steps. What the manifest has was checked with it."""
        if part.data is not None:
            return
        self.check_size(part)
        running, size_bytes = RunningChecksum(), 0
        try:
            pieces = self._storage.read_pieces(part.file)
            if pieces is None:
                self._fail(part, "is missing")
            for piece in pieces:
                running.update(piece)
                size_bytes += piece.size
        except StorageDamagedError as error:
            self._fail(part, f"cannot be read: {error.reason}")
        self._check(part, size_bytes, running.intdigest())

    def check_size(self, part: Part) -> None:
        """Before it is read: a file that grew must not ask for memory."""
        if part.data is not None:
            return
        size_bytes = self._storage.size_bytes(part.file)
        if size_bytes is None:
            self._fail(part, "is missing")
        if size_bytes != part.size_bytes:
            self._fail(part, f"has {size_bytes} bytes; {part.size_bytes} were written")

    def _check(self, part: Part, size_bytes: int, checksum: int) -> None:
        if not part.is_same(size_bytes, checksum):
            self._fail(part, "does not match its checksum")

    def _fail(self, part: Part, what: str) -> NoReturn:
        reason = f"part {part.name!r} {what} ({part.file})"
        raise CorruptSnapshotError(self.member, self.epoch, reason)
