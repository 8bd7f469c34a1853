"""Locks between processes, and how long one waits for them.

A lock is a flock on an open file: the kernel lets go of it when the process dies. A process that
was paused keeps it, so nobody waits without an end, and who gives up names the holder.

Waiting is asking again and again. A flock that blocks cannot be given up by a thread, and between
two askings there is a millisecond at most as long as the wait is as short as a sync is.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.process import describe_process, is_stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_SECONDS_MAX: Final = 30.0
"""Locks are held for milliseconds; by who mends a journal, or syncs to a disk that stalls, for
seconds."""
STOPPED_SECONDS_MAX: Final = 2.0
"""A holder that is stopped does not let go by itself: then there is little to wait for."""
_STEP_SECONDS_MIN, _STEP_SECONDS_MAX = 0.00005, 0.001
_LONG_SECONDS: Final = 1.0
"""Who has waited for this long looks who holds the lock, and asks less often."""
_LONG_STEP_SECONDS: Final = 0.02
_LOCKS: Final = Path("/proc/locks")

_until: contextvars.ContextVar[float] = contextvars.ContextVar("locks wait until", default=0.0)


class LockHeldError(PenstockError):
    """Another process has held a lock for too long; nothing was changed. Let the process that is
    named go on, or end it (a killed process leaves nothing behind that is not mended), then try
    again."""

    def __init__(self, path: str, holder: str, waited_seconds: float) -> None:
        super().__init__(path, holder, waited_seconds)
        self.path, self.holder, self.waited_seconds = path, holder, waited_seconds

    def __str__(self) -> str:
        return (
            f"{self.path} is locked by {self.holder}; waited {self.waited_seconds:.1f} s for it. "
            "Let that process go on, or end it, then try again"
        )


def is_locked(path: Path) -> bool:
    """Whether a process that lives holds the file's lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(descriptor: int, seconds_max: float = LOCK_SECONDS_MAX) -> Iterator[None]:
    """Holds a file's lock against other processes. LockHeldError when time is up."""
    take_lock(descriptor, seconds_max)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def locking_within(seconds: float) -> Iterator[None]:
    """Within this, all waits for locks together take no longer: for what can be left to others, or
    to a later time."""
    until = time.monotonic() + seconds
    token = _until.set(min(until, _until.get() or until))
    try:
        yield
    finally:
        _until.reset(token)


def describe_holder(descriptor: int) -> str:
    """Who holds the lock of an open file, in words."""
    pid = _holder(descriptor)
    if pid is None:
        return "a process that this machine does not know: it runs on another one, or just ended"
    if pid <= 0:
        return "a process of another container on this machine"
    return describe_process(pid)


def take_lock(descriptor: int, seconds_max: float = LOCK_SECONDS_MAX) -> None:
    """The same, held for as long as the file is open. LockHeldError when time is up."""
    if try_lock(descriptor):
        return
    began = time.monotonic()
    deadline = min(began + seconds_max, _until.get() or began + seconds_max)
    step = _STEP_SECONDS_MIN
    while not try_lock(descriptor):
        waited = time.monotonic() - began
        if began + waited >= deadline or (
            waited > STOPPED_SECONDS_MAX and _is_held_by_stopped(descriptor)
        ):
            raise LockHeldError(_path(descriptor), describe_holder(descriptor), waited)
        time.sleep(min(step, max(deadline - began - waited, 0)))
        longest = _STEP_SECONDS_MAX if waited < _LONG_SECONDS else _LONG_STEP_SECONDS
        step = min(step * 2, longest)


def _is_held_by_stopped(descriptor: int) -> bool:
    pid = _holder(descriptor)
    return pid is not None and pid > 0 and is_stopped(pid)


def _holder(descriptor: int) -> int | None:
    """The process that took the flock, by /proc/locks. What is listed there as a file's device is
    not always what `stat` says: the inode decides."""
    try:
        inode, listed = str(os.fstat(descriptor).st_ino), _LOCKS.read_text()
    except OSError:
        return None
    for line in listed.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF; "->" marks those who wait
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
            return int(fields[4])
    return None


def _path(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return f"the open file {descriptor}"
