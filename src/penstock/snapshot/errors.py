"""What can go wrong with snapshots, and who must act."""

from __future__ import annotations

from penstock.errors import CorruptStorageError, PenstockError


class CorruptSnapshotError(CorruptStorageError):
    """A snapshot is not whole. `recover()` finds the newest that is."""

    def __init__(self, member: int, epoch: int, reason: str) -> None:
        super().__init__(member, epoch, reason)
        self.member, self.epoch, self.reason = member, epoch, reason

    def __str__(self) -> str:
        return f"the snapshot of member {self.member} at epoch {self.epoch}: {self.reason}"


class DamagedManifestError(CorruptStorageError):
    """A manifest's bytes fail a check. The store adds whose it is."""


class MissingSnapshotError(PenstockError):
    """There is no snapshot of that epoch: it was never finished, or was given up or dropped."""

    def __init__(self, member: int, epoch: int) -> None:
        super().__init__(member, epoch)
        self.member, self.epoch = member, epoch

    def __str__(self) -> str:
        return (
            f"member {self.member} has no snapshot of epoch {self.epoch}: it was never finished, "
            "or was given up or dropped since"
        )
