"""A producer's folder: what makes its transactions true.

    alive       locked as long as the producer's process lives; names it
    touched     the journals of the open transaction, a line each
    decision    a transaction that is committed, until it is acknowledged everywhere
    completed   the last transaction that is acknowledged everywhere
    settled     nothing is in flight any more

The folder's name is the fence: the owner reaches it by its path under `producers/`. Moved to
`retired/`, it can be finished by others, and the owner can neither append nor decide.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.disk import sync_folder, write_all
from penstock.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    CorruptStorageError,
    LocalProtocolError,
)
from penstock.ids import Producer
from penstock.journal.errors import ProducerFencedError
from penstock.journal.file.aborts import find_abort
from penstock.journal.file.durable import locked, try_lock, write_file
from penstock.journal.file.forks import let_go_at_fork
from penstock.journal.file.sealed import sealed, unsealed
from penstock.journal.store import Decision, ProducerLedger, ProducerRecord, Touch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEDGER_FOLDERS: Final = ("producers", "retired")

SETTLED_KEPT_S: Final = 3_600
"""A reader that takes a cut must still find producers that ended meanwhile; a cut takes seconds."""


class FileLedger(ProducerLedger):
    def __init__(self, root: Path, producer: Producer, alive_descriptor: int = -1) -> None:
        self._root = root
        self.producer = producer
        self._folder = root / "producers" / str(producer)
        self._retired = root / "retired" / str(producer)
        self._alive_descriptor = alive_descriptor
        self._is_parents = self._is_settled_here = False
        if alive_descriptor >= 0:
            let_go_at_fork(self)

    def let_go_after_fork(self) -> None:
        self._is_parents = True
        if self._alive_descriptor >= 0:
            os.close(self._alive_descriptor)
            self._alive_descriptor = -1

    @classmethod
    def register(cls, root: Path, name: str | None) -> FileLedger:
        """A new producer. Its folder appears whole, with `alive` already locked."""
        producer = Producer.random()
        folder = root / "producers" / f".{producer}"
        folder.mkdir()
        who = {"name": name, "pid": os.getpid(), "host": socket.gethostname(), "at": time.time()}
        descriptor = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o644)
        try_lock(descriptor)
        write_all(descriptor, json.dumps(who).encode())
        os.fsync(descriptor)
        write_file(folder / "touched", b"")
        sync_folder(folder)
        folder.rename(root / "producers" / str(producer))
        sync_folder(root / "producers")
        return cls(root, producer, descriptor)

    # The owner's side: always by the path under `producers/`, which a fence takes away.

    def check_open(self) -> None:
        if self._is_parents:
            raise LocalProtocolError(
                f"producer {self.producer} belongs to the process that this one was forked from; "
                "open a producer here"
            )
        # Who settles a producer may go on until it is forgotten: from then on journals do not know
        # it, and an acknowledgement would be taken for a commit of its own.
        if not (self._retired if self._is_settled_here else self._folder).exists():
            raise self._fenced()

    def _fenced(self) -> ProducerFencedError:
        with contextlib.suppress(CorruptStorageError):
            noted = find_abort(self._root, self.producer)
            if noted is not None:
                moment = datetime.datetime.fromtimestamp(noted.at, datetime.UTC)
                by = f"{noted.by} at {moment:%Y-%m-%d %H:%M:%S} UTC"
                return ProducerFencedError(str(self.producer), by, noted.outcome)
        return ProducerFencedError(str(self.producer))

    def touch(self, touch: Touch) -> None:
        self.check_open()
        line = json.dumps([touch.journal, touch.offset, touch.last_commit]) + "\n"
        try:
            # Not synced: it only has to outlive the process. After a power cut an open span
            # without a touch is never seen, and closed by who aborts it by hand.
            descriptor = os.open(self._folder / "touched", os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            raise self._fenced() from None
        try:
            write_all(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def decide(self, decision: Decision) -> None:
        if self._is_parents:
            self.check_open()
        touches = [[touch.journal, touch.offset, touch.last_commit] for touch in decision.touches]
        data = sealed({"clock": decision.clock, "touches": touches})
        try:
            write_file(self._folder / "decision.new", data)
            with self._deciding(self._folder):
                # Under the lock that `confirm` takes: a fence comes wholly before, and then the
                # path is gone, or wholly after, and then the decision is found.
                self._folder.stat()
                (self._folder / "decision.new").rename(self._folder / "decision")
        except FileNotFoundError:
            raise CommitFailedError(str(self._fenced())) from None
        except OSError as error:
            raise CommitFailedError(
                f"the commit could not be recorded: {error.strerror}. The transaction is rolled "
                "back; mend the disk and run it again"
            ) from error
        try:
            sync_folder(self._folder)
        except FileNotFoundError:
            # Fenced in between, with the decision in the folder: who fenced will follow it.
            sync_folder(self._retired)
        except OSError as error:
            raise CommitStateUnknownError(
                f"the commit was recorded, but the disk would not confirm it: {error.strerror}. "
                "Mend the disk, call recover(), and see whether the documents are there"
            ) from error

    @contextlib.contextmanager
    def _deciding(self, folder: Path) -> Iterator[None]:
        descriptor = os.open(folder / "touched", os.O_RDWR)
        try:
            with locked(descriptor):
                yield
        finally:
            os.close(descriptor)

    # The settler's side

    def confirm(self) -> None:
        self._is_settled_here = True
        with contextlib.suppress(FileNotFoundError), self._deciding(self._retired):
            sync_folder(self._retired)

    # Both sides: wherever the folder is now.

    def complete(self) -> None:
        if self._is_parents:
            return
        folder = self._place()
        with contextlib.suppress(FileNotFoundError):
            (folder / "decision").rename(folder / "completed")

    def clear(self) -> None:
        if self._is_parents:
            return
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._place() / "touched", 0)

    def retire(self) -> None:
        """Idempotent, also when somebody else does the same just now."""
        if self._is_parents:
            return
        with contextlib.suppress(FileNotFoundError):
            self._folder.rename(self._retired)
            # The new place first: a power cut in between must not find it in neither.
            sync_folder(self._root / "retired")
            sync_folder(self._root / "producers")
        if self._alive_descriptor >= 0:
            os.close(self._alive_descriptor)
            self._alive_descriptor = -1

    def settle(self) -> None:
        if self._is_parents:
            return
        write_file(self._place() / "settled", b"")

    def record(self) -> ProducerRecord:
        for _ in range(3):  # the folder moves at most once, from producers/ to retired/
            retired = not self._folder.exists()
            folder = self._retired if retired else self._folder
            try:
                # Touches before completed: see cut.py for why the order matters.
                touches = read_touches(folder / "touched")
                completed = read_sealed(folder / "completed")
                decision = read_sealed(folder / "decision")
                name = _name_in(folder / "alive")
                settled = (folder / "settled").exists()
            except FileNotFoundError:
                continue
            return ProducerRecord(
                producer=self.producer,
                name=name,
                retired=retired,
                completed=0 if completed is None else completed["clock"],
                decision=None
                if decision is None
                else Decision(
                    decision["clock"], tuple(Touch(*touch) for touch in decision["touches"])
                ),
                touches=touches,
                settled=settled,
                is_carried_out=completed is not None
                and not {tuple(touch) for touch in completed["touches"]}.isdisjoint(
                    (touch.journal, touch.offset, touch.last_commit) for touch in touches
                ),
            )
        raise ProducerFencedError(str(self.producer))

    @property
    def is_open_here(self) -> bool:
        """This process owns it, and holds the lock that says so."""
        return self._alive_descriptor >= 0

    def is_settled(self) -> bool:
        return (self._retired / "settled").exists()

    def is_dead(self) -> bool:
        """Whether the owner's process is gone: the kernel lets go of a dead process's locks."""
        try:
            descriptor = os.open(self._folder / "alive", os.O_RDWR)
        except FileNotFoundError:
            # Without it, a folder is what a power cut left of a producer that was being made.
            return self._folder.exists()
        try:
            return try_lock(descriptor)
        finally:
            os.close(descriptor)

    def forget_if_old(self, now_s: float) -> None:
        with contextlib.suppress(FileNotFoundError):
            if now_s - (self._retired / "settled").stat().st_mtime > SETTLED_KEPT_S:
                # Out of sight first: another recovery must not find it half gone.
                hidden = self._retired.with_name(f".{self.producer}")
                self._retired.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)

    def _place(self) -> Path:
        """Where the folder is now. If a fence moves it just then, the one who fenced finishes."""
        return self._folder if self._folder.exists() else self._retired


def list_ledgers(root: Path) -> list[FileLedger]:
    """Every producer not yet forgotten. `producers` is listed first: one that is retired between
    the two listings is then in at least one of them."""
    found = {producer for place in LEDGER_FOLDERS for producer in ledgers_in(root, place)}
    return [FileLedger(root, producer) for producer in sorted(found)]


def registered_producers(root: Path) -> set[int]:
    """Every producer not yet forgotten: any other can write no more. Listed in the same order."""
    return {producer.int64 for place in LEDGER_FOLDERS for producer in ledgers_in(root, place)}


def ledgers_in(root: Path, place: str) -> list[Producer]:
    """The producers whose folder is there. What is being made, or removed, has another name."""
    with os.scandir(root / place) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return [Producer.from_hex(name) for name in names]


def read_touches(path: Path) -> tuple[Touch, ...]:
    """The journals of an open transaction. A last line that is not whole was never acted upon."""
    return tuple(
        Touch(*json.loads(line))
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    )


def _name_in(alive: Path) -> str | None:
    try:
        name = json.loads(alive.read_text())["name"]
    except (ValueError, KeyError):
        return None  # written in part, when the power failed
    return None if name is None else str(name)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """A decision, under whichever of its names, or None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        return None
    return unsealed(f"{path.parent.name}/{path.name}", data)
