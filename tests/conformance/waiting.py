"""Waiting, always with an end: a test that would hang fails, and says for what it waited."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport import Received, Receiver

WAIT_SECONDS_MAX = float(os.environ.get("PENSTOCK_WAIT_SECONDS", "120"))
"""Only a test that fails waits this long."""
QUIET_SECONDS = 0.05
"""For what must not happen: long enough that a wrong program would most likely have done it."""

_FILES_OPEN = Path("/proc/self/fd")

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    what: str | Callable[[], str],
    seconds_max: float = WAIT_SECONDS_MAX,
) -> T:
    """The condition's value, once it is true."""
    deadline = time.monotonic() + seconds_max
    while not (value := condition()):
        if time.monotonic() > deadline:
            what = what if isinstance(what, str) else what()
            pytest.fail(f"waited {seconds_max:g} s in vain: {what}")
        time.sleep(0.002)
    return value


def never(condition: Callable[[], object], what: str) -> None:
    """Looks for a moment whether the condition becomes true."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        assert not condition(), what
        time.sleep(0.005)


def take(receiver: Receiver, count: int = 1) -> list[Received]:
    """The next frames, as many as that."""
    taken: list[Received] = []
    while len(taken) < count:
        received = receiver.receive(WAIT_SECONDS_MAX)
        if received is None:
            last = taken[-1].frame if taken else None
            pytest.fail(
                f"waited in vain for frame {len(taken) + 1} of {count}; the last was {last}"
            )
        taken.append(received)
    return taken


def waiting_frames(receiver: Receiver) -> int:
    """How many frames nobody took yet."""
    inbox = receiver._inbox
    with inbox._ready:
        return sum(map(len, inbox._queues.values()))


def arrived(receiver: Receiver, count: int) -> None:
    """Waits until so many frames wait to be taken."""
    eventually(
        lambda: waiting_frames(receiver) >= count,
        lambda: f"that {count} frames arrive; {waiting_frames(receiver)} did",
    )


class Background(Generic[T]):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T], what: str = "a call in the background") -> None:
        self._call = call
        self._what = what
        self._returned: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"test: {what}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds_max: float = WAIT_SECONDS_MAX) -> T:
        """What it returned, or raises what it raised."""
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            pytest.fail(f"{self._what} did not end in {seconds_max:g} s")
        if self._error is not None:
            raise self._error
        return self._returned[0]

    def _run(self) -> None:
        try:
            self._returned.append(self._call())
        except BaseException as error:  # noqa: BLE001 - whatever it was, `result` raises it
            self._error = error


def transport_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("penstock")}


def open_sockets() -> int:
    count = 0
    for name in os.listdir(_FILES_OPEN):  # noqa: PTH208 - a file may be gone when it is looked at
        try:
            count += stat.S_ISSOCK((_FILES_OPEN / name).stat().st_mode)
        except OSError:
            continue
    return count
