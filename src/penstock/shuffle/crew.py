"""A shuffle whose members run elsewhere: in processes of their own, or in tasks of Spark.

The Session is in this process. It and the members find each other over gossip, whose seed is this
process, or at a server that is named; and they speak mutual TLS. Every session has secrets of its
own, and a member that is left over from an earlier one is a stranger to it.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import hmac
import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from penstock.directory.meeting import GossipMeeting, ServerMeeting
from penstock.errors import ConfigurationError, UnreadableRowError
from penstock.shuffle import control
from penstock.shuffle.meetings import Meetings
from penstock.shuffle.member_messages import Failed, Logged, Over, Serving, Step
from penstock.shuffle.process_member import (
    HANDOVER_SECONDS_MAX,
    Order,
    wait_for_addresses,
)
from penstock.shuffle.running import Shuffle
from penstock.shuffle.session.actor import EPOCH_SECONDS, MemberLostError, Session
from penstock.threads import supervised
from penstock.transport.security import ClusterSecurity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.directory.meeting import Meeting, OpenMeeting
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.member import Settings, Setup
    from penstock.shuffle.member_messages import MemberMessage
    from penstock.shuffle.resume import Resume
    from penstock.transport.security import Token

CARRIERS: Final = ("tcp", "grpc")
LOOPBACK: Final = "127.0.0.1"
STEP_SECONDS_MAX: Final = 120.0
"""Until a process has imported what it needs and opened its queue: a second or two, but a machine
may be busy."""
MADE_SECONDS_MAX: Final = STEP_SECONDS_MAX + HANDOVER_SECONDS_MAX
"""The same, if members take vnodes over from each other before."""
STOP_SECONDS_MAX: Final = 10.0
"""Until it has stopped or closed in order. Then it is killed: nothing is lost by that."""
DIAGNOSE_SECONDS: Final = 0.5
"""A stream's end is known a moment before that of its process."""

_LOG: Final = logging.getLogger("penstock.shuffle")


class Host(Protocol):
    """Where one member runs, as the Session's process sees it."""

    def send(self, order: Order) -> None:
        """OSError if it is gone."""

    def receive(self) -> MemberMessage:
        """What the member says next. Waits for it; EOFError or OSError when it is gone."""

    def how_it_ended(self) -> str:
        """Once it is gone: of whom, and what is known."""

    def wait_ended(self, seconds: float) -> None:
        """Until it is gone, or the time is over."""

    def kill(self) -> None:
        """Ends it on the spot, if it is not gone yet."""

    def close(self) -> None:
        """Gives up what this process has of it. Nobody waits in `receive` any more."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What members of one session are given, beside what is each one's own."""

    setup: Setup
    security: ClusterSecurity = field(repr=False)
    meeting: Meeting


class CrewShuffle(Shuffle):
    """From `start` to `close`; a context. What a form of it has to do is to get the members to run,
    and to let go of what it needed for that."""

    def __init__(
        self,
        feed: Feed,
        store: ReadableStore,
        folder: Path,
        *,
        members: int = 2,
        settings: Settings | None = None,
        epoch_seconds: float = EPOCH_SECONDS,
        security: ClusterSecurity | None = None,
        host: str = LOOPBACK,
        directory: str | None = None,
    ) -> None:
        """Without `security` there is mutual TLS with certificates made for each session. `host` is
        where members reach this process. `directory` names a PostgreSQL server at which members
        find each other; without it they gossip."""
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
        self._host = host
        self._directory = directory
        self._keyvalue: OpenMeeting | None = None
        self._crew: Crew | None = None
        self._is_open = False
        self._meetings = Meetings(self._place, folder)
        self._met: ServerMeeting | None = None
        """Where this session meets, if it is at a server."""

    @abc.abstractmethod
    def _muster(self, crew: Crew, terms: Terms) -> None:
        """Gets all members to run, and adds them to the crew."""

    def _dismiss(self) -> None:
        """After the members are gone, however far they came."""

    def _open_parts(self, setup: Setup, resume: Resume) -> None:
        cluster = self._security or ClusterSecurity.create("penstock shuffle")
        self._crew = crew = Crew(self.members)
        meeting = self._meeting(cluster.token)
        if isinstance(meeting, ServerMeeting):
            self._meetings.begin(meeting)
            self._met = meeting
        self._keyvalue = keyvalue = meeting.begin(control.SESSION, self._host)
        self._session = session = Session(
            setup,
            self._store,
            cluster.member_security(control.SESSION),
            keyvalue,
            place=self._place,
            resume=resume,
            epoch_seconds=self._epoch_seconds,
            diagnose=crew.diagnose,
            host=self._host,
        )
        self._muster(crew, Terms(setup, cluster, meeting.joined_by(keyvalue)))
        crew.listen()
        crew.reach(Step.MADE, MADE_SECONDS_MAX if setup.handover else STEP_SECONDS_MAX)
        wait_for_addresses(keyvalue, self.members)
        crew.order(Order.START)
        crew.reach(Step.STARTED)
        session.start()
        self._is_open = True
        crew.report_losses(session.fail)

    def _meeting(self, token: Token) -> Meeting:
        if self._directory is None:
            return GossipMeeting(_gossip_key(token))
        return ServerMeeting(self._directory)

    def _close_parts(self) -> None:
        session, crew, keyvalue = self._session, self._crew, self._keyvalue
        # After a failure nothing in order is to be had, nor needed.
        in_order = self._is_open and session is not None and not session.failed.is_set()
        met, self._met = self._met, None
        self._session = self._crew = self._keyvalue = None
        self._is_open = False
        with contextlib.ExitStack() as stack:
            stack.callback(self._dismiss)
            if met is not None:
                stack.callback(self._meetings.end, met)
            if keyvalue is not None:
                stack.callback(keyvalue.close)
            if session is not None:
                stack.callback(session.close)
            if crew is not None:
                stack.callback(crew.end if in_order else crew.kill)
            if session is not None and in_order:
                stack.callback(session.stop)


