"""How much a batch may read: as many epochs as fit, and one in any case."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from penstock.errors import PeerUnavailableError
from penstock.shuffle.queue.reader import Measure
from penstock.spark.streaming.rows import LOST_SECONDS_MAX, PAUSE_SECONDS, open_share

if TYPE_CHECKING:
    from penstock.shuffle.outlet import Outlet
    from penstock.shuffle.resume import Epoch
    from penstock.spark.cluster.remote import RemoteOutlet


class Limits:
    def __init__(self, documents: int | None, size_bytes: int | None) -> None:
        self._documents = documents
        self._bytes = size_bytes
        self._measured: dict[tuple[int, int], Measure] = {}
        """What lies between two epochs never changes."""

    def last_within(self, outlet: Outlet | RemoteOutlet, start: int, newest: Epoch) -> Epoch:
        """The last epoch up to which a batch from `start` keeps to the limits. An epoch is not
        divided, or transactions would be."""
        numbers = [start, *outlet.numbers(start)]
        pairs = list(itertools.pairwise(numbers))
        self._measured = {pair: found for pair, found in self._measured.items() if pair in pairs}
        total, chosen = Measure(0, 0), None
        for pair in pairs:
            if pair not in self._measured:
                self._measured[pair] = measure(outlet, *pair)
            total += self._measured[pair]
            if chosen is not None and self._is_beyond(total):
                break
            chosen = pair[1]
        return newest if chosen is None else outlet.epoch(chosen)

    def _is_beyond(self, total: Measure) -> bool:
        return (self._documents is not None and total.documents > self._documents) or (
            self._bytes is not None and total.bytes > self._bytes
        )


def measure(outlet: Outlet | RemoteOutlet, start: int, end: int) -> Measure:
    frontiers = outlet.epoch(start).frontier, outlet.epoch(end).frontier
    deadline = time.monotonic() + LOST_SECONDS_MAX
    while True:
        try:
            total = Measure(0, 0)
            for share in outlet.shares():
                total += open_share(share).measure(*frontiers, share.lsn)
        except PeerUnavailableError:
            # A member on another machine is gone. When the Session notices, all begin anew.
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return total
