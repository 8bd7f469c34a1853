"""What can go wrong with a Queue's files, and who must act."""

from __future__ import annotations

from penstock.errors import CorruptStorageError, LocalProtocolError, PenstockError


class QueueLostError(PenstockError):
    """Blocks that an epoch counts on are missing or damaged. Begin all queues anew (`discard`): a
    recovery session reads again what was lost."""

    def __init__(self, folder: str, segment: int, reason: str) -> None:
        super().__init__(folder, segment, reason)
        self.folder, self.segment, self.reason = folder, segment, reason

    def __str__(self) -> str:
        return (
            f"the queue in {self.folder} has lost rows of segment {self.segment:012x}: "
            f"{self.reason}; begin all queues anew, and what was lost is read again"
        )


class QueueWriteError(PenstockError):
    """The disk refused a block: full, or broken. Everything before it is as it was. Make room and
    append again; if a sync failed, open the queue again at its last epoch."""


class CorruptQueueError(CorruptStorageError):
    """Bytes of a Queue are not what was written. Nothing of that block was returned."""

    def __init__(self, file: str, segment: int, block: int, reason: str) -> None:
        super().__init__(file, segment, block, reason)
        self.file, self.segment, self.block, self.reason = file, segment, block, reason

    def __str__(self) -> str:
        return (
            f"{self.file}: block {self.block} is damaged: {self.reason}. Stop the members, remove "
            "this queue's folder and start again: what it held is read from the journals again"
        )


class QueueInUseError(LocalProtocolError):
    """A queue was to begin in a folder that holds one. Open it at its epoch's LSN, or discard it
    if no epoch counts on it."""
