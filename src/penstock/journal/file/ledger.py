"""A producer's folder: what makes its transactions true.

    alive       locked as long as the producer's process lives; names it
    touched     the journals of the open transaction, a line each
    decision    a transaction that is committed, until it is acknowledged everywhere
    completed   the last transaction that is acknowledged everywhere
    settled     nothing is in flight any more

The folder's name is the fence: the owner reaches it by its path under `producers/`. Moved to
`retired/`, it can be finished by others, and the owner can neither append nor decide.

All but `settled` are sealed. One that is damaged or missing in a folder that is there is told by
DamagedLedgerError, never passed over: what the producer has in flight is in the journals, too, and
recovery finds it there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.disk import explained, sync_folder, write_all
from penstock.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    CorruptStorageError,
    LocalProtocolError,
)
from penstock.ids import Producer
from penstock.journal.errors import DamagedLedgerError, LedgerMarks, ProducerFencedError
from penstock.journal.file.aborts import find_abort
from penstock.journal.file.durable import locked, try_lock, write_file
from penstock.journal.file.forks import let_go_at_fork
from penstock.journal.writable import Decision, ProducerLedger, ProducerRecord, Touch
from penstock.process import ProcessIdentity
from penstock.sealed import (
    DamagedFileError,
    sealed_json,
    sealed_line,
    unsealed_json,
    unsealed_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

LEDGER_FOLDERS: Final = ("producers", "retired")

SETTLED_KEPT_S: Final = 3_600
"""A reader that takes a cut must still find producers that ended meanwhile; a cut takes seconds."""

_OLD_ALIVE: Final = ("name", "pid", "host", "at")
_ALIVE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile("[0-9a-f]{12}")


class FileLedger(ProducerLedger):
    def __init__(self, root: Path, producer: Producer, alive_descriptor: int = -1) -> None:
        self._root = root
        self.producer = producer
        self._folder = root / "producers" / str(producer)
        self._retired = root / "retired" / str(producer)
        self._alive_descriptor = alive_descriptor
        self._owner = os.getpid() if alive_descriptor >= 0 else None
        self._was_let_go = False
        self._is_settled_here = False
        if alive_descriptor >= 0:
            let_go_at_fork(self)

    @property
    def _is_parents(self) -> bool:
        """A fork of C code tells nobody: there the process's number does."""
        return self._was_let_go or self._owner not in (None, os.getpid())

    def let_go_after_fork(self) -> None:
        self._was_let_go = True
        if self._alive_descriptor >= 0:
            os.close(self._alive_descriptor)
            self._alive_descriptor = -1

    @classmethod
    def register(cls, root: Path, name: str | None) -> FileLedger:
        """A new producer. Its folder appears whole, with `alive` already locked."""
        producer = Producer.random()
        folder = root / "producers" / f".{producer}"
        who = {"name": name, "host": socket.gethostname(), "at": time.time()}
        descriptor = -1
        try:
            with explained("make a producer in", folder):
                folder.mkdir()
                descriptor = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o644)
                try_lock(descriptor)
                write_all(descriptor, sealed_json(who | ProcessIdentity.own().as_json()))
                os.fsync(descriptor)
                write_file(folder / "touched", b"")
                sync_folder(folder)
                folder.rename(root / "producers" / str(producer))
                sync_folder(root / "producers")
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            raise
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
        line = sealed_line([touch.journal, touch.offset, touch.last_commit])
        path = self._folder / "touched"
        with explained("write", path):
            try:
                # Not synced: it only has to outlive the process. After a power cut an open span
                # without a touch is never seen, and closed by who aborts it by hand.
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                raise self._fenced() from None
            try:
                write_all(descriptor, line)
            finally:
                os.close(descriptor)

    def decide(self, decision: Decision) -> None:
        if self._is_parents:
            self.check_open()
        touches = [[touch.journal, touch.offset, touch.last_commit] for touch in decision.touches]
        data = sealed_line({"clock": decision.clock, "touches": touches})
        try:
            write_file(self._folder / "decision.new", data)
            with self._deciding(self._folder):
                # Under the lock that `confirm` takes: a fence comes wholly before, and then the
                # path is gone, or wholly after, and then the decision is found.
                self._folder.stat()
                with explained("write", self._folder / "decision"):
                    (self._folder / "decision.new").rename(self._folder / "decision")
        except FileNotFoundError:
            raise CommitFailedError(str(self._fenced())) from None
        except OSError as error:
            raise CommitFailedError(
                f"the commit could not be recorded: {error}. The transaction is rolled "
                "back; mend the disk and run it again"
            ) from error
        try:
            sync_folder(self._folder)
        except FileNotFoundError:
            # Fenced in between, with the decision in the folder: who fenced will follow it.
            sync_folder(self._retired)
        except OSError as error:
            raise CommitStateUnknownError(
                f"the commit was recorded, but the disk would not confirm it: {error}. "
                "Mend the disk, call recover(), and see whether the documents are there"
            ) from error

    @contextlib.contextmanager
    def _deciding(self, folder: Path) -> Iterator[None]:
        with explained("lock", folder / "touched"):
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
        with contextlib.suppress(FileNotFoundError), explained("write", folder / "completed"):
            (folder / "decision").rename(folder / "completed")

    def clear(self) -> None:
        if self._is_parents:
            return
        path = self._place() / "touched"
        with contextlib.suppress(FileNotFoundError), explained("empty", path):
            os.truncate(path, 0)

    def retire(self) -> None:
        """Idempotent, also when somebody else does the same just now."""
        if self._is_parents:
            return
        with contextlib.suppress(FileNotFoundError), explained("retire", self._folder):
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
        files = self._files()
        decision, completed, touches = files.decision, files.completed, files.touches
        damage = decision.damage or completed.damage
        if decision.value is None and not files.settled:
            damage = damage or touches.damage  # a decision has its touches in itself
        if damage is not None:
            raise self._damaged(damage, files)
        touched = touches.value or ()
        return ProducerRecord(
            producer=self.producer,
            name=None if files.alive.value is None else files.alive.value["name"],
            retired=files.retired,
            completed=0 if completed.value is None else completed.value.clock,
            decision=decision.value,
            touches=touched,
            settled=files.settled,
            is_carried_out=completed.value is not None
            and not set(completed.value.touches).isdisjoint(touched),
        )

    def name(self) -> str | None:
        files = self._files()
        if files.alive.damage is not None:
            raise self._damaged(files.alive.damage, files)
        return None if files.alive.value is None else files.alive.value["name"]

    def _files(self) -> LedgerFiles:
        for _ in range(3):  # the folder moves at most once, from producers/ to retired/
            retired = not self._folder.exists()
            with contextlib.suppress(FileNotFoundError):
                return read_ledger(self._retired if retired else self._folder, retired=retired)
        raise ProducerFencedError(str(self.producer))

    def _damaged(self, damage: DamagedFileError, files: LedgerFiles) -> DamagedLedgerError:
        return DamagedLedgerError(
            str(self.producer),
            damage.name,
            damage.reason,
            LedgerMarks(files.retired, files.decision.is_there, files.settled),
        )

    @property
    def is_open_here(self) -> bool:
        """This process owns it, and holds the lock that says so."""
        return self._alive_descriptor >= 0

    def is_settled(self) -> bool:
        return (self._retired / "settled").exists()

    def is_dead(self) -> bool:
        """Whether the owner's process is gone. The kernel lets go of a dead process's locks, unless
        a child has inherited the open file by a fork that Python does not know of: then the number
        and the start of the process tell."""
        try:
            descriptor = os.open(self._folder / "alive", os.O_RDWR)
        except FileNotFoundError:
            # Without it nothing says that anybody is alive: the owner is fenced, if it is.
            return self._folder.exists()
        try:
            if try_lock(descriptor):
                return True
            who = parse_alive("alive", os.pread(descriptor, _ALIVE_BYTES_MAX, 0))
        except DamagedFileError:
            return False
        finally:
            os.close(descriptor)
        return ProcessIdentity.from_json(who).is_surely_gone

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
    """The producers whose folder is there. What is being made or removed has another name, and what
    else lies there is not ours."""
    with os.scandir(root / place) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    return [Producer.from_hex(name) for name in names]


