"""Recovery, and what it did in words."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.cli.terminal import counted
from penstock.journal.errors import ProducerFencedError

if TYPE_CHECKING:
    from penstock.journal import OpenStore


def settle(store: OpenStore) -> list[dict[str, Any]]:
    """Recovers the store; gives what became of each dead producer's transaction."""
    records = {}
    for ledger in store.ledgers():
        with suppress(ProducerFencedError):  # settled and forgotten just now
            record = ledger.record()
            records[record.producer] = record
    settled = []
    for producer in store.recover():
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
                "outcome": "committed" if decision is not None else "rolled back",
                "journals": journals,
            }
        )
    return settled


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
