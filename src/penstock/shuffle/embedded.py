"""A shuffle in one process: the Session and all members, over the local carrier.

    folder/cluster      decisions, lease, snapshots
    folder/member-1     the queue of member 1, and so on

Whatever fails, all of it begins anew from the newest committed epoch; with a queue lost, from what
the consumer is done with.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.cluster.keyvalue import MemoryKeyValue
from penstock.errors import ConfigurationError
from penstock.routing import assign
from penstock.shuffle import control
from penstock.shuffle.member import Member, Settings, Setup
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.resume import SNAPSHOTS, find_resume
from penstock.shuffle.session.actor import EPOCH_SECONDS, Session
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage
from penstock.transport.security import Security, Token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from penstock.journal.store import JournalStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.queue.reader import QueueBatch
    from penstock.shuffle.resume import Epoch

MEMBERS_MAX: Final = 256
"""As many as there are vnodes."""

_LOG: Final = logging.getLogger("penstock.shuffle")


class EmbeddedShuffle:
    """From `start` to `close`; a context."""

    def __init__(
        self,
        feed: Feed,
        store: JournalStore,
        folder: Path,
        *,
        members: int = 2,
        settings: Settings | None = None,
        epoch_seconds: float = EPOCH_SECONDS,
    ) -> None:
        if not 1 <= members <= MEMBERS_MAX:
            raise ConfigurationError(f"a shuffle has 1 to {MEMBERS_MAX} members, not {members}")
        self._store = store
        self._folder = folder
        self._place = Storage.open(folder / "cluster")
        self._setup = Setup(
            feed,
            assign(range(1, members + 1)),
            settings=replace(settings or Settings(), carrier="local"),
        )
        self._epoch_seconds = epoch_seconds
        self._members: list[Member] = []
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            raise ConfigurationError("the shuffle is not started")
        return self._session

    @property
    def members(self) -> tuple[int, ...]:
        return self._setup.assignment.members

    def start(self) -> EmbeddedShuffle:
        try:
            self._open(queues_lost=False)
        except QueueLostError as error:
            _LOG.warning("queues are built anew: %s", error)
            self._close_parts()
            self._recover()
        return self

    def restart(self) -> None:
        """After a failure: everything begins anew from the newest epoch."""
        self._close_parts()
        self.start()

    def read(self, member: int, start: Epoch, end: Epoch) -> Iterator[QueueBatch]:
        """What a member got between two epochs, in queue order."""
        snapshot = SnapshotStore(self._place.within(SNAPSHOTS), member).load(end.number)
        lsn = snapshot.attributes["lsn"]
        with QueueReader(self._queue_folder(member)) as reader:
            yield from reader.read(start.frontier, end.frontier, int(lsn))  # type: ignore[arg-type]

    def close(self) -> None:
        self._close_parts()

    def __enter__(self) -> EmbeddedShuffle:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _recover(self) -> None:
        """Fetches what was lost, in a session of its own, and goes on with its epoch."""
        newest = self._open(queues_lost=True)
        if self.session.recovering:
            while self.session.wait_epoch(newest, 1.0) is None:
                pass
            self._close_parts()
            self._open(queues_lost=False)

    def _open(self, *, queues_lost: bool) -> int:
        resume = find_resume(self._place, queues_lost=queues_lost)
        setup = replace(self._setup, epoch=resume.epoch, recovering=resume.recovering)
        token = Token.generate()  # and no TLS: nothing leaves the process
        slots = MemoryKeyValue(control.SESSION)
        self._session = Session(
            setup,
            self._store,
            Security(control.SESSION, token, None),
            slots,
            place=self._place,
            resume=resume,
            epoch_seconds=self._epoch_seconds,
        )
        for member in self.members:
            self._members.append(
                Member(
                    setup,
                    self._store,
                    Security(member, token, None),
                    slots.view(member),
                    place=self._place,
                    folder=self._queue_folder(member),
                )
            )
        for each in self._members:
            each.start()
        self._session.start()
        return resume.newest.number

    def _queue_folder(self, member: int) -> Path:
        return self._folder / f"member-{member}"

    def _close_parts(self) -> None:
        with contextlib.ExitStack() as stack:
            if self._session is not None:
                stack.callback(self._session.close)
            for each in self._members:
                stack.callback(each.close)
            for each in self._members:
                stack.callback(each.stop)
            if self._session is not None:
                stack.callback(self._session.stop)
        self._members, self._session = [], None
