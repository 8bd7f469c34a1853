"""A member's snapshot as a participant in the cluster's epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import CommitFailedError, LocalProtocolError
from penstock.snapshot.errors import MissingSnapshotError
from penstock.storage import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.checkpoint.barrier import Barrier
    from penstock.snapshot.manifest import JSON
    from penstock.snapshot.snapshot import Snapshot
    from penstock.snapshot.store import Recovery, SnapshotStore
    from penstock.snapshot.writer import PartData

SNAPSHOTS_KEPT: Final = 3
"""Committed ones. Should the newest be damaged, two are left to go back to."""
HELD_BYTES_MAX: Final = 64 * 1024
"""Of a snapshot's parts, in its manifest. A part in a file of its own takes two syncs; so many
bytes are written again with every epoch instead, also if they have not changed."""
DROP_EVERY: Final = 8
"""Old snapshots are dropped at a process's first commit and every eighth after it: to list and sync
the folders takes as long as a small snapshot does. So many less one stay longer than they must."""
CAPTURED_MAX: Final = 8
"""Epochs captured and not yet prepared or aborted. Each holds a state in memory; a coordinator has
one or two in flight."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A member's state where a barrier cuts its streams. It must not change after that: give
    immutable buffers, or copies."""

    parts: Mapping[str, PartData]
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    watermark: int | None = None


class SnapshotParticipant:
    """It fits `penstock.epoch.participant.Participant`: what `capture` gives is written when the
    epoch is prepared, and marked when it is committed. Parts that have not changed since the last
    committed epoch are referred to, unless the barrier asks for a full snapshot."""

    def __init__(
        self,
        store: SnapshotStore,
        capture: Callable[[Barrier], Captured],
        *,
        name: str = "snapshot",
        keep: int = SNAPSHOTS_KEPT,
        needed_from: Callable[[], int] | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        """`keep` committed ones stay, and all from the epoch that `needed_from` tells."""
        self.name = name
        self.retention_fault: StorageError | None = None
        """Why old snapshots could not be dropped the last time. It is tried again after the next
        commit: none fails for it."""
        self._store = store
        self._capture = capture
        self._keep = keep
        self._needed_from = needed_from
        self._held_bytes_max = held_bytes_max
        self._drop_in = 1
        """Commits until old ones are dropped."""
        self._captured: dict[int, tuple[Barrier, Captured]] = {}
        self._prepared: dict[int, Snapshot] = {}
        self._given_up: frozenset[int] = frozenset()
        """Replaced as a whole: it is set by another thread."""
        self._base: Snapshot | None = None
        """The newest committed snapshot that this process has written or verified."""
        self._damaged: set[int] = set()
        """Epochs that recovery skipped. They do not count as kept."""

    def capture(self, barrier: Barrier) -> int | None:
        if len(self._captured) >= CAPTURED_MAX and barrier.epoch not in self._captured:
            raise LocalProtocolError(
                f"{CAPTURED_MAX} epochs are captured and neither prepared nor aborted: "
                f"{sorted(self._captured)}; prepare or abort them"
            )
        self._given_up -= {barrier.epoch}
        captured = self._capture(barrier)
        self._captured[barrier.epoch] = barrier, captured
        return captured.watermark

    def prepare(self, epoch: int) -> None:
        if epoch not in self._captured:
            raise LocalProtocolError(f"epoch {epoch} was not captured, or was aborted since")
        barrier, captured = self._captured[epoch]
        base = self._base
        if barrier.is_full_snapshot or (base is not None and base.epoch >= epoch):
            base = None

        def proceed() -> None:
            if epoch in self._given_up:
                raise CommitFailedError(f"epoch {epoch} was given up while it was written")

        attempt = barrier.checkpoint
        held = self._held_bytes_max
        with self._store.begin(
            epoch, attempt, base=base, proceed=proceed, held_bytes_max=held
        ) as writer:
            for name, data in captured.parts.items():
                writer.add(name, data)
            self._prepared[epoch] = writer.finish(captured.attributes, captured.watermark)
        del self._captured[epoch]

    def give_up(self, epoch: int) -> None:
        self._given_up |= {epoch}

    def commit(self, epoch: int) -> None:
        try:
            attempt = self._store.commit(epoch)
        except MissingSnapshotError as error:
            if epoch in self._captured or not self._was_dropped(epoch):
                raise LocalProtocolError(f"cannot commit: {error}") from error
            return
        prepared = self._prepared.pop(epoch, None)
        is_newer = self._base is None or self._base.epoch < epoch
        if prepared is not None and prepared.attempt == attempt and is_newer:
            self._base = prepared
        self._drop_in -= 1
        if self._drop_in == 0:
            self._drop_old()
            self._drop_in = DROP_EVERY if self.retention_fault is None else 1

    def abort(self, epoch: int) -> None:
        self._captured.pop(epoch, None)
        self._store.forget(epoch)
        self._prepared.pop(epoch, None)
        self._given_up = frozenset(given_up for given_up in self._given_up if given_up > epoch)

    def in_doubt(self) -> list[int]:
        return sorted(set(self._store.epochs()) - set(self._store.committed()))

    def recover(self, acceptable: Callable[[int], bool] | None = None) -> Recovery:
        """The state to go on from: the newest committed snapshot that is whole. Settle what is in
        doubt first. The next snapshot refers to its parts."""
        if acceptable is None:
            acceptable = set(self._store.committed()).__contains__
        recovery = self._store.recover(acceptable)
        self._base = recovery.chosen
        self._damaged = {skipped.epoch for skipped in recovery.skipped}
        return recovery

    def _was_dropped(self, epoch: int) -> bool:
        """An epoch before a committed one that has no snapshot was committed and dropped since: one
        that is in doubt is not dropped."""
        return any(epoch < committed for committed in self._store.committed())

    def _drop_old(self) -> None:
        try:
            epochs, committed = self._store.epochs(), set(self._store.committed())
            protect = set(epochs) - committed
            if self._base is not None:
                protect.add(self._base.epoch)
            if self._needed_from is not None:
                needed_from = self._needed_from()
                protect |= {epoch for epoch in epochs if epoch >= needed_from}
            counts = (committed - self._damaged).__contains__
            self._store.retain(self._keep, protect, counts=counts)
        except StorageError as error:
            self.retention_fault = error
        else:
            self.retention_fault = None
