"""Closing what was dropped without being closed."""

from __future__ import annotations

import _thread
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def closing(owner: object, close: Callable[[], None]) -> Callable[[], None]:
    """What the owner calls to close, once. If it is dropped instead, `close` is called all the
    same, so it must not refer to the owner.

    Then it runs in a thread of its own: the garbage collector may find the owner anywhere, also in
    a thread that holds a lock that `close` needs. It is started the bare way, without the locks of
    Python's own threads. When the interpreter ends, the system closes what is open.
    """
    finalizer = weakref.finalize(owner, _thread.start_new_thread, close, ())
    finalizer.atexit = False

    def close_now() -> None:
        if finalizer.detach() is not None:
            close()

    return close_now
