"""A cut of partitions in which every transaction is whole, while producers go on.

A *look* reads the transaction log to its end, asks where all partitions end, and reads the log
again. A producer that had nothing in flight at the first and decided nothing up to the second is
still: what it decided has its markers below the ends everywhere, or above. The last look gives the
ends of the cut. What a producer committed that was not still then, counts up to the last look at
which it was.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.ids import CLOCK_FLOOR
from penstock.journal.cut import JournalCut
from penstock.journal.offset_identity import clock_of
from penstock.journal.transaction_log import Decided, Idle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.journal.store import Probe, ReadableStore
    from penstock.journal.transaction_log import LogEntry

LOOKS_MAX: Final = 200
PAUSE_SECONDS: Final = 0.01

_Ends: TypeAlias = "Mapping[str, int]"

log = logging.getLogger(__name__)


def cut_of_now(store: ReadableStore, listed: Callable[[], Sequence[str]]) -> list[JournalCut]:
    transactions = store.transaction_log()
    if transactions is None:
        probes = store.probes(listed())
        return _cuts(probes, {name: probe.write_head for name, probe in probes.items()}, {})
    in_flight: dict[int, bool] = {}
    looks: list[tuple[_Ends, set[int]]] = []
    try:
        while True:
            _note(in_flight, transactions.read())
            look = transactions.look(listed())
            _note(in_flight, look.before)
            moving = {producer for producer, is_flying in in_flight.items() if is_flying}
            moving |= {entry.producer for entry in look.around if isinstance(entry, Decided)}
            _note(in_flight, (*look.around, *look.later))
            looks.append(({name: end for (name, _), end in look.ends.items()}, moving))
            restless = {one for one in moving if all(one in before for _, before in looks)}
            if not restless or len(looks) == LOOKS_MAX:
                break
            time.sleep(PAUSE_SECONDS)
    finally:
        transactions.close()
    if restless:
        log.warning(
            "%d producers commit without a pause: in this read their transactions are whole within "
            "each partition only",
            len(restless),
        )
    ends = looks[-1][0]
    still = {one: _still(looks, one) for one in moving - restless}
    return _cuts(store.probes(ends), ends, still)


def _still(looks: Sequence[tuple[_Ends, set[int]]], producer: int) -> _Ends:
    """Where partitions ended at the last look at which a producer was still."""
    return next(ends for ends, moving in reversed(looks) if producer not in moving)


def _note(in_flight: dict[int, bool], entries: Sequence[LogEntry]) -> None:
    for entry in entries:
        if isinstance(entry, Decided | Idle):
            in_flight[entry.producer] = isinstance(entry, Decided)


def _cuts(probes: Mapping[str, Probe], ends: _Ends, still: Mapping[int, _Ends]) -> list[JournalCut]:
    return [
        JournalCut(
            journal,
            min(probe.first_kept, ends[journal]),
            ends[journal],
            limits={
                producer: clock_of(seen[journal]) - 1 if journal in seen else CLOCK_FLOOR
                for producer, seen in still.items()
            },
        )
        for journal, probe in sorted(probes.items())
    ]
