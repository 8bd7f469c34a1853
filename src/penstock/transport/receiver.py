"""The receiver: frames of all senders, at one member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.transport.carriers import carrier_of
from penstock.transport.discovery import publish
from penstock.transport.dropping import closing
from penstock.transport.stream import Desk, Stream
from penstock.transport.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.directory.keyvalue import KeyValue
    from penstock.transport.carriers import Listener
    from penstock.transport.discovery import Address
    from penstock.transport.frames import Flushed, Frame, Origin
    from penstock.transport.inbox import Received
    from penstock.transport.security import Security

INBOUND_BYTES_MAX: Final = 64 * 1024 * 1024
"""Enough that a sender on a fast network never waits for a consumer that keeps up."""
STREAMS_MAX: Final = 16


class Receiver:
    """Listens, publishes its address, and hands out what arrives. Safe for any number of threads.

    What nobody took yet is bounded by `inbound_bytes_max`, shared out evenly over `streams_max`
    senders (a shuffle of M members and P lanes has M*P of them): a sender whose share is used up
    waits. A consumer that leaves frames of one stage where they are so stops their sender.

    Senders of the same process may use the address `near`: what they send is handed over as it is.
    """

    def __init__(
        self,
        security: Security,
        keyvalue: KeyValue,
        *,
        carrier: str = "tcp",
        host: str = "127.0.0.1",
        port: int = 0,
        inbound_bytes_max: int = INBOUND_BYTES_MAX,
        streams_max: int = STREAMS_MAX,
        held: str | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Batches of stages that begin with `held` count against their sender until they are
        released; all others until they are taken."""
        desk = Desk(security, inbound_bytes_max, streams_max, held)
        timing = timing or Timing()

        def open_stream(
            proven_member: int | None, reply: Callable[[Frame], None], cut: Callable[[], None]
        ) -> Stream:
            return Stream(desk, proven_member, reply, cut)

        listener = carrier_of(carrier).listen(host, port, security, timing, open_stream)
        near = carrier_of("local").listen(host, 0, security, timing, open_stream)
        self._desk = desk
        self._inbox = desk.inbox
        self.address: Address = listener.address
        self.near: Address = near.address
        self._close = closing(self, lambda: _close(desk, listener, near))
        publish(keyvalue, self.address)

    def receive(self, timeout_seconds: float | None = None) -> Received | None:
        """The oldest frame. Waits for one; None after the timeout, `interrupt` or `close`. A call
        that is cut short while it waits has taken nothing. A signal handler that raises may come
        at any other step too, and then a frame is lost with the call: receive in another thread
        than the main one, or have handlers call `interrupt`."""
        return self._inbox.take(timeout_seconds)

    def drain(self) -> list[Received]:
        """Everything there is, without waiting."""
        return self._inbox.drain(lambda _: True)

    def drain_stage(self, stage: str) -> list[Received]:
        """The batches of one stage. Everything else stays, barriers too."""
        return self._inbox.drain(lambda found: found == stage)

    def drain_prefix(self, prefix: str) -> dict[str, list[Received]]:
        """The batches of all stages whose names begin so, by stage. Everything else stays."""
        taken = self._inbox.drain(lambda stage: stage is not None and stage.startswith(prefix))
        stages: dict[str, list[Received]] = {}
        for received in taken:
            if received.stage is not None:
                stages.setdefault(received.stage, []).append(received)
        return stages

    def drain_control(self) -> list[Received]:
        """Barriers, flushes and ends of connections. All batches stay."""
        return self._inbox.drain(lambda stage: stage is None)

    def stage(self, received: Received) -> None:
        """Puts a frame back for later, in its old place. It counts against its sender again."""
        self._desk.put_back(received)

    def release(self, received: list[Received]) -> None:
        """Gives the credit of held batches back, once each."""
        self._desk.give_back(received)

    def reply(self, origin: Origin, flushed: Flushed) -> bool:
        """Answers a Flush. False if nobody waits for it: its connection is gone, or it was answered
        before."""
        return self._desk.reply(origin, flushed)

    def interrupt(self) -> None:
        """Lets everybody who waits in `receive` return, with nothing."""
        self._inbox.interrupt()

    def close(self) -> None:
        """Ends every stream, telling its sender. What arrived already can still be taken."""
        self._close()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _close(desk: Desk, *listeners: Listener) -> None:
    desk.close()
    for listener in listeners:
        listener.close()
