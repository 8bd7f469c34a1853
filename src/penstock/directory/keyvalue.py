"""The cluster's key-value interface: every member writes its own slot, and reads everybody's.

A value is known elsewhere after a while, or at once, depending on what is behind the interface.
Only the newest value of a key counts: those in between may never be seen by others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class DirectoryEndedError(PenstockError):
    """A member's view of the key-value store ended: it was closed, or a defect ended the thread
    that keeps it. Nothing is heard and nothing is told through it any more. Restart the member; if
    nobody closed it, report the reason that stands here."""


class KeyValue(Protocol):
    """One member's view. Safe for any number of threads."""

    @property
    def member(self) -> int: ...

    @property
    def generation(self) -> int:
        """Tells this process from others of the same member: a later one has a greater number. It
        may rise while the process starts. Zero: there is but one process."""

    def write(self, key: str, value: str) -> None:
        """Sets a key of this member's own slot. The member itself reads it from now on."""

    def read(self, member: int, key: str) -> str | None:
        """A key of any member's slot, as far as it is known here."""

    def scan(self, key: str) -> dict[int, str]:
        """A key in the slots of all members that have it, by member."""

    def watch(self, prefix: str = "") -> Watch:
        """Tells from now on when keys that begin so have changed, in anybody's slot."""

    def check(self) -> None:
        """Raises DirectoryEndedError if this view has ended. Its watches are closed then."""


class Watch(Protocol):
    """Wakes whoever waits for a change. It does not tell which: read again what you look for. A
    change that comes between two calls of `wait` is not missed."""

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Returns True once something has changed since this was last called, or may have. False:
        nothing did in time, or the watch was closed."""

    def call(self, told: Callable[[], None]) -> None:
        """Has this called as well, for every change from the opening of the watch on and when it
        is closed, by whichever thread learns of it: it must be quick, and not raise. It spares a
        thread that waits."""

    def close(self) -> None:
        """Ends the watch. Whoever waits is let go, and what `call` was given is called."""

    def __enter__(self) -> Watch: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class LocalWatch:
    """A Watch that is told of changes within this process, by whoever learns of them."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._told = threading.Condition()
        self._changed = False
        self._closed = False
        self._call: Callable[[], None] | None = None

    def tell(self) -> None:
        with self._told:
            self._changed = True
            self._told.notify_all()
            call = self._call
        if call is not None:
            call()

    def call(self, told: Callable[[], None]) -> None:
        with self._told:
            self._call = told
            due = self._changed or self._closed
        if due:
            told()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        with self._told:
            self._told.wait_for(lambda: self._changed or self._closed, timeout_seconds)
            changed, self._changed = self._changed and not self._closed, False
            return changed

    def close(self) -> None:
        with self._told:
            if self._closed:
                return
            self._closed = True
            self._told.notify_all()
            call = self._call
        if call is not None:
            call()

    def __enter__(self) -> LocalWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Watches:
    """The open watches of one view. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[LocalWatch] = []
        self._closed = False

    def open(self, prefix: str) -> LocalWatch:
        """One that is closed already, if all of them are."""
        watch = _Listed(prefix, self)
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._open.append(watch)
        if is_closed:
            watch.close()
        return watch

    def tell(self, key: str) -> None:
        """A key has changed."""
        with self._lock:
            told = [watch for watch in self._open if key.startswith(watch.prefix)]
        for watch in told:
            watch.tell()

    def tell_all(self) -> None:
        """Anything may have changed."""
        with self._lock:
            told = list(self._open)
        for watch in told:
            watch.tell()

    def close(self) -> None:
        """Ends all, and those that are opened later."""
        with self._lock:
            self._closed = True
            closed = list(self._open)
        for watch in closed:
            watch.close()

    def forget(self, watch: LocalWatch) -> None:
        with self._lock:
            if watch in self._open:
                self._open.remove(watch)


class _Listed(LocalWatch):
    def __init__(self, prefix: str, watches: Watches) -> None:
        super().__init__(prefix)
        self._watches = watches

    def close(self) -> None:
        self._watches.forget(self)
        super().close()


class MemoryKeyValue:
    """For members in one process: all views of one family share their slots."""

    def __init__(self, member: int, generation: int = 0) -> None:
        self.member = member
        self.generation = generation
        self._shared = _Slots()

    def view(self, member: int, generation: int = 0) -> MemoryKeyValue:
        """The same slots, as another member sees them."""
        other = MemoryKeyValue(member, generation)
        other._shared = self._shared
        return other

    def write(self, key: str, value: str) -> None:
        with self._shared.lock:
            self._shared.values.setdefault(key, {})[self.member] = value
        self._shared.watches.tell(key)

    def read(self, member: int, key: str) -> str | None:
        with self._shared.lock:
            return self._shared.values.get(key, {}).get(member)

    def scan(self, key: str) -> dict[int, str]:
        with self._shared.lock:
            return dict(self._shared.values.get(key, {}))

    def watch(self, prefix: str = "") -> Watch:
        return self._shared.watches.open(prefix)

    def check(self) -> None:
        """It has no thread, and is never closed."""


class _Slots:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, dict[int, str]] = {}
        self.watches = Watches()
