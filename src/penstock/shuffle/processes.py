"""A shuffle of several processes on this machine: the Session in this one, each member in its own.

They find each other over gossip, whose seed is this process, and speak mutual TLS. Every session
has secrets of its own, and a process that is left over from an earlier one is a stranger to it.

Processes are spawned: a program that runs this guards its main module with `if __name__ ==
"__main__"`, as always with multiprocessing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import multiprocessing
import secrets
import signal
import threading
import time
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.cluster.gossip import GossipKeyValue
from penstock.errors import ConfigurationError
from penstock.shuffle import control
from penstock.shuffle.process_member import (
    Failed,
    Given,
    HeldLock,
    Logged,
    Order,
    Step,
    run_member,
    wait_for_addresses,
)
from penstock.shuffle.queue.errors import QueueLostError
from penstock.shuffle.running import Shuffle
from penstock.shuffle.session.actor import EPOCH_SECONDS, MemberLostError, Session
from penstock.transport.security import ClusterSecurity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    from penstock.journal.store import JournalStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.member import Settings, Setup
    from penstock.shuffle.resume import Resume
    from penstock.transport.security import Token

CARRIERS: Final = ("tcp", "grpc")
STEP_SECONDS_MAX: Final = 120.0
"""Until a process has imported what it needs and opened its queue: a second or two, but a machine
may be busy."""
STOP_SECONDS_MAX: Final = 10.0
"""Until it has stopped or closed in order. Then it is killed: nothing is lost by that."""
DIAGNOSE_SECONDS: Final = 0.5
"""A stream's end is known a moment before that of its process."""
_LOOK_SECONDS: Final = 0.5
_REAP_SECONDS: Final = 0.005

_LOG: Final = logging.getLogger("penstock.shuffle")


class ProcessShuffle(Shuffle):
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
        security: ClusterSecurity | None = None,
    ) -> None:
        """Without `security` there is mutual TLS with certificates made for each session."""
        super().__init__(
            feed,
            store,
            folder,
            members=members,
            settings=settings,
            epoch_seconds=epoch_seconds,
        )
        carrier = self._setup.settings.carrier
        if carrier not in CARRIERS:
            raise ConfigurationError(
                f"the carrier {carrier!r} does not reach other processes; use tcp or grpc"
            )
        self._security = security
        self._keyvalue: GossipKeyValue | None = None
        self._crew: Crew | None = None
        self._is_open = False

    @property
    def process_ids(self) -> dict[int, int]:
        """Of the members that run."""
        return {} if self._crew is None else self._crew.process_ids

    def _open_parts(self, setup: Setup, resume: Resume) -> None:
        if self._lock is None:
            raise ConfigurationError("the shuffle is not started")
        cluster = self._security or ClusterSecurity.create("penstock shuffle")
        key = _gossip_key(cluster.token)
        self._crew = crew = Crew(self.members)
        self._keyvalue = keyvalue = GossipKeyValue(control.SESSION, key, [])
        self._session = session = Session(
            setup,
            self._store,
            cluster.member_security(control.SESSION),
            keyvalue,
            place=self._place,
            resume=resume,
            epoch_seconds=self._epoch_seconds,
            diagnose=crew.diagnose,
        )
        for member in self.members:
            crew.spawn(
                Given(
                    setup,
                    cluster.member_security(member),
                    self._store.url,
                    key,
                    keyvalue.address,
                    str(self.folder / "cluster"),
                    str(self._queue_folder(member)),
                    HeldLock(self._lock),
                )
            )
        crew.listen()
        crew.reach(Step.MADE)
        wait_for_addresses(keyvalue, self.members)
        crew.order(Order.START)
        crew.reach(Step.STARTED)
        session.start()
        self._is_open = True
        crew.report_losses(session.fail)

    def _close_parts(self) -> None:
        session, crew, keyvalue = self._session, self._crew, self._keyvalue
        # After a failure nothing in order is to be had, nor needed.
        in_order = self._is_open and session is not None and not session.failed.is_set()
        self._session = self._crew = self._keyvalue = None
        self._is_open = False
        with contextlib.ExitStack() as stack:
            if keyvalue is not None:
                stack.callback(keyvalue.close)
            if session is not None:
                stack.callback(session.close)
            if crew is not None:
                stack.callback(crew.end if in_order else crew.kill)
            if session is not None and in_order:
                stack.callback(session.stop)


