"""Flushes: when what was sent is durable everywhere, and the Session may be told of it.

close ──> due ──> SendFlush(cycle) ──> all members answered ──> told at the next request
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.frontier import Frontier, reduce_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.transaction_log import Marker


class Flushes:
    """One at a time. The delta of a flush is frozen when it starts."""

    def __init__(self, members: Sequence[int], cycle: int = 0) -> None:
        """`cycle` is the last one of an earlier life. Nobody waits for its answers any more."""
        self._members = tuple(members)
        self._earlier = cycle
        self.cycle = cycle
        self.told_cycle = cycle
        """Up to this one, what was flushed was told."""
        self.is_due = False
        self._delta: Frontier | None = None
        """Of the flush under way."""
        self._lsns: dict[int, int] = {}
        self._completed: list[Frontier] = []
        self._markers: list[Marker] = []
        """Of the flush under way, and of those that are completed and not told."""
        self._markers_completed = 0
        """How many of them are of completed ones."""
        self._is_asked = False

    @property
    def may_start(self) -> bool:
        return self.is_due and self._delta is None

    @property
    def is_open(self) -> bool:
        """Whether something is still to be flushed or told."""
        return self.is_due or self._delta is not None or bool(self._completed)

    def start(self, delta: Frontier, markers: Sequence[Marker] = ()) -> int:
        """The cycle of a new flush, whose answers will say that the delta is durable. The
        transaction markers of the same rows are told with it."""
        if not self.may_start:
            raise LocalProtocolError("a flush is under way, or none is due")
        self.cycle += 1
        self.is_due = False
        self._delta = delta
        self._markers += markers
        self._lsns = {}
        return self.cycle

    def flushed(self, member: int, cycle: int, lsn: int) -> None:
        if cycle <= self._earlier:
            return
        if member not in self._members:
            raise RemoteProtocolError(f"member {member} answered a flush, and was not asked")
        if self._delta is None or cycle != self.cycle:
            raise RemoteProtocolError(
                f"member {member} answered flush {cycle}, and "
                + (f"{self.cycle} is under way" if self._delta is not None else "none is under way")
            )
        if member in self._lsns:
            raise RemoteProtocolError(f"member {member} answered flush {cycle} twice")
        self._lsns[member] = lsn
        if len(self._lsns) == len(self._members):
            lsns = np.array([self._lsns[each] for each in self._members], np.uint64)
            self._completed.append(replace(self._delta, flushed_lsn=lsns))
            self._markers_completed = len(self._markers)
            self._delta = None

    def ask(self) -> None:
        if self._is_asked:
            raise RemoteProtocolError("progress was asked for while a request is unanswered")
        self._is_asked = True

    def answer(self) -> tuple[Frontier, tuple[Marker, ...]] | None:
        """What to tell, if it was asked for and there is something."""
        if not self._is_asked or not self._completed:
            return None
        told = reduce_all(self._completed)
        self._completed = []
        self.told_cycle = self.cycle if self._delta is None else self.cycle - 1
        self._is_asked = False
        markers = tuple(self._markers[: self._markers_completed])
        del self._markers[: self._markers_completed]
        self._markers_completed = 0
        return told, markers

    def untold(self) -> list[Frontier]:
        """What was put into deltas and not told, without LSNs: for a snapshot."""
        deltas = [*self._completed, *([] if self._delta is None else [self._delta])]
        return [replace(delta, flushed_lsn=np.empty(0, np.uint64)) for delta in deltas]
