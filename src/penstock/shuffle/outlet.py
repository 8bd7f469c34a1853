"""Where a consumer draws from a shuffle: committed epochs, and what lies between two of them.

A consumer keeps its own place, an epoch's number. It waits for later ones, reads what every member
holds between the two, and says when it is done. If the shuffle fails, it is begun anew from here;
the consumer notices nothing but the time it takes.
"""

from __future__ import annotations

import functools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.checksum import RunningChecksum
from penstock.errors import CorruptStorageError, PenstockError
from penstock.frontier import encode_chunks
from penstock.logs import about
from penstock.shuffle.plan import make_plan
from penstock.shuffle.resume import NOTHING, SNAPSHOTS, Epoch, load_record
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.target import Target
from penstock.shuffle.upkeep import DeadProducers, Restarts
from penstock.snapshot import SnapshotStore
from penstock.snapshot.errors import MissingSnapshotError
from penstock.threads import Pool

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.running import Shuffle
    from penstock.shuffle.serving import Served

_SNAPSHOT_TRIES: Final = 3
_FINGERPRINTS_KEPT: Final = 8
"""A batch asks for those of its two ends again and again."""

_LOG: Final = logging.getLogger("penstock.shuffle")


@dataclass(frozen=True, slots=True)
class Share:
    """What one member holds, for whoever reads it, in whatever process."""

    member: int
    folder: str
    generation: int
    """Of the queue: another one may be begun in the folder."""
    lsn: int
    """Up to here everything is durable, and complete for the epochs that are read."""
    vnodes: tuple[int, ...]
    served: Served | None = None
    """For readers on other machines. None: there are none."""


class EpochGoneError(CorruptStorageError):
    """The feed's folder does not have an epoch any more that the consumer wants to read."""


class Outlet:
    """From `open` to `close`. One thread at a time."""

    def __init__(self, shuffle: Shuffle, store: ReadableStore, feed: Feed) -> None:
        self._shuffle = shuffle
        self._store = store
        self._plan = make_plan(feed, store)
        self._epochs: dict[int, Epoch] = {0: NOTHING}
        self._log = about(_LOG, feed=feed.name)
        self._is_open = False
        self._consumed = 0
        self._restarts = Restarts(shuffle.watch)
        shuffle.watch.consumer = "spark"
        self._dead_producers = DeadProducers(store)
        self._finding = Pool(1, "target")
        self._target: Future[Target] | None = None

    def wait_epoch(self, after: int, seconds: float) -> Epoch | None:
        """The newest epoch, once it is above this one. None after the time given, about."""
        self._dead_producers.look()
        self._open()
        try:
            newest = self._shuffle.session.wait_epoch(after, seconds, hurry=True)
        except MemberLostError as error:
            self._failed(error)
            return None
        except PenstockError as error:
            self._shuffle.watch.failed(str(error))  # no restart mends it, and who watches is told
            raise
        if newest is not None:
            self._epochs[newest.number] = newest
            self._restarts.epoch_came()
        return newest

    def newest(self) -> Epoch:
        """The newest epoch of all."""
        self._open()
        newest = self._shuffle.session.newest
        return self._epochs.setdefault(newest.number, newest)

    def numbers(self, after: int) -> list[int]:
        """Of the epochs behind this one that are known, ascending."""
        self._open()
        for epoch in self._shuffle.session.epochs(after):
            self._epochs.setdefault(epoch.number, epoch)
        return sorted(number for number in self._epochs if number > after)

    def epoch(self, number: int) -> Epoch:
        """An epoch that the consumer was told of, by this process or an earlier one."""
        if number not in self._epochs:
            try:
                record = load_record(self._shuffle.place, number)
            except MissingSnapshotError as error:
                raise EpochGoneError(
                    f"{self._shuffle.folder} does not have epoch {number}, which is to be read "
                    "from: it is not the folder it was, or a consumer went on elsewhere. Begin "
                    "with a new checkpoint: all documents are read again then"
                ) from error
            self._epochs[number] = Epoch(number, record.frontier)
        return self._epochs[number]

    def shares(self) -> list[Share]:
        """Of all members, up to the newest epoch. What lies between two older ones is in them: a
        reader tells by the epochs' frontiers."""
        while True:
            self._open()
            try:
                self._shuffle.session.check()  # what members of a session that failed serve is gone
                return [self._share(member) for member in self._shuffle.members]
            except MemberLostError as error:
                self._failed(error)

    def _share(self, member: int) -> Share:
        snapshots = SnapshotStore(self._shuffle.place.within(SNAPSHOTS), member)
        for _ in range(_SNAPSHOT_TRIES):
            number = self.newest().number
            try:
                attributes = cast("dict[str, Any]", snapshots.load(number).attributes)
            except MissingSnapshotError:
                continue  # so many newer ones were committed meanwhile
            return Share(
                member,
                str(self._shuffle.queue_folder(member)),
                int(str(attributes["generation"]), 16),
                attributes["lsn"],
                self._shuffle.assignment.vnodes_of(member),
                self._shuffle.served(member),
            )
        raise EpochGoneError(f"member {member} has no snapshot of epoch {number}, the newest")

    def consumed(self, number: int) -> None:
        """The consumer is done with everything up to this epoch, and will not ask for it again."""
        self._consumed = max(self._consumed, number)
        self._epochs = {one: epoch for one, epoch in self._epochs.items() if one >= number}
        self._open()
        try:
            self._shuffle.session.consumed(self._consumed)
        except MemberLostError as error:
            self._failed(error)

    def set_target(self) -> None:
        """Everything that is in the journals now is wanted, for `has_reached`. To find out what
        that is takes a while, in which members read, and the consumer gets its first epochs."""
        self._open()
        self._store.recover_if_possible()
        self._target = self._finding.submit(Target, self._store, self._plan)

    @property
    def has_target(self) -> bool:
        return self._target is not None

    def has_reached(self, epoch: Epoch) -> bool:
        """Whether everything that was there at `set_target` is known to be in this epoch."""
        if self._target is None:
            return True
        return self._target.done() and self._target.result().is_reached(epoch.frontier)

    def figures(self) -> dict[str, Any]:
        """For Spark's progress: rows of the journals that were not read yet, the watermark as
        seconds, open transactions, and the kind of the first stall."""
        state = self._shuffle.watch.last
        stalls = [] if state is None else [wait.kind for wait in state.waits if wait.is_stall]
        return {
            "rows_behind": self._shuffle.session.rows_behind if self._is_open else 0,
            "watermark": None if state is None else state.watermark.clock,
            "open_transactions": 0 if state is None else state.transactions.count,
            "stall": stalls[0] if stalls else None,
        }

    def close(self) -> None:
        self._finding.close()
        self._is_open = False
        self._shuffle.close()

    def _open(self) -> None:
        while not self._is_open:
            try:
                self._shuffle.restart()
                # Perhaps the last session ended before it had this on record.
                self._shuffle.session.consumed(self._consumed)
                self._is_open = True
            except MemberLostError as error:
                self._failed(error)

    def _failed(self, error: MemberLostError) -> None:
        self._is_open = False
        pause = self._restarts.after(error)
        text = "%s; all members begin anew after the newest epoch"
        self._log.warning(text, error, extra={"member": error.member})
        time.sleep(pause)


@functools.lru_cache(maxsize=_FINGERPRINTS_KEPT)
def fingerprint(epoch: Epoch) -> str:
    """Of what an epoch stands for: whoever comes back with its number means the same one."""
    running = RunningChecksum()
    for chunk in encode_chunks(epoch.frontier):
        running.update(chunk)
    return f"{running.intdigest():016x}"
