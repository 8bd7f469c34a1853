"""What an epoch remembers of matching, so that the next session goes on where this one was. Pure.

Everything in it is a fact about logs, and stays true: which entry of the transaction log the next
marker of a producer in a journal belongs to. So a session that goes on from it needs no look, as
long as the transaction log still has the entries. See `matching.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.shuffle.session.ledger import ReadKey

Source: TypeAlias = tuple[str, int, int]
"""A journal as frontiers call it, a binding that reads it, and a producer."""

_FORM: Final = 1


@dataclass(frozen=True, slots=True)
class Remembered:
    """Where matching stands with all that the epoch's frontier has."""

    log: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By partition of the transaction log: from where on entries are needed, and up to where they
    were read. Below the second only those of `pending` and `expected` count."""
    reads: Mapping[ReadKey, int] = field(default_factory=dict)
    """Up to where the markers of a journal were matched. A producer's next one is of the first
    entry that names the journal and was not read yet, but for these:"""
    pending: Mapping[Source, tuple[int, int]] = field(default_factory=dict)
    """The offset and the entry's place of the first commit that was matched, and waits for others.
    """
    expected: Mapping[Source, int] = field(default_factory=dict)
    """The place of the first entry whose marker had not come. Journals are by name here."""
    restless: frozenset[int] = frozenset()
    """Producers whose matching has to begin anew."""

    def begins(self) -> dict[int, int]:
        """From where on the transaction log has to be read, by its partitions."""
        return {partition: begin for partition, (begin, _) in self.log.items()}

    def markers_from(self, key: ReadKey) -> int:
        """From where on the markers of a read are needed."""
        pending = [
            offset
            for (journal, binding, _), (offset, _) in self.pending.items()
            if (journal, binding) == key
        ]
        return min([self.reads[key], *pending])

    def encoded(self) -> bytes:
        return json.dumps(
            {
                "form": _FORM,
                "log": [[partition, *places] for partition, places in self.log.items()],
                "reads": [[*key, end] for key, end in self.reads.items()],
                "pending": [[*source, *place] for source, place in self.pending.items()],
                "expected": [[*source, place] for source, place in self.expected.items()],
                "restless": sorted(self.restless),
            }
        ).encode()


def decoded(data: bytes) -> Remembered | None:
    """None: another release wrote it, and matching begins with a look."""
    found: dict[str, Any] = json.loads(data)
    if found.get("form") != _FORM:
        return None
    return Remembered(
        {partition: (begin, end) for partition, begin, end in found["log"]},
        {(journal, binding): end for journal, binding, end in found["reads"]},
        {
            (journal, binding, producer): (offset, place)
            for journal, binding, producer, offset, place in found["pending"]
        },
        {
            (journal, binding, producer): place
            for journal, binding, producer, place in found["expected"]
        },
        frozenset(found["restless"]),
    )
