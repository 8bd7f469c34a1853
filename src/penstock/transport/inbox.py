"""The inbox: frames of all senders that nobody took yet, in the order of their arrival.

It may be taken from in several ways at once: everything, one stage, stages under a prefix, or the
control frames. Each way leaves the rest where it is, so nothing is ever dropped: what one drain
passes over is there for the next. Frames of one origin and stage keep their order in every way.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.errors import LocalProtocolError
from penstock.transport.frames import Barrier, Close, Flush, Mark, Origin, VnodeData

if TYPE_CHECKING:
    from collections.abc import Callable


class Received(NamedTuple):
    """A frame, and the sender that is proven to have sent it."""

    origin: Origin
    connection: int
    """Counts the receiver's connections. Order is kept within one; between two of an origin, frames
    may be missing."""
    number: int
    """Counts the receiver's frames: tells whether a batch came before or after a barrier."""
    frame: VnodeData | Mark | Barrier | Flush | Close
    """A Close is always the last of its connection, whether the peer said it or just vanished."""
    charged_bytes: int = 0
    """What it holds of its sender's credit until it is taken."""

    @property
    def stage(self) -> str | None:
        return self.frame.stage if isinstance(self.frame, VnodeData) else None


Arrival: TypeAlias = "tuple[VnodeData | Mark | Barrier | Flush | Close, int]"
"""A frame, and what it costs or is charged."""


class Inbox:
    """Safe for any number of threads. `on_taken` is called with what was taken, before the taker
    gets it and outside of the inbox's lock: there the credits go back."""

    def __init__(self, on_taken: Callable[[list[Received]], None]) -> None:
        self._on_taken = on_taken
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        # Frames wait by stage (None: control frames), each queue in order of arrival.
        self._queues: dict[str | None, deque[Received]] = {}
        self._last_number = 0
        self._interrupts = 0
        self._closed = False

    def put(self, origin: Origin, connection: int, frames: list[Arrival]) -> None:
        """Adds frames at the end. After `close` they are dropped, as their sender is told."""
        with self._lock:
            if self._closed:
                return
            for number, (frame, charged_bytes) in enumerate(frames, self._last_number + 1):
                received = Received(origin, connection, number, frame, charged_bytes)
                stage = frame.stage if isinstance(frame, VnodeData) else None
                queue = self._queues.get(stage)
                if queue is None:
                    queue = self._queues[stage] = deque()
                queue.append(received)
            self._last_number += len(frames)
            self._ready.notify_all()

    def put_back(self, received: Received) -> None:
        """Puts a frame back where it was: later drains of its stage meet it in its old place."""
        with self._lock:
            queue = self._queues.setdefault(received.stage, deque())
            place = bisect.bisect_left(queue, received.number, key=attrgetter("number"))
            if place < len(queue) and queue[place].number == received.number:
                raise LocalProtocolError(f"frame {received.number} is staged already")
            queue.insert(place, received)
            self._ready.notify_all()

    def take(self, timeout_seconds: float | None = None) -> Received | None:
        """The oldest frame. Waits for one; None after the timeout, an interrupt or a close. A
        caller that is thrown out of the wait (by a signal, say) has taken nothing; one that is
        thrown out later may have: Python can raise between any two steps of the main thread."""
        with self._lock:
            interrupts = self._interrupts
            self._ready.wait_for(
                lambda: self._queues or self._closed or self._interrupts != interrupts,
                timeout_seconds,
            )
            if not self._queues:
                return None
            stage = min(self._queues, key=lambda stage: self._queues[stage][0].number)
            received = self._queues[stage].popleft()
            if not self._queues[stage]:
                del self._queues[stage]
        return self._hand_over([received])[0]

    def drain(self, chosen: Callable[[str | None], bool]) -> list[Received]:
        """Everything there is of the chosen stages (None: control frames), oldest first."""
        with self._lock:
            stages = [stage for stage in self._queues if chosen(stage)]
            queues = [self._queues.pop(stage) for stage in stages]
        taken = [received for queue in queues for received in queue]
        if len(queues) > 1:
            taken.sort(key=attrgetter("number"))
        return self._hand_over(taken)

    def interrupt(self) -> None:
        """Wakes everybody who waits in `take`, with nothing."""
        with self._lock:
            self._interrupts += 1
            self._ready.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._ready.notify_all()

    def _hand_over(self, taken: list[Received]) -> list[Received]:
        if taken:
            try:
                self._on_taken(taken)
            except BaseException:
                for received in taken:
                    self.put_back(received)
                raise
        return taken
