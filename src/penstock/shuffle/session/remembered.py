"""What an epoch remembers of matching, so that the next session goes on where this one was. Pure.

Everything in it is a fact about logs, and stays true: which entry of the transaction log the next
marker of a producer in a journal belongs to. So a session that goes on from it needs no look, as
long as the transaction log still has the entries. See `matching.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.journal.markers import MarkersSought

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
    opened: frozenset[Source] = frozenset()
    """Who had rows of a transaction there that was not over, up to where markers were matched."""
    restless: frozenset[int] = frozenset()
    """Producers whose matching has to begin anew."""
    is_look: bool = False
    """Nothing was matched one by one: journals are not read up to a look, and `reads` are its ends.
    """
    journals: frozenset[str] = frozenset()
    """All that looks have found. Another one under the name of one of them is not as young as it
    seems."""

    def begins(self) -> dict[int, int]:
        """From where on the transaction log has to be read, by its partitions."""
        return {partition: begin for partition, (begin, _) in self.log.items()}

    def sought(self, key: ReadKey, end: int) -> MarkersSought:
        """The markers of a read, up to an end, that this session matches once more, or has to match
        first."""
        matched_to = self.reads.get(key, 0)
        pending = [offset for source, (offset, _) in self.pending.items() if source[:2] == key]
        opened = frozenset(source[2] for source in self.opened if source[:2] == key)
        begin = min([matched_to, *pending])
        return MarkersSought(begin, matched_to, end, None if self.is_look else opened)

    def encoded(self) -> bytes:
        return json.dumps(
            {
                "form": _FORM,
                "log": [[partition, *places] for partition, places in self.log.items()],
                "reads": [[*key, end] for key, end in self.reads.items()],
                "pending": [[*source, *place] for source, place in self.pending.items()],
                "expected": [[*source, place] for source, place in self.expected.items()],
                "opened": sorted(self.opened),
                "restless": sorted(self.restless),
                "is_look": self.is_look,
                "journals": sorted(self.journals),
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
        frozenset((journal, binding, producer) for journal, binding, producer in found["opened"]),
        frozenset(found["restless"]),
        found["is_look"],
        frozenset(found["journals"]),
    )
