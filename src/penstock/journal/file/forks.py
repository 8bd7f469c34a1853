"""What a forked child must not keep of its parent: open files, and the locks that hang on them.

A lock taken with flock belongs to the open file, which parent and child share after a fork. Were
the child to keep it, the lock of a parent that died would stay taken for as long as the child
lives: its journals could not be appended to, and its producers would not pass for dead.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Keeper(Protocol):
    def let_go_after_fork(self) -> None:
        """In the child: closes what was inherited, without a word to the parent."""


_keepers: Final[weakref.WeakSet[Keeper]] = weakref.WeakSet()


def let_go_at_fork(keeper: Keeper) -> None:
    """From now on the keeper is told when this process was forked."""
    _keepers.add(keeper)


def _let_go() -> None:
    for keeper in list(_keepers):
        keeper.let_go_after_fork()


os.register_at_fork(after_in_child=_let_go)
