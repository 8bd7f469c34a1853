"""Writing one snapshot: its parts, and at the end the manifest that makes it one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from penstock.checksum import RunningChecksum
from penstock.errors import LocalProtocolError
from penstock.snapshot.errors import CorruptSnapshotError
from penstock.snapshot.manifest import Manifest, Part, decode, encode
from penstock.snapshot.names import PARTS_MAX
from penstock.snapshot.snapshot import Snapshot
from penstock.storage import Piece, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from penstock.snapshot.manifest import JSON
    from penstock.snapshot.names import Attempt
    from penstock.storage import Storage

PartData: TypeAlias = "Piece | Iterable[Piece]"
"""A part's bytes, whole or in pieces. Pieces in a list can be compared with the base before they
are written; those of an iterator are written as they come."""


class SnapshotWriter:
    """Left without `finish`, as a context or by `discard`, nothing remains of it. One thread."""

    def __init__(
        self,
        storage: Storage,
        member: int,
        attempt: Attempt,
        base: Snapshot | None,
        *,
        proceed: Callable[[], None] | None = None,
        held_bytes_max: int = 0,
    ) -> None:
        """`proceed` is called before each piece is taken. It raises if there is no point in going
        on. Of parts that are given whole or as a list, so many bytes are put into the manifest
        instead of files of their own."""
        self._storage = storage
        self._member = member
        self._attempt = attempt
        self._base = base
        self._proceed = proceed
        self._may_hold = held_bytes_max
        self._parts: dict[str, Part] = {}
        self._written: set[Part] = set()
        self._begun = 0
        """Files that may be there, also if writing one failed."""
        self._open = True

    @property
    def epoch(self) -> int:
        return self._attempt.epoch

    @property
    def written_bytes(self) -> int:
        """Of parts that were written; the others are where they were."""
        return sum(part.size_bytes for part in self._written)

    @property
    def files(self) -> set[str]:
        """What this attempt needs or may come to need, while it goes on: it must not be deleted.
        Once it is finished, its manifest speaks for it."""
        if not self._open:
            return set()
        based = self._base.parts.values() if self._base is not None else ()
        own = {self._attempt.part(index) for index in range(self._begun)}
        return {part.file for part in based if part.file} | own

    def add(self, name: str, data: PartData) -> Part:
        """Writes a part, durably. If the base has the same bytes under that name, its file is
        referred to, and nothing is written. What fits into the manifest becomes durable with it."""
        self._check_new(name)
        pieces = (data,) if isinstance(data, bytes | memoryview | pa.Buffer) else data
        old = self._base.parts.get(name) if self._base is not None else None
        if isinstance(pieces, Sequence) and (old is not None or self._may_hold > 0):
            summed = _Summed(pieces, self._proceed)
            for _ in summed:
                pass
            if old is not None and old.is_same(summed.size_bytes, summed.checksum):
                self._parts[name] = old
                self._may_hold -= 0 if old.data is None else old.size_bytes
                return old
            if summed.size_bytes <= self._may_hold:
                self._may_hold -= summed.size_bytes
                data = b"".join(memoryview(piece).cast("B") for piece in pieces)
                part = Part(name, "", summed.size_bytes, summed.checksum, data)
                self._parts[name] = part
                self._written.add(part)
                return part
        summed = _Summed(pieces, self._proceed)
        file = self._attempt.part(self._begun)
        self._begun += 1
        if not self._storage.create_from(file, summed):
            raise LocalProtocolError(f"{file} is there already: another process has this attempt")
        part = Part(name, file, summed.size_bytes, summed.checksum)
        self._parts[name] = part
        self._written.add(part)
        return part

    def refer(self, name: str) -> Part:
        """Takes a part over from the base, for who knows that it has not changed."""
        self._check_new(name)
        part = self._base.parts.get(name) if self._base is not None else None
        if part is None:
            base = (
                "there is no base" if self._base is None else f"epoch {self._base.epoch} has none"
            )
            raise LocalProtocolError(f"cannot refer to a part {name!r}: {base}; add it")
        self._parts[name] = part
        return part

    def finish(
        self, attributes: Mapping[str, JSON] | None = None, watermark: int | None = None
    ) -> Snapshot:
        """Makes it a snapshot. The steps are those of docs/snapshots.md.

        1. All parts are durable: `add` returned for them.
        2. Files that are referred to are still there.
        3. The manifest is created. From now on the snapshot exists.
        """
        self._check_open()
        parts = tuple(self._parts.values())
        manifest = Manifest(self._member, self._attempt, parts, dict(attributes or {}), watermark)
        data = encode(manifest)
        snapshot = Snapshot(self._storage, decode(data, self._member, self._attempt))
        try:
            for part in parts:
                if part not in self._written:
                    snapshot.check_size(part)
        except CorruptSnapshotError as error:
            raise LocalProtocolError(
                f"cannot finish: {error}; begin again without a base"
            ) from error
        if not self._storage.create(self._attempt.manifest, data):
            raise LocalProtocolError(
                f"{self._attempt.manifest} is there already: another process has this attempt"
            )
        self._open = False
        return snapshot

    def discard(self) -> None:
        """Gives the attempt up, and deletes what it has written. The manifest first: if writing it
        failed, it may be there."""
        if self._open:
            self._open = False
            self._storage.delete(self._attempt.manifest)
            self._storage.delete_all(self._attempt.part(index) for index in range(self._begun))

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(StorageError) if error is not None else contextlib.nullcontext():
            self.discard()  # what is left of it is swept later

    def _check_new(self, name: str) -> None:
        self._check_open()
        if name in self._parts:
            raise LocalProtocolError(f"the snapshot has a part {name!r} already")
        if len(self._parts) >= PARTS_MAX:
            raise LocalProtocolError(f"a snapshot has at most {PARTS_MAX} parts")

    def _check_open(self) -> None:
        if not self._open:
            raise LocalProtocolError(
                f"the snapshot of epoch {self.epoch} was finished or discarded"
            )


class _Summed:
    """Passes pieces on, and sums them up on their way."""

    def __init__(self, pieces: Iterable[Piece], proceed: Callable[[], None] | None) -> None:
        self._pieces = pieces
        self._proceed = proceed
        self._running = RunningChecksum()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._pieces:
            if self._proceed is not None:
                self._proceed()
            self._running.update(piece)
            self.size_bytes += (
                piece.size if isinstance(piece, pa.Buffer) else memoryview(piece).nbytes
            )
            yield piece

    @property
    def checksum(self) -> int:
        return self._running.intdigest()
