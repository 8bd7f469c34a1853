"""The numbers that the checkpoint pipeline compares where offsets do not compare. Pure.

A transaction's number is its place in the transaction log, doubled; see `matching.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.transaction_log import Marker
    from penstock.shuffle.session.ledger import ReadKey
    from penstock.shuffle.session.remembered import Source

RESUMED: Final = CLOCK_FLOOR + 1
"""The number of all that a session resumes from: below that of every transaction."""
_FIRST: Final = 16


def number_of(place: int) -> int:
    """Of a transaction that the log has at this place; -1 is before all of them."""
    return 2 * (place + 1) + _FIRST


def place_of(number: int) -> int:
    """The inverse of `number_of`."""
    return (number - _FIRST) // 2 - 1


def source_of(marker: Marker) -> Source:
    return marker.journal, marker.binding, marker.producer


def raise_to(numbers: dict[Source, int], source: Source, number: int) -> None:
    numbers[source] = max(number, numbers.get(source, CLOCK_NONE))


def hinted(hints: Mapping[Source, int]) -> Frontier:
    entries: dict[ReadKey, list[ProducerFrontier]] = {}
    for (journal, binding, producer), number in hints.items():
        hint = ProducerFrontier(Producer.from_int64(producer), CLOCK_NONE, number)
        entries.setdefault((journal, binding), []).append(hint)
    return Frontier.of(
        JournalFrontier(*key, tuple(sorted(own, key=lambda entry: entry.producer)))
        for key, own in sorted(entries.items())
    )
