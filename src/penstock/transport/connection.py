"""The sender's end of a connection to one peer.

Callers wait here for credit, in their own threads, before a frame is queued. They reserve what it
takes at most, so everything that is queued has room at the receiver and goes out without anybody's
help: a barrier never waits behind data that waits for a consumer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeAlias, assert_never

from penstock.errors import PeerUnavailableError, PenstockError, RemoteProtocolError
from penstock.transport.carriers import carrier_of
from penstock.transport.credit import Allowance
from penstock.transport.frames import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    DONE,
    FRAME_COST_BYTES,
    PROTOCOL_VERSION,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Mark,
    Message,
    Origin,
    VnodeData,
)
from penstock.transport.stages import (
    OutboundStage,
    OutboundStages,
    SchemaChangedError,
    halves,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.transport.carriers import Link
    from penstock.transport.discovery import Address
    from penstock.transport.security import Security
    from penstock.transport.timing import Timing


Cost: TypeAlias = tuple[int, int]
"""What was reserved for a data frame, and what it really costs, which is never more."""


class SendTimeoutError(PenstockError):
    """The receiver granted no room in time, since its consumer is slower than this sender, or the
    connection to it is still being opened. The frame was not sent; send it again."""


class Connection:
    """Used by a Sender from above and by a carrier from below, from any thread."""

    def __init__(
        self,
        peer: int,
        origin: Origin,
        security: Security,
        *,
        on_flushed: Callable[[int, Flushed], None],
        on_lost: Callable[[int, str], None],
        on_room: Callable[[int], None],
    ) -> None:
        """`on_room` is called when more can be sent than a moment ago. It must not block."""
        self.peer = peer
        self.security = security
        self._origin = origin
        self._on_flushed = on_flushed
        self._on_lost = on_lost
        self._on_room = on_room
        self._lock = threading.RLock()  # reentrant: the local carrier answers in the call
        self._changed = threading.Condition(self._lock)
        self._allowance = Allowance()
        self._stages = OutboundStages()
        self._bound_bytes_max = 0
        """Batches that take less for certain are not measured: the writer gives the rest back."""
        self._flushing: set[int] = set()
        self._greeted = False
        self._over: str | None = None
        """Why nothing more is sent. What is queued still goes, unless the connection is gone."""
        self._gone = False
        self._told = False
        """That it was lost, or it ended in order and there is nothing to tell."""
        self._closing = False
        self._link: Link | None = None

    def open(self, address: Address, timing: Timing, generation: int = 0) -> None:
        """Dials, says Hello and waits for the answer, all within one limit. Raises
        PeerUnavailableError, with the peer's own words if it refused."""
        deadline = time.monotonic() + timing.connect_seconds_max
        try:
            self._link = carrier_of(address.carrier).dial(address, timing, self)
        except OSError as error:
            raise PeerUnavailableError(
                f"member {self.peer} cannot be reached at {address}: {error}"
            ) from error
        token = self.security.token.for_member(self._origin.member)
        member, lane = self._origin
        self._link.offer(Hello(member, lane, token, generation=generation))
        with self._lock:
            self._changed.wait_for(
                lambda: self._over is not None or self._allowance.control_frames,
                max(0.0, deadline - time.monotonic()),
            )
            if self._over is None and not self._allowance.control_frames:
                self._over = f"no answer to Hello in {timing.connect_seconds_max:g} s"
            reason = self._over
        if reason is not None:
            self._link.cut()
            raise PeerUnavailableError(f"member {self.peer} at {address}: {reason}")

    @property
    def alive(self) -> bool:
        return self._over is None

    @property
    def credit_bytes(self) -> int:
        with self._lock:
            return self._allowance.free_bytes

    def send(self, message: Message, timeout_seconds: float | None = None) -> None:
        """Queues a message, once there is credit for it. A batch too large for a frame is cut."""
        with self._lock:
            link = self._open_link()
            if not isinstance(message, VnodeData):
                self._queue(link, message, 0, timeout_seconds)
                return
            stage = self._stage(link, message)
            size = stage.size(message.batch, min(self._bound_bytes_max, BATCH_BYTES_MAX))
            if size <= BATCH_BYTES_MAX and message.batch.num_rows <= BATCH_ROWS_MAX:
                self._queue(link, message, size + FRAME_COST_BYTES, timeout_seconds)
                stage.schema_queued = True
                return
        for part in halves(message):
            self.send(part, timeout_seconds)
            timeout_seconds = None  # half a message is worse than a late one

    def settle(self, costs: Sequence[Cost]) -> bool:
        """By the encoder, which knows what frames really cost: gives back what was reserved and is
        not needed. It never waits, since nothing costs more than was reserved. False: the
        connection is gone."""
        with self._lock:
            if self._gone:
                return False
            allowance = self._allowance
            was_crowded, was_free_bytes = allowance.crowded, allowance.free_bytes
            for estimate_bytes, cost_bytes in costs:
                allowance.settle(estimate_bytes, cost_bytes)
            freed = was_crowded or allowance.free_bytes > was_free_bytes
            if freed and not allowance.crowded:
                self._changed.notify_all()
                if was_crowded:
                    self._on_room(self.peer)
            return True

    def on_frame(self, frame: Frame, proven_member: int | None) -> None:
        """By the carrier: an answer. Raises RemoteProtocolError for what no receiver may say."""
        match frame:
            case Hello():
                self._greet(frame, proven_member)
            case Credit():
                with self._lock:
                    if not self._greeted and (frame.data_bytes or frame.control_frames):
                        raise RemoteProtocolError("the peer granted credit before its Hello")
                    self._allowance.grant(frame)
                    self._changed.notify_all()
                self._on_room(self.peer)
            case Flushed():
                with self._lock:
                    if frame.cycle not in self._flushing:
                        raise RemoteProtocolError(
                            f"the peer answered a Flush of cycle {frame.cycle} that is not open"
                        )
                    self._flushing.discard(frame.cycle)
                self._on_flushed(self.peer, frame)
            case Close():
                with self._lock:
                    # It has read everything before our Close, and answers that.
                    self._told = self._told or (self._closing and frame == DONE)
                self.lose(f"the peer ended the stream: {frame.reason}")
            case VnodeData() | Mark() | Barrier() | Flush():
                raise RemoteProtocolError(f"a receiver does not say {type(frame).__name__}")
            case _:
                assert_never(frame)

    def lose(self, reason: str) -> None:
        """By the carrier, or from here: the connection is over. Everybody who waits is told. So is
        the owner, unless it closed the connection and the peer has read all of it."""
        with self._lock:
            self._gone = True
            self._over = self._over or reason
            self._tell(reason)  # before anybody who waits gets to ask
            self._changed.notify_all()

    def close(self) -> None:
        """Lets what is queued go out, and a Close behind it. `wait_closed` waits for that."""
        with self._lock:
            self._over = self._over or "this end was closed"
            self._closing = True
            self._changed.notify_all()
        if self._link is not None:
            if self._gone:
                self._link.cut()
            else:
                self._link.close(DONE)

    @property
    def progress(self) -> int:
        """A number that rises as long as the peer takes what is queued."""
        return 0 if self._link is None else self._link.progress

    def wait_closed(self, seconds: float) -> bool:
        """Whether the peer has read everything, or the connection is gone."""
        return self._link is None or self._link.wait_ended(seconds)

    def give_up(self, reason: str) -> None:
        """Ends a connection that makes no progress. The owner is told, as by `lose`."""
        self.lose(reason)
        if self._link is not None:
            self._link.cut()

    def _queue(
        self, link: Link, message: Message, cost_bytes: int, timeout_seconds: float | None
    ) -> None:
        if not self._reserve(cost_bytes):
            in_time = self._changed.wait_for(
                lambda: self._over is not None or self._reserve(cost_bytes), timeout_seconds
            )
            self._open_link()
            if not in_time:
                raise SendTimeoutError(
                    f"member {self.peer} granted no credit in {timeout_seconds:g} s"
                )
        if isinstance(message, Flush):
            self._flushing.add(message.cycle)
        link.offer(message, cost_bytes)

    def _reserve(self, cost_bytes: int) -> bool:
        if cost_bytes:
            return self._allowance.reserve(cost_bytes)
        return self._allowance.spend_control()

    def _stage(self, link: Link, message: VnodeData) -> OutboundStage:
        try:
            return self._stages.check(message.stage, message.batch.schema)
        except SchemaChangedError as error:
            # What was queued before is good and still goes; nothing comes after.
            self._over = str(error)
            self._tell(str(error))
            self._changed.notify_all()
            link.offer(Close(str(error), fault=True))
            raise

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._on_lost(self.peer, reason)

    def _open_link(self) -> Link:
        if self._over is not None or self._link is None:
            raise PeerUnavailableError(f"member {self.peer}: {self._over or 'not open'}")
        return self._link

    def _greet(self, hello: Hello, proven_member: int | None) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the peer speaks version {hello.version} of the transport, this member version "
                f"{PROTOCOL_VERSION}; run the same release on all members"
            )
        self.security.verify_hello(hello.member, hello.token, proven_member)
        if hello.member != self.peer:
            raise RemoteProtocolError(
                f"member {hello.member} answers at the address of member {self.peer}"
            )
        with self._lock:
            if self._greeted:
                raise RemoteProtocolError("the peer said Hello twice")
            self._greeted = True
            self._allowance.window_bytes = hello.window_bytes
            if self._link is not None and self._link.encodes:
                # What is reserved in vain for a moment should not matter: many fit the window.
                self._bound_bytes_max = hello.window_bytes // 64


def finish_all(connections: Iterable[Connection], silence_seconds_max: float) -> None:
    """Closes connections in order, all at once: waits for each as long as its peer takes something
    every `silence_seconds_max`. Of those that do not, the owner is told that they were lost."""
    waiting = list(connections)
    for connection in waiting:
        connection.close()
    while waiting:
        before = [connection.progress for connection in waiting]
        deadline = time.monotonic() + silence_seconds_max
        late = [
            (connection, progress)
            for connection, progress in zip(waiting, before, strict=True)
            if not connection.wait_closed(max(0.0, deadline - time.monotonic()))
        ]
        waiting = []
        for connection, progress in late:
            if connection.progress > progress:
                waiting.append(connection)
            else:
                connection.give_up(
                    f"it did not take what was queued when this end was closed, and nothing of it "
                    f"for {silence_seconds_max:g} s"
                )
