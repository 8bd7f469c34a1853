"""A member's part in an epoch: its Slices and its Queue as they are where barriers cut them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.errors import CommitFailedError
from penstock.shuffle.queue.events import QueueState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.checkpoint import Barrier
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from penstock.snapshot import SnapshotParticipant

CAPTURE_SECONDS_MAX: Final = 60.0
"""Longer than any leader waits, who gives an epoch up by himself: only a last resort."""


class Capture:
    """Puts the parts of a member's snapshot together, from the threads that have them."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._changed = threading.Condition()
        self._epoch = -1
        self._slices: dict[int, SliceSnapshot] = {}
        self._queue: QueueState | str | None = None
        self._given_up: set[int] = set()
        self._all_given_up = False

    def begin(self, epoch: int) -> None:
        with self._changed:
            self._epoch, self._slices, self._queue = epoch, {}, None

    def slice(self, epoch: int, lane: int, snapshot: SliceSnapshot) -> None:
        with self._changed:
            if epoch == self._epoch:
                self._slices[lane] = snapshot
                self._changed.notify_all()

    def queue(self, epoch: int, state: QueueState | str) -> None:
        with self._changed:
            if epoch == self._epoch:
                self._queue = state
                self._changed.notify_all()

    def give_up(self, epoch: int) -> None:
        with self._changed:
            self._given_up = {one for one in self._given_up if one >= self._epoch} | {epoch}
            self._changed.notify_all()

    def give_up_all(self) -> None:
        with self._changed:
            self._all_given_up = True
            self._changed.notify_all()

    def wait(self, epoch: int) -> tuple[dict[int, SliceSnapshot], QueueState]:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._all_given_up
                    or epoch in self._given_up
                    or isinstance(self._queue, str)
                    or (self._queue is not None and len(self._slices) == self._lanes)
                ),
                CAPTURE_SECONDS_MAX,
            )
            if isinstance(self._queue, QueueState) and len(self._slices) == self._lanes:
                return dict(self._slices), self._queue
            missing = [lane for lane in range(self._lanes) if lane not in self._slices]
            raise CommitFailedError(
                f"epoch {epoch} was not captured: "
                + (
                    self._queue
                    if isinstance(self._queue, str)
                    else f"no barrier from lanes {missing}"
                    if missing
                    else "not all barriers came to the queue"
                )
            )


class MemberParticipant:
    """The member's snapshot, whose queue is synced before it, and whose capture can be given up."""

    def __init__(
        self, snapshot: SnapshotParticipant, give_up: Callable[[int], None], log: QueueLog
    ) -> None:
        self.name = snapshot.name
        self._snapshot = snapshot
        self._give_up = give_up
        self._log = log

    def capture(self, barrier: Barrier) -> int | None:
        return self._snapshot.capture(barrier)

    def prepare(self, epoch: int) -> None:
        self._log.sync()
        self._snapshot.prepare(epoch)

    def give_up(self, epoch: int) -> None:
        self._give_up(epoch)
        self._snapshot.give_up(epoch)

    def commit(self, epoch: int) -> None:
        self._snapshot.commit(epoch)

    def abort(self, epoch: int) -> None:
        self._give_up(epoch)
        self._snapshot.abort(epoch)

    def in_doubt(self) -> list[int]:
        return self._snapshot.in_doubt()
