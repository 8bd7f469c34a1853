"""The sender: frames of one origin, to any member."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.threads import supervised
from penstock.transport.connection import Connection, SendTimeoutError, finish_all
from penstock.transport.discovery import look_up
from penstock.transport.dropping import closing
from penstock.transport.frames import Flushed, Origin
from penstock.transport.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from penstock.directory.keyvalue import KeyValue
    from penstock.transport.discovery import Address
    from penstock.transport.frames import Barrier, Message
    from penstock.transport.security import Security

LOSSES_MAX: Final = 256
"""Remembered until asked for; a sender whose owner does not ask forgets the oldest."""

_LOG: Final = logging.getLogger("penstock.transport")


@dataclass(frozen=True, slots=True)
class Loss:
    """A connection that ended other than by `close`. What was sent on it may not have arrived."""

    member: int
    reason: str


class Sender:
    """Opens a connection to a member with the first frame for it, and keeps it. Safe for any number
    of threads; frames of one thread to one member arrive in their order, over all stages.

    A connection that died is replaced by the next send, at the address the member has by then.
    What was queued on the old one is not sent again: `losses` tells, and so does the receiver.
    """

    def __init__(
        self,
        security: Security,
        keyvalue: KeyValue,
        *,
        lane: int = 0,
        near: Address | None = None,
        timing: Timing | None = None,
        on_room: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`near` is where the receiver of this very member is, if it is in this process. `on_room`
        is called with a member when more can be sent to it than a moment ago, from a thread of the
        carrier's: it must not block, nor send."""
        self.origin: Final = Origin(security.member, lane)
        self._security = security
        self._keyvalue = keyvalue
        self._near = near
        self._timing = timing or Timing()
        self._on_room = on_room
        self._pool = _Pool(self._timing.silence_seconds_max)
        self._flushed: queue.SimpleQueue[tuple[int, Flushed] | None] = queue.SimpleQueue()
        self._losses: deque[Loss] = deque(maxlen=LOSSES_MAX)
        self._close = closing(self, self._pool.close)

    def send(self, member: int, message: Message, timeout_seconds: float | None = None) -> None:
        """Queues a message for a member once there is credit for it. What is queued goes out
        without further waiting, as long as the connection lives. The timeout covers everything,
        and zero means no waiting at all: a connection that is missing is opened meanwhile, and
        `on_room` tells. Raises:

        PeerUnknownError, if no such member has published an address;
        PeerUnavailableError, if it cannot be reached, refuses, or goes away meanwhile;
        SendTimeoutError, if its consumer makes no room in time, or the connection to it is not yet
            open (nothing is sent);
        BatchRefusedError, if Arrow cannot encode the batch (nothing is sent);
        SchemaChangedError, if the stage had another schema (the stream to this member ends).
        """
        # Without the lock: a dictionary answers one thread at a time, `close` empties it, and a
        # connection that ends after it was looked up refuses by itself.
        connection = self._pool.connections.get(member)
        if connection is None or not connection.alive:
            begin = time.monotonic()
            connection = self._connection(member, timeout_seconds)
            if timeout_seconds is not None:
                timeout_seconds = max(0.0, begin + timeout_seconds - time.monotonic())
        connection.send(message, timeout_seconds)

    def fan_out(self, members: Iterable[int], barrier: Barrier) -> None:
        """Sends a barrier to the members in their order. The first failure ends it: the members
        after that one were not sent the barrier."""
        for member in members:
            self.send(member, barrier)

    def receive_flushed(self, timeout_seconds: float | None = None) -> tuple[int, Flushed] | None:
        """The next answer to a Flush, with its member. None after the timeout."""
        try:
            return self._flushed.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def interrupt(self) -> None:
        """Lets one who waits in `receive_flushed`, or the next who would, return with nothing."""
        self._flushed.put(None)

    def credit_bytes(self, member: int) -> int:
        """What could be sent to the member now, without waiting. Zero if it is not connected."""
        with self._pool.lock:
            connection = self._pool.connections.get(member)
        return connection.credit_bytes if connection and connection.alive else 0

    def losses(self) -> list[Loss]:
        """The connections that were lost since this was last asked, oldest first."""
        losses = []
        while self._losses:
            losses.append(self._losses.popleft())
        return losses

    def close(self) -> None:
        """Sends what is queued, and ends every stream in order: waits as long as its peer goes on
        taking it. A peer that takes nothing for `silence_seconds_max` is given up, and `losses`
        tells, as it does if the connection breaks before the peer has read everything."""
        self._close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _connection(self, member: int, timeout_seconds: float | None) -> Connection:
        pool = self._pool
        with pool.lock:
            pool.check_open()
            connection = pool.connections.get(member)
            if connection is not None and connection.alive:
                return connection
            opening = pool.opening.get(member)
            begins = opening is None
            if opening is None:
                opening = pool.opening[member] = _Opening()
        if begins and member == self.origin.member and self._near is not None:
            self._run(member, opening)  # within this process nothing has to be waited for
        elif begins:
            supervised(
                f"opening a connection to member {member}", self._run, member, opening
            ).start()
        # One thread opens; all who send to the member meanwhile wait for it, and learn the same.
        if not opening.done.wait(timeout_seconds):
            raise SendTimeoutError(
                f"the connection to member {member} is not open after {timeout_seconds:g} s"
            )
        with pool.lock:
            if pool.opening.get(member) is opening:
                del pool.opening[member]
        if opening.connection is None:
            raise opening.error
        return opening.connection

    def _run(self, member: int, opening: _Opening) -> None:
        """Opens a connection in place of one that is over."""
        try:
            with self._pool.lock:
                over = self._pool.connections.pop(member, None)
            if over is not None:
                finish_all([over], self._timing.silence_seconds_max)
            connection = self._open(member)
            with self._pool.lock:
                is_closed = self._pool.closed
                if not is_closed:
                    self._pool.connections[member] = connection
            if is_closed:
                finish_all([connection], self._timing.silence_seconds_max)
                self._pool.check_open()
            opening.connection = connection
        except BaseException as error:  # noqa: BLE001 - whoever sends is told
            opening.error = error
        opening.done.set()
        self._on_room(member)  # also if it failed: the next send tells

    def _open(self, member: int) -> Connection:
        near = self._near if member == self.origin.member else None
        address = near or look_up(self._keyvalue, member)
        losses = self._losses
        opened = False

        def on_lost(lost_member: int, reason: str) -> None:
            if opened:  # before, the caller is told by an exception
                _LOG.warning("the stream to member %d is lost: %s", lost_member, reason)
                losses.append(Loss(lost_member, reason))

        flushed = self._flushed
        connection = Connection(
            member,
            self.origin,
            self._security,
            on_flushed=lambda answering, frame: flushed.put((answering, frame)),
            on_lost=on_lost,
            on_room=self._on_room,
        )
        connection.open(address, self._timing, self._keyvalue.generation)
        opened = True
        return connection


class _Opening:
    """An attempt to open a connection, from the first send that needs it to the first that learns
    how it ended."""

    def __init__(self) -> None:
        self.done: Final = threading.Event()
        self.connection: Connection | None = None
        self.error: BaseException = LocalProtocolError("the connection is not open yet")


class _Pool:
    """The connections, apart from the Sender: when that is dropped, these are closed."""

    def __init__(self, silence_seconds_max: float) -> None:
        self._silence_seconds_max = silence_seconds_max
        self.lock = threading.Lock()
        self.opening: dict[int, _Opening] = {}
        self.connections: dict[int, Connection] = {}
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise LocalProtocolError("the sender is closed")

    def close(self) -> None:
        with self.lock:
            self.closed = True
            connections = list(self.connections.values())
            self.connections.clear()
        finish_all(connections, self._silence_seconds_max)
