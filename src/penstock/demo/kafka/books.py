"""What a reader finds in its batches: whether each has whole transfers only. Pure.

A posting says how many its transfer has. So a batch can be judged by itself, whoever read it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Page:
    """The books of one batch."""

    found: Mapping[str, int]
    """How many postings of each transfer it has."""
    expected: Mapping[str, int]
    """And how many the transfer has."""
    cents: int
    """What all its postings add up to."""

    @property
    def postings(self) -> int:
        return sum(self.found.values())

    @property
    def transfers(self) -> frozenset[str]:
        return frozenset(self.found)

    @property
    def torn(self) -> frozenset[str]:
        """Transfers of which it has some postings, and not all of them."""
        return frozenset(name for name, count in self.found.items() if count < self.expected[name])

    @property
    def repeated(self) -> frozenset[str]:
        """Transfers of which it has more postings than there are."""
        return frozenset(name for name, count in self.found.items() if count > self.expected[name])

    @property
    def is_whole(self) -> bool:
        return not self.torn and not self.repeated


def page_of(values: Iterable[bytes]) -> Page:
    found: Counter[str] = Counter()
    expected: dict[str, int] = {}
    cents = 0
    for value in values:
        posting = json.loads(value)
        found[posting["transfer"]] += 1
        expected[posting["transfer"]] = posting["postings"]
        cents += posting["cents"]
    return Page(found, expected, cents)


@dataclass(slots=True)
class Books:
    """Of one reader, batch after batch."""

    batches: int = 0
    postings: int = 0
    torn_batches: int = 0
    unbalanced_batches: int = 0
    transfers: set[str] = field(default_factory=set)
    """All of which every posting has come."""
    repeated: set[str] = field(default_factory=set)
    """Of these there came more postings than there are."""
    _missing: dict[str, int] = field(default_factory=dict)

    def add(self, page: Page) -> frozenset[str]:
        """The transfers of which all postings have come with this one. A batch without postings
        counts for nothing."""
        if not page.postings:
            return frozenset()
        self.batches += 1
        self.postings += page.postings
        self.torn_batches += bool(page.torn)
        self.unbalanced_batches += page.cents != 0
        self.repeated |= self.transfers & page.transfers
        for name, count in page.found.items():
            left = self._missing.get(name, page.expected[name]) - count
            self._missing[name] = left
            if left < 0:
                self.repeated.add(name)
        completed = frozenset(
            name for name in page.transfers - self.transfers if self._missing[name] <= 0
        )
        self.transfers |= completed
        return completed
