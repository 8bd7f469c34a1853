"""A shuffle on this machine, from start to close, wherever its members run.

    folder/cluster      decisions, lease, snapshots, assignments
    folder/member-1     the queue of member 1, and so on
    folder/lock         held by the processes that work in here
    folder/state.json   what it is doing, for whoever watches

Whatever fails, all of it begins anew from the newest committed epoch; with a queue lost, from what
the consumer is done with. With another number of members than before, vnodes change hands first.
"""

from __future__ import annotations

import abc
import logging
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from penstock.disk import make_folder
from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.locks import describe_holder, try_lock
from penstock.logs import about
from penstock.routing import assign
from penstock.shuffle import handover
from penstock.shuffle.assigned import settle_assignment
from penstock.shuffle.member import Settings, Setup
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.resume import SNAPSHOTS, find_resume
from penstock.shuffle.watching import Watch
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from penstock.journal.store import ReadableStore
    from penstock.routing import Assignment
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.queue.reader import QueueBatch
    from penstock.shuffle.resume import Epoch, Resume
    from penstock.shuffle.serving import Served
    from penstock.shuffle.session.actor import Session

MEMBERS_MAX: Final = 256
"""As many as there are vnodes."""
LOCK_SECONDS_MAX: Final = 10.0
"""Processes of a shuffle that was killed notice within one; on a busy machine within a few."""
_LOCK_LOOK_SECONDS: Final = 0.05

_LOG: Final = logging.getLogger("penstock.shuffle")


class FolderInUseError(ConfigurationError):
    """Another shuffle works in the folder. Stop it, or choose another folder."""


def lock_folder(folder: Path, seconds_max: float) -> int:
    """Locks it for as long as the descriptor is open, here or in a process that has it too."""
    make_folder(folder)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + seconds_max
    while not try_lock(lock):
        if time.monotonic() >= deadline:
            holder = describe_holder(lock)
            os.close(lock)
            raise FolderInUseError(
                f"another shuffle works in {folder}: {holder}; stop it, or choose another folder"
            )
        time.sleep(_LOCK_LOOK_SECONDS)
    return lock


