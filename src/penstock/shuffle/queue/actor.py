"""The Queue's loop: takes frames from the receiver, lets its machine decide, and writes.

One thread decides and writes; another syncs, so that rows go on being merged meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from penstock.errors import PeerUnavailableError, RemoteProtocolError
from penstock.logs import about
from penstock.shuffle import control
from penstock.shuffle.parcels import READS_SCHEMA, READS_STAGE, Stage
from penstock.shuffle.queue.compress import compress
from penstock.shuffle.queue.events import (
    Answer,
    Arrived,
    BarrierCame,
    Captured,
    Consumed,
    EpochGivenUp,
    FlushAsked,
    GiveBack,
    NotCaptured,
    Part,
    QueueEffect,
    QueueEvent,
    QueueState,
    ReadNames,
    StreamEnded,
    Sync,
    Synced,
    TimeIs,
    Write,
    Wrote,
)
from penstock.shuffle.queue.machine import rows_of
from penstock.shuffle.queue.reclaim import reclaim
from penstock.shuffle.status import QueueStatus
from penstock.threads import Pool, supervised
from penstock.transport import Barrier, Close, Flush, Flushed, Mark, VnodeData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from penstock.frontier import Frontier
    from penstock.shuffle.control import Message
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.machine import QueueMachine
    from penstock.transport import Origin, Received, Receiver
    from penstock.watch.standing import Seen

WAKE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.2
"""How old what it says to wait for may be, while there is something to do."""
COMPRESS_AFTER_SECONDS: Final = 30.0
"""A segment that is still there then stays for long: it is worth the work."""

_LOG: Final = logging.getLogger("penstock.shuffle")


@dataclass(frozen=True, slots=True, eq=False)
class Reclaim:
    """The consumer is done with an epoch: its frontier, and where the queue was in it."""

    frontier: Frontier
    lsn: int


_Posted: TypeAlias = Reclaim | EpochGivenUp | Synced


class QueueActor:
    """From `start` to `close`. `hear` gets what the Session says, `captured` the state at each
    barrier (or why there is none), `fail` what ends it; `released` is called when the Session has
    ended in order."""

    def __init__(
        self,
        machine: QueueMachine,
        log: QueueLog,
        receiver: Receiver,
        streams: Mapping[Origin, int],
        *,
        member: int,
        hear: Callable[[Message], None],
        captured: Callable[[int, QueueState | str], None],
        room_needed: Callable[[], None],
        released: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._machine = machine
        self._log = log
        self._receiver = receiver
        self._streams = streams
        self._origins = {stream: origin for origin, stream in streams.items()}
        self._hear = hear
        self._captured = captured
        self._room_needed = room_needed
        self._released = released
        self._posted: queue.SimpleQueue[_Posted] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._syncs = Pool(1, "queue syncs", fail)
        self._thread = supervised("queue", self._run, fail=fail, until=self._closing.is_set)
        self._needed_room = False
        self._overdrawn = False
        self._member = member
        self._log_about = about(_LOG, member=member)
        self._names = [
            f"{self._origins[each].member}.{self._origins[each].lane}"
            for each in sorted(self._origins)
        ]
        self._rows = self._blocks = self._unaligned_epoch = 0
        self._waits: tuple[Seen, ...] = ()
        self._looked_at = time.monotonic()
        self._next_look = time.monotonic() + COMPRESS_AFTER_SECONDS

    def start(self) -> None:
        self._thread.start()

    def post(self, event: _Posted) -> None:
        """From any thread."""
        self._posted.put(event)
        self._receiver.interrupt()

    def status(self) -> tuple[QueueStatus, tuple[Seen, ...]]:
        """What it did so far, and what it waited for a moment ago."""
        machine = self._machine
        status = QueueStatus(
            rows=self._rows,
            blocks=self._blocks,
            size_bytes=self._log.size_bytes,
            limit_bytes=machine.limit_bytes,
            waiting_rows=machine.waiting_rows,
            lsn=machine.last_lsn,
            is_pressed=machine.needs_room,
            is_overdrawn=machine.is_overdrawn,
            unaligned_epoch=self._unaligned_epoch,
        )
        return status, self._waits

    def close(self) -> None:
        self._closing.set()
        self._receiver.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._syncs.close()

    def _run(self) -> None:
        self._handle(TimeIs())
        while not self._closing.is_set():
            self._step()

    def _step(self) -> None:
        first = self._receiver.receive(self._pause())
        for received in () if first is None else (first, *self._receiver.drain()):
            self._take(received)
        while not self._posted.empty():
            self._take_posted(self._posted.get())
        deadline = self._machine.deadline_seconds
        if deadline is not None and time.monotonic() >= deadline:
            self._handle(TimeIs())
        if self._machine.needs_room != self._needed_room:
            self._needed_room = self._machine.needs_room
            if self._needed_room:
                self._room_needed()
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            # By the thread that decides: the machine is seen between two steps of it.
            found = self._machine.waits(self._member, self._log.size_bytes, self._names)
            self._waits = tuple(found)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + COMPRESS_AFTER_SECONDS
            self._syncs.submit(self._compress)

    def _pause(self) -> float:
        deadline = self._machine.deadline_seconds
        if deadline is None:
            return WAKE_SECONDS
        return min(WAKE_SECONDS, max(0.0, deadline - time.monotonic()))

    # What comes

    def _take(self, received: Received) -> None:
        origin, frame = received.origin, received.frame
        if origin.member == control.SESSION:
            self._take_control(received)
            return
        stream = self._streams.get(origin)
        if stream is None:
            raise RemoteProtocolError(f"{origin} has no stream to this queue")
        match frame:
            case VnodeData(stage=stage, batch=batch) if stage == READS_STAGE:
                self._handle(Arrived(stream, ReadNames(_names_in(batch))))
            case VnodeData(stage=stage, batch=batch):
                part = Part(Stage.parse(stage), batch, received.charged_bytes, ticket=received)
                self._handle(Arrived(stream, part))
            case Mark():
                self._handle(Arrived(stream, frame))
            case Flush(cycle=cycle):
                self._handle(Arrived(stream, FlushAsked(cycle)))
            case Barrier():
                self._handle(BarrierCame(stream, frame))
            case Close(reason=reason, fault=fault):
                if fault:
                    raise PeerUnavailableError(f"the stream of {origin} is lost: {reason}")
                self._handle(StreamEnded(stream))
            case _:
                assert_never(frame)

    def _take_control(self, received: Received) -> None:
        match received.frame:
            case VnodeData(stage=control.STAGE, batch=batch):
                for message in control.decode_messages(batch):
                    self._hear(message)
            case Close(reason=reason, fault=fault):
                if fault:
                    raise PeerUnavailableError(f"the Session is gone: {reason}")
                self._released()
            case other:
                raise RemoteProtocolError(f"the Session sent {other}")

    def _take_posted(self, event: _Posted) -> None:
        match event:
            case Reclaim():
                reclaimed = reclaim(self._log, event.frontier, event.lsn)
                if reclaimed.freed_bytes:
                    self._log_about.info("%d bytes of the queue were freed", reclaimed.freed_bytes)
                self._handle(Consumed(event.lsn, self._log.size_bytes, self._log.last_lsn))
                self._needed_room = False  # if it still does, it takes another epoch
            case EpochGivenUp() | Synced():
                self._handle(event)
            case _:
                assert_never(event)

    # What follows

    def _handle(self, event: QueueEvent) -> None:
        effects: deque[QueueEffect] = deque(self._machine.handle(event, time.monotonic()))
        while effects:
            effect = effects.popleft()
            match effect:
                case Write():
                    effects += self._machine.handle(self._write(effect), time.monotonic())
                case Sync():
                    self._syncs.submit(self._sync)
                case Answer(stream=stream, cycle=cycle, lsn=lsn):
                    self._receiver.reply(self._origins[stream], Flushed(cycle, lsn))
                case GiveBack(parts=parts):
                    self._receiver.release([_ticket(part) for part in parts if part.ticket])
                case Captured(barrier=barrier, state=state):
                    if barrier.is_unaligned:
                        self._unaligned_epoch = barrier.epoch
                    self._captured(barrier.epoch, state)
                case NotCaptured(epoch=epoch, reason=reason):
                    self._captured(epoch, reason)
                case _:
                    assert_never(effect)

    def _write(self, write: Write) -> Wrote:
        if write.overdraws != self._overdrawn:
            self._overdrawn = write.overdraws
            if write.overdraws:
                self._log_about.warning(
                    "the queue goes over its disk budget (%d bytes are used): the consumer is done "
                    "with everything it may see, and open transactions hold the rest",
                    self._log.size_bytes,
                )
        parcels = [(taken.part.stage, rows_of(taken)) for taken in write.merged.parts]
        lsn = self._log.append(parcels, write.merged.order, self._machine.names)
        self._rows += write.merged.rows
        self._blocks += 1
        return Wrote(lsn, self._log.size_bytes)

    def _sync(self) -> None:
        self.post(Synced(self._log.sync()))

    def _compress(self) -> None:
        compress(self._log, time.time(), COMPRESS_AFTER_SECONDS)


def _ticket(part: Part) -> Any:
    return part.ticket


def _names_in(batch: pa.RecordBatch) -> dict[int, tuple[int, str]]:
    if batch.schema != READS_SCHEMA:
        raise RemoteProtocolError(f"reads are not told with the columns {batch.schema.names}")
    columns: Sequence[Any] = [column.to_pylist() for column in batch.columns]
    return {read: (binding, journal) for read, binding, journal in zip(*columns, strict=True)}