class Crew:
    """The member processes of one session, and the thread that hears them."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = tuple(members)
        self._processes: dict[int, SpawnProcess] = {}
        self._pipes: dict[int, Connection] = {}
        self._changed = threading.Condition()
        self._steps: dict[int, Step] = {}
        self._losses: dict[int, BaseException] = {}
        self._ending = threading.Event()
        self._on_lost: Callable[[BaseException], None] | None = None
        self._thread = threading.Thread(target=self._listen, name="penstock crew", daemon=True)

    @property
    def process_ids(self) -> dict[int, int]:
        return {
            member: process.pid
            for member, process in self._processes.items()
            if process.pid is not None and process.is_alive()
        }

    def spawn(self, given: Given) -> None:
        member = given.security.member
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_member,
            args=(given, theirs),
            name=f"penstock member {member}",
            daemon=True,
        )
        with theirs, _without_interrupts():
            process.start()
        self._processes[member], self._pipes[member] = process, ours

    def listen(self) -> None:
        self._thread.start()

    def report_losses(self, on_lost: Callable[[BaseException], None]) -> None:
        """From here on, and what was lost already. Before, `reach` tells."""
        with self._changed:
            self._on_lost = on_lost
            losses = list(self._losses.values())
        for error in losses:
            on_lost(error)

    def reach(self, step: Step, seconds_max: float = STEP_SECONDS_MAX) -> None:
        """Waits until all members have come so far. Raises what happened if one cannot."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._losses or all(self._has_reached(step)), seconds_max
            )
            for error in self._losses.values():
                raise error
        if not reached:
            late = [
                member
                for member, is_there in zip(self._members, self._has_reached(step), strict=True)
                if not is_there
            ]
            raise MemberLostError(f"members {late} are not {step.value} after {seconds_max:g} s")

    def order(self, order: Order) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):  # it is gone, which the thread finds out
                pipe.send(order)

    def diagnose(self, error: BaseException) -> BaseException:
        """What is behind an error of the Session: a process that ended, if one did."""
        sentinels = {process.sentinel: member for member, process in self._processes.items()}
        for ended in connection.wait(list(sentinels), DIAGNOSE_SECONDS):
            member = sentinels[cast("int", ended)]
            return _loss(member, self._processes[member])
        return error

    def end(self) -> None:
        """In order: first all of them stop, then all close."""
        self._ending.set()
        self.order(Order.STOP)
        with contextlib.suppress(Exception):
            self.reach(Step.STOPPED, STOP_SECONDS_MAX)
        self.order(Order.CLOSE)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        self._ending.set()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        if self._thread.is_alive():
            self._thread.join()
        for pipe in self._pipes.values():
            pipe.close()

    # Hearing

    def _listen(self) -> None:
        open_pipes: dict[Any, int] = {pipe: member for member, pipe in self._pipes.items()}
        while open_pipes:
            for pipe in connection.wait(list(open_pipes), _LOOK_SECONDS):
                member = open_pipes[pipe]
                try:
                    message = cast("Connection", pipe).recv()
                except (EOFError, OSError):
                    del open_pipes[pipe]
                    self._lose(member, _loss(member, self._processes[member]))
                else:
                    self._take(member, message)

    def _take(self, member: int, message: object) -> None:
        match message:
            case Step() as step:
                with self._changed:
                    self._steps[member] = step
                    self._changed.notify_all()
            case Failed(error=QueueLostError() as error):
                self._lose(member, error)
            case Failed(error=error):
                reason = f"member {member} failed: {type(error).__name__}: {error}"
                self._lose(member, MemberLostError(reason))
            case Logged(logger=logger, level=level, message=text):
                logging.getLogger(logger).log(level, "member %d: %s", member, text)
            case other:
                self._lose(member, MemberLostError(f"member {member} says {other!r}"))

    def _lose(self, member: int, error: BaseException) -> None:
        with self._changed:
            if self._ending.is_set() or member in self._losses:
                return
            self._losses[member] = error
            self._changed.notify_all()
            on_lost = self._on_lost
        if on_lost is not None:
            on_lost(error)

    def _has_reached(self, step: Step) -> Iterator[bool]:
        order = list(Step)
        for member in self._members:
            at = self._steps.get(member)
            yield at is not None and order.index(at) >= order.index(step)


def _loss(member: int, process: SpawnProcess) -> MemberLostError:
    # Its streams end before it does; and where two threads wait, one is told late.
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(_REAP_SECONDS)
    code = process.exitcode
    if code is None:
        how = "has closed its pipe"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"ended with code {code}"
    return MemberLostError(f"the process of member {member} {how}")


def _gossip_key(token: Token) -> bytes:
    """Of this session alone, for those who know the token."""
    message = b"penstock gossip " + secrets.token_bytes(16)
    return hmac.digest(token.secret.encode(), message, hashlib.sha256)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """What is spawned in here never sees Ctrl-C, which a terminal sends to all: this process alone
    decides when its members end."""
    resource_tracker.ensure_running()  # which would unblock it again, if the first spawn did this
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