# Reading


@dataclass(frozen=True, slots=True)
class LedgerFile(Generic[T]):
    """One file of a ledger: what it says, or what is wrong with it; neither if it is not there."""

    value: T | None = None
    damage: DamagedFileError | None = None

    @property
    def is_there(self) -> bool:
        return self.value is not None or self.damage is not None


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    touches: LedgerFile[tuple[Touch, ...]]
    completed: LedgerFile[Decision]
    decision: LedgerFile[Decision]
    alive: LedgerFile[dict[str, Any]]
    settled: bool
    retired: bool


def read_ledger(folder: Path, *, retired: bool) -> LedgerFiles:
    """FileNotFoundError if the folder is not there."""
    # Touches before completed: see cut.py for why the order matters.
    touches = _read(
        folder / "touched", lambda name, data: parse_touches(name, data, may_grow=not retired)
    )
    completed = _read(folder / "completed", parse_decision)
    decision = _read(folder / "decision", parse_decision)
    alive = _read(folder / "alive", parse_alive)
    if not folder.exists():  # moved just now: what was missing may be there in its new place
        raise FileNotFoundError(str(folder))
    return LedgerFiles(
        _expected(touches, folder / "touched"),
        completed,
        decision,
        _expected(alive, folder / "alive"),
        (folder / "settled").exists(),
        retired,
    )


