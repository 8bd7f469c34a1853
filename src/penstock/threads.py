"""The threads of this package. All of them are started here, so that none ends unnoticed.

Python prints a traceback when a thread dies of an exception, and the process goes on without what
the thread did. Here the owner of a thread is told (`fail`). A thread whose owner can do nothing
about it has no `fail`: its end is logged, and `ended` lists it for `check`, the page and `explain`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    Fail: TypeAlias = Callable[[BaseException], None]

ENDED_MAX: Final = 20
"""Remembered for a process. With more of them the first tell what is wrong."""

_LOG: Final = logging.getLogger("penstock.threads")
_ended: Final[deque[Ended]] = deque(maxlen=ENDED_MAX)

T = TypeVar("T")


class ThreadEndedError(PenstockError):
    """A thread returned, or exited, although its work was not over. Restart the process, and report
    this: it is a defect of Penstock, or of what runs in it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A thread that ended too early."""

    thread: str
    reason: str
    at: float
    """By the wall clock."""


def supervised(
    name: str,
    work: Callable[..., None],
    *arguments: object,
    fail: Fail | None = None,
    until: Callable[[], bool] | None = None,
) -> threading.Thread:
    """A thread that calls `work`; start it. `fail` gets whatever it raises, in that thread. A loop
    names in `until` what has to be true before it may return: else its return is a failure too."""
    full_name = f"penstock {name}"

    def run() -> None:
        try:
            work(*arguments)
            if until is not None and not until():
                raise ThreadEndedError(f"the thread {full_name!r} returned while it was needed")
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody is told
            _tell(full_name, error, fail)
        except BaseException as error:  # noqa: BLE001 - SystemExit, say, which is not to be raised
            exited = ThreadEndedError(f"the thread {full_name!r} was ended by {error!r}")
            exited.__cause__ = error
            _tell(full_name, exited, fail)

    return threading.Thread(target=run, name=full_name, daemon=True)


class Pool:
    """Threads that work off what is submitted, from its making to `close`."""

    def __init__(self, threads: int, name: str, fail: Fail | None = None) -> None:
        """`fail` gets whatever work raises. Without it, only the work's future tells."""
        self._name = f"penstock {name}"
        self._fail = fail
        self._executor = ThreadPoolExecutor(threads, self._name)

    def submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        return self._executor.submit(self._run, work, arguments)

    def close(self, *, cancel: bool = False) -> None:
        """Waits for what runs, and for what was submitted unless that is cancelled."""
        self._executor.shutdown(wait=True, cancel_futures=cancel)

    def _run(self, work: Callable[..., T], arguments: tuple[object, ...]) -> T:
        try:
            return work(*arguments)
        except BaseException as error:
            if self._fail is not None:
                _tell(self._name, error, self._fail)
            raise


def ended() -> tuple[Ended, ...]:
    """The threads of this process that ended too early, and have nobody else to tell of it."""
    return tuple(_ended)


def _tell(name: str, error: BaseException, fail: Fail | None) -> None:
    if fail is not None:
        try:
            fail(error)
        except BaseException:  # noqa: BLE001 - then it is told here
            _LOG.exception("the end of the thread %r could not be told to its owner", name)
        else:
            return
    _LOG.error("the thread %r ended: %s: %s", name, type(error).__name__, error, exc_info=error)
    _ended.append(Ended(name, f"{type(error).__name__}: {error}", time.time()))
