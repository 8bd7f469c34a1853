"""Ctrl-C, for commands that run until they are told to stop."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C stops in order, the second at once. A service manager's word is one, too."""

    def handle(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
