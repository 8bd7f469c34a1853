"""Running a shuffle as its consumer: reads every committed epoch, counts, and goes on after
failures.

How far it came stands in a file of the folder, written after an epoch is read and before the
Session is told: so a next run goes on where this one stopped, and reads nothing twice.
"""

from __future__ import annotations

import abc
import json
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.disk import make_folder, sync_folder, write_new_file
from penstock.errors import ConfigurationError, PenstockError
from penstock.sealed import sealed_json, unsealed_json
from penstock.shuffle.feed_sources import described
from penstock.shuffle.parcels import fields_of
from penstock.shuffle.resume import NOTHING, Epoch, find_resume, load_record
from penstock.shuffle.session.actor import MemberLostError
from penstock.shuffle.upkeep import DeadProducers, Restarts
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.running import Shuffle
    from penstock.shuffle.session.actor import Session
    from penstock.shuffle.target import Target
    from penstock.shuffle.verify import Delivered
    from penstock.watch import FeedState

LOOK_SECONDS: Final = 0.2
LAST_EPOCH_SECONDS_MAX: Final = 15.0
POSITION_NAME: Final = "consumer.json"
_FORMAT: Final = 1
_OLD_MEMBERS: Final = ("format", "of", "epoch", "holdings")


@dataclass(slots=True)
class Holding:
    """What a member has got."""

    documents: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Position:
    """How far the consumer came."""

    of: Mapping[str, Any]
    """What is shuffled: the store, the feed and the number of members."""
    folder: Path
    last: Epoch = NOTHING
    holdings: dict[int, Holding] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, store: ReadableStore, feed: Feed, members: int) -> Position:
        """Of the run before, or a first one. A folder of another shuffle is refused. The feed is
        the one that was given, before it was resolved."""
        of = {
            "store": store.url,
            "members": members,
            "bindings": described(feed),
        }
        position = cls(of, folder, holdings={member + 1: Holding() for member in range(members)})
        path = folder / POSITION_NAME
        if not path.exists():
            consumed = find_resume(Storage.open(folder / "cluster")).record.consumed.number
            if consumed:
                raise ConfigurationError(
                    f"another consumer has read epochs up to {consumed} in {folder}, and what it "
                    "read is gone from there. Use another --folder"
                )
            return position
        try:
            found = unsealed_json(str(path), path.read_bytes(), _OLD_MEMBERS)
            if found["format"] != _FORMAT:
                raise ValueError(f"its format is {found['format']}")
            for name, value in of.items():
                if found["of"][name] != value:
                    raise ConfigurationError(
                        f"{folder} belongs to a shuffle whose {name} differ: there "
                        f"{_short(found['of'][name])}, now {_short(value)}. Use another --folder"
                    )
            number = found["epoch"]
            frontier = load_record(Storage.open(folder / "cluster"), number).frontier
            position.last = Epoch(number, frontier)
            for member, holding in found["holdings"].items():
                position.holdings[int(member)] = Holding(**holding)
        except ConfigurationError:
            raise
        except (ValueError, KeyError, TypeError, PenstockError) as error:
            raise ConfigurationError(
                f"{path} cannot be used: {error}. Use another --folder, or remove this one: all "
                "documents are shuffled again then"
            ) from error
        return position

    def save(self) -> None:
        """All of it or nothing: the file is replaced."""
        text = {
            "format": _FORMAT,
            "of": self.of,
            "epoch": self.last.number,
            "holdings": {str(member): asdict(each) for member, each in self.holdings.items()},
        }
        make_folder(self.folder)
        temporary = self.folder / f".{POSITION_NAME}"
        temporary.unlink(missing_ok=True)
        write_new_file(temporary, [sealed_json(text)])
        temporary.rename(self.folder / POSITION_NAME)
        sync_folder(self.folder)

    @property
    def documents(self) -> int:
        return sum(each.documents for each in self.holdings.values())


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


class Watcher(Protocol):
    """Who is shown how it goes."""

    def say(self, text: str) -> None:
        """Something happened that is worth a line."""

    def show(self, run: Run) -> None:
        """Called often."""


