"""The kinds of waits: what may hold a feed up, each with its facts. Pure.

beginning.py, reading.py, queueing.py, transactions.py and epochs.py have them by where they arise;
`KINDS` has all, by their weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import RemoteProtocolError
from penstock.watch.causes.beginning import (
    Listing,
    Probing,
    Recovery,
    Restart,
    Starting,
    StoreSilent,
    ThreadEnded,
)
from penstock.watch.causes.epochs import Acknowledging, Consuming, EpochsAhead, Idle
from penstock.watch.causes.queueing import (
    Aligning,
    Credit,
    DiskBudget,
    DiskOverdrawn,
    HigherLane,
    SlowSlice,
)
from penstock.watch.causes.reading import ClockAhead, JournalLags, ReadDelay
from penstock.watch.causes.transactions import (
    AwaitedCommit,
    OpenTransaction,
    TransactionLogWait,
    WholePerPartition,
)

if TYPE_CHECKING:
    from penstock.watch.cause import Cause

__all__ = [
    "KINDS",
    "cause_of",
    "Acknowledging",
    "Aligning",
    "AwaitedCommit",
    "ClockAhead",
    "Consuming",
    "Credit",
    "DiskBudget",
    "DiskOverdrawn",
    "EpochsAhead",
    "HigherLane",
    "Idle",
    "JournalLags",
    "Listing",
    "OpenTransaction",
    "Probing",
    "ReadDelay",
    "Recovery",
    "Restart",
    "SlowSlice",
    "Starting",
    "StoreSilent",
    "ThreadEnded",
    "TransactionLogWait",
    "WholePerPartition",
]


KINDS: Final[dict[str, type[Cause]]] = {
    cause.kind: cause
    for cause in (
        Restart,
        ThreadEnded,
        Recovery,
        Starting,
        StoreSilent,
        Listing,
        Probing,
        JournalLags,
        Acknowledging,
        AwaitedCommit,
        TransactionLogWait,
        EpochsAhead,
        DiskBudget,
        DiskOverdrawn,
        Consuming,
        OpenTransaction,
        Aligning,
        HigherLane,
        SlowSlice,
        Credit,
        ReadDelay,
        ClockAhead,
        WholePerPartition,
        Idle,
    )
}
"""The most important first: what stands further up tends to be the cause of what stands below."""


def cause_of(kind: str, facts: dict[str, Any]) -> Cause:
    """From what `facts` gave, perhaps by way of JSON."""
    try:
        made = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return KINDS[kind](**made)
    except (KeyError, TypeError) as error:
        raise RemoteProtocolError(f"{kind!r} with {facts} is no wait: {error!r}") from error
