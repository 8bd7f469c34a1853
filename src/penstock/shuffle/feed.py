"""Feeds: what a shuffled read reads, and how. Pure.

A feed is a named list of bindings. Each reads one collection, or a part of it, by a key, with a
priority and a delay. Bindings of the same priority and delay make a cohort: a transaction over
several of its journals is delivered whole. Bindings of the same priority share a lane: a higher
one is read first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.journal.sources import Source

BINDINGS_MAX: Final = 4_096
"""Each has stages of its own in every connection (`transport.frames.STAGES_MAX`)."""
LANES_MAX: Final = 16
"""Each priority is a lane, with streams of its own between all members."""
PRIORITY_MAX: Final = 2**31 - 1
READ_DELAY_SECONDS_MAX: Final = 100 * 365 * 86_400
"""A hundred years. Clocks end in 5236, and a key is a clock and the delay."""
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def feed_name_of(collection: str) -> str:
    """Of a feed that reads nothing else. Topics may have names that feeds may not."""
    return collection.lstrip("._-")[:100] or "feed"


class BindingError(ConfigurationError):
    """A setting of a binding is wrong. `place` is the binding's, or None for the feed itself."""

    def __init__(self, place: int | None, setting: str, problem: str) -> None:
        super().__init__(place, setting, problem)
        self.place = place
        self.setting = setting
        self.problem = problem

    def __str__(self) -> str:
        where = "the feed" if self.place is None else f"binding {self.place}"
        return f"{where}: {self.setting}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Binding:
    """One way of reading a collection."""

    collection: str
    key: tuple[str, ...] = ()
    """The columns that say which member a document goes to. Empty: the collection's own key."""
    partitions: str = ""
    """Which partitions to read, as `region=eu,!tier=2`. Empty: all."""
    priority: int = 0
    """Documents of a higher one are read, and delivered, before those of a lower."""
    read_delay_seconds: float = 0.0
    """Documents are held back until they are that old, and ordered as if written so much later."""
    not_before: datetime | None = None
    """Documents written earlier are passed over."""
    not_after: datetime | None = None
    """Documents written later are passed over."""
    source: Source | None = None
    """Where the collection is, and how its rows become documents, until the feed is resolved
    (`feed_sources.py`). None: in the reader's own store, as they are there."""


@dataclass(frozen=True, slots=True)
class Feed:
    name: str
    bindings: tuple[Binding, ...]

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise BindingError(
                None,
                "name",
                f"{self.name!r} is not one: up to 100 letters, digits, dots, hyphens and "
                "underscores, the first a letter or digit",
            )
        if not self.bindings:
            raise BindingError(None, "binding", "there is none; a feed reads at least one")
        if len(self.bindings) > BINDINGS_MAX:
            raise BindingError(
                None, "binding", f"{len(self.bindings)} are more than {BINDINGS_MAX}"
            )
        for place, binding in enumerate(self.bindings):
            _check(place, binding)
        if len(self.lanes) > LANES_MAX:
            raise BindingError(
                None,
                "priority",
                f"{len(self.lanes)} different ones are more than {LANES_MAX}: each has streams of "
                "its own between all members",
            )

    @property
    def lanes(self) -> tuple[int, ...]:
        """The priorities there are, the highest first. A lane is known by its place in here."""
        return tuple(sorted({binding.priority for binding in self.bindings}, reverse=True))

    @property
    def cohorts(self) -> tuple[int, ...]:
        """The cohort of each binding, numbered in the order of their first bindings."""
        numbers: dict[tuple[int, float], int] = {}
        return tuple(
            numbers.setdefault((binding.priority, binding.read_delay_seconds), len(numbers))
            for binding in self.bindings
        )

    def lane_of(self, place: int) -> int:
        return self.lanes.index(self.bindings[place].priority)


def _check(place: int, binding: Binding) -> None:
    if not binding.collection:
        raise BindingError(place, "collection", "it is empty; name the collection to read")
    for column in binding.key:
        if not column or binding.key.count(column) > 1:
            raise BindingError(
                place, "key", f"{list(binding.key)} has a column twice, or an empty one"
            )
    if not -PRIORITY_MAX - 1 <= binding.priority <= PRIORITY_MAX:
        raise BindingError(place, "priority", f"{binding.priority} is not a 32-bit number")
    delay = binding.read_delay_seconds
    if not math.isfinite(delay) or delay < 0:
        raise BindingError(place, "read_delay", f"{delay:g} seconds is not a time to wait")
    if delay > READ_DELAY_SECONDS_MAX:
        raise BindingError(
            place, "read_delay", f"{delay:g} seconds is longer than {READ_DELAY_SECONDS_MAX}"
        )
    for setting in ("not_before", "not_after"):
        moment = getattr(binding, setting)
        if moment is not None and moment.tzinfo is None:
            raise BindingError(
                place, setting, f"{moment.isoformat()} has no time zone; write ...Z for UTC"
            )
    if (
        binding.not_before is not None
        and binding.not_after is not None
        and binding.not_before > binding.not_after
    ):
        raise BindingError(
            place,
            "not_after",
            f"{binding.not_after.isoformat()} is before not_before, "
            f"{binding.not_before.isoformat()}: nothing would be read",
        )