class Shuffle(abc.ABC):
    """From `start` to `close`; a context. What a form of it has to do is to open a session with
    its members, and to close them."""

    on_spark: ClassVar[bool] = False
    """Members are tasks of Spark, and wait for its slots."""

    def __init__(
        self,
        feed: Feed,
        store: ReadableStore,
        folder: Path,
        *,
        members: int,
        settings: Settings | None,
        epoch_seconds: float,
    ) -> None:
        if not 1 <= members <= MEMBERS_MAX:
            raise ConfigurationError(f"a shuffle has 1 to {MEMBERS_MAX} members, not {members}")
        self._log = about(_LOG, feed=feed.name)
        self._store = store
        self.folder: Final = folder
        self._place = Storage.open(folder / "cluster")
        self._setup = Setup(feed, assign(range(1, members + 1)), settings=settings or Settings())
        self._epoch_seconds = epoch_seconds
        self._session: Session | None = None
        self._readers: dict[int, QueueReader] = {}
        self._lock: int | None = None
        self.watch: Final = Watch(
            folder,
            feed.name,
            store.url,
            lambda: self._session,
            lambda: self._setup.assignment,
            on_spark=self.on_spark,
        )

    @property
    def session(self) -> Session:
        if self._session is None:
            raise ConfigurationError("the shuffle is not started")
        return self._session

    @property
    def members(self) -> tuple[int, ...]:
        return self._setup.assignment.members

    @property
    def place(self) -> Storage:
        """Where decisions and snapshots are."""
        return self._place

    @property
    def assignment(self) -> Assignment:
        return self._setup.assignment

    def claim(self) -> None:
        """Takes the folder, until `close`: nobody else changes what is in it. `start` does so too,
        but whoever looks into it before has to be sure."""
        if self._lock is not None:
            return
        self._lock = lock_folder(self.folder, LOCK_SECONDS_MAX)

    def start(self) -> Self:
        if self._session is not None:
            raise LocalProtocolError("this shuffle runs; to begin anew after a failure, restart it")
        self.claim()
        self.watch.opening()
        self.watch.start()
        try:
            self._begin()
        except BaseException as error:
            if isinstance(error, Exception):
                self.watch.failed(str(error))
            self.close()
            raise
        self.watch.opened()
        return self

    def restart(self) -> None:
        """After a failure: everything begins anew from the newest epoch."""
        self._close_all_parts()
        self.start()

    def read(self, member: int, start: Epoch, end: Epoch) -> Iterator[QueueBatch]:
        """What a member got between two epochs, in queue order. Their frontiers say what that is,
        and the newest epoch how far to look: the queue of an older one may be lost."""
        newest = self.session.newest.number
        snapshot = SnapshotStore(self._place.within(SNAPSHOTS), member).load(newest)
        lsn = cast("dict[str, Any]", snapshot.attributes)["lsn"]
        if member not in self._readers:  # it remembers blocks, until the queue is opened anew
            self._readers[member] = QueueReader(self.queue_folder(member))
        yield from self._readers[member].read(start.frontier, end.frontier, lsn)

    def close(self) -> None:
        self._close_all_parts()
        self.watch.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _open_parts(self, setup: Setup, resume: Resume) -> None:
        """Starts a Session and its members. QueueLostError if a member's queue is not what the
        epoch left."""

    @abc.abstractmethod
    def _close_parts(self) -> None:
        """Ends what is open of them, however far it came."""

    def queue_folder(self, member: int) -> Path:
        return self.folder / f"member-{member}"

    def served(self, member: int) -> Served | None:  # noqa: ARG002 - not by members on this machine
        """Where the member serves its queue to readers on other machines."""
        return None

    def _begin(self) -> None:
        resume = find_resume(self._place)
        assigned = settle_assignment(self._place, self.members, resume.newest.number)
        self._setup = replace(self._setup, assignment=assigned.assignment)
        handover.reached(handover.Step.ASSIGNED)
        before = assigned.before
        try:
            if before is None and 0 < resume.newest.number <= assigned.after:
                raise QueueLostError(str(self.folder), 0, "whose they were is not on record")
            if before is None or before.owners == assigned.assignment.owners:
                self._open(resume)
            else:
                self._hand_over(resume, before)
        except QueueLostError as error:
            self._log.warning("queues are built anew: %s", error)
            self._close_all_parts()
            self._rebuild()
        self._drop_queues_of_others()
        handover.reached(handover.Step.DROPPED)

    def _hand_over(self, resume: Resume, before: Assignment) -> None:
        """What is still needed of vnodes that move goes to the queues of their new members. There
        is an epoch of that before anything else: until then, the old queues are all there is."""
        self._log.info("members were %s, and are %s now", before.members, self.members)
        queues = {member: str(self.queue_folder(member)) for member in before.members}
        self._open(resume, handover.Handover(before, queues))
        self._await_epoch(resume)
        handover.reached(handover.Step.COMMITTED)

    def _rebuild(self) -> None:
        """Fetches what was lost, in a session of its own, and goes on with its epoch. If nothing
        was, there is an epoch all the same: the newest one is always one with queues. If this is
        cut short, the epoch's queues are still lost: those that were begun are others."""
        self.watch.recovering()
        resume = find_resume(self._place, queues_lost=True)
        self._open(resume)
        self._await_epoch(resume)
        if self.session.recovering:
            self._close_all_parts()
            self._open(find_resume(self._place))

    def _await_epoch(self, resume: Resume) -> None:
        """Leads one, whether there is something new or not."""
        self.session.begin_epoch()
        while self.session.wait_epoch(resume.newest.number, 1.0) is None:
            pass

    def _drop_queues_of_others(self) -> None:
        for folder in self.folder.glob("member-*"):
            if folder.name not in {self.queue_folder(member).name for member in self.members}:
                shutil.rmtree(folder, ignore_errors=True)

    def _open(self, resume: Resume, how: handover.Handover | None = None) -> None:
        setup = replace(self._setup, epoch=resume.epoch, recovering=resume.recovering, handover=how)
        self._open_parts(setup, resume)

    def _close_all_parts(self) -> None:
        if self._session is not None:
            self.watch.session_ends()
        for reader in self._readers.values():
            reader.close()
        self._readers = {}
        self._close_parts()
