"""A member of a shuffle in a process of its own, or in one that Spark runs a task in.

    made ──(start)──> started ──(stop, or the Session lets go)──> stopped ──(close)──> over

What stands in brackets is ordered by the process that has the Session, through a pipe, or to
another machine through a connection that takes its place. When that process is gone, however it
ended, the pipe is closed, and this one ends on the spot: what it held is in the last epoch.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from penstock.errors import PenstockError
from penstock.journal import open_readable
from penstock.logs import fields_of
from penstock.shuffle import control
from penstock.shuffle.handover import Left
from penstock.shuffle.member import Member
from penstock.shuffle.member_messages import Failed, Logged, Serving, Step, encode_message
from penstock.shuffle.own_process import settle_own_process
from penstock.shuffle.plan import make_plan
from penstock.shuffle.running import lock_folder
from penstock.storage import Storage
from penstock.threads import supervised
from penstock.transport.discovery import ADDRESS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

    from penstock.directory.keyvalue import KeyValue
    from penstock.directory.meeting import Meeting
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.handover import Far
    from penstock.shuffle.member import Setup
    from penstock.shuffle.member_messages import MemberMessage
    from penstock.transport.security import Security

MEET_SECONDS_MAX: Final = 100.0
"""Until members know of each other: a moment, once the slowest of the processes is there."""
HANDOVER_SECONDS_MAX: Final = 3_600.0
"""More, if members first take vnodes over: a disk's whole budget, at 20 MB a second."""
QUEUE_LOCK_SECONDS_MAX: Final = 60.0
"""Spark takes two or three to end a task that it was told to; a machine may be busy."""
_ORPHANED: Final = 3
"""The exit code of a member whose Session's process is gone."""


class Order(enum.Enum):
    """What a member process is told through the pipe."""

    START = "start"
    STOP = "stop"
    CLOSE = "close"