class Crew:
    """The members of one session, wherever they run, and the threads that hear them."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = tuple(members)
        self._hosts: dict[int, Host] = {}
        self._changed = threading.Condition()
        self._steps: dict[int, Step] = {}
        self._serving: dict[int, str] = {}
        self._losses: dict[int, BaseException] = {}
        self._ending = threading.Event()
        self._on_lost: Callable[[BaseException], None] | None = None
        self._threads: list[threading.Thread] = []

    @property
    def hosts(self) -> Mapping[int, Host]:
        return self._hosts

    @property
    def serving(self) -> Mapping[int, str]:
        """Where members serve what is in their queues, if they do. Known once they are made."""
        return self._serving

    def add(self, member: int, host: Host) -> None:
        self._hosts[member] = host

    def listen(self) -> None:
        for member, host in self._hosts.items():
            thread = supervised(
                "crew", self._listen, member, host, fail=functools.partial(self._unheard, member)
            )
            self._threads.append(thread)
            thread.start()

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
        for host in self._hosts.values():
            with contextlib.suppress(OSError):  # it is gone, which its thread finds out
                host.send(order)

    def diagnose(self, error: BaseException) -> BaseException:
        """What is behind an error of the Session: a member that ended, if one did."""
        with self._changed:
            self._changed.wait_for(lambda: self._losses, DIAGNOSE_SECONDS)
            return next(iter(self._losses.values()), error)

    def end(self) -> None:
        """In order: first all of them stop, then all close."""
        self._ending.set()
        self.order(Order.STOP)
        with contextlib.suppress(Exception):
            self.reach(Step.STOPPED, STOP_SECONDS_MAX)
        self.order(Order.CLOSE)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for host in self._hosts.values():
            host.wait_ended(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        self._ending.set()
        for host in self._hosts.values():
            host.kill()
        for thread in self._threads:
            thread.join()
        for host in self._hosts.values():
            host.close()

    # Hearing

    def _listen(self, member: int, host: Host) -> None:
        while True:
            try:
                message = host.receive()
            except (EOFError, OSError):
                # Whoever ended it on purpose does not ask how, and that may take a while to know.
                if not self._ending.is_set():
                    self._lose(member, MemberLostError(host.how_it_ended(), member))
                return
            self._take(member, message)

    def _unheard(self, member: int, error: BaseException) -> None:
        """What it says cannot be understood, say: then it cannot be led either."""
        reason = f"member {member} is not heard any more: {type(error).__name__}: {error}"
        self._lose(member, MemberLostError(reason, member))

    def _take(self, member: int, message: MemberMessage) -> None:
        match message:
            case Step() as step:
                with self._changed:
                    self._steps[member] = step
                    self._changed.notify_all()
            case Serving(location=location):
                self._serving[member] = location
            case Failed(error=error, is_final=True):
                self._lose(member, UnreadableRowError(f"member {member} failed: {error}"))
            case Failed(error=error, queue_lost=lost):
                failed = MemberLostError(f"member {member} failed: {error}", member)
                self._lose(member, lost or self.diagnose(failed))
            case Logged(logger=logger, level=level, message=text, known=known):
                _logger(logger).log(level, "member %d: %s", member, text, extra=known)
            case Over():
                pass  # of a host that is a task, which has seen to it
            case _:
                assert_never(message)

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


def _logger(name: str) -> logging.Logger:
    """One that this process has, too: a member must not make new ones here without end."""
    is_known = name.startswith("penstock.") and name in logging.Logger.manager.loggerDict
    return logging.getLogger(name if is_known else "penstock")


def _gossip_key(token: Token) -> bytes:
    """Of this session alone, for those who know the token."""
    message = b"penstock gossip " + secrets.token_bytes(16)
    return hmac.digest(token.secret.encode(), message, hashlib.sha256)