def _read(path: Path, parse: Callable[[str, bytes], T]) -> LedgerFile[T]:
    try:
        return LedgerFile(parse(str(path), path.read_bytes()))
    except FileNotFoundError:
        return LedgerFile()
    except DamagedFileError as damage:
        return LedgerFile(damage=damage)


def _expected(file: LedgerFile[T], path: Path) -> LedgerFile[T]:
    """Made with the folder, and never removed."""
    if file.is_there:
        return file
    return LedgerFile(damage=DamagedFileError(str(path), "it is missing"))


def parse_touches(name: str, data: bytes, *, may_grow: bool = False) -> tuple[Touch, ...]:
    """The journals of an open transaction. While its owner may live, the last line may be one that
    it is writing: nothing was done after it yet."""
    lines = data.splitlines(keepends=True)
    if may_grow and lines and _is_unfinished(lines[-1]):
        lines.pop()
    try:
        return tuple(Touch(*_parse_touch(name, line)) for line in lines)
    except (TypeError, ValueError) as error:
        raise DamagedFileError(name, f"a line of it is no touch ({error})") from None


def _parse_touch(name: str, line: bytes) -> Any:
    if line.startswith(b"["):  # of a release before seals
        return json.loads(line.decode())
    return unsealed_line(name, line)


def _is_unfinished(line: bytes) -> bool:
    if line.endswith(b"\n"):
        return False
    with contextlib.suppress(DamagedFileError):
        unsealed_line("", line[:-1])
        return False  # a whole line, whose end is damaged
    return True


def parse_decision(name: str, data: bytes) -> Decision:
    """Of a decision, under whichever of its names."""
    found = unsealed_line(name, data)
    return Decision(found["clock"], tuple(Touch(*touch) for touch in found["touches"]))


def parse_alive(name: str, data: bytes) -> dict[str, Any]:
    found = unsealed_json(name, data, _OLD_ALIVE)
    if "name" not in found:
        raise DamagedFileError(name, "it names no producer")
    return found