class EpochRun(abc.ABC):
    """One run of a shuffle, to the end or until it is stopped: each committed epoch is taken once.
    What becomes of the documents is the affair of whoever takes them."""

    def __init__(self, shuffle: Shuffle, store: ReadableStore, *, follow: bool) -> None:
        self.state: FeedState | None = None
        """As it was a moment ago."""
        self.restarts = self.epochs = 0
        self.newest_seconds: float | None = None
        """When the newest epoch came, on the wall clock."""
        self.is_caught_up = False
        self.stopping = threading.Event()
        self._shuffle = shuffle
        self._restarts = Restarts(shuffle.watch)
        self._dead_producers = DeadProducers(store)
        self._follow = follow
        self._target: Target | None = None
        self._is_last_target = False

    @property
    @abc.abstractmethod
    def last(self) -> Epoch:
        """The one that was taken last, and durably so."""

    @abc.abstractmethod
    def _take(self, epoch: Epoch) -> None:
        """Takes what lies between the last epoch and this one, which is the last then."""

    @abc.abstractmethod
    def _show(self) -> None:
        """Called often."""

    @abc.abstractmethod
    def _say(self, text: str) -> None:
        """Something happened that is worth a line."""

    def run(self) -> None:
        """Until everything is read, or `stopping` is set. Closes the shuffle."""
        is_open = False
        try:
            while True:
                try:
                    if not is_open:
                        self._shuffle.restart()
                        is_open = True
                        # Perhaps the last session ended before it had this on record.
                        self._shuffle.session.consumed(self.last.number)
                    if self._step():
                        return
                except MemberLostError as error:
                    is_open = False
                    self._lost(error)
                    if self.stopping.is_set():
                        return
        finally:
            self._shuffle.close()

    def _step(self) -> bool:
        """Goes on for a moment. Whether that was the last."""
        self._dead_producers.look()
        session = self._shuffle.session
        epoch = session.wait_epoch(self.last.number, LOOK_SECONDS)
        self.state = self._shuffle.watch.last
        if epoch is not None:
            self._consume(epoch)
        self._show()
        if self.stopping.is_set():
            self._stop_in_order()
            return True
        if not self._follow:
            self.is_caught_up = self._look_whether_caught_up(session)
        return self.is_caught_up

    def _look_whether_caught_up(self, session: Session) -> bool:
        """Whether all is delivered that was in the journals when the run had delivered what was
        there at its begin: so it ends, however much is written meanwhile."""
        reached = self.last.frontier
        if self._target is None:
            self._target = session.target()
        if self._target.is_reached(reached) and not self._is_last_target:
            self._target, self._is_last_target = session.target(), True
        return self._target.is_reached(reached)

    def _consume(self, epoch: Epoch) -> None:
        self._take(epoch)
        self.epochs += 1
        self.newest_seconds = time.time()
        self._restarts.epoch_came()
        self._shuffle.session.consumed(epoch.number)

    def _stop_in_order(self) -> None:
        """With a last epoch, so that the next run begins where this one ends."""
        session = self._shuffle.session
        session.begin_epoch()
        deadline = time.monotonic() + LAST_EPOCH_SECONDS_MAX
        while time.monotonic() < deadline:
            epoch = session.wait_epoch(self.last.number, LOOK_SECONDS)
            if epoch is not None:
                self._consume(epoch)
                self._show()
                self.is_caught_up = session.target().is_reached(epoch.frontier)
                return
        self._say(
            f"there was no last epoch within {LAST_EPOCH_SECONDS_MAX:g} s; nothing is lost by that"
        )

    def _lost(self, error: MemberLostError) -> None:
        if self.stopping.is_set():
            self._say(f"stopped without a last epoch: {error}")
            return
        pause = self._restarts.after(error)
        self.restarts += 1
        self._say(f"{error}; all begin anew after epoch {self.last.number}")
        self.stopping.wait(pause)


class Run(EpochRun):
    """Counts what every member gets."""

    def __init__(
        self,
        shuffle: Shuffle,
        store: ReadableStore,
        position: Position,
        watcher: Watcher,
        *,
        follow: bool = False,
        delivered: Delivered | None = None,
    ) -> None:
        super().__init__(shuffle, store, follow=follow)
        self.position = position
        self._watcher = watcher
        self._delivered = delivered

    @property
    def last(self) -> Epoch:
        return self.position.last

    def _take(self, epoch: Epoch) -> None:
        position = self.position
        got = {member: Holding() for member in self._shuffle.members}
        for member, holding in got.items():
            for found in self._shuffle.read(member, position.last, epoch):
                holding.documents += found.batch.num_rows
                columns = found.batch.columns[len(fields_of(found.batch.schema)) :]
                holding.bytes += sum(column.nbytes for column in columns)
                if self._delivered is not None:
                    self._delivered.add(member, found)
        for member, holding in got.items():
            position.holdings[member].documents += holding.documents
            position.holdings[member].bytes += holding.bytes
        position.last = epoch
        position.save()

    def _show(self) -> None:
        self._watcher.show(self)

    def _say(self, text: str) -> None:
        self._watcher.say(text)