class HeldLock:
    """The lock of the shuffle's folder. A process that gets this holds it too, for as long as it
    lives: nobody begins in the folder before the last member of a killed shuffle is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _held_too, (DupFd(self._descriptor),)


def _held_too(duplicate: Any) -> HeldLock:
    return HeldLock(duplicate.detach())


@dataclass(frozen=True, slots=True)
class Given:
    """What a member process needs. It has secrets, and comes through the pipe of the spawning, or
    through a connection that is proven on both ends."""

    setup: Setup
    security: Security
    store_url: str
    meeting: Meeting
    place: str
    folder: str
    host: str
    """By which others reach this machine."""
    lock: HeldLock | None = None
    """None: the Session is on another machine. Then the member locks the folder of its queue."""
    read_token: str | None = field(default=None, repr=False)
    """Whoever shows it may read the queue from another machine. None: nobody may."""


class Pipe(Protocol):
    """What orders and messages go through."""

    def send_bytes(self, data: bytes, /) -> None:
        """A message, by the member."""

    def recv(self) -> Any:
        """The next order, or what else the Session's process gives. EOFError or OSError if that is
        gone."""


class MeetingError(PenstockError):
    """Members did not find each other in time. Look whether all of them run, and whether the
    machine lets its own processes speak over 127.0.0.1."""


def run_process(given: Given, pipe: Connection) -> None:
    """All of it, in the new process."""
    settle_own_process()
    run_member(given, pipe)


def run_member(given: Given, pipe: Pipe) -> None:
    """In a process that may live on: afterwards it is as it was."""
    ends = _Ends(pipe)
    logger = logging.getLogger("penstock")
    known = {"feed": given.setup.feed.name, "member": given.security.member}
    told, propagate = _Told(ends, known), logger.propagate
    logger.addHandler(told)
    logger.propagate = False
    try:
        _run(given, ends)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the Session is told
        ends.tell(Failed.of(error))
        ends.wait_for(Order.CLOSE)
    finally:
        logger.removeHandler(told)
        logger.propagate = propagate


def _run(given: Given, ends: _Ends) -> None:
    with contextlib.ExitStack() as stack:
        if given.lock is None:
            # A member of an older session may have a moment to live.
            lock = lock_folder(Path(given.folder), QUEUE_LOCK_SECONDS_MAX)
            stack.callback(os.close, lock)
        store = stack.enter_context(open_readable(given.store_url))
        keyvalue = given.meeting.open(given.security.member, given.host)
        stack.callback(keyvalue.close)
        handing = stack.enter_context(contextlib.ExitStack())
        far = None if given.read_token is None else _hand_over(given, store, keyvalue, handing)
        member = Member(
            given.setup,
            store,
            given.security,
            keyvalue,
            place=Storage.open(given.place),
            folder=Path(given.folder),
            host=given.host,
            far=far,
        )
        stack.callback(member.close)
        if given.read_token is not None:
            from penstock.shuffle.serving import QueueServer  # noqa: PLC0415 - only where needed

            server = QueueServer(Path(given.folder), given.security, given.host, given.read_token)
            stack.callback(server.close)
            ends.tell(Serving(server.location))
        everybody = (control.SESSION, *given.setup.assignment.members)
        seconds_max = MEET_SECONDS_MAX
        if given.setup.handover is not None:
            seconds_max += HANDOVER_SECONDS_MAX
        wait_for_addresses(keyvalue, everybody, seconds_max)
        ends.tell(Step.MADE)
        ends.wait_for(Order.START)
        handing.close()  # all members are made: nobody takes anything over any more
        ends.on_stop(member.ended.set)
        member.start()
        ends.tell(Step.STARTED)
        member.ended.wait()
        if member.failure is not None:
            raise member.failure
        # Nobody's receiver closes before everybody has stopped sending.
        member.stop()
        ends.tell(Step.STOPPED)
        ends.wait_for(Order.CLOSE)


def _hand_over(
    given: Given, store: ReadableStore, keyvalue: KeyValue, handing: contextlib.ExitStack
) -> Far | None:
    """If vnodes change hands between machines: gives what is here, and finds what is not."""
    setup, token = given.setup, given.read_token
    if setup.handover is None or setup.epoch is None or token is None:
        return None
    from penstock.shuffle.handover_serving import FarQueues, HandoverServer  # noqa: PLC0415 - only where needed

    if setup.handover.queues:
        left = Left(Storage.open(given.place), setup.epoch, make_plan(setup.feed, store))
        server = HandoverServer(left, setup.handover, given.security, given.host, token)
        handing.callback(server.close)
        server.announce(keyvalue)
    return FarQueues(keyvalue, given.security, token)


def wait_for_addresses(
    keyvalue: KeyValue, members: Iterable[int], seconds_max: float = MEET_SECONDS_MAX
) -> None:
    """Until the receivers of all of them are known here."""
    awaited = set(members)
    deadline = time.monotonic() + seconds_max
    with keyvalue.watch(ADDRESS_KEY) as watch:
        while missing := awaited - keyvalue.scan(ADDRESS_KEY).keys():
            if not watch.wait(max(0.0, deadline - time.monotonic())):
                keyvalue.check()
                raise MeetingError(
                    f"member {keyvalue.member} does not hear of members {sorted(missing)} within "
                    f"{seconds_max:g} s"
                )


class _Ends:
    """This process's end of the pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._stop: Callable[[], None] = lambda: None
        supervised("orders", self._listen, fail=_leave).start()

    def tell(self, message: MemberMessage) -> None:
        with self._lock, contextlib.suppress(OSError):  # if it is closed, the listener ends us
            self._pipe.send_bytes(encode_message(message))

    def wait_for(self, order: Order) -> None:
        while self._orders.get() is not order:
            pass

    def on_stop(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def _listen(self) -> None:
        while True:
            try:
                order = self._pipe.recv()
            except (EOFError, OSError) as error:
                _leave(error)
            self._orders.put(order)
            if order is Order.STOP:
                self._stop()
            elif order is Order.CLOSE:
                return  # what comes now is not for this member any more


def _leave(_: BaseException) -> NoReturn:
    """Whoever has the Session is gone, or cannot be understood any more: nobody could end this
    process in order, and what it holds is in the last epoch."""
    os._exit(_ORPHANED)


class _Told(logging.Handler):
    """Sends log records to the Session's process, which has somewhere to put them."""

    def __init__(self, ends: _Ends, known: dict[str, Any]) -> None:
        super().__init__(logging.WARNING)
        self._ends = ends
        self._known = known

    def emit(self, record: logging.LogRecord) -> None:
        known = {**self._known, **fields_of(record)}
        self._ends.tell(Logged(record.name, record.levelno, record.getMessage(), known))
