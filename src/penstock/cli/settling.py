"""Recovery, and what it did in words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.cli.terminal import counted
from penstock.journal.errors import DamagedLedgerError, ProducerFencedError
from penstock.journal.recovery import recover

if TYPE_CHECKING:
    from penstock.journal import OpenStore


def settle(store: OpenStore) -> tuple[list[dict[str, Any]], list[str]]:
    """Recovers the store; gives what became of each dead producer's transaction, and why some could
    not be settled."""
    records = {}
    for ledger in store.ledgers():
        # Settled and forgotten just now; or damaged, and recovery tells.
        with suppress(ProducerFencedError, DamagedLedgerError):
            record = ledger.record()
            records[record.producer] = record
    settled = []
    recovery = recover(store)
    for producer in recovery.settled:
        known = records.get(producer)
        decision = known.decision if known is not None else None
        if decision is not None:
            journals = list(decision.journals)
        else:
            journals = [touch.journal for touch in known.touches] if known is not None else []
        settled.append(
            {
                "producer": str(producer),
                "name": known.name if known is not None else None,
                "outcome": recovery.outcomes[producer],
                "journals": journals,
            }
        )
    left = [
        f"producer {producer} could not be settled: {why}"
        for producer, why in recovery.left.items()
    ]
    return settled, left


def sentence(settled: dict[str, Any]) -> str:
    name = f" ({settled['name']})" if settled["name"] else ""
    journals = settled["journals"]
    there = f" in {counted(len(journals), 'journal')}: {', '.join(journals)}" if journals else ""
    if settled["outcome"] == "committed":
        return (
            f"producer {settled['producer']}{name} died after its commit was decided: "
            f"acknowledged{there}"
        )
    return f"producer {settled['producer']}{name} died before its commit: rolled back{there}"
