"""A shuffle of several processes on this machine: the Session in this one, each member in its own.

Processes are spawned: a program that runs this guards its main module with `if __name__ ==
"__main__"`, as always with multiprocessing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError
from penstock.shuffle.crew import LOOPBACK, STOP_SECONDS_MAX, CrewShuffle
from penstock.shuffle.member_messages import MESSAGE_BYTES_MAX, decode_message
from penstock.shuffle.process_member import Given, HeldLock, run_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from penstock.shuffle.crew import Crew, Terms
    from penstock.shuffle.member_messages import MemberMessage
    from penstock.shuffle.process_member import Order

_REAP_SECONDS: Final = 0.005


class ProcessShuffle(CrewShuffle):
    """From `start` to `close`; a context."""

    @property
    def process_ids(self) -> dict[int, int]:
        """Of the members that run."""
        hosts = {} if self._crew is None else self._crew.hosts
        return {
            member: host.process.pid
            for member, host in hosts.items()
            if isinstance(host, ProcessHost)
            and host.process.pid is not None
            and host.process.is_alive()
        }

    def _muster(self, crew: Crew, terms: Terms) -> None:
        if self._lock is None:
            raise ConfigurationError("the shuffle is not started")
        for member in self.members:
            given = Given(
                terms.setup,
                terms.security.member_security(member),
                self._store.address,
                terms.meeting,
                str(self.folder / "cluster"),
                str(self.queue_folder(member)),
                LOOPBACK,
                HeldLock(self._lock),
            )
            crew.add(member, ProcessHost(member, given))


class ProcessHost:
    """A process of this one's, and the pipe to it."""

    def __init__(self, member: int, given: Given) -> None:
        self._member = member
        context = multiprocessing.get_context("spawn")
        self._pipe: Connection
        self._pipe, theirs = context.Pipe()
        self.process: Final[SpawnProcess] = context.Process(
            target=run_process,
            args=(given, theirs),
            name=f"penstock member {member}",
            daemon=True,
        )
        with theirs, _without_interrupts():
            self.process.start()

    def send(self, order: Order) -> None:
        self._pipe.send(order)

    def receive(self) -> MemberMessage:
        return decode_message(self._pipe.recv_bytes(MESSAGE_BYTES_MAX))

    def how_it_ended(self) -> str:
        # Its streams end before it does; and where two threads wait, one is told late.
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.process.exitcode is None and time.monotonic() < deadline:
            time.sleep(_REAP_SECONDS)
        code = self.process.exitcode
        if code is None:
            how = "has closed its pipe"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        return f"the process of member {self._member} {how}"

    def wait_ended(self, seconds: float) -> None:
        connection.wait([self.process.sentinel], seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self._pipe.close()


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
