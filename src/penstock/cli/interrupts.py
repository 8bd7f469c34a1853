"""Ctrl-C and SIGTERM, for commands that run until they are told to stop."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C stops in order, the second at once. So does SIGTERM, which service managers
    send. A signal that is ignored already stays ignored: a shell starts background jobs like that,
    so that Ctrl-C only ends what is in the foreground."""

    def handle(number: int, _: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        stop()

    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: how for number, how in found.items() if how is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
