"""Where a loop of this package waits: for what threads put in, or for a change in the store."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.directory.keyvalue import KeyValue

T = TypeVar("T")


class Inbox(Generic[T]):
    """Any thread puts in, one loop takes out. Whoever learns of a change in the key-value store
    wakes the loop by itself: a thread between the two would have to wait for its turn. The end of
    the store is such a change: the loop is woken, and finds out by its `check`."""

    def __init__(self, keyvalue: KeyValue, prefix: str) -> None:
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._watch = keyvalue.watch(prefix)
        self._watch.call(self._wake)

    def put(self, item: T) -> None:
        self._items.put(item)

    def take(self, timeout_seconds: float | None) -> list[T]:
        """All there is, as soon as there is something, the store has changed, or time is up."""
        if timeout_seconds is not None:
            timeout_seconds = min(max(0.0, timeout_seconds), threading.TIMEOUT_MAX)
        taken = []
        try:
            taken.append(self._items.get(timeout=timeout_seconds))
            while True:
                taken.append(self._items.get_nowait())
        except queue.Empty:
            return [item for item in taken if item is not None]

    def close(self) -> None:
        self._watch.close()
        self._wake()

    def _wake(self) -> None:
        self._items.put(None)
