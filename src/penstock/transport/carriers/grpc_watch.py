"""Guards: the time that the other end of a call has to say something, or to accept something.

gRPC waits for ever where a socket has a timeout, so one thread looks at the clock for all calls of
the process. It is there while there are guards.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG: Final = logging.getLogger("penstock.transport")


class Guard:
    """Watches over one call until it is dropped. `on_overdue` is called once, with the reason, by
    the watching thread; it must not wait for anything."""

    def __init__(self, seconds_max: float, on_overdue: Callable[[str], None]) -> None:
        self.on_overdue = on_overdue
        self._seconds_max = seconds_max
        self._heard_at = time.monotonic()
        self._writing_at = math.inf
        self._end_at = math.inf
        _watch.add(self)

    def heard(self) -> None:
        """The other end said something."""
        self._heard_at = time.monotonic()

    def limit(self, seconds_max: float) -> None:
        """From now on the other end has this much time."""
        self.heard()
        self._seconds_max = seconds_max
        _watch.look()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Something is being written, and the other end has to accept it."""
        self._writing_at = time.monotonic()
        yield
        self._writing_at = math.inf

    def end_within(self, seconds: float) -> None:
        """The call is over but for last words: whatever happens, it has so much time."""
        self._end_at = min(self._end_at, time.monotonic() + seconds)
        _watch.look()

    def drop(self) -> None:
        """The call has ended."""
        _watch.remove(self)

    def due(self) -> tuple[float, str]:
        """When patience ends unless something happens, and what to say then. It only moves into
        the future by itself: what makes it earlier wakes the watch."""
        seconds = f"{self._seconds_max:g} s"
        return min(
            (self._heard_at + self._seconds_max, f"it says nothing for {seconds}"),
            (self._writing_at + self._seconds_max, f"it accepts no bytes for {seconds}"),
            (self._end_at, "it does not end the stream"),
        )


class _Watch:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._guards: set[Guard] = set()
        self._running = False

    def add(self, guard: Guard) -> None:
        with self._changed:
            self._guards.add(guard)
            if not self._running:
                self._running = True
                supervised("watching", self._run).start()
            self._changed.notify()

    def remove(self, guard: Guard) -> None:
        with self._changed:
            self._guards.discard(guard)
            self._changed.notify()

    def look(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (overdue := self._next_overdue()) is not None:
            guard, reason = overdue
            try:
                guard.on_overdue(reason)
            except Exception:  # noqa: BLE001 - the other guards must not suffer
                _LOG.exception("a connection could not be ended: %s", reason)

    def _next_overdue(self) -> tuple[Guard, str] | None:
        """Waits for a guard whose time is up, and takes it out. None: there are no guards left."""
        with self._changed:
            while self._guards:
                (at, reason), guard = min(
                    ((guard.due(), guard) for guard in self._guards), key=lambda each: each[0]
                )
                seconds = at - time.monotonic()
                if seconds <= 0:
                    self._guards.discard(guard)
                    return guard, reason
                self._changed.wait(seconds)
            self._running = False
            return None


_watch: Final = _Watch()
