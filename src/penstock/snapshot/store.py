"""All snapshots of a member: begin one, load one, find the newest whole one, drop the old ones."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.snapshot import rules
from penstock.snapshot.errors import (
    CorruptSnapshotError,
    DamagedManifestError,
    MissingSnapshotError,
)
from penstock.snapshot.manifest import MANIFEST_BYTES_MAX, decode
from penstock.snapshot.names import (
    COMMITTED,
    MANIFESTS,
    PARTS,
    Attempt,
    of_epoch,
    parse_label,
)
from penstock.snapshot.snapshot import Snapshot
from penstock.snapshot.writer import SnapshotWriter
from penstock.storage import StorageDamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from penstock.snapshot.manifest import Manifest
    from penstock.storage import Storage

ORPHAN_SECONDS_MIN: Final = 24 * 3_600.0
"""A part to which no manifest refers after a day is of an attempt whose process died. Attempts take
seconds to minutes; clocks of machines and stores differ by less than that too."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An epoch that recovery could not use."""

    epoch: int
    reason: str

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Recovery:
    chosen: Snapshot | None
    skipped: list[Skipped]
    """Newest first: all epochs that are newer than the chosen one."""
    examined: int
    """All epochs that were listed, also those that are older than the chosen one."""

    def __str__(self) -> str:
        chosen = "none" if self.chosen is None else f"epoch {self.chosen.epoch}"
        skipped = "; ".join(str(one) for one in self.skipped) or "none"
        return f"chosen of {self.examined} snapshots: {chosen}; skipped: {skipped}"


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention has dropped."""

    epochs: list[int]
    files: int
    size_bytes: int
    unreadable: list[int]
    """Epochs whose manifest is kept and cannot be read. As nobody knows to which parts they refer,
    no part was deleted."""


class SnapshotStore:
    """The snapshots of one member in a folder of their own. One process writes at a time; one that
    was fenced off and does not know it does no harm: it never writes a file that another writes,
    and a later attempt counts for more. One thread."""

    def __init__(
        self, storage: Storage, member: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        if member < 0:
            raise LocalProtocolError(f"member {member} is below 0")
        self.member = member
        self._storage = storage.within(f"member-{member}")
        self._clock = clock
        self._writers: weakref.WeakSet[SnapshotWriter] = weakref.WeakSet()
        """Begun by this process: their files are not orphans, however long they take."""

    def begin(
        self,
        epoch: int,
        attempt: int = 0,
        *,
        base: Snapshot | None = None,
        proceed: Callable[[], None] | None = None,
        held_bytes_max: int = 0,
    ) -> SnapshotWriter:
        """Begins a snapshot. Of several attempts at one epoch the highest counts: give them numbers
        that rise, such as the checkpoint's. Parts that are the same in the base are not written
        again: give one that this process has written or verified, or else damage is carried on.
        `proceed` is called before each piece is written, and may raise to end it. Parts of up to
        `held_bytes_max` in all are kept in the manifest, and take no file."""
        if base is not None and (base.member != self.member or base.epoch >= epoch):
            raise LocalProtocolError(
                f"epoch {base.epoch} of member {base.member} cannot be the base of "
                f"epoch {epoch} of member {self.member}: a base is older, and of the same member"
            )
        identity = Attempt.new(epoch, attempt)
        writer = SnapshotWriter(
            self._storage,
            self.member,
            identity,
            base,
            proceed=proceed,
            held_bytes_max=held_bytes_max,
        )
        self._writers.add(writer)
        return writer

    def epochs(self) -> list[int]:
        """Those with a finished snapshot, whole or not, ascending."""
        return sorted({attempt.epoch for attempt in self._listed(MANIFESTS)})

    def committed(self) -> list[int]:
        """Those that are marked as committed, ascending."""
        return sorted({attempt.epoch for attempt in self._listed(COMMITTED)})

    def load(self, epoch: int) -> Snapshot:
        """The snapshot of an epoch. Its manifest is checked now, its parts when they are read."""
        attempt = self._counting(epoch)
        if attempt is None:
            raise MissingSnapshotError(self.member, epoch)
        return self._load(attempt)

    def recover(self, acceptable: Callable[[int], bool] | None = None) -> Recovery:
        """The newest snapshot of which everything is there as it was written, and why it is not one
        of those after it. `acceptable` says which epochs may be chosen at all."""
        counting = rules.counting_attempts(self._listed(MANIFESTS), self._listed(COMMITTED))
        skipped: list[Skipped] = []
        for epoch in sorted(counting, reverse=True):
            if acceptable is not None and not acceptable(epoch):
                skipped.append(Skipped(epoch, "it was not committed"))
                continue
            try:
                snapshot = self._load(counting[epoch])
                snapshot.verify()
            except CorruptSnapshotError as error:
                skipped.append(Skipped(epoch, error.reason))
            except MissingSnapshotError:
                skipped.append(Skipped(epoch, "its manifest is missing"))
            else:
                return Recovery(snapshot, skipped, len(counting))
        return Recovery(None, skipped, len(counting))

    def commit(self, epoch: int) -> Attempt:
        """Marks the attempt that counts as the epoch's for good. Does nothing if one is."""
        marked = self._listed(of_epoch(COMMITTED, epoch))
        if marked:
            return max(marked)
        finished = self._listed(of_epoch(MANIFESTS, epoch))
        if not finished:
            raise MissingSnapshotError(self.member, epoch)
        attempt = max(finished)
        self._storage.create_empty(attempt.mark)
        return attempt

    def forget(self, epoch: int) -> None:
        """Deletes all attempts at an epoch that was not committed, finished or not. Parts to which
        later snapshots refer stay."""
        if self._listed(of_epoch(COMMITTED, epoch)):
            raise LocalProtocolError(f"epoch {epoch} is committed, and cannot be forgotten")
        parts = self._storage.entries(of_epoch(PARTS, epoch))
        self._storage.delete_all(self._storage.names(of_epoch(MANIFESTS, epoch)))
        referred, unreadable = self._referred(self._listed(MANIFESTS), {})
        if not unreadable:
            self._storage.delete_all(part.name for part in parts if part.name not in referred)

    def retain(
        self,
        keep: int,
        protect: Collection[int] = (),
        *,
        counts: Callable[[int], bool] | None = None,
    ) -> Retained:
        """Keeps the newest epochs and drops what is older. `counts` says which of them make up the
        number: those in doubt or damaged should not. Others stay while they are newer than the
        oldest that is kept, or in `protect`. A crash after any step loses nothing that is kept.

        1. Parts are listed, then manifests: a snapshot that is finished in between is seen.
        2. Manifests are deleted, the oldest first.
        3. Their marks are deleted: with its mark gone first, an epoch would be in doubt again.
        4. Parts are deleted to which no manifest refers.
        """
        if keep < 1:
            raise LocalProtocolError(f"cannot keep {keep} snapshots: the newest always stays")
        parts = self._storage.entries(PARTS)
        finished, marked = set(self._listed(MANIFESTS)), self._listed(COMMITTED)
        counting = rules.counting_attempts(finished, marked)
        manifests: dict[Attempt, Manifest | None] = {}  # so that each is read once
        readable: set[int] = set()
        for epoch in sorted(counting, reverse=True):
            attempt = counting[epoch]
            if (counts is None or counts(epoch)) and attempt in finished:
                manifests[attempt] = self._try(attempt)
                if manifests[attempt] is not None:
                    readable.add(epoch)
            if len(readable) == keep:
                break
        oldest = rules.oldest_kept(readable, keep)
        dropped = rules.outlived(finished, oldest, protect)
        self._storage.delete_all(attempt.manifest for attempt in dropped)
        left = finished.difference(dropped)
        self._storage.delete_all(
            attempt.mark for attempt in rules.outlived(marked, oldest, protect)
        )
        silent_before = self._clock() - ORPHAN_SECONDS_MIN
        orphans = rules.orphans(parts, (), oldest, silent_before)
        unreadable = sorted({one.epoch for one in left if manifests.get(one, one) is None})
        if orphans:  # else it does not matter to what others refer: they need not be read
            referred, unreadable = self._referred(left, manifests)
            orphans = [] if unreadable else [one for one in orphans if one.name not in referred]
        self._storage.delete_all(part.name for part in orphans)
        return Retained(
            sorted({attempt.epoch for attempt in dropped}),
            len(dropped) + len(orphans),
            sum(part.size_bytes for part in orphans),
            unreadable,
        )

    def _listed(self, prefix: str) -> list[Attempt]:
        """The attempts of manifests or marks; files that are none of ours are left alone."""
        attempts = (parse_label(name) for name in self._storage.names(prefix))
        return [attempt for attempt in attempts if attempt is not None]

    def _counting(self, epoch: int) -> Attempt | None:
        finished = self._listed(of_epoch(MANIFESTS, epoch))
        committed = self._listed(of_epoch(COMMITTED, epoch))
        return rules.counting_attempts(finished, committed).get(epoch)

    def _load(self, attempt: Attempt) -> Snapshot:
        return Snapshot(self._storage, self._read(attempt))

    def _read(self, attempt: Attempt) -> Manifest:
        """A manifest that was listed, and is durable therefore."""
        try:
            size_bytes = self._storage.size_bytes(attempt.manifest)
            if size_bytes is not None and size_bytes > MANIFEST_BYTES_MAX:
                raise DamagedManifestError(f"its manifest has {size_bytes} bytes, too many")
            data = self._storage.read_buffer(attempt.manifest)
            if data is None:
                raise MissingSnapshotError(self.member, attempt.epoch)
            return decode(data.to_pybytes(), self.member, attempt)
        except DamagedManifestError as error:
            raise CorruptSnapshotError(self.member, attempt.epoch, str(error)) from error
        except StorageDamagedError as error:
            reason = f"its manifest cannot be read: {error.reason}"
            raise CorruptSnapshotError(self.member, attempt.epoch, reason) from error

    def _try(self, attempt: Attempt) -> Manifest | None:
        try:
            return self._read(attempt)
        except (CorruptSnapshotError, MissingSnapshotError):
            return None

    def _referred(
        self, attempts: Iterable[Attempt], read: Mapping[Attempt, Manifest | None]
    ) -> tuple[set[str], list[int]]:
        """The files to which these refer, and those that this process is writing; and the epochs of
        which it cannot be known. Manifests in `read` are not read again."""
        referred = {file for writer in self._writers for file in writer.files}
        unreadable = set()
        for attempt in attempts:
            manifest = read[attempt] if attempt in read else self._try(attempt)
            if manifest is None:
                unreadable.add(attempt.epoch)
            else:
                referred |= {part.file for part in manifest.parts}
        return referred, sorted(unreadable)
